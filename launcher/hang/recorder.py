"""Switches on the flight recorders of one node's processes, and remembers where they dump."""

from __future__ import annotations

import os

from launcher.command.fronts import find_front, look_behind
from launcher.command.words import is_python, may_be_shell, read_interpreter
from launcher.core.files import remove_file
from launcher.hang.variables import PIPE, find_places, find_torch, plan_variables
from launcher.machine.pythons import import_folders, own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from launcher.hang.request import DumpRequest
    from launcher.hang.variables import Places

EVIDENCE = "launcher-evidence"
"""Name of the directory for evidence, beside the failure record or in the directory of the run."""
WORKER = "worker.py"
"""Our program in front of the command in the line of torchrun's agent: see `launcher.engines.torchrun`."""


class Recorder:
    """The flight recorders of the processes that this node starts."""

    def __init__(self, make_folder: Callable[[], str | None]) -> None:
        """Prepare; ``make_folder`` returns a private local directory that is removed after the run."""
        self._make_folder = make_folder
        self._versions: dict[str, tuple[int, int] | None] = {}
        self._places: dict[Places, None] = {}

    def plan(self, argv: Sequence[str], environ: Mapping[str, str], attempt: int) -> dict[str, str]:
        """Return the variables for a process; none if its Python has no torch, or is not known.

        A command that is no Python may start the ranks in a container or on another node, where our directory
        does not exist; torch ends a process that cannot make its pipe there. So only a Python gets one, and a
        shell gets what torch writes at a timeout.

        Args:
            argv: Its command line, or that of the agent that starts the ranks.
            environ: Its environment.
            attempt: Number of the attempt.
        """
        python = find_python(argv) or (own_python(environ) if may_be_shell(argv) else "")
        if not python:
            return {}
        if python not in self._versions:
            self._versions[python] = find_torch(import_folders(python, environ))
        version = self._versions[python]
        folder = None if version is None else self._make_folder()
        if version is None or folder is None:
            return {}
        found = plan_variables(version, environ, folder, attempt)
        if not is_python(find_command(argv)[0]):
            found.pop(PIPE, None)
        places = find_places({**environ, **found})
        if places is not None:
            self._places[places] = None
        return found

    @property
    def is_on(self) -> bool:
        """Whether a process of this attempt may have a flight recorder."""
        return bool(self._places)

    @property
    def is_ready(self) -> bool:
        """Whether a rank has made its pipe, so that it can be asked."""
        from launcher.hang.request import find_ranks

        return any(find_ranks(place) for place in self._places)

    def request(
        self, ranks: Iterable[int], evidence: str, dump_s: float, run: tuple[int, str] | None
    ) -> DumpRequest:
        """Return a request to all ranks of this node to dump; see `DumpRequest`."""
        from launcher.hang.request import DumpRequest

        return DumpRequest(ranks, list(self._places), evidence=evidence, run=run, dump_s=dump_s)

    def end_attempt(self) -> None:
        """Remove the pipes of an attempt that has ended: a directory that is kept must not have any."""
        for place in self._places:
            folder, _, stem = place.pipes.rpartition("/")
            try:
                names = os.listdir(folder) if place.pipes else []
            except OSError:
                continue
            for name in names:
                if name.startswith(stem) and name.endswith(".pipe"):
                    try:  # noqa: SIM105 - contextlib would be one more module
                        remove_file(f"{folder}/{name}")
                    except OSError:
                        pass
        self._places.clear()


def has_torch(pid: int) -> bool:
    """Whether a process has loaded torch: one that has not is not missing a flight recorder."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return any(b"/libtorch" in line for line in file)
    except OSError:
        return False


def choose_folder(
    evidence_dir: str | None, failure_file: str | None, run_folder: str | None, node_rank: int | None
) -> str:
    """Return the directory of this node for copies of dumps; empty for none.

    Several nodes may share the directory above it, which then has the evidence of all of them.

    Args:
        evidence_dir: The directory that the user wants; None to choose.
        failure_file: Path of the failure record; its directory comes next, unless it is one of devices.
        run_folder: Directory of this run, which the caller keeps if it is the one; None for none.
        node_rank: Rank of this node; None if unknown.
    """
    node = "node" if node_rank is None else f"node{node_rank}"
    beside = os.path.dirname(os.path.abspath(failure_file)) if failure_file else ""
    if evidence_dir:
        return os.path.join(os.path.abspath(evidence_dir), node)
    if beside and beside != "/dev":
        return os.path.join(beside, EVIDENCE, node)
    return os.path.join(run_folder, EVIDENCE, node) if run_folder else ""


def find_command(argv: Sequence[str]) -> Sequence[str]:
    """Return the command of the ranks in the line of torchrun's agent; else the line itself."""
    for place, word in enumerate(argv):
        if word.endswith(f"/{WORKER}") and "--" in argv[place:]:
            return argv[argv.index("--", place) + 1 :] or argv
    return argv


def find_python(argv: Sequence[str]) -> str:
    """Return the Python of a command: its first word, or the interpreter of a script; empty if unknown."""
    command = find_command(argv)
    if not command:
        return ""
    if find_front(command).is_elsewhere:
        return ""
    command = look_behind(command, os.environ)
    if is_python(command[0]):
        return command[0]
    if command is not argv and is_python(argv[0]):
        return argv[0]
    return next((word for word in read_interpreter(command[0])[:1] if is_python(word)), "")
