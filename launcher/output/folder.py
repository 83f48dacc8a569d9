"""Folder of one run: log files, and the files in which a process reports its failure.

With ``--log-dir DIR`` it is ``DIR/nodeN_XXXXXXXX/attempt_A/LOCAL_RANK/`` with ``stdout.log`` and
``stderr.log``, as in torchrun. Otherwise it is a private folder under TMPDIR, removed after the run unless it
contains logs.
"""

from __future__ import annotations

import os

from launcher.core.errors import NotReady, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Variable with the file for a process's exception, written by ``@record`` or our hook (torch's protocol)."""
STACKS_FILE = "LAUNCHER_STACKS_FILE"
"""Variable with the file for a process's stacks, which the hook writes on request."""
FILES = {ERROR_FILE: "error.json", STACKS_FILE: "stacks.txt"}
"""Files that each process may write, by the variable with their path."""
PYTHONPATH = "PYTHONPATH"
SITE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "guest", "site")
"""Path of `launcher.guest.site`, which need not be imported for it."""

STARTS_FILE = "LAUNCHER_STARTS_FILE"
"""Variable with the file to which torchrun's first worker on a node adds a byte each time it is started.

torchrun itself does not tell how often it has restarted its workers.
"""
SOCKET_PATH_BYTES = 107
"""The kernel's limit for the path of a socket, without the terminating zero (unix(7))."""
EMPTY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
NCCL_FILE = "NCCL_DEBUG_FILE"
"""Variable with the file for NCCL's log, if its network is to be verified."""


class RunFolder:
    """Folders and files of one run on this node; ``path`` is None if no folder can be created."""

    def __init__(
        self, log_dir: str | None, run_id: str, node_rank: int | None, environ: Mapping[str, str]
    ) -> None:
        self.keeps = log_dir is not None
        self.path: str | None = None
        self._made: set[str] = set()
        bases = (environ.get("TMPDIR"), "/tmp", "/dev/shm")  # noqa: S108 - mode 700 and a random name
        self._private = [os.path.abspath(os.path.join(base, f"launcher_{run_id}")) for base in bases if base]
        if log_dir is not None:
            node = "node" if node_rank is None else f"node{node_rank}"
            self.path = os.path.abspath(os.path.join(log_dir, f"{node}_{run_id[:8]}"))
            _make(self.path)
            return
        for path in self._private:
            try:
                os.mkdir(path, 0o700)
                self.path = path
                return
            except OSError:
                continue

    def of_process(self, attempt: int, process: str) -> str | None:
        """Return the folder of one process (its local rank or name), created if missing; None if it fails."""
        if self.path is None:
            return None
        attempts = f"{self.path}/attempt_{attempt}"
        path = f"{attempts}/{process}"
        for wanted in (attempts, path):
            if wanted not in self._made:
                try:
                    os.mkdir(wanted)
                except FileExistsError:
                    pass
                except OSError:
                    return None
                self._made.add(wanted)
        return path

    def file(self, attempt: int, process: str, name: str) -> str | None:
        """Return the path of a file for one process; None without a folder.

        In a temporary folder all files are side by side: a folder for each process would cost 0.2 ms.
        """
        if self.path is None:
            return None
        if self.keeps:
            folder = self.of_process(attempt, process)
            return None if folder is None else f"{folder}/{name}"
        return f"{self.path}/{attempt}_{process}_{name}"

    def variables(self, attempt: int, process: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that tell a process the paths of its files; none without a folder.

        With them comes PYTHONPATH, with a folder of ours in front: see `launcher.guest.site.sitecustomize`.

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
            os.close(os.open(path, EMPTY_FLAGS, 0o600))
        except OSError:
            return None
        return path

    def log_path(self, attempt: int, process: str, stream: str) -> str:
        """Return the path of a process's ``stdout.log`` or ``stderr.log``; from now on the folder is kept."""
        self.keeps = True
        return f"{self.of_process(attempt, process) or '/no-folder-for-logs'}/{stream}.log"

    def private_folders(self) -> Iterator[str]:
        """Yield folders that only we and root can enter, on local file systems; creates missing ones.

        They are removed after the run. Log folders are not among them: other users may read them, and their
        file system may not support sockets and pipes.
        """
        for folder in self._private:
            if folder != self.path and folder not in self._made:
                try:
                    os.mkdir(folder, 0o700)
                except OSError:
                    continue
                self._made.add(folder)
            yield folder

    def socket_paths(self, name: str) -> Iterator[str]:
        """Yield paths for a socket of ours in private folders."""
        for folder in self.private_folders():
            path = f"{folder}/{name}"
            if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
                yield path

    def remove(self) -> None:
        """Remove the private folders, except the run's own if it contains logs."""
        for folder in self._private:
            if folder != self.path or not self.keeps:
                remove_tree(folder)


def put_first(before: str) -> str:
    """Return a PYTHONPATH with our folder in front."""
    is_there = before.split(os.pathsep)[0] == SITE  # from a launcher around this one
    return before if is_there else os.pathsep.join(filter(None, (SITE, before)))


def note_start(environ: MutableMapping[str, str]) -> None:
    """In a worker of torchrun: note that it starts, and remove the variable from its environment."""
    path = environ.pop(STARTS_FILE, "")
    if path and environ.get("LOCAL_RANK") == "0":
        try:
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
            os.write(file, b".")
            os.close(file)
        except OSError:
            pass  # the count is worth less than the job


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_tree(path: str) -> None:
    """Remove a tree of ours; files of another user that we may not remove stay."""
    try:
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        pass


def cannot_write(path: str, error: OSError) -> NotReady:
    """Return the error for a log file or folder that cannot be written, with its fix."""
    fix = "name another folder with --log-dir, or make this one writable"
    return NotReady(Problem("cannot-write", f"{path}: {error.strerror}", "log files", fix))
