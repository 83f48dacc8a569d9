"""Directory of one run: log files, and the files in which a process reports its failure.

With ``--log-dir DIR`` it is ``DIR/nodeN_XXXXXXXX/attempt_A/LOCAL_RANK/`` with ``stdout.log`` and
``stderr.log``, as in torchrun. Otherwise it is a private directory under TMPDIR, removed after the run unless
it contains logs.
"""

from __future__ import annotations

import os

from launcher.core.blocks import PACKAGE
from launcher.core.errors import NotReady, Problem
from launcher.core.files import PRIVATE_FOLDER, make_folder, open_own, remove_file, remove_tree, replace_file
from launcher.inprocess import ERROR_FILE, STACKS_FILE, STACKS_NAME
from launcher.output.console import LogFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

FILES = {ERROR_FILE: "error.json", STACKS_FILE: STACKS_NAME}
"""Files that each process may write, by the variable with their path."""
PYTHONPATH = "PYTHONPATH"
SITE = os.path.join(PACKAGE, "inprocess", "site")
"""Path of `launcher.inprocess.site`, which need not be imported for it."""

DEADLINE_NAME = "deadline.json"
STARTS_FILE = "LAUNCHER_STARTS_FILE"
"""Variable with the file to which torchrun's first worker on a node adds a byte each time it is started.

torchrun itself does not tell how often it has restarted its workers.
"""
SOCKET_PATH_BYTES = 107
"""The kernel's limit for the path of a socket, without the terminating zero (unix(7))."""
REPORT = "stall-"
"""The name of a file with the stacks of all processes, which the log names, begins so."""
NCCL_FILE = "NCCL_DEBUG_FILE"
"""Variable with the file for NCCL's log, if its network is to be verified."""


