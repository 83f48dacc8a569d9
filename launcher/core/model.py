"""The vocabulary: what the launcher knows about a job, as frozen values.

The life of a job is a chain of these types, one function per arrow (see `launcher.planning.plan`)::

    environment -> Evidence (one per source) -> Allocation -> Topology -> Plan

Readers look types up here, and every part of the launcher uses them. What concerns only a launcher that stays
is in `launcher.core.supervision`.

Nothing here reads the machine or the environment. ``__post_init__`` checks the invariants. A mistake of the
*user* is reported as a `Problem` before such a value is made, so a `ValueError` from this module is a bug in
the launcher.
"""

from __future__ import annotations

from launcher.core.frozen import Enum, IntEnum, frozen
from launcher.core.supervision import Network, Route, Supervision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.errors import Problem


class Scope(Enum):
    """How often the launcher was started: once per node, or once per process of the job."""

    NODE = "node"
    PROCESS = "process"


class Mode(Enum):
    """How the plan is carried out: exec the only process, or start processes and wait."""

    EXEC = "exec"
    SUPERVISE = "supervise"


class Policy(Enum):
    """Whether a setting replaces an existing value."""

    ALWAYS = "always"
    IF_UNSET = "if-unset"


class Fact(Enum):
    """A fact that a source can know about a job."""

    RANK = "rank"
    WORLD_SIZE = "world_size"
    LOCAL_RANK = "local_rank"
    LOCAL_SIZE = "local_size"
    NODE_RANK = "node_rank"
    NODE_COUNT = "node_count"
    NODE_RANGE = "node_range"
    PROCESSES_PER_NODE = "processes_per_node"
    HOSTS = "hosts"
    MASTER_ADDR = "master_addr"
    MASTER_PORT = "master_port"


class Trust(IntEnum):
    """Origin of a claim; of several claims the one with the lowest number wins.

    Within one level the inner source (nearer to the process) wins. Two `STATED` claims that differ on a fact
    of identity are a contradiction, and neither wins.
    """

    ASKED = 0
    """The user gave it: a flag or its LAUNCHER_* variable."""
    STATED = 1
    """A variable says exactly this."""
    DERIVED = 2
    """Follows from variables, e.g. the first entry of a host list."""
    INDIRECT = 3
    """Follows from what is usually true, e.g. rank 0 runs where mpirun runs."""


Value = int | str | tuple[str, ...]


