"""A process of a Hydra launcher: MPICH's mpiexec or Intel MPI's.

Rank and sizes are stated. MPICH sets no variable that names the node or the head. Both are on the command
line of the proxy that started us, which is one of our ancestors: ``--proxy-id N`` and
``--control-port HEAD:PORT``. PMI_FD is a live socket; we do not touch it.

Source: captured with MPICH 4.3.2 and 5.0.2, Intel MPI 2021.13.1.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, parse_host_port, parse_int
from launcher.core.model import Fact, Trust
from launcher.core.mpi import HYDRA
from launcher.sources.reader import Reader

RANK, RANK_OVER_PORT = HYDRA.rank
NODE_IDS = ("HYDRA_BSTRAP_NODE_ID", "HYDRA_BSTRAP_PROXY_ID")  # Intel MPI, undocumented
PROXY_NAMES = ("hydra_pmi_proxy",)
NODE_OPTION = "--proxy-id"
HEAD_OPTION = "--control-port"  # MPICH only: Intel's proxies form a tree, so upstream is not the head


def read(reader: Reader) -> None:
    """Claim rank and sizes, the node from Intel's variable or the proxy, and the head from the proxy."""
    if not (reader.has(HYDRA.local_rank) or reader.has(HYDRA.local_size)) and reader.has("SLURM_STEP_ID"):
        reader.claim_process(HYDRA.numbers()[:2])  # srun --mpi=pmi2: `slurm` reads the rest
        return
    rank = reader.claim_process(HYDRA.numbers())[0]
    if not reader.has(RANK):
        rank = reader.claim_int(Fact.RANK, RANK_OVER_PORT)
    if reader.has(RANK_OVER_PORT) and not reader.has(HYDRA.size):
        what = f"{RANK_OVER_PORT} without {HYDRA.size}"
        reader.note(f"{what}: mpiexec -pmi-port does not pass the size; start without it")
    proxy = reader.find_ancestor(*PROXY_NAMES)
    node = _read_node(reader, proxy)
    _read_head(reader, proxy, is_first=0 in (node, rank))


def _read_node(reader: Reader, proxy: tuple[str, ...]) -> int | None:
    for node in reader.claim_numbers(((Fact.NODE_RANK, name) for name in NODE_IDS), Trust.DERIVED):
        if node is not None:
            return node
    try:
        node = parse_int(_find_value(proxy, NODE_OPTION))
    except Malformed:
        return None
    reader.claim(Fact.NODE_RANK, node, f"{NODE_OPTION} {node} of the parent {proxy[0]}", Trust.DERIVED)
    return node


def _read_head(reader: Reader, proxy: tuple[str, ...], *, is_first: bool) -> None:
    # mpiexec runs on the node of rank 0 unless the host list begins with another one. Only node 0 can see
    # that, and must not claim a master: then it stops, and the others do not wait for a wrong address.
    text = _find_value(proxy, HEAD_OPTION)
    try:
        head = parse_host_port(text)[0]
    except Malformed:
        return
    if is_first and head not in reader.host.own_addresses():
        reader.note(f"mpiexec runs on {head}, which is not this node of rank 0: not the master")
        return
    reader.claim(Fact.MASTER_ADDR, head, f"{HEAD_OPTION} {text} of the parent {proxy[0]}", Trust.INDIRECT)


def _find_value(line: tuple[str, ...], option: str) -> str:
    """Return the value after an option on a command line; empty if there is none."""
    return line[line.index(option) + 1] if option in line[:-1] else ""