class RunFolder:
    """Folders and files of one run on this node.

    Attributes:
        path: Its path without links, because processes follow none; None if no directory can be created.
        fd: Its descriptor. We make all files through it, so they are here whatever happens to the path.
        keeps: Whether it is kept after the run.
    """

    def __init__(
        self, log_dir: str | None, run_id: str, node_rank: int | None, environ: Mapping[str, str]
    ) -> None:
        self.keeps = log_dir is not None
        self.path: str | None = None
        self.fd: int | None = None
        self._made: set[str] = set()
        bases = (environ.get("TMPDIR"), "/tmp", "/dev/shm")  # noqa: S108 - mode 700 and a random name
        self._private = [os.path.abspath(os.path.join(base, f"launcher_{run_id}")) for base in bases if base]
        if log_dir is not None:
            node = "node" if node_rank is None else f"node{node_rank}"
            path = os.path.abspath(os.path.join(log_dir, f"{node}_{run_id[:8]}"))
            try:
                self.fd = make_folder(path)
            except OSError as error:
                raise cannot_write(path, error) from error
            self.path = _read_path(self.fd) or path
            return
        for place in range(len(self._private)):
            self.fd = self._make_private(place)
            if self.fd is not None:
                self.path = self._private[place]
                return

    def _make_private(self, place: int) -> int | None:
        """Create one of the private directories; return its descriptor, None if that fails."""
        try:
            fd = make_folder(self._private[place], PRIVATE_FOLDER, new=True)
        except OSError:
            return None
        self._private[place] = _read_path(fd) or self._private[place]
        return fd

    @property
    def place(self) -> tuple[int, str] | None:
        """Its descriptor and path; None without a folder."""
        return None if self.fd is None or self.path is None else (self.fd, self.path)

    def of_process(self, attempt: int, process: str) -> str | None:
        """Return the directory of one process (local rank or name), created if missing; None if it fails."""
        if self.fd is None:
            return None
        inside = f"attempt_{attempt}/{process}"
        if inside not in self._made:
            try:
                os.close(make_folder(inside, at=self.fd))
            except OSError:
                return None
            self._made.add(inside)
        return f"{self.path}/{inside}"

    def file(self, attempt: int, process: str, name: str) -> str | None:
        """Return the path of a file for one process; None without a directory.

        In a temporary directory all files are side by side: a directory for each process would cost 0.2 ms.
        """
        if self.path is None:
            return None
        if self.keeps:
            folder = self.of_process(attempt, process)
            return None if folder is None else f"{folder}/{name}"
        return f"{self.path}/{attempt}_{process}_{name}"

    def variables(self, attempt: int, process: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with the paths of a process's files; none without a directory.

        With them comes PYTHONPATH, with a directory of ours in front: see
        `launcher.inprocess.site.sitecustomize`.

        Args:
            attempt: Number of the attempt.
            process: Its local rank or name.
            environ: Its environment.
        """
        paths = {name: self.file(attempt, process, file) for name, file in FILES.items()}
        found = {name: path for name, path in paths.items() if path is not None}
        if found:
            found[PYTHONPATH] = put_first(environ.get(PYTHONPATH, ""))
        return found

    def make_file(self, attempt: int, process: str, name: str) -> str | None:
        """Return the path of a new empty file for one process; None if it cannot be created.

        Also None if the path contains a ``%``, which NCCL would expand to a host name or a pid.
        """
        path = self.file(attempt, process, name)
        if path is None or "%" in path:
            return None
        try:
            replace_file("", path.removeprefix(f"{self.path}/"), 0o600, at=self.fd)
        except OSError:
            return None
        return path

    def open_log(self, attempt: int, process: str, stream: str, rotate_bytes: int) -> LogFile:
        """Open a process's ``stdout.log`` or ``stderr.log``; from now on the directory is kept.

        Raises:
            NotReady: It cannot be written.
        """
        self.keeps = True
        inside = f"attempt_{attempt}/{process}/{stream}.log"
        path = f"{self.path or '/no-folder-for-logs'}/{inside}"
        try:
            return LogFile(path, rotate_bytes, inside=None if self.fd is None else (self.fd, inside))
        except OSError as error:
            raise cannot_write(path, error) from error

    def private_folders(self) -> Iterator[str]:
        """Yield directories that only we and root can enter, on local file systems; creates missing ones.

        They are removed after the run. Log directories are not among them: other users may read them, and
        their file system may not support sockets and pipes. Their paths have no links: clients follow none.
        """
        for place, folder in enumerate(self._private):
            if folder != self.path and folder not in self._made:
                fd = self._make_private(place)
                if fd is None:
                    continue
                os.close(fd)
                self._made.add(self._private[place])
            yield self._private[place]

    def socket_paths(self, name: str) -> Iterator[str]:
        """Yield paths for our socket in private directories."""
        for folder in self.private_folders():
            path = f"{folder}/{name}"
            if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
                yield path

    def remove(self) -> None:
        """Remove the private directories; of one with logs, only the files of the processes in it."""
        for folder in self._private:
            if folder == self.path and self.keeps:
                _remove_files(folder, but=REPORT)
            else:
                remove_tree(folder)


def _remove_files(folder: str, *, but: str) -> None:
    """Remove the files of our directory except those with these name prefixes; keep subdirectories."""
    try:
        for entry in os.scandir(folder):
            if not entry.name.startswith(but) and not entry.is_dir(follow_symlinks=False):
                remove_file(entry.path)
    except OSError:
        pass


def _read_path(fd: int) -> str:
    """Return the path of a directory without links; empty if unknown."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
    return path if os.path.isdir(path) else ""


def put_first(before: str) -> str:
    """Return a PYTHONPATH with our directory in front."""
    is_there = before.split(os.pathsep)[0] == SITE  # from a launcher around this one
    return before if is_there else os.pathsep.join(filter(None, (SITE, before)))


def note_start(environ: MutableMapping[str, str]) -> None:
    """In a worker of torchrun: note that it starts, and remove the variable from its environment."""
    path = environ.pop(STARTS_FILE, "")
    if path and environ.get("LOCAL_RANK") == "0":
        try:
            file = open_own(path, os.O_WRONLY | os.O_APPEND)
            os.write(file, b".")
            os.close(file)
        except OSError:
            pass  # the count is worth less than the job


def cannot_write(path: str, error: OSError) -> NotReady:
    """Return the error for a log file or directory that cannot be written, with its fix.

    Its text is here and not in ``errors.txt``, which cannot be read once there are no descriptors left.
    """
    fix = "name another directory with --log-dir, or make this one writable"
    return NotReady(Problem("cannot-write", f"{path}: {error.strerror}", "log files", fix))
