"""Finds the launchers that run on this node, and asks one of them.

The sockets come from the kernel's list of all named sockets in our network namespace (/proc/net/unix). A
search in directories would miss a launcher with another directory for temporary files, and would find sockets
of other nodes or containers in a shared directory. We cannot connect to listed sockets of other containers
or, unless we are root, of other users.
"""

from __future__ import annotations

import glob
import os
import re
import select
import socket
import time

from launcher.channel.connection import read_peer
from launcher.channel.lines import Lines, pack
from launcher.control import NAME
from launcher.control.received import number
from launcher.core.errors import make_error
from launcher.core.files import look_at_all
from launcher.core.redact import printable
from launcher.core.wire import Garbled
from launcher.machine.process import list_pids, read_command, read_stat, read_users
from launcher.process.limits import limit_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Message = dict[str, object]

LISTED = "/proc/net/unix"
LISTENS = "00010000"
"""__SO_ACCEPTCON, include/linux/net.h: the flags of a socket that listens."""
PATH = re.compile(rf"/launcher_[0-9a-f]{{16}}/{NAME}\Z")
FOLDERS = ("/tmp", "/dev/shm")  # noqa: S108 - searched if the kernel has no list
IDENTITY_LIMIT_BYTES = 1 << 14
LINE_LIMIT_BYTES = 1 << 21
ANSWER_LIMIT_BYTES = 1 << 28
"""Limit for all nodes together; the status of 16,000 nodes with 8 ranks each has 30 MB."""
OTHERS_LIMIT_BYTES = 1 << 25
"""The same for a launcher of another user, which root asks."""
OTHERS_MEMORY_BYTES = 1 << 29
"""Limit of our memory then: a row of three bytes takes 600. 16,000 nodes with 8 ranks each take 360 MB."""
NAMED_MAX = 8
"""Number of jobs that an error message names."""
CONNECT_S = 5.0
ANSWER_S = {"who": 5.0, "node": 10.0, "status": 60.0, "stacks": 120.0, "exec": 86400.0}
"""Seconds for a complete answer to each question; the launcher gives up on a silent node long before."""
SILENT_S = 40.0
FIND_S = 5.0
"""Seconds in which all launchers together must identify themselves."""
PATHS_MAX = 256
"""Maximum number of sockets that we ask of each user."""
ASKED_AT_ONCE = 128
YOUNG_S = 10.0
"""Age in seconds at which a launcher that does not listen never will."""
WAIT_S = 2.0
"""Seconds that a question waits for a young launcher to listen."""
STEP_S = 0.02
_WORDS_BEFORE = 6
"""Number of words to search for the program; an interpreter and its options may come before it."""
WORDS_BYTES = 1 << 14
"""The beginning of a command line in which they are: another user may have made it megabytes long."""


class Launcher:
    """A launcher that answers.

    Attributes:
        path: Path of its socket.
        identity: What it reports about itself; see `launcher.control.node.identify`.
        owner: Its user ID, according to the kernel.
    """

    def __init__(self, path: str, identity: Message, owner: int) -> None:
        self.path, self.identity, self.owner = path, identity, owner

    @property
    def is_ours(self) -> bool:
        """Whether our user runs it; another user's launcher may report false facts."""
        return self.owner == os.geteuid()

    @property
    def label(self) -> str:
        """Its pid and run, and its user if that is not ours."""
        return f"{self.pid} ({self.run}{'' if self.is_ours else f', user {self.owner}'})"

    @property
    def pid(self) -> int:
        """Its process ID; 0 if it reports none."""
        return int(number(self.identity, "pid") or 0)

    @property
    def run(self) -> str:
        """Name of its run."""
        return printable(str(self.identity.get("run")))[:16]

    def is_meant(self, job: str) -> bool:
        """Whether ``job`` is its pid, the beginning of its run's name, or empty, which means any."""
        return job in ("", str(self.pid)) or self.run.startswith(job)


