"""The user's request, before anything is known about the job."""

from __future__ import annotations

from launcher.command.fronts import look_behind
from launcher.command.launchers import find_inner
from launcher.core.frozen import frozen
from launcher.machine.pythons import own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.command.launchers import Command
    from launcher.options.reading import Options

PROCESS, TORCHRUN, MPIRUN = "process", "torchrun", "mpirun"
WITH_WORKERS = (TORCHRUN, "accelerate", "axolotl", "deepspeed", "llamafactory", "swift")
"""Engines whose processes we can identify: each has its own RANK in its environment."""


@frozen
class Request:
    """The user's request.

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
