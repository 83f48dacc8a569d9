"""A process of a Hydra launcher: MPICH's mpiexec or Intel MPI's.

Rank and sizes are stated. MPICH sets no variable that names the node or the head. Both are on the command
line of the proxy that started us, which is one of our ancestors: ``--proxy-id N`` and
``--control-port HEAD:PORT``. PMI_FD is a live socket; we do not touch it.

Source: captured with MPICH 4.3.2 and 5.0.2, Intel MPI 2021.13.1.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, Reader, parse_host_port, parse_int
from launcher.core.model import Fact, Trust
from launcher.core.mpi import HYDRA

RANK, RANK_OVER_PORT = HYDRA.rank
SIZE, LOCAL_RANK, LOCAL_SIZE = HYDRA.size, HYDRA.local_rank, HYDRA.local_size
NODE_IDS = ("HYDRA_BSTRAP_NODE_ID", "HYDRA_BSTRAP_PROXY_ID")  # Intel MPI, undocumented
PROXY_NAMES = ("hydra_pmi_proxy",)
NODE_OPTIONS = ("--proxy-id",)
HEAD_OPTIONS = ("--control-port",)  # MPICH only: Intel's proxies form a tree, so upstream is not the head


def read(reader: Reader) -> None:
    """Claim rank and sizes, the node from Intel's variable or the proxy, and the head from the proxy."""
    if not (reader.has(LOCAL_RANK) or reader.has(LOCAL_SIZE)) and reader.has("SLURM_STEP_ID"):
        reader.claim_int(Fact.RANK, RANK)  # srun --mpi=pmi2: `slurm` reads the rest
        reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
        return
    rank = reader.claim_int(Fact.RANK, RANK if reader.has(RANK) else RANK_OVER_PORT)
    reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
    reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK)
    reader.claim_int(Fact.LOCAL_SIZE, LOCAL_SIZE, 1)
    if reader.has(RANK_OVER_PORT) and not reader.has(SIZE):
        what = f"{RANK_OVER_PORT} without {SIZE}"
        reader.note(f"{what}: mpiexec -pmi-port does not tell the size; start without it")
    proxy = _proxy(reader)
    node = _read_node(reader, proxy)
    _read_head(reader, proxy, node, rank)


def _proxy(reader: Reader) -> tuple[str, ...]:
    """Return the command line of the Hydra proxy above this process; empty if none is visible."""
    for line in reader.host.ancestors():
        if line and line[0].rpartition("/")[2] in PROXY_NAMES:
            return line
    return ()


def _read_node(reader: Reader, proxy: tuple[str, ...]) -> int | None:
    nodes = [reader.claim_int(Fact.NODE_RANK, name, trust=Trust.DERIVED) for name in NODE_IDS]
    named = next((node for node in nodes if node is not None), None)
    if named is not None:
        return named
    text, option = _option(proxy, NODE_OPTIONS)
    try:
        node = parse_int(text)
    except Malformed:
        return None
    reader.claim(Fact.NODE_RANK, node, f"{option} {node} of the parent {proxy[0]}", Trust.DERIVED)
    return node


def _read_head(reader: Reader, proxy: tuple[str, ...], node: int | None, rank: int | None) -> None:
    # mpiexec runs on the node of rank 0 unless the host list begins with another one. Only node 0 can see
    # that, and must not claim a master: then it stops, and the others do not wait for a wrong address.
    text, option = _option(proxy, HEAD_OPTIONS)
    try:
        head = parse_host_port(text)[0]
    except Malformed:
        return
    if (node == 0 or rank == 0) and head not in reader.host.own_addresses():
        reader.note(f"mpiexec runs on {head}, which is not this node of rank 0: not the master")
        return
    reader.claim(Fact.MASTER_ADDR, head, f"{option} {text} of the parent {proxy[0]}", Trust.INDIRECT)


def _option(line: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, str]:
    """Return the value after one of these options on a command line, and the option; empty if none."""
    for name, value in zip(line, line[1:]):  # noqa: B905, RUF007 - itertools.pairwise is one more import
        if name in names:
            return value, name
    return "", ""
