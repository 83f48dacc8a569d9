"""A process of Open MPI's mpirun (3, 4 and 5): rank and sizes are stated, the node must be derived.

``OMPI_COMM_WORLD_NODE_RANK`` is *not* a node rank (it is the rank on the node, over all jobs). The
node is the index of the local daemon, 0 being mpirun's own: the N in ``<job>.N;tcp://...``. Where
mpirun's node runs no ranks (a Kubernetes MPIJob) the nodes of the job are 1..N instead.

Source: orte/mca/schizo/ompi/schizo_ompi.c (v3.1, v4.1); openpmix src/mca/pmdl/ompi (v5); captured
with 4.1.4, 4.1.8 and 5.0.11.
"""

from __future__ import annotations

import re

from launcher.environ import Malformed, Reader, is_loopback, parse_host
from launcher.model import Fact, Trust

RANK = "OMPI_COMM_WORLD_RANK"
SIZE = "OMPI_COMM_WORLD_SIZE"
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
HOSTFILE = "OMPI_MCA_orte_default_hostfile"
NODE_COUNT = "OMPI_MCA_orte_num_nodes"  # daemons, v3 and v4 only
HEAD_URI = "OMPI_MCA_orte_hnp_uri"  # v3 and v4 only
DAEMON_URIS = ("OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21")
NAMESPACE = "PMIX_NAMESPACE"

# 3544449024.1;tcp://10.77.0.5,172.17.0.1:49373 or prterun-nodeA-2498@0.1;tcp4://127.0.0.1:57991
_DAEMON = re.compile(r"[^;]*\.(\d{1,8});", re.ASCII)
_URI_HOSTS = re.compile(r"tcp6?://\[?([^/;]*?)\]?:\d+", re.ASCII)
# prterun-nodeA-26578@1, where nodeA is mpirun's host
_NAMESPACE = re.compile(r"prterun-(.+)-\d+@\d+\Z", re.ASCII)
_DOCKER_BRIDGE = "172.17.0.1"  # docker0: the same address on every node, so the address of none


def read(reader: Reader) -> None:
    """Rank and sizes as stated, node and master from what mpirun leaves for its own use."""
    rank = reader.claim_int(Fact.RANK, RANK)
    size = reader.claim_int(Fact.WORLD_SIZE, SIZE, 1)
    local_rank = reader.claim_int(Fact.LOCAL_RANK, LOCAL_RANK)
    local_size = reader.claim_int(Fact.LOCAL_SIZE, LOCAL_SIZE, 1)
    if rank is None or size is None or local_rank is None or local_size is None:
        _read_outside(reader)
        return
    in_blocks = size % local_size == 0 and rank % local_size == local_rank
    daemon, origin = _read_daemon(reader)
    first = _first_daemon(reader, daemon, size, local_size, rank // local_size if in_blocks else None)
    if daemon is not None:
        reader.claim(Fact.NODE_RANK, daemon - first, origin, Trust.DERIVED)
    daemons = reader.integer(NODE_COUNT, 1)
    if daemons is not None and daemons > first:
        reader.claim(Fact.NODE_COUNT, daemons - first, NODE_COUNT, Trust.DERIVED)
    if first == 0 and (rank > 0 or daemon in (0, None)):
        _read_master(reader, daemon)
    elif size > local_size:
        reader.note("mpirun runs on a node without ranks: its address is not the master's")


def _read_outside(reader: Reader) -> None:
    # The launcher pod of an MPIJob has a hostfile, but is not a process of the job
    if reader.has(HOSTFILE):
        reader.sign(HOSTFILE, "start the launcher through mpirun: mpirun ... launcher run -- COMMAND")


def _read_daemon(reader: Reader) -> tuple[int | None, str]:
    for name in DAEMON_URIS:
        match = _DAEMON.match(reader.text(name) or "")
        if match:
            return int(match[1]), name
    return None, ""


def _first_daemon(reader: Reader, daemon: int | None, size: int, local_size: int, block: int | None) -> int:
    """Return the index of the first daemon with ranks: 1 where mpirun's own node runs none."""
    if daemon is None or daemon == 0:
        return 0
    daemons = reader.integer(NODE_COUNT, 1)
    if daemons is not None and size % local_size == 0:
        return int(daemons == size // local_size + 1)
    return int(block is not None and daemon == block + 1)


def _read_master(reader: Reader, daemon: int | None) -> None:
    # Rank 0 runs where mpirun runs, unless somebody placed it elsewhere: circumstance, not statement
    uri = reader.text(HEAD_URI)
    if uri is not None:
        _claim_head_address(reader, uri, daemon)
        return
    match = _NAMESPACE.match(reader.text(NAMESPACE) or "")
    if match:
        _claim_head(reader, match[1], NAMESPACE)


def _claim_head_address(reader: Reader, uri: str, daemon: int | None) -> None:
    addresses = [host for group in _URI_HOSTS.findall(uri) for host in group.split(",")]
    usable = [a for a in addresses if not is_loopback(a) and a != _DOCKER_BRIDGE]
    if not usable:
        return
    own = reader.text(DAEMON_URIS[0]) or ""
    if daemon and usable[0] in {a for group in _URI_HOSTS.findall(own) for a in group.split(",")}:
        reader.note(f"{HEAD_URI} begins with {usable[0]}, which this node has too: not the master's")
        return
    _claim_head(reader, usable[0], HEAD_URI)


def _claim_head(reader: Reader, host: str, origin: str) -> None:
    try:
        reader.claim(Fact.MASTER_ADDR, parse_host(host), origin, Trust.INDIRECT)
    except Malformed as error:
        reader.malformed(origin, str(error))