@frozen
class Claim:
    """One fact, as one source knows it. ``origin`` reads e.g. ``OMPI_COMM_WORLD_RANK='3'``."""

    fact: Fact
    value: Value
    origin: str
    source: str
    trust: Trust = Trust.STATED

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of a claim on them; none of another."""
        return self.value if isinstance(self.value, tuple) else ()


@frozen
class Lost:
    """A claim that did not win, and why."""

    claim: Claim
    why: str


@frozen
class Decided:
    """A decided fact: the winning claim with its value, and the claims that lost."""

    claim: Claim
    lost: tuple[Lost, ...] = ()


@frozen
class Evidence:
    """All that one source knows about this job.

    Attributes:
        source: Name of the source, e.g. ``"open_mpi"``.
        claims: The facts that it knows, at most one claim per fact and trust.
        starts: What this source starts: `Scope.NODE` for one launcher per node, `Scope.PROCESS` for one per
            process; None if it can be either (mpirun, srun).
        seals: The source gives the whole identity of the process; claims of sources outside of it are not
            about this process (a torchrun worker on a Slurm node: SLURM_PROCID is the agent's).
        signs: Variables that hint at several nodes without saying which one this is, each with
            a fix: ``("SLURM_JOB_NUM_NODES='2'", "srun launcher run ...")``.
        problems: Malformed or missing variables.
        notes: Sentences for ``launcher plan``.
        task: Name of this process if it is a process of the job without a rank: ``"ps 0"``.
        in_order: Whether nodes are numbered in the order of their lowest ranks, and local ranks in that of
            ranks. mpirun's daemons are not if an idle head or another order of hosts comes first, and its
            local ranks are not if it places processes by NUMA node.
        even: Whether every node of its count has the same number of processes.
        most_nodes: Number of nodes of the allocation, which the job's processes cannot leave and need not
            use completely; None if unknown.
        lone: A user or an image may have set its world size of 1, so that it does not refute a sign of
            several nodes.
        least: The index of this node in a part of the job, or in its allocation: its node_rank is no lower.
        forwards: Variables that processes on all nodes have from this starter; it keeps others to its own
            node. A star at the end stands for any text. None for all variables.
        several: Origins of statements that there are several nodes, beside the claims.
    """

    source: str
    claims: tuple[Claim, ...] = ()
    starts: Scope | None = None
    seals: bool = False
    signs: tuple[tuple[str, str], ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    task: str = ""
    in_order: bool = True
    even: bool = False
    most_nodes: int | None = None
    lone: bool = False
    forwards: tuple[str, ...] | None = None
    least: Claim | None = None
    several: tuple[str, ...] = ()


@frozen
class Allocation:
    """What the platform gave us: how many nodes or processes, and which one we are.

    At `Scope.NODE` node_rank and node_count are known and the four process values are None. At
    `Scope.PROCESS` rank, world_size and local_rank are known; local_size, node_rank and node_count
    are None if no source states or proves them. They are then not published, and never guessed.

    ``ranks_at_start``: the ranks are assigned when the processes start, by a rendezvous or by a
    launcher that the command names. Then node_rank and node_count may be unknown at `Scope.NODE`, and
    master_addr is empty if the rendezvous is a separate server (etcd). ``node_range``: (least, most) nodes
    of an elastic job. ``task``: name of this process if it is a process of the job without a rank; then all
    other values may be unknown. ``spare``: index of this node among all nodes, if it is a spare one; then
    node_rank is that of a node whose place it might take. ``index``: index of this node among all nodes if
    some of them are spare. ``spare_hosts``: the listed hosts of the nodes without a rank.
    """

    source: str
    scope: Scope
    master_addr: str
    master_port: int
    node_rank: int | None
    node_count: int | None
    hosts: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    ranks_at_start: bool = False
    node_range: tuple[int, int] | None = None
    task: str = ""
    spare: int | None = None
    spare_hosts: tuple[str, ...] = ()
    index: int | None = None

    def __post_init__(self) -> None:
        if self.task:
            return
        if self.scope is Scope.NODE:
            known = self.ranks_at_start or (self.node_rank is not None and self.node_count is not None)
            if not known or self.rank is not None or self.local_rank is not None:
                raise ValueError(f"a node allocation needs node_rank and node_count only: {self}")
        elif self.rank is None or self.world_size is None or self.local_rank is None:
            raise ValueError(f"a process allocation needs rank, world_size, local_rank: {self}")


@frozen
class Place:
    """Ranks of one process: ``rank`` in the job, ``local_rank`` on its node."""

    rank: int
    local_rank: int


@frozen
class Topology:
    """The shape of the job, seen from this launcher.

    Attributes:
        world_size: Number of processes in the job, None if it is determined at the start.
        node_count: Number of nodes, None if unknown (see `Allocation`).
        node_rank: Index of this node, None if unknown.
        local_size: Number of processes on this node, None if unknown.
        master_addr: Host of the rendezvous: a name, an IPv4 or a bare IPv6 address; empty if the
            rendezvous is a separate server.
        master_port: Port of the rendezvous, 1..65535.
        places: The processes of this launcher: one at PROCESS scope, all of the node at
            NODE scope, none if the ranks are assigned at the start.
    """

    world_size: int | None
    node_count: int | None
    node_rank: int | None
    local_size: int | None
    master_addr: str
    master_port: int
    places: tuple[Place, ...]

    def __post_init__(self) -> None:
        for place in self.places:
            if self.world_size is None or not 0 <= place.rank < self.world_size:
                raise ValueError(f"rank {place.rank} outside a world of {self.world_size}")
            if self.local_size is not None and not 0 <= place.local_rank < self.local_size:
                raise ValueError(f"local rank {place.local_rank} of {self.local_size}")

    @property
    def spans_nodes(self) -> bool:
        """Whether the job has several nodes, or may have."""
        if self.node_count is not None:
            return self.node_count > 1
        return self.world_size is None or self.world_size > (self.local_size or 1)

    @property
    def rank(self) -> int:
        """Rank of the only process; for `launcher.setup`, which has exactly one."""
        (place,) = self.places
        return place.rank

    @property
    def local_rank(self) -> int:
        """Local rank of the only process."""
        (place,) = self.places
        return place.local_rank


@frozen
class Setting:
    """A variable that a process gets: its value, the reason, and its policy for an existing value."""

    name: str
    value: str
    origin: str
    policy: Policy = Policy.ALWAYS


AMD_GPU, INTEGRATED_XPU = "amd", "integrated xpu"
"""Kinds of accelerators without a count word of their own: ``gpu`` and ``xpu`` include them."""
OTHER_KINDS = ("xpu", "hpu", "npu", "mlu", "musa")
COUNT_WORDS = ("auto", "cpu", "gpu", "cuda", *OTHER_KINDS)
"""Words for one process per device of a kind."""


@frozen
class Machine:
    """The devices and CPUs of this node that planning needs.

    Attributes:
        gpu_count: GPUs that a process here can see, None if unknown (a replay without GPUs).
        cpu_count: CPUs that the cgroup grants, None if unknown.
        bound_cpu_count: CPUs in our own affinity mask, None if unknown.
        has_others: Whether device files show an accelerator that is not NVIDIA's.
        accelerators: (kind, number that a process here can see or None if unknown) of accelerators that are
            not NVIDIA's, first the kind that ``auto`` means; read only if a word sets the process count.
    """

    gpu_count: int | None = None
    cpu_count: int | None = None
    bound_cpu_count: int | None = None
    has_others: bool = False
    accelerators: tuple[tuple[str, int | None], ...] = ()


@frozen
class Core:
    """A physical core: its selected CPUs (hardware threads), and its NUMA node if known."""

    cpus: tuple[int, ...]
    node: int | None = None


@frozen
class Gpu:
    """A GPU that is exposed to us: its PCI address, NUMA node and UUID, if known."""

    address: str
    node: int | None = None
    uuid: str | None = None


@frozen
class Layout:
    """Topology of CPUs and GPUs; read only if processes are to be bound.

    Attributes:
        own: CPUs in our own affinity mask, ascending.
        cpuset: CPUs that the cgroup admits, ascending; empty if unknown.
        cores: Physical cores of these CPUs, in the order of NUMA nodes; empty if unknown.
        gpus: The exposed GPUs in CUDA's order; empty if unknown.
    """

    own: tuple[int, ...] = ()
    cpuset: tuple[int, ...] = ()
    cores: tuple[Core, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@frozen
class Binding:
    """The cores of each process.

    Attributes:
        mode: The chosen mode: ``"numa"``, ``"core"`` or ``"none"``.
        shares: Cores by local rank; empty with ``"none"``.
        cpu_count: Number of CPUs that were divided.
        notes: Why the mode differs from the requested one.
    """

    mode: str = "none"
    shares: tuple[tuple[Core, ...], ...] = ()
    cpu_count: int = 0
    notes: tuple[str, ...] = ()

    def cpus(self, local_rank: int) -> tuple[int, ...] | None:
        """Return the CPUs of one process, ascending; None if it is not bound."""
        if local_rank >= len(self.shares):
            return None
        return tuple(sorted(cpu for core in self.shares[local_rank] for cpu in core.cpus))

    def threads(self, local_rank: int, granted: int | None) -> int | None:
        """Return the number of compute threads of one process: one per core, within the CPU quota."""
        if local_rank >= len(self.shares):
            return None
        count = len(self.shares[local_rank])
        if granted is not None and granted < self.cpu_count:
            count = count * granted // self.cpu_count
        return max(1, count)


@frozen
class PlannedProcess:
    """One process to run: its place, its command line, its own settings, its CPUs (None: not bound)."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    settings: tuple[Setting, ...]
    cpus: tuple[int, ...] | None = None


@frozen
class Fleet:
    """The nodes of a job that mpirun starts, and how the head reaches them.

    Attributes:
        hosts: Their names or addresses, node 0 first.
        per_node: Number of ranks on each node.
        address: Our own address in their network; empty on a single node.
        ports: Ports at which the head may listen for the others; it takes the first free one.
        token_file: File with the job's token; empty for that of the variable.
        index: Our node rank; None if it is unknown.
        timeout_s: Time limit for their answer.
        forward: Names of the head's variables that are passed to the ranks.
        restored: Names of forwarded variables that mpirun changes and that we restore for the ranks.
    """

    hosts: tuple[str, ...]
    per_node: int
    address: str = ""
    ports: tuple[int, ...] = ()
    token_file: str = ""
    index: int | None = None
    timeout_s: float = 900.0
    forward: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@frozen
class NodeCommand:
    """One command, run once per node, that starts the processes of the node itself.

    Attributes:
        engine: Its name, e.g. ``"torchrun"``.
        argv: Its command line; empty if there is no command.
        settings: Variables that it gets.
        unset: Names that it does not inherit, sorted.
        files: Files that it reads: the word in ``argv`` that stands for a file, and the file's text.
        fleet: The nodes if the agent is mpirun, DeepSpeed's autotuner, or a node that serves them; else None.
    """

    engine: str
    argv: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    unset: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    fleet: Fleet | None = None


PROCESS, TORCHRUN, MPIRUN = "process", "torchrun", "mpirun"
"""Engines: what starts the processes."""
DEFAULT_PORT = 6105
"""Rendezvous port of a job that names none and cannot take a free one (several nodes or processes)."""


@frozen
class Companion:
    """A process without a rank beside the ranks: a parameter server, an evaluator, a rendezvous server.

    It starts before the ranks of its node and ends after those of all nodes. Its exit matters only
    while ranks of its node run.

    Attributes:
        name: Its name in messages and plans, e.g. ``"ps 0"``.
        argv: Its command line.
        settings: All variables that it gets; it does not get those that the ranks share.
        unset: Names that it does not inherit, sorted: those that describe a rank.
        finishes: Whether it exits by itself after the ranks, within the grace period; otherwise it is stopped
            as soon as they have exited.
        route: Destination of its output.
        serves: Whether it is a program of ours: it gets only signals that ask for the end.
    """

    name: str
    argv: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    unset: tuple[str, ...] = ()
    finishes: bool = False
    route: Route = Route()
    serves: bool = False


@frozen
class Meeting:
    """Address exchange of a job's launchers, for frameworks that need the addresses of all nodes.

    Attributes:
        address: The master's address, at which the first launcher listens.
        port: The master's port.
        member: Index of this launcher; 0 is the first one.
        member_count: Number of launchers.
        node: Index of this node.
        node_count: Number of nodes.
        timeout_s: Time limit of the exchange.
        token_file: Path of the job's token; empty for the variable's token, or none.
        at_start: Whether the launchers have a control channel, whose start signals have the addresses.
    """

    address: str
    port: int
    member: int
    member_count: int
    node: int
    node_count: int
    timeout_s: float
    token_file: str = ""
    at_start: bool = False


NODE, RANK = "node", "rank"


@frozen
class Peers:
    """Control channel between the launchers of a job with several nodes.

    Attributes:
        ports: Candidate ports of node 0, which listens at the first free one.
        token_file: Path of the job's token; empty for the variable's token, or none.
        has_token: Whether the job has a token.
        timeout_s: Time limit of the roll call.
        lost_after_s: Seconds of silence after which a node is lost.
        keep_going: Whether a failure or a lost node is only reported and stops no other node.
        member: Unit with its own launcher: `NODE` or `RANK`.
        spare_count: Number of nodes that wait to take the place of a lost one.
        index: Index of this node among all nodes, with the spare ones; its rank unless it is or was one.
    """

    ports: tuple[int, ...]
    token_file: str = ""
    has_token: bool = False
    timeout_s: float = 900.0
    lost_after_s: float = 10.0
    keep_going: bool = False
    member: str = NODE
    spare_count: int = 0
    index: int = 0


@frozen
class Plan:
    """Everything that will happen, decided before anything happens.

    Attributes:
        allocation: The allocation that the platform gave us.
        topology: The shape of the job.
        machine: The devices and CPUs of this node.
        engine: Starter of the processes: ``"process"`` (the launcher), ``"torchrun"``, or the name of
            the launcher that the command is.
        agent: The command that starts the processes, None if the launcher does.
        mode: Exec the command (or the agent), or start one process per place and wait.
        processes: The ranks of this node. With an agent: the processes that it will start, none if they
            are not known before.
        companions: The processes beside them. If mode is `Mode.EXEC` and there is no agent, the plan has
            exactly one process or one companion.
        ports: Ports on which processes of this node will listen, and their names: they must be free.
        meeting: Address exchange before the start, after which the job is planned again; None for none.
        settings: Variables that all processes share.
        unset: Names that no process inherits, sorted.
        widen_cpus: Whether processes may leave the CPUs that mpirun bound the launcher to.
        bind: How their CPUs were chosen: ``"numa"``, ``"core"``, or ``"none"`` if they are not bound.
        supervision: How the processes are watched if mode is `Mode.SUPERVISE`.
        network: The network between this node and the others; None if it was not examined.
        peers: Control channel between the launchers of all nodes; None without one.
        findings: Each fact with its provenance, for ``launcher plan``.
        notes: Sentences for users: assumptions and unusual facts.
        warnings: Notes that are also printed at the start: the job may not be what the user meant.
        reads: Names of the variables that were read and are set, sorted.
        missing: The job's script if it does not exist on this machine; else empty.
    """

    allocation: Allocation
    topology: Topology
    machine: Machine
    mode: Mode
    processes: tuple[PlannedProcess, ...]
    settings: tuple[Setting, ...]
    engine: str = "process"
    agent: NodeCommand | None = None
    unset: tuple[str, ...] = ()
    widen_cpus: bool = False
    bind: str = "none"
    supervision: Supervision = Supervision()
    network: Network | None = None
    peers: Peers | None = None
    findings: tuple[Decided, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: str = ""
    reads: tuple[str, ...] = ()
    companions: tuple[Companion, ...] = ()
    ports: tuple[tuple[int, str], ...] = ()
    meeting: Meeting | None = None

    @property
    def takes_free_port(self) -> bool:
        """Whether the rendezvous takes any free port, because none was named."""
        return any(found.claim.fact is Fact.MASTER_PORT and found.claim.value == 0 for found in self.findings)

    def __post_init__(self) -> None:
        count = len(self.processes) + len(self.companions)
        wrong = not count or (self.mode is Mode.EXEC and count != 1)
        if self.agent is None and wrong:
            raise ValueError(f"{count} processes cannot run by {self.mode}")
