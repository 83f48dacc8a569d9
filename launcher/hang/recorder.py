"""PyTorch's flight recorder: its variables by the version of torch, and where a rank's pipe and dump are.

| torch | buffer, its default | file | pipe |
|---|---|---|---|
| 2.2 | TORCH_NCCL_TRACE_BUFFER_SIZE, 0 | TORCH_NCCL_DEBUG_INFO_TEMP_FILE | none |
| 2.3 to 2.7 | the same | the same | TORCH_NCCL_DEBUG_INFO_PIPE_FILE |
| 2.8 to 2.10 | TORCH_FR_BUFFER_SIZE, 0 | TORCH_FR_DUMP_TEMP_FILE | only with TORCH_NCCL_TRACE_BUFFER_SIZE |
| 2.11 and later | TORCH_FR_BUFFER_SIZE, 2000 | TORCH_FR_DUMP_TEMP_FILE | TORCH_NCCL_DEBUG_INFO_PIPE_FILE |

Since 2.8 the older names are read, too, with a warning of torch on stderr. From 2.8 to 2.10 the pipe is made
only with the older name of the buffer, so that this one warning is the price of the pipe there.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, FlightRecorder.hpp and TraceUtils.h of these
versions. Only NCCL's process group makes a pipe, and polls it once a second.
"""

from __future__ import annotations

import os

from launcher.command.fronts import find_front, look_behind
from launcher.command.words import is_python, may_be_shell, read_interpreter
from launcher.core.files import remove_file
from launcher.core.frozen import frozen
from launcher.core.ranks import is_number
from launcher.machine.process import list_folder, read_file
from launcher.machine.pythons import import_folders, own_python
from launcher.machine.whole import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

BUFFER, OLD_BUFFER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
FILE, OLD_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
ENTRIES = "2000"
"""Collectives in the buffer of a process: recommended by torch's documentation, its default since 2.11."""
FIRST, PIPES, RENAMED, DEFAULT_ON = (2, 2), (2, 3), (2, 8), (2, 11)
"""Versions of torch: the first with a recorder, with pipes, with new names, with a buffer by default."""
STEM, ENDING = "recorder_", ".pipe"
"""Begin of the names of dumps and pipes, to which torch adds the rank, and the end of those of pipes."""
VERSION_LIMIT_BYTES, MAPS_BYTES = 4096, 1 << 26
EVIDENCE = "launcher-evidence"
"""Name of the directory for evidence, beside the failure record or in the directory of the run."""
WORKER = "worker.py"
"""Our program in front of the command in the line of torchrun's agent: see `launcher.engines.torchrun`."""


@frozen
class Places:
    """Where the ranks of a node dump.

    Attributes:
        dumps: Begin of the path of a dump; the rank follows.
        pipes: Begin of the path of a pipe; the rank and ``.pipe`` follow. Empty if there is none.
    """

    dumps: str
    pipes: str = ""

    def find_pipes(self) -> dict[int, str]:
        """Return the pipes of the node's ranks, by rank."""
        folder, _, stem = self.pipes.rpartition("/")
        found = {}
        for name in list_folder(folder or ".") if self.pipes else ():
            rank = name[len(stem) : -len(ENDING)]
            if name == f"{stem}{rank}{ENDING}" and is_number(rank, 8):
                found[int(rank)] = f"{folder or '.'}/{name}"
        return found


class Recorder:
    """The flight recorders of the processes that this node starts.

    Attributes:
        places: Where those of this attempt dump; empty if none may have a flight recorder.
    """

    def __init__(self, make_folder: Callable[[], str | None]) -> None:
        """Prepare; ``make_folder`` returns a private local directory that is removed after the run."""
        self.places: dict[Places, None] = {}
        self._make_folder = make_folder
        self._versions: dict[str, tuple[int, int] | None] = {}

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
            self.places[places] = None
        return found

    @property
    def is_ready(self) -> bool:
        """Whether a rank has made its pipe, so that it can be asked."""
        return any(place.find_pipes() for place in self.places)

    def end_attempt(self) -> None:
        """Remove the pipes of an attempt that has ended: a directory that is kept must not have any."""
        for path in [path for place in self.places for path in place.find_pipes().values()]:
            try:  # noqa: SIM105 - contextlib would be one more module
                remove_file(path)
            except OSError:
                pass
        self.places.clear()


def plan_variables(
    version: tuple[int, int], environ: Mapping[str, str], folder: str, attempt: int
) -> dict[str, str]:
    """Return the variables that switch on the recorder of a process; what the user has set stays.

    Args:
        version: Version of torch.
        environ: The environment of the process.
        folder: Private local directory of this run: pipes do not work on every network file system.
        attempt: Number of the attempt.
    """
    if version < FIRST or is_off(environ):
        return {}
    stem = f"{folder}/{attempt}_{STEM}"
    found = {ON_TIMEOUT: "1"}
    if version < DEFAULT_ON:
        found[OLD_BUFFER] = environ.get(BUFFER) or ENTRIES
    if not environ.get(FILE) and not environ.get(OLD_FILE):
        found[FILE if version >= RENAMED else OLD_FILE] = stem
    if version >= PIPES:
        found[PIPE] = stem
    return {name: value for name, value in found.items() if not environ.get(name)}


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the recorder off: a buffer of 0 entries."""
    return (environ.get(BUFFER) or environ.get(OLD_BUFFER) or ENTRIES).strip() in ("0", "-1")


def find_places(environ: Mapping[str, str]) -> Places | None:
    """Return where a process with this environment dumps; None without a known recorder."""
    dumps = environ.get(FILE) or environ.get(OLD_FILE)
    return Places(dumps, environ.get(PIPE, "")) if dumps and not is_off(environ) else None


def find_torch(folders: list[str] | None) -> tuple[int, int] | None:
    """Return the version of torch in the first of these directories that has it; None without one.

    Reads ``torch/version.py``: importing torch takes seconds, and its metadata are in one of hundreds of
    directories.
    """
    for folder in folders or ():
        try:
            data = read_whole(os.path.join(folder or ".", "torch", "version.py"), VERSION_LIMIT_BYTES)
        except OSError:
            continue
        text = data.decode("utf-8", "replace").partition("__version__ = ")[2][1:].partition("\n")[0]
        major, minor = (*text.split("."), "")[:2]
        return (int(major), int(minor)) if is_number(major, 3) and is_number(minor, 3) else None
    return None


def has_torch(pid: int) -> bool:
    """Whether a process has loaded torch: one that has not is not missing a flight recorder."""
    return b"/libtorch" in read_file(f"/proc/{pid}/maps", MAPS_BYTES)


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
    if not command or find_front(command).is_elsewhere:
        return ""
    command = look_behind(command, os.environ)
    if is_python(command[0]):
        return command[0]
    if command is not argv and is_python(argv[0]):
        return argv[0]
    return next((word for word in read_interpreter(command[0])[:1] if is_python(word)), "")
