"""What a framework's file is given: one job, as this launcher sees it."""

from __future__ import annotations

from launcher.core.environ import PORT_LIMIT
from launcher.core.frozen import frozen
from launcher.frameworks.horovod_meeting import Meeting
from launcher.frameworks.script import Script
from launcher.guest.marker import is_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.model import Allocation, Machine, Topology
    from launcher.options.reading import Options

BY_MPI = ("mpirun", "serve")
"""Agents of which mpirun starts the processes."""


@frozen
class Case:
    """One job.

    Attributes:
        argv: The command line of a process; empty if there is no command.
        options: What the user asked for.
        environ: What the processes inherit, before anything is unset.
        allocation: What the platform gave us.
        topology: The shape of the job; what it does not know is not set.
        machine: What this node has.
        origins: Where each fact came from, by the name of the fact (``"world_size"``).
        forks: Whether we start the processes, rather than being one of them.
        interface: Name of the interface that leads to the other nodes; empty if gloo was told of none.
        horovod: How the processes meet by Horovod, if they do.
        script: The script that each process runs, as far as it can be read.
        agent: Another launcher that starts the processes (``"torchrun"``); empty for none.
        is_wrapped: Whether that is the command itself, so that its processes do not start through us.
    """

    argv: tuple[str, ...]
    options: Options
    environ: Mapping[str, str]
    allocation: Allocation
    topology: Topology
    machine: Machine
    origins: Mapping[str, str]
    forks: bool
    interface: str = ""
    horovod: Meeting = Meeting()
    script: Script = Script()
    agent: str = ""
    is_wrapped: bool = False

    @property
    def is_by_mpi(self) -> bool:
        """Whether our mpirun starts the processes: from node 0 here, or by what serves it on the others."""
        return self.agent in BY_MPI

    @property
    def free_port(self) -> tuple[int, str]:
        """Where the job's own processes can listen on node 0, and why it is not MASTER_PORT, if it is not.

        An agent listens at the master's port: torchrun's, which other launchers have inside. In its worker
        that shows by torchrun's variables, whatever the worker is; before the workers start, by the agent.
        All ranks see the same, so that they agree on another port.
        """
        port = self.topology.master_port
        is_taken = bool(self.agent) and not self.is_by_mpi
        if is_taken or (is_worker(self.environ) and self.environ.get("MASTER_PORT") == str(port)):
            return self.next_port, "at MASTER_PORT torchrun's agent listens"
        return port, ""

    @property
    def next_port(self) -> int:
        """The port above the master's: where all meet that need a port of their own, agreed on unasked."""
        port = self.topology.master_port
        return port + 1 if port + 1 < PORT_LIMIT else port - 1

    def origin(self, fact: str) -> str:
        """Return where a fact came from."""
        return self.origins.get(fact, "default")
