"""A process of Open MPI's mpirun (3, 4 and 5): rank and sizes are stated, the node must be derived.

``OMPI_COMM_WORLD_NODE_RANK`` is *not* a node rank: it is the rank on the node, over all jobs. The node's
index is that of the local daemon, the N in ``<job>.N;tcp://...``; daemon 0 is on mpirun's own node. If
mpirun's node runs no ranks (a Kubernetes MPIJob), the nodes of the job are 1..N instead. No variable says
which of the two it is, so a node rank is claimed only if the numbers leave one answer.

Source: orte/mca/schizo/ompi/schizo_ompi.c (v3.1, v4.1); openpmix src/mca/pmdl/ompi (v5); captured
with 4.1.4, 4.1.8 and 5.0.11.
"""

from __future__ import annotations

from itertools import pairwise

from launcher.core.environ import is_host, is_loopback
from launcher.core.frozen import frozen
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import OPEN_MPI, RANK_ON_NODE
from launcher.identity.topology import find_block, find_dealt, is_by_domain, list_places
from launcher.sources.reader import Reader

HOSTFILE = "OMPI_MCA_orte_default_hostfile"
NODE_COUNT = "OMPI_MCA_orte_num_nodes"  # nodes with ranks, v3 and v4 only
NODE_REGEX = "OMPI_MCA_orte_node_regex"  # nodes with daemons, v3 and v4, not set on mpirun's own node
HEAD_URI = "OMPI_MCA_orte_hnp_uri"  # v3 and v4 only
DAEMON_URIS = ("OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_URI2", "PMIX_SERVER_URI21")
NAMESPACE = "PMIX_NAMESPACE"
SAME_SIZE = "OMPI_WORLD_SIZE"  # v5 only
SCHEMES = ("tcp", "tcp6")
FORWARD_LIST = "OMPI_MCA_mca_base_env_list"
DAEMONS = ("orted", "prted")
DAEMON_COUNT = "ess_base_num_procs"  # on the command line of a daemon
STARTERS = ("mpirun", "mpiexec", "orterun", "prterun", "prun")

_DOCKER_BRIDGE = "172.17.0.1"  # docker0 has this address on every node, so it identifies none
_DIGITS_LIMIT = 8


def read(reader: Reader) -> None:
    """Claim rank and sizes as stated; derive node and master from mpirun's internal variables."""
    reader.in_order = False  # nodes are numbered as their daemons are, local ranks perhaps by NUMA node
    rank, size, local_rank, local_size = reader.claim_process(OPEN_MPI.numbers())
    if rank is None or size is None or local_rank is None or local_size is None:
        if reader.has(HOSTFILE):  # the launcher pod of an MPIJob is not a process of the job
            reader.sign(HOSTFILE, "start the launcher through mpirun: mpirun ... launcher run -- COMMAND")
        return
    reader.confirm(SAME_SIZE, size, OPEN_MPI.size)
    what = f"{reader.origin(OPEN_MPI.local_rank)}: expected no higher number"
    if reader.has(HEAD_URI) and rank < local_rank:  # versions 3 and 4 number both in one order
        reader.contradict(OPEN_MPI.rank[0], OPEN_MPI.local_rank, what)
    among_all = reader.integer(RANK_ON_NODE)
    if among_all is not None and among_all < local_rank:
        reader.contradict(RANK_ON_NODE, OPEN_MPI.local_rank, what)
    if not (local_rank < local_size <= size and rank < size):
        return  # an impossible place, which the checks report
    nodes = reader.claim_int(Fact.NODE_COUNT, NODE_COUNT, trust=Trust.DERIVED)
    daemon, origin = _read_daemon(reader)
    place = MpiPlace(rank, local_rank, size, local_size)
    if size != local_size:
        reader.forwards = _list_forwarded(reader)
    daemons = reader.most_nodes = _count_daemons(reader)
    node = _find_node(daemon, nodes, daemons, place)
    if node is not None:
        reader.claim(Fact.NODE_RANK, node, origin, Trust.DERIVED)
    is_beyond = nodes is None and daemon and rank not in (daemon, daemon - 1)
    if local_size == 1 and (nodes not in (None, size) or is_beyond):
        reader.starts = Scope.PROCESS  # others run several: starting one per GPU is not up to us
    if _is_master_elsewhere(daemon, node, nodes, place):
        reader.note("rank 0 does not run where mpirun runs: mpirun's address is not the master's")
    else:
        _read_master(reader, daemon)


