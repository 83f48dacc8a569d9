"""The user's request: the command line, the options, and the launcher in the command, if any."""

from __future__ import annotations

from launcher.command.fronts import look_behind
from launcher.command.launchers import SRUN, find_inner, find_launcher, list_names, read_facts, refuse_unknown
from launcher.command.words import is_python, name_program
from launcher.core.environ import STATIC
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import MPIRUN, PROCESS, TORCHRUN
from launcher.machine.pythons import own_python
from launcher.options.flags import ONLY_TORCHRUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.command.launchers import Command
    from launcher.options.reading import Options


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


def read_request(argv: tuple[str, ...], options: Options, environ: Mapping[str, str]) -> Request:
    """Return the request in a command line.

    Raises:
        UsageError: torchrun or mpirun is to start a command that is a launcher, a launcher comes behind a
            program that we do not know, or the command is srun.
    """
    asked = options.text("engine", "auto")
    if asked == PROCESS:
        return Request(argv, options.without_platforms())
    own = _find_launcher(argv, environ)
    if own is None:
        return Request(argv, options, starter=_name_starter(options))
    if asked in (TORCHRUN, MPIRUN):
        raise make_error("engine-and-command", asked=options.origins("engine")[0], name=own.name)
    facts, notes = read_facts(own, options)
    return Request(argv, options.with_inner(facts), own, f"the command is {own.name}", tuple(notes))


def _find_launcher(argv: tuple[str, ...], environ: Mapping[str, str]) -> Command | None:
    """Return the launcher that a command line calls, also behind fronts; None for any other."""
    behind = look_behind(argv, environ)
    if behind and name_program(behind[0]) == SRUN:
        raise _srun_behind(behind)
    found, count = find_launcher(behind), len(argv) - len(behind)
    if behind and found is None:
        refuse_unknown(argv[:count], behind)
    return found and replace(found, head=found.head + count, inner=found.inner + count)


def _srun_behind(argv: tuple[str, ...]) -> LauncherError:
    """Return the error of a command that is srun: its tasks would all have one RANK, and WORLD_SIZE=1."""
    import shlex

    names = list_names()
    starts = (n for n, word in enumerate(argv) if is_python(word) or word.endswith(".py") or word in names)
    place = next((n for n in starts if n), 0)
    line = f"{shlex.join(argv[:place])} launcher run -- {shlex.join(argv[place:])}"
    return make_error("srun-behind", line=line if place else "srun ... launcher run -- COMMAND")


def _name_starter(options: Options) -> str | None:
    """Return the user's flag for which a program starts the processes of a node itself; None without one.

    A platform's PET_* do not count: they tell how torchrun would be started, not how often.
    """
    calls: dict[str, Callable[[object], bool]] = {
        "engine": lambda value: value in (TORCHRUN, MPIRUN),
        "nnodes": lambda value: isinstance(value, str),  # a range
        "rdzv_backend": lambda value: value not in ("", STATIC),
    }
    for dest in ("engine", *ONLY_TORCHRUN, "nnodes", "rdzv_backend"):
        given = options.get(dest)
        if given is not None and not given.is_platforms and calls.get(dest, bool)(given.value):
            return given.origin
    return None