def find_paths(environ: Mapping[str, str]) -> list[str]:
    """Return the paths of the sockets of all launchers on this node, whichever user runs them.

    The kernel lists names as they are, line ends included, so any user can add any line to the list.
    """
    found = set()
    try:
        with open(LISTED, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                words = line.rstrip("\n").split(None, 7)
                if len(words) == 8 and words[3] == LISTENS and words[7][0] == "/" and PATH.search(words[7]):
                    found.add(words[7])
    except OSError:
        for base in {environ.get("TMPDIR") or FOLDERS[0], *FOLDERS}:
            found.update(
                path for path in glob.glob(f"{glob.escape(base)}/launcher_*/{NAME}") if PATH.search(path)
            )
    return sorted(found)


def find_launchers(environ: Mapping[str, str]) -> tuple[list[Launcher], int]:
    """Return the launchers that answer, ours first and by age, and the number of those that do not.

    Many are asked at the same time, all of them within `FIND_S`. Only root asks the launchers of all users;
    others ask their own and root's.
    """
    paths, others = _choose_paths(find_paths(environ))
    found, silent = _identify(paths)
    found.sort(key=lambda one: (not one.is_ours, -(number(one.identity, "elapsed_s") or 0.0), one.pid))
    return found, others + silent


def _choose_paths(paths: Sequence[str]) -> tuple[list[str], int]:
    """Return the sockets that we may ask, ours first, and the number of those that we may not.

    Each user's sockets are limited, and other users alternate, so that no user's sockets displace another's.
    """
    own = os.geteuid()
    by_owner: dict[int, dict[tuple[int, int], str]] = {own: {}}
    others = 0
    for path, found in look_at_all(paths):
        if isinstance(found, (FileNotFoundError, NotADirectoryError)):
            continue  # of another container that shares our network; behind a link
        if isinstance(found, OSError):
            others += 1
            continue
        if own in (0, found.st_uid) or found.st_uid == 0:
            same = by_owner.setdefault(found.st_uid, {})  # a directory may have several paths
            if len(same) < PATHS_MAX:
                same.setdefault((found.st_dev, found.st_ino), path)
        else:
            others += 1
    placed = [
        (uid != own, place, path)
        for uid, same in by_owner.items()
        for place, path in enumerate(same.values())
    ]
    return [path for *_, path in sorted(placed)], others


def _identify(paths: Sequence[str]) -> tuple[list[Launcher], int]:
    """Ask launchers to identify themselves, many at a time; return those that do, and how many do not.

    A launcher that several paths lead to counts once, by the first: another user's path may be a link to it.
    """
    deadline = time.monotonic() + FIND_S
    answered, silent = dict[str, tuple[object, Launcher]](), 0
    for first in range(0, len(paths), ASKED_AT_ONCE):
        poll, asked = select.poll(), dict[int, tuple[str, _Question]]()
        for path in paths[first : first + ASKED_AT_ONCE]:
            try:  # never wait for a launcher that accepts nothing
                question = _Question(path, {"ask": "who"}, IDENTITY_LIMIT_BYTES, within_s=0.0)
            except (FileNotFoundError, ConnectionRefusedError):
                continue  # of another container that shares our network; of a killed launcher
            except OSError:
                silent += 1
                continue
            asked[question.socket.fileno()] = path, question
            poll.register(question.socket, select.POLLIN)
        while asked and (left_s := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left_s * 1000):
                path, question = asked[fd]
                try:
                    answers = question.hear()
                    if answers is None:
                        continue
                    launcher = Launcher(path, answers[-1], question.owner)
                    answered[path] = question.pid or path, launcher
                except (OSError, ValueError, IndexError):
                    silent += 1
                poll.unregister(fd)
                asked.pop(fd)
                question.socket.close()
        silent += len(asked)
        for _, question in asked.values():
            question.socket.close()
    found = dict[object, Launcher]()
    for path in filter(answered.__contains__, paths):
        found.setdefault(*answered[path])
    return list(found.values()), silent


class _Question:
    """A question to a launcher, and what has arrived of the answers.

    Attributes:
        socket: The connection.
        pid: PID of the process that listens; 0 if it is in a PID namespace that we do not see.
        owner: User ID of that process.
        limit_bytes: Limit of all answers together.
    """

    def __init__(self, path: str, question: Message, limit_bytes: int, within_s: float) -> None:
        """Connect and ask.

        Raises:
            OSError: There is no launcher, we may not ask it, or it does not accept us in time.
        """
        self._lines, self._answers, self.limit_bytes = Lines(limit_bytes), list[Message](), limit_bytes
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.settimeout(within_s)
            self.socket.connect(path)
            self.pid, self.owner = read_peer(self.socket)
            if os.geteuid() not in (0, self.owner) and self.owner:
                raise PermissionError(f"{path} is another user's")
            self.socket.sendall(pack(question))
        except OSError:
            self.socket.close()
            raise

    def hear(self) -> list[Message] | None:
        """Read once; return the answers if they are complete.

        Raises:
            OSError: The connection failed.
            ValueError: The connection was closed too early, or the answer is not a launcher's.
        """
        data = self.socket.recv(1 << 16)
        self.limit_bytes -= len(data)
        if not data or self.limit_bytes < 0:
            raise Garbled("it closed the connection" if not data else "the answer is too long")
        for message in self._lines.feed(data):
            if message.get("over") is True:
                return self._answers
            self._answers.append(message)
        return None


def await_launchers(environ: Mapping[str, str], job: str) -> tuple[list[Launcher], int]:
    """Return the result of `find_launchers`; wait briefly if the requested launcher may have just started."""
    deadline = time.monotonic() + WAIT_S
    while True:
        # Before the search, which silent launchers make long: one that begins to listen meanwhile is found
        is_last = time.monotonic() >= deadline or not is_coming()
        launchers, others = find_launchers(environ)
        if is_last or any(one.is_meant(job) for one in launchers):
            return launchers, others
        time.sleep(STEP_S)


def choose(launchers: list[Launcher], others: int, job: str) -> Launcher:
    """Return the launcher that the user means.

    Args:
        launchers: The launchers that answer.
        others: Number of launchers that do not.
        job: A pid, or the beginning of the name of a run; empty for the only launcher.

    Raises:
        Unavailable: There is no launcher, or none that matches.
        UsageError: Several launchers match.
    """
    where = f"{len(launchers)} job{'' if len(launchers) == 1 else 's'} found on this machine"
    where += f"; {others} of other users or not responding" if others else ""
    meant = [one for one in launchers if one.is_meant(job)]
    meant = [one for one in meant if one.is_ours] or meant
    if len(meant) == 1:
        return meant[0]
    if not launchers:
        more = f"; {others} launcher{'s' if others > 1 else ''} of another user, or stopped" if others else ""
        raise make_error("no-job", where=where, more=more)
    known = ", ".join(one.label for one in launchers[:NAMED_MAX])
    if len(launchers) > NAMED_MAX:
        known += f" and {len(launchers) - NAMED_MAX} more"
    if not meant:
        raise make_error("no-such-job", where=where, job=printable(job), known=known)
    raise make_error("several-jobs", where=where, known=known)


def ask(path: str, what: str, limit_s: float = 0.0, **more: object) -> list[Message]:
    """Ask a launcher, and return its answers; ``limit_s``: seconds that a program may take on a node.

    Raises:
        OSError: There is no launcher, we may not ask it, or it does not answer in time (TimeoutError).
        ValueError: The connection was closed too early, or the answer is not a launcher's.
        MemoryError: The answer of another user's launcher is too large.
    """
    deadline = time.monotonic() + ANSWER_S[what]
    question = _Question(path, {"ask": what, "limit_s": limit_s, **more}, LINE_LIMIT_BYTES, CONNECT_S)
    with question.socket:
        question.limit_bytes = ANSWER_LIMIT_BYTES
        if question.owner not in (0, os.geteuid()):
            question.limit_bytes = OTHERS_LIMIT_BYTES
            limit_memory(OTHERS_MEMORY_BYTES)
        answers = None
        while answers is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            question.socket.settimeout(min(left, SILENT_S + limit_s))
            answers = question.hear()
    return answers


def ask_launcher(launcher: Launcher, what: str, limit_s: float = 0.0, **more: object) -> list[Message]:
    """Ask a launcher that has answered before; see `ask`.

    Raises:
        NotReady: It no longer answers.
    """
    try:
        return ask(launcher.path, what, limit_s, **more)
    except (OSError, ValueError) as error:
        gone = isinstance(error, (ConnectionError, FileNotFoundError))
        why = "its job has ended" if gone else printable(str(error)) or "no answer in time"
        raise make_error("no-answer", path=launcher.path, pid=launcher.pid, why=why) from error


def is_coming() -> bool:
    """Whether one of our launchers is younger than `YOUNG_S`, so that it may not listen yet.

    It listens some tenths of a second after its start, on a busy node later. Its directory is no indication:
    if logs are kept elsewhere, the directory does not exist before that.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    own = os.geteuid()
    for pid in list_pids():
        found = read_stat(pid)
        is_young = found is not None and now - found.started_s < YOUNG_S
        if is_young and (own == 0 or read_users(pid) == {own}) and is_run(read_command(pid, WORDS_BYTES)):
            return True
    return False


def is_run(words: Sequence[str]) -> bool:
    """Whether a command line is ``launcher run``."""
    for place, word in enumerate(words[:_WORDS_BEFORE]):
        if os.path.basename(word) == "launcher":
            return list(words[place + 1 : place + 2]) == ["run"]
    return False