def _read_daemon(reader: Reader) -> tuple[int | None, str]:
    # 3544449024.1;tcp://10.77.0.5,172.17.0.1:49373 or prterun-nodeA-2498@0.1;tcp4://127.0.0.1:57991
    for name in DAEMON_URIS:
        head, semicolon, _ = (reader.text(name) or "").partition(";")
        _, dot, index = head.rpartition(".")
        if semicolon and dot and _is_number(index):
            return int(index), name
    return None, ""


def _list_forwarded(reader: Reader) -> tuple[str, ...] | None:
    """Return the names of the variables that mpirun gives its processes on other nodes, as it shows here.

    None if all variables of this process are so: a daemon of mpirun has started it. Where neither is visible
    (a container for each process), nothing shows that mpirun forwards any, on no node.
    """
    line = reader.find_ancestor(*DAEMONS, *STARTERS)
    if line and line[0].endswith(DAEMONS):
        return None
    listed = (reader.text(FORWARD_LIST) or "").replace(",", ";").split(";")
    listed += [name for flag, name in pairwise(line) if flag in ("-x", "--x")]
    return tuple(name.partition("=")[0].strip() for name in listed)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_LIMIT


@frozen
class MpiPlace:
    """The place of a process: the four numbers that mpirun states."""

    rank: int
    local_rank: int
    size: int
    local_size: int

    def can_be_on(self, node: int, nodes: int | None) -> bool:
        """Whether this place can be on that node of a job of any shape, filled node by node or dealt in turn.

        ``nodes`` is the number of nodes; None if any number is possible.
        """
        first = self.rank - self.local_rank
        after, last = self.size - first - self.local_size, (nodes or node + 1) - 1
        if node > last:
            return False
        is_filled = first >= node and (first == 0) == (node == 0) and after >= last - node
        if is_filled and (nodes is None or (after == 0) == (node == last)):
            return True
        # In each turn, between one and all nodes get a rank; in the first one, all
        most = nodes or self.size - self.local_size + 1
        if self.local_rank == 0:
            return self.rank == node and last < most
        at_most = min(self.local_rank * most + node, self.local_rank + self.size - self.local_size)
        return last + self.local_rank <= self.rank <= at_most

    def dealt(self) -> int | None:
        """Return the node of this place if all nodes are full, dealt ranks in turn (--map-by node)."""
        return find_dealt(self.rank, self.local_rank, self.size // self.local_size)

    def is_shuffled(self) -> bool:
        """Whether local ranks are not in the order of ranks (version 5, --map-by numa), as far as we see."""
        of_rank = (self.rank, self.local_rank, self.local_size)
        return not list_places(*of_rank, self.size // self.local_size) and is_by_domain(*of_rank)


def _find_node(daemon: int | None, nodes: int | None, daemons: int | None, place: MpiPlace) -> int | None:
    """Return the index of this node among those with ranks; None if there are two possible answers.

    Args:
        daemon: Index of the local daemon.
        nodes: Number of nodes with ranks; None in version 5, which does not state it.
        daemons: Number of nodes with a daemon; None if unknown.
        place: The place of this process.
    """
    if daemon is None or (nodes is not None and nodes == daemons):
        return daemon
    if daemon == 0:
        # version 5 follows the order of --host, so rank 0 can be on another node
        return 0 if nodes is not None or place.local_rank == place.rank or place.dealt() == 0 else None
    # mpirun's own node may run no ranks, or in version 5 later ones
    others = 1 if nodes is None and daemons == 2 else nodes
    is_beside = place.can_be_on(daemon - 1, others)
    if place.can_be_on(daemon, nodes):
        return None if is_beside else daemon
    return daemon - 1 if is_beside and nodes is not None else None


def _is_master_elsewhere(daemon: int | None, node: int | None, nodes: int | None, place: MpiPlace) -> bool:
    """Whether rank 0 runs, or as far as we can see may run, on another node than mpirun."""
    if daemon is None:
        return False
    # An index beyond the number of nodes proves that another node has no ranks. If a process's rank is
    # its local rank, all lower ranks are on the same node, and so is rank 0
    if (nodes is not None and daemon >= nodes) or (daemon > 0 and place.rank == place.local_rank):
        return True
    if place.local_rank == 0 and (daemon == 0) != (place.rank == 0) and 0 in (daemon, place.rank):
        return True
    count, rest = divmod(place.size, place.local_size)
    block, dealt = find_block(place.rank, place.local_rank, place.local_size), place.dealt()
    if rest or nodes not in (None, count):
        return False  # not all nodes run as many processes as this one
    if daemon == 0:
        # versions 3 and 4 put mpirun's own node first; 5 follows the order of --host
        is_first = place.is_shuffled() and place.rank < place.local_size
        return nodes is None and 0 not in (block, dealt) and not is_first
    # A place dealt in turn can look like one in blocks beside an idle head. If the head is idle, rank 0 stops
    return node != daemon and block == daemon - 1 and dealt != daemon


def _count_daemons(reader: Reader) -> int | None:
    for name, number in pairwise(reader.find_ancestor(*DAEMONS, *STARTERS)):
        if name == DAEMON_COUNT and _is_number(number):
            return int(number)
    # node[1:0-2]@0(3): names, then the indices of their daemons, here three starting at 0
    items = (reader.text(NODE_REGEX) or "").rpartition("@")[2].split(",")
    pairs = [(item if "(" in item else f"{item}(1)").partition("(") for item in items]
    counts = [count[:-1] for first, _, count in pairs if _is_number(first) and count.endswith(")")]
    is_whole = len(counts) == len(items) and all(map(_is_number, counts))
    return sum(map(int, counts)) if is_whole else None


def _read_master(reader: Reader, daemon: int | None) -> None:
    # Rank 0 runs where mpirun runs unless it was placed elsewhere: indirect evidence, not a statement
    if reader.has(HEAD_URI):
        addresses, origin = _uri_hosts(reader.text(HEAD_URI) or ""), HEAD_URI
        host = next((a for a in addresses if not is_loopback(a) and a != _DOCKER_BRIDGE), "")
    else:
        host, origin = _namespace_host(reader.text(NAMESPACE) or ""), NAMESPACE
    if origin == HEAD_URI and daemon and host in _uri_hosts(reader.text(DAEMON_URIS[0]) or ""):
        reader.note(f"{HEAD_URI} begins with {host}, which this node has too: not the master's")
    elif is_host(host):
        reader.claim(Fact.MASTER_ADDR, host, origin, Trust.INDIRECT)


def _namespace_host(namespace: str) -> str:
    """Return mpirun's host, nodeA in ``prterun-nodeA-26578@1``; empty for another text."""
    body, _, job = namespace.rpartition("@")
    host, _, process = body.removeprefix("prterun-").rpartition("-")
    return host if body.startswith("prterun-") and _is_number(job) and _is_number(process) else ""


def _uri_hosts(uri: str) -> list[str]:
    """Return the hosts of ``4.0;tcp://10.77.0.5,172.17.0.1:49373;tcp6://[fe80::1]:49374``, in order."""
    found = []
    for item in uri.split(";")[1:]:
        scheme, _, rest = item.partition("://")
        group, _, port = rest.rpartition(":")
        found += group.strip("[]").split(",") if scheme in SCHEMES and _is_number(port) else []
    return [host for host in found if is_host(host)]
