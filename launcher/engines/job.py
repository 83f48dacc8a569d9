"""What an engine is planned from: the user's request, and the job as far as it is known before the start."""

from __future__ import annotations

from launcher.command.fronts import look_behind
from launcher.command.launchers import find_inner
from launcher.core.frozen import frozen
from launcher.machine.pythons import own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.command.launchers import Command
    from launcher.core.model import Allocation, Binding, Machine, Topology
    from launcher.machine.host import Host
    from launcher.options.reading import Options

PROCESS, TORCHRUN, MPIRUN = "process", "torchrun", "mpirun"
WITH_WORKERS = (TORCHRUN, "accelerate", "axolotl", "deepspeed", "llamafactory", "swift")
"""Engines whose processes we can identify: each has its own RANK in its environment."""


@frozen
class Request:
    """The user's request, before anything is known about the job.

    Attributes:
        argv: The whole command line of a process; empty if there is no command.
        options: The user's options, including the flags of a launcher that the command is.
        own: The launcher that the command is, if any.
        starter: Evidence that the program to run starts the processes of a node itself.
        notes: Notes about values that could not be read.
    """

    argv: tuple[str, ...]
    options: Options
    own: Command | None = None
    starter: str | None = None
    notes: tuple[str, ...] = ()

    def script_argv(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command line of one process, even if the command starts several of them."""
        if self.own is None:
            return look_behind(self.argv, environ)
        return find_inner(self.own, self.argv, own_python(environ))

    @property
    def starts_job(self) -> bool:
        """Whether the command also starts the processes of other nodes."""
        return self.own is not None and self.own.starts_job

    @property
    def leads(self) -> bool:
        """Whether one command on node 0 starts the processes of all nodes, and the other nodes serve it."""
        return self.tunes or (self.own is None and self.options.text("engine") == MPIRUN)

    @property
    def tunes(self) -> bool:
        """Whether the command is DeepSpeed's autotuner."""
        return self.own is not None and self.own.name == "deepspeed" and self.own.has("autotuning")


@frozen
class KnownJob:
    """A job whose shape is decided, and this node.

    Attributes:
        request: The user's request.
        allocation: The allocation that the platform gave us.
        topology: The shape of the job, as far as known.
        machine: The hardware of this node.
        environ: The environment that the launcher was started with.
        host: This node, for what only some engines ask.
        binding: The CPUs of each process.
    """

    request: Request
    allocation: Allocation
    topology: Topology
    machine: Machine
    environ: Mapping[str, str]
    host: Host
    binding: Binding

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command line of a process; empty if there is no command."""
        return self.request.argv

    @property
    def options(self) -> Options:
        """The user's options."""
        return self.request.options

    @property
    def nodes(self) -> int | None:
        """Number of nodes; None if unknown."""
        return self.allocation.node_count

    @property
    def each(self) -> int:
        """Number of processes per node."""
        return self.topology.local_size or 1
