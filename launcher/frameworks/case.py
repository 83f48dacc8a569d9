"""One job as this launcher sees it: what engines and frameworks are planned from."""

from __future__ import annotations

from launcher.command.fronts import look_behind
from launcher.command.words import is_python
from launcher.core.environ import PORT_LIMIT
from launcher.core.frozen import frozen
from launcher.core.model import Binding, Scope, Setting
from launcher.frameworks.script import Script
from launcher.inprocess.marker import LAUNCHED, is_worker
from launcher.machine.pythons import own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.command.request import Request
    from launcher.core.model import Allocation, Companion, Machine, Meeting, Place, Topology
    from launcher.machine.host import Host
    from launcher.options.reading import Options


@frozen
class Beside:
    """What a framework needs on a node beside its ranks.

    Attributes:
        companions: Processes without a rank, such as servers.
        ports: Ports at which processes of this node will listen, and the names of the processes.
        meeting: The address exchange, for a framework that needs the addresses of all nodes.
        bears_losses: Whether it goes on without a lost process, and decides itself how the job ends.
    """

    companions: tuple[Companion, ...] = ()
    ports: tuple[tuple[int, str], ...] = ()
    meeting: Meeting | None = None
    bears_losses: bool = False


@frozen
class Horovod:
    """How the processes of a job connect by Horovod, if they do.

    Attributes:
        kind: ``mpi`` (Horovod asks MPI), ``gloo`` (it needs all of our variables), ``trap``; empty for no
            settings.
        why: The evidence for it.
    """

    kind: str = ""
    why: str = ""


@frozen
class Case:
    """One job, as far as it is known before the start, and this node.

    Attributes:
        request: The user's request.
        environ: The environment that the launcher was started with, and that the processes inherit.
        allocation: The allocation that the platform gave us.
        topology: The shape of the job; variables for unknown parts are not set.
        machine: The hardware of this node.
        host: This node, for what only some engines ask.
        script: The script that each process runs, as far as it can be read.
        horovod: How the processes connect by Horovod, if they do.
        role: torchrun's name of all processes.
        origins: Origin of each fact, by its name (``"world_size"``).
        binding: The CPUs of each process.
        interface: Name of the interface to the other nodes; empty if gloo got none.
        agent: Another launcher that starts the processes (``"torchrun"``); empty for none.
    """

    request: Request
    environ: Mapping[str, str]
    allocation: Allocation
    topology: Topology
    machine: Machine
    host: Host
    script: Script = Script()
    horovod: Horovod = Horovod()
    role: str = ""
    origins: Mapping[str, str] = {}
    binding: Binding = Binding()
    interface: str = ""
    agent: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command line of a process; empty if there is no command."""
        return self.request.argv

    @property
    def options(self) -> Options:
        """The user's options."""
        return self.request.options

    @property
    def forks(self) -> bool:
        """Whether we start the processes; otherwise we are one of them."""
        return self.allocation.scope is Scope.NODE

    @property
    def stays(self) -> bool:
        """Whether we stay as the parent of the only process that the platform started us for.

        On request, and by default where it may be the only one of its node: no other launcher could see
        that it never meets those of other nodes. A launcher or a torchrun around us stays and looks already.
        """
        if self.forks or LAUNCHED in self.environ:
            return False
        job, is_watched = self.topology, self.options.switch("meeting", True)
        is_first = [place.local_rank for place in job.places] == [0] and job.local_size in (1, None)
        may_be_lone = is_watched and is_first and job.spans_nodes and not is_worker(self.environ)
        return self.options.switch("stay", may_be_lone)

    @property
    def joins_launchers(self) -> bool:
        """Whether it then has a control channel to the launchers of the other ranks, which stay, too."""
        return self.stays and self.options.switch("stay")

    @property
    def is_wrapped(self) -> bool:
        """Whether the command itself is the agent, so that its processes do not start through us."""
        return self.request.own is not None

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None if unknown."""
        return self.allocation.node_count

    @property
    def each(self) -> int:
        """Number of processes per node."""
        return self.topology.local_size or 1

    @property
    def command(self) -> tuple[str, ...]:
        """The command line of a process behind programs such as ``nice``; with its Python first, if any."""
        return look_behind(self.argv, self.environ)

    @property
    def python(self) -> str:
        """The Python of the processes: the command's, or else ours."""
        return self.command[0] if self.argv and is_python(self.command[0]) else own_python(self.environ)

    @property
    def is_by_mpi(self) -> bool:
        """Whether our mpirun starts the processes: from node 0, or by the server on another node."""
        return self.agent in ("mpirun", "serve")

    @property
    def free_port(self) -> tuple[int, str]:
        """A port of node 0 for the job's own processes, and the reason if it is not MASTER_PORT.

        An agent listens at MASTER_PORT: torchrun's, which other launchers contain, too. In a worker
        torchrun's variables show this, whatever the worker is; before the workers start, ``agent`` shows it.
        All ranks see the same, so they agree on another port.
        """
        port = self.topology.master_port
        is_taken = bool(self.agent) and not self.is_by_mpi
        if is_taken or (is_worker(self.environ) and self.environ.get("MASTER_PORT") == str(port)):
            return self.next_port, "at MASTER_PORT torchrun's agent listens"
        return port, ""

    @property
    def next_port(self) -> int:
        """The port above MASTER_PORT, or below the highest one; all ranks derive the same."""
        port = self.topology.master_port
        return port + 1 if port + 1 < PORT_LIMIT else port - 1

    def state(self, names: Mapping[str, str], place: Place | None = None, why: str = "") -> list[Setting]:
        """Return variables that state facts; none for an unknown fact.

        Args:
            names: The variables, and the fact that each of them states: a field of the topology or the place.
            place: The place of a process, for facts that differ between processes.
            why: The reason for the plan; by default the origin of the fact.
        """
        facts = {**vars(self.topology), **(vars(place) if place is not None else {})}
        known = [(name, facts[fact], fact) for name, fact in names.items() if facts[fact] is not None]
        return [Setting(name, str(value), why or self.origin(fact)) for name, value, fact in known]

    def origin(self, fact: str) -> str:
        """Return the origin of a fact."""
        return self.origins.get(fact, "default")
