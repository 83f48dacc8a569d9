"""The vocabulary: what the launcher knows about a job, as frozen values.

The life of a job is a chain of these types, one function per arrow (see `launcher.planning.plan`)::

    environment -> Evidence (one per source) -> Allocation -> Topology -> Plan

It is one file, however long: a vocabulary is looked up, and every part of the launcher speaks all of it.

Nothing here reads the machine or the environment. Invariants are held by ``__post_init__``; what a
*user* can get wrong is reported as a `Problem` before such a value is made, so a `ValueError` from
this module is a bug in the launcher.
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.members import Enum, IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.errors import Problem


class Scope(Enum):
    """How often the launcher was started: once per node, or once per process of the job."""

    NODE = "node"
    PROCESS = "process"


class Mode(Enum):
    """How the plan is carried out: become the one process, or start several and wait."""

    EXEC = "exec"
    SUPERVISE = "supervise"


class Policy(Enum):
    """Whether a setting replaces a value that is there already."""

    ALWAYS = "always"
    IF_UNSET = "if-unset"


class Fact(Enum):
    """What a source can know about a job."""

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
    """How a claim came about; of several claims the one with the lowest number wins.

    Within one level the inner source (nearer to the process) goes first. Two `STATED` claims that
    differ on a fact of identity are a contradiction, not a contest.
    """

    ASKED = 0
    """The user typed it: a flag, or its LAUNCHER_* form."""
    STATED = 1
    """A variable says exactly this."""
    DERIVED = 2
    """Follows from what variables say, e.g. the first entry of a host list."""
    INDIRECT = 3
    """Follows from circumstance that usually holds, e.g. rank 0 runs where mpirun runs."""


Value = int | str | tuple[str, ...]


@frozen
class Claim:
    """One fact, as one source knows it. ``origin`` reads e.g. ``OMPI_COMM_WORLD_RANK='3'``."""

    fact: Fact
    value: Value
    origin: str
    source: str
    trust: Trust = Trust.STATED


@frozen
class Lost:
    """A claim that did not win, and why."""

    claim: Claim
    why: str


@frozen
class Finding:
    """A fact as decided: the value, the claim it came from, and the claims that lost."""

    claim: Claim
    lost: tuple[Lost, ...] = ()


@frozen
class Evidence:
    """All that one source knows about this job.

    Attributes:
        source: Name of the source, e.g. ``"open_mpi"``.
        claims: What it knows, at most one claim per fact and trust.
        starts: What this source starts, where that is certain: `Scope.NODE` for one launcher per
            node, `Scope.PROCESS` for one per process; None where it can be either (mpirun, srun).
        seals: The source gives the whole identity of the process; sources outside of it are not
            asked (a torchrun worker on a Slurm node: SLURM_PROCID is the agent's).
        signs: Variables that hint at several nodes without saying which one this is, each with
            what to do: ``("SLURM_JOB_NUM_NODES='2'", "srun launcher run ...")``.
        problems: What is malformed or missing in the variables it read.
        notes: Sentences for ``launcher plan``.
        task: What this process is called, if it is one of the job that has no rank: ``"ps 0"``.
        in_order: Nodes are numbered in the order of their lowest ranks. mpirun's daemons are not where an
            idle head or another order of hosts comes first.
        even: It starts as many processes on every node of its count.
        most_nodes: An allocation that the job's processes cannot leave has so many nodes; None if it does
            not say. The job need not use them all.
        lone: Its world of one can be a person's or an image's own: no answer to a sign of several nodes.
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


@frozen
class Allocation:
    """What the platform gave us: how many nodes or processes, and which one we are.

    At `Scope.NODE` node_rank and node_count are known and the four process values are None. At
    `Scope.PROCESS` rank, world_size and local_rank are known; local_size, node_rank and node_count
    are None where nothing states or proves them (they are then not published: never guessed).

    ``ranks_at_start``: the ranks are given out when the processes start, by a rendezvous or by a
    launcher that the command names; node_rank and node_count may then be unknown at `Scope.NODE`, and
    master_addr is empty where the nodes meet elsewhere (etcd). ``node_range``: (least, most) nodes of
    an elastic job. ``task``: what this process is called, if it is one of the job that has no rank; then
    nothing else of it need be known.
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
    """Where one process stands: ``rank`` in the job, ``local_rank`` on its node."""

    rank: int
    local_rank: int


@frozen
class Topology:
    """The shape of the job, seen from this launcher.

    Attributes:
        world_size: Number of processes in the job, None where that is found out at the start.
        node_count: Number of nodes, None if unknown (see `Allocation`).
        node_rank: Index of this node, None if unknown.
        local_size: Number of processes on this node, None if unknown.
        master_addr: Host of the rendezvous: a name, an IPv4 or a bare IPv6 address; empty where the
            nodes meet elsewhere.
        master_port: Port of the rendezvous, 1..65535.
        places: The processes this launcher stands for: one at PROCESS scope, all of the node at
            NODE scope, none where the ranks are given out at the start.
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
        """Rank of the only process; for `launcher.setup`, which knows exactly one."""
        (place,) = self.places
        return place.rank

    @property
    def local_rank(self) -> int:
        """Local rank of the only process."""
        (place,) = self.places
        return place.local_rank


@frozen
class Setting:
    """A variable that a process gets: value, the reason for it, and what yields to what."""

    name: str
    value: str
    origin: str
    policy: Policy = Policy.ALWAYS


AMD_GPU, INTEGRATED_XPU = "amd", "integrated xpu"
"""Kinds of accelerators that have no word of their own: ``gpu`` and ``xpu`` mean them, too."""
OTHER_KINDS = ("xpu", "hpu", "npu", "mlu", "musa")
ACCELERATORS = (AMD_GPU, *OTHER_KINDS, INTEGRATED_XPU)
"""Kinds that are not NVIDIA's."""
COUNT_WORDS = ("auto", "cpu", "gpu", "cuda", *OTHER_KINDS)
"""Words for as many processes per node as there are devices of a kind."""


@frozen
class Machine:
    """What this node has, as far as planning needs it.

    Attributes:
        gpu_count: GPUs that a process here can see, None if unknown (a replay without them).
        cpu_count: CPUs that the cgroup grants, None if unknown.
        bound_cpu_count: CPUs in our own affinity mask, None if unknown.
        has_others: Whether device files show an accelerator that is not NVIDIA's.
        accelerators: (kind, how many a process here can see, None where that cannot be told) of others than
            NVIDIA's, first the kind that ``auto`` means; read only where processes are counted by a word.
    """

    gpu_count: int | None = None
    cpu_count: int | None = None
    bound_cpu_count: int | None = None
    has_others: bool = False
    accelerators: tuple[tuple[str, int | None], ...] = ()


@frozen
class Core:
    """A physical core: those of its CPUs (hardware threads) that are meant, and its NUMA node if known."""

    cpus: tuple[int, ...]
    node: int | None = None


@frozen
class Gpu:
    """A GPU that is exposed to us: its PCI address, its NUMA node and its UUID, as far as known."""

    address: str
    node: int | None = None
    uuid: str | None = None


@frozen
class Layout:
    """How CPUs and GPUs hang together; read only where processes are to be bound.

    Attributes:
        own: CPUs in our own affinity mask, ascending.
        cpuset: CPUs that the cgroup admits, ascending; empty if unknown.
        cores: All of both, by physical core, in the order of NUMA nodes; empty if unknown.
        gpus: The exposed GPUs in the order in which CUDA counts them; empty if unknown.
    """

    own: tuple[int, ...] = ()
    cpuset: tuple[int, ...] = ()
    cores: tuple[Core, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@frozen
class Binding:
    """The cores of each process.

    Attributes:
        mode: What was done: ``"numa"``, ``"core"`` or ``"none"``.
        shares: By local rank; empty with ``"none"``.
        cpu_count: CPUs that were divided.
        notes: Why it is not what was asked for.
    """

    mode: str = "none"
    shares: tuple[tuple[Core, ...], ...] = ()
    cpu_count: int = 0
    notes: tuple[str, ...] = ()

    def cpus(self, local_rank: int) -> tuple[int, ...] | None:
        """Return the CPUs of one process, ascending; None if it is left alone."""
        if local_rank >= len(self.shares):
            return None
        return tuple(sorted(cpu for core in self.shares[local_rank] for cpu in core.cpus))

    def threads(self, local_rank: int, granted: int | None) -> int | None:
        """Return how many threads can compute at once in one process: one per core, within the quota."""
        if local_rank >= len(self.shares):
            return None
        count = len(self.shares[local_rank])
        if granted is not None and granted < self.cpu_count:
            count = count * granted // self.cpu_count
        return max(1, count)


@frozen
class Process:
    """One process to run: its place, its command line, its own settings, its CPUs (None: left alone)."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    settings: tuple[Setting, ...]
    cpus: tuple[int, ...] | None = None


@frozen
class Fleet:
    """The nodes of a job that mpirun starts, as its head reaches them.

    Attributes:
        hosts: Their names or addresses, node 0 first.
        per_node: Ranks on each.
        address: Our own address in their network; empty on a single node.
        ssh_port: Where sshd listens on them; 0 for where ssh expects it.
        ssh_key: Path of the job's keys; empty for the variable, or the user's own.
        has_key: Whether there are keys of the job.
        timeout_s: How long they may take to answer.
        forward: Names of the variables that the ranks get of the head's.
        restored: Names of those that mpirun changes on the way, and that ranks get as the head has them.
    """

    hosts: tuple[str, ...]
    per_node: int
    address: str = ""
    ssh_port: int = 0
    ssh_key: str = ""
    has_key: bool = False
    timeout_s: float = 900.0
    forward: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@frozen
class Agent:
    """One command, run once per node, that starts the processes of the node itself.

    Attributes:
        engine: Its name, e.g. ``"torchrun"``.
        argv: Its command line; empty if there is no command.
        settings: Variables that it gets.
        unset: Names that it does not inherit, sorted.
        files: Files that it reads: a word of ``argv``, and the text of the file that stands there.
        stays: Whether the launcher stays as its parent.
        fleet: The nodes, where it is mpirun, or what serves one.
    """

    engine: str
    argv: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    unset: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    stays: bool = False
    fleet: Fleet | None = None


@frozen
class Network:
    """How this node talks to the others of its job, as planned.

    Attributes:
        fabric: As ``--fabric`` names it.
        why: What shows it.
        port_count: Ports that NCCL should use; None for TCP, and where that is a plugin's affair.
        ports: Their names, ``"mlx5_ib0:1"``; empty also where the user's own list counts.
        files: What settings name by a word: the word, and the text of the file that stands there.
    """

    fabric: str
    why: str
    port_count: int | None = None
    ports: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()


@frozen
class Proof:
    """What NCCL's own word is compared with, where the launcher is to hear it.

    Attributes:
        network: What was planned.
        settings: Variables by which rank 0's NCCL is made to say it; which file it writes to is found at
            the start.
        required: Whether the job ends if it is another one: which flag says so; empty if it goes on.
    """

    network: Network
    settings: tuple[tuple[str, str], ...]
    required: str = ""


STDOUT, STDERR = 1, 2
"""Bits of a `Route`; torchrun's numbers for the standard streams, 3 is both."""


@frozen
class Route:
    """Where the output of one process goes: which streams to a file, which to our own output."""

    to_file: int = 0
    to_console: int = STDOUT | STDERR


@frozen
class Preemption:
    """A metadata service that is asked whether this machine is to be taken back.

    Attributes:
        service: ``"azure"``, ``"aws"`` or ``"gcp"``.
        why: The flag, or what the platform says of the machine.
        is_asked: Whether that was the user.
    """

    service: str
    why: str
    is_asked: bool = False


@frozen
class Contact:
    """That the processes of the job are to be seen connected to each other.

    Attributes:
        timeout_s: How long they may run without before that is said.
        required: Whether a job whose processes do not meet is a failure.
        spans_nodes: Whether they are to be connected to another node, too.
        of_agent: Whether they are the children of an agent, which is the only one that we start.
    """

    timeout_s: float
    required: bool = False
    spans_nodes: bool = False
    of_agent: bool = False


@frozen
class Supervision:
    """How processes are watched, stopped and reported, where the launcher stays.

    Attributes:
        grace_s: Seconds between SIGTERM and SIGKILL.
        signal_to: ``"leader"``: a signal goes to the process itself, to its children only after half
            of the grace; ``"group"``: to all of them at once.
        signal_map: Pairs of signal numbers: what arrives, what is sent instead.
        routes: Where the output goes, one per process.
        prefix: Whether lines begin with the rank.
        log_dir: Folder of log files, None for a temporary one (if anything goes to files).
        progress: Whether there is a status line; None where it depends on the terminal.
        stall_timeout_s: Silence that counts as a stall; 0 for never.
        on_stall: ``"report"`` or ``"stop"``.
        restarts: How often all processes are started again after a failure.
        failure_file: Where the failure record goes; None for where the platform looks.
        proof: What rank 0's NCCL is to say of its network; None where it is not asked for, or not here.
        preemption: The service that is asked whether this machine is taken back; None for none.
        metrics_port: Where metrics of this node are served; 0 for nowhere.
        metrics_towards: Node 0, in whose network that is; empty where there is one node.
        contact: Whether the processes are to meet; None where nothing is looked at.
    """

    grace_s: float = 30.0
    signal_to: str = "leader"
    signal_map: tuple[tuple[int, int], ...] = ()
    routes: tuple[Route, ...] = (Route(),)
    prefix: bool = False
    log_dir: str | None = None
    progress: bool | None = None
    stall_timeout_s: float = 0.0
    on_stall: str = "report"
    restarts: int = 0
    failure_file: str | None = None
    proof: Proof | None = None
    preemption: Preemption | None = None
    metrics_port: int = 0
    metrics_towards: str = ""
    contact: Contact | None = None


@frozen
class Companion:
    """A process beside the ranks that has none: a parameter server, an evaluator, a rendezvous server.

    It is started before the ranks of its node, ends when those of all nodes have, and its end counts only
    while ranks of its node run.

    Attributes:
        name: What it is called wherever it is spoken of, e.g. ``"ps 0"``.
        argv: Its command line.
        settings: All variables that it gets; those that the ranks share are not among them.
        unset: Names that it does not inherit, sorted: those that describe a rank.
        finishes: It ends by itself once the ranks have, and has the grace for that; else it is told
            to end as soon as they have.
        route: Where its output goes.
    """

    name: str
    argv: tuple[str, ...]
    settings: tuple[Setting, ...] = ()
    unset: tuple[str, ...] = ()
    finishes: bool = False
    route: Route = Route()


@frozen
class Meeting:
    """Where the launchers of a job tell each other their nodes' addresses: some frameworks need them all.

    Attributes:
        address: The master's: where the first launcher listens.
        port: The master's.
        member: Which launcher this is; 0 is the first one.
        member_count: How many there are.
        node: Index of this node.
        node_count: Number of nodes.
        timeout_s: How long they may take.
        token_file: Path of the job's token; empty for the variable, or none.
    """

    address: str
    port: int
    member: int
    member_count: int
    node: int
    node_count: int
    timeout_s: float
    token_file: str = ""


NODE, RANK = "node", "rank"


@frozen
class Peers:
    """How the launchers of a job of several nodes find each other.

    Attributes:
        ports: Where node 0 listens: the first that is free.
        token_file: Path of the job's token; empty for the variable, or none.
        has_token: Whether there is one.
        timeout_s: How long the nodes may take to come together.
        lost_after_s: Silence after which a node counts as lost.
        keep_going: Whether a failure or a lost node is only told, and stops no other node.
        member: What has a launcher: `NODE`, or each `RANK` by itself.
    """

    ports: tuple[int, ...]
    token_file: str = ""
    has_token: bool = False
    timeout_s: float = 900.0
    lost_after_s: float = 10.0
    keep_going: bool = False
    member: str = NODE


@frozen
class Plan:
    """Everything that will happen, decided before anything happens.

    Attributes:
        allocation: What the platform gave us.
        topology: The shape of the job.
        machine: What this node has.
        engine: What starts the processes: ``"process"`` (the launcher), ``"torchrun"``, or the name of
            the launcher that the command is.
        agent: What starts the processes, None where the launcher does.
        mode: Become the command (or the agent), or start one process per place and wait.
        processes: The ranks of this node. With an agent: what its processes will be, none where that
            is not known before.
        companions: The processes beside them. Where mode is `Mode.EXEC` and there is no agent, there is
            one process or one companion, and nothing else.
        ports: Ports on which processes of this node will listen, and their names: they must be free.
        meeting: What must come before the start, and before a second plan that knows the addresses.
        settings: Variables that all processes share.
        unset: Names that no process inherits, sorted.
        widen_cpus: Whether processes leave the CPUs that mpirun bound the launcher to.
        bind: How their CPUs were chosen: ``"numa"``, ``"core"``, or ``"none"`` where they are left alone.
        supervision: How the processes are watched, where mode is `Mode.SUPERVISE`.
        network: How this node talks to the others; None where that was not looked at.
        peers: How the launchers of all nodes find each other; None where they do not talk.
        findings: Each fact with its provenance, for ``launcher plan``.
        notes: Sentences for people: what was assumed, what is unusual.
        warnings: Those of them that are said at the start, too: the job may not be what it was meant to be.
        reads: Names of the variables that were looked at and set, sorted.
        missing: The script that is to run, where this machine has none of that name; else empty.
    """

    allocation: Allocation
    topology: Topology
    machine: Machine
    mode: Mode
    processes: tuple[Process, ...]
    settings: tuple[Setting, ...]
    engine: str = "process"
    agent: Agent | None = None
    unset: tuple[str, ...] = ()
    widen_cpus: bool = False
    bind: str = "none"
    supervision: Supervision = Supervision()
    network: Network | None = None
    peers: Peers | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: str = ""
    reads: tuple[str, ...] = ()
    companions: tuple[Companion, ...] = ()
    ports: tuple[tuple[int, str], ...] = ()
    meeting: Meeting | None = None

    @property
    def takes_free_port(self) -> bool:
        """Whether the port of the rendezvous was not named: one that is free was taken."""
        return any(found.claim.fact is Fact.MASTER_PORT and found.claim.value == 0 for found in self.findings)

    def __post_init__(self) -> None:
        count = len(self.processes) + len(self.companions)
        wrong = not count or (self.mode is Mode.EXEC and count != 1)
        if self.agent is None and wrong:
            raise ValueError(f"{count} processes cannot run by {self.mode}")
