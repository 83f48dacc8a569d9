"""The folder of one run: log files, and the files in which a process says why it fails.

With ``--log-dir DIR`` it is ``DIR/nodeN_XXXXXXXX/attempt_A/LOCAL_RANK/`` with ``stdout.log`` and
``stderr.log``, torchrun's layout; else a private one under TMPDIR that goes away with the run, unless
it holds logs.
"""

from __future__ import annotations

import os

from launcher.core.errors import NotReady, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where ``@record`` and our hook write a process's exception (torch's error-file protocol)."""
STACKS_FILE = "LAUNCHER_STACKS_FILE"
"""Where the hook writes a process's stacks when it is asked."""
FILES = {ERROR_FILE: "error.json", STACKS_FILE: "stacks.txt"}
"""What each process may write, by the variable that tells it where."""

SOCKET_PATH_BYTES = 107
"""The kernel's limit for the path of a socket, less the zero at its end (unix(7))."""
EMPTY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
NCCL_FILE = "NCCL_DEBUG_FILE"
"""Where NCCL writes what it says of its network, if that is to be verified."""


class RunFolder:
    """Folders and files of one run on this node; ``path`` is None where no folder can be made."""

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
        """Return the folder of one process (its local rank, or its name), made if it is not there."""
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
        """Return the path of a file about one process; None where there is no folder.

        In a temporary folder all lie side by side: making a folder for each costs 0.2 ms per process.
        """
        if self.path is None:
            return None
        if self.keeps:
            folder = self.of_process(attempt, process)
            return None if folder is None else f"{folder}/{name}"
        return f"{self.path}/{attempt}_{process}_{name}"

    def variables(self, attempt: int, process: str) -> dict[str, str]:
        """Return the variables that tell a process where its files are; none where there is no folder."""
        paths = {name: self.file(attempt, process, file) for name, file in FILES.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def make_file(self, attempt: int, process: str, name: str) -> str | None:
        """Return the path of a file about one process that is there, and empty; None where none can be.

        Nor where its path holds a ``%``, from which NCCL would make a host's name or a pid.
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
        """Return the path of ``stdout.log`` or ``stderr.log`` of a process; the folder is kept then."""
        self.keeps = True
        return f"{self.of_process(attempt, process) or '/no-folder-for-logs'}/{stream}.log"

    def socket_paths(self, name: str) -> Iterator[str]:
        """Yield paths for a socket of ours: in folders that only we and root can enter, made here.

        Not among logs: those may lie where others read them, or where there can be no sockets.
        """
        for folder in self._private:
            path = f"{folder}/{name}"
            if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
                continue
            if folder != self.path:
                try:
                    os.mkdir(folder, 0o700)
                except OSError:
                    continue
            yield path

    def remove(self) -> None:
        """Take the folder away, unless it is to be read; and what had only a socket."""
        for folder in self._private:
            if folder != self.path or not self.keeps:
                remove_tree(folder)


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_tree(path: str) -> None:
    """Remove a tree of ours; what another user has put there and protects stays."""
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
    """Return that a log file or its folder cannot be written, and what to do."""
    fix = "name another folder with --log-dir, or make this one writable"
    return NotReady(Problem("cannot-write", f"{path}: {error.strerror}", "log files", fix))
