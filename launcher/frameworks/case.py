"""What a framework's file is given: one job, as this launcher sees it."""

from __future__ import annotations

from launcher.frameworks.horovod_meeting import Meeting
from launcher.frameworks.script import Script
from launcher.frozen import frozen
from launcher.model import Allocation, Machine, Topology
from launcher.options import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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
        interface: Name of the interface that leads to the other nodes; empty if nobody told gloo of one.
        horovod: How the processes meet by Horovod, if they do.
        script: The script that each process runs, as far as it can be read.
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

    def origin(self, fact: str) -> str:
        """Return where a fact came from."""
        return self.origins.get(fact, "default")
