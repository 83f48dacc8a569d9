"""Collects stack dumps of all processes of a job, without ever blocking.

There are three ways, tried in this order: the stack signal, for which `launcher.guest` prepared the process;
py-spy; and what /proc shows of any process. On request, py-spy also gives the C functions of processes that
have answered.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from errno import ESRCH

from launcher.core.files import create_file, open_own
from launcher.core.redact import shorten
from launcher.guest import STACKS_NAME
from launcher.guest.site.sitecustomize import STACK_SIGNAL
from launcher.hang.look import explain_unarmed, look_at
from launcher.hang.report import render_stacks
from launcher.hang.stacks import Answer, parse_faulthandler, parse_py_spy
from launcher.machine.process import LIMIT_BYTES, has_signal, list_folder, list_open, read_stat
from launcher.output.folder import REPORT, SITE
from launcher.process.descendants import find_descendants, is_alive
from launcher.process.tool import Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.hang.stacks import Answer

RUNS_MAX = 4
"""Maximum number of py-spy runs at a time."""
FAMILY_LIMIT = 256
"""Maximum number of processes per rank."""
SLICE_S = 0.005
"""Seconds of one step in which ranks are read; the launcher's loop waits as long."""
ANSWER_S = 2.0
"""Seconds that a process has for its answer."""
YOUNG_S = 0.5
"""Age in seconds from which the child of a process that is asked is asked, too: a younger one may be about to
become another program, which the signal would end."""
_in_use: set[str] = set()
"""Files with a pending answer: two inquiries at a time, for a stall and for a user, take turns."""
NO_PY_SPY = "py-spy is not installed (pip install cluster-launcher[observe])"
PY_SPY_S = 10.0
"""Seconds that one run of py-spy has; after as many seconds no further run is started."""
WHY_LIMIT = 200


class Inquiry:
    """One stack dump of all processes."""

    def __init__(self, processes: Sequence[tuple[int, int]], folder: str | None) -> None:
        """Prepare to ask these (rank, PID) and all their descendants; their files are below ``directory``."""
        self._native = False
        self._ranks = list(processes)
        self._family: list[tuple[int, int, int]] = []
        """Processes to look at: the rank, its first process, and the process."""
        self._folder = None if folder is None else os.path.realpath(folder)
        self._answers: dict[int, Answer] = {}
        self._young: list[Answer] = []
        self._lanes: dict[str, Lane] = {}
        self._queue: list[Answer] = []
        self._runs: list[tuple[Tool, Answer]] = []
        self._py_spy_until: float | None = None

    @property
    def answers(self) -> list[Answer]:
        """What is known by now, for each rank from the started process downwards.

        A process that has ended without an answer is left out.
        """
        return [one for one in self._answers.values() if one.threads or is_alive(one.pid)]

    @property
    def complete(self) -> bool:
        """Whether all processes have answered, or have had their time for it."""
        return not (self._ranks or self._family or self._young or self._lanes or self._queue or self._runs)

    def want_native(self) -> None:
        """Ask all for C functions, too, by py-spy; it pauses each process while it reads."""
        if not self._native:
            self._native = True
            self._queue += [answer for answer in self.answers if answer.threads]

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of the py-spy runs: they are our children, but not processes of the job."""
        return tuple(run.pid for run, _ in self._runs)

    def go_on(self, now: float) -> None:
        """Read more ranks, take answers, and ask the next processes."""
        until = time.monotonic() + SLICE_S
        while (self._ranks or self._family) and time.monotonic() < until:
            if not self._family:
                rank, leader = self._ranks.pop(0)
                family = [leader, *find_descendants([leader])][:FAMILY_LIMIT]
                self._family = [(rank, leader, pid) for pid in family]
            self._look_at(*self._family.pop(0))
        self._take_grown()
        for path, lane in list(self._lanes.items()):
            lane.go_on(now)
            answered = lane.take_answered()
            self._take(answered)
            self._queue += answered if self._native else []
            if lane.complete:
                self._queue += lane.unanswered
                del self._lanes[path]
        if not (self._ranks or self._family or self._young or self._lanes):
            self._start_py_spy(now)
            for run, answer in [one for one in self._runs if one[0].is_over(now)]:
                self._runs.remove((run, answer))
                self._take([read_py_spy(run, answer)])

    def close(self) -> None:
        """Stop asking."""
        for run, _ in self._runs:
            run.close()
        for lane in self._lanes.values():
            lane.close()
        self._ranks, self._family, self._young, self._queue, self._runs = [], [], [], [], []
        self._lanes.clear()

    def _take(self, answers: Sequence[Answer]) -> None:
        self._answers.update((answer.pid, answer) for answer in answers)

    def _look_at(self, rank: int, leader: int, pid: int) -> None:
        """Look at one process of a rank."""
        answer = look_at(rank, pid)
        if answer is None or answer.state in "ZX":
            return
        self._take([answer])
        if pid != leader and is_young(pid):  # it may be a copy of its parent that is about to call exec
            self._young.append(answer)
        else:
            self._sort(answer)

    def _sort(self, answer: Answer) -> None:
        """Queue a process for the best way to ask it."""
        file = find_stacks_file(answer.pid, self._folder)
        if file is not None and answer.state not in "Tt":
            self._lanes.setdefault(file, Lane(file)).add(answer)
        elif answer.is_python:
            why = "it is stopped" if answer.state in "Tt" else explain_unarmed(answer.pid, SITE)
            self._queue.append(answer.without_threads(why))

    def _take_grown(self) -> None:
        """Queue the processes that are no longer young; forget those that have ended."""
        for answer in [one for one in self._young if not is_young(one.pid)]:
            self._young.remove(answer)
            if is_alive(answer.pid):
                self._sort(answer)

    def _start_py_spy(self, now: float) -> None:
        if self._py_spy_until is None:
            self._py_spy_until = now + PY_SPY_S
        program = find_py_spy() if self._queue else None
        while self._queue and len(self._runs) < RUNS_MAX:
            answer = self._queue.pop(0)
            if program is None:
                self._take([answer.without_threads(NO_PY_SPY)])
            elif now > self._py_spy_until:
                self._take([answer.without_threads("no time was left for py-spy")])
            else:
                self._run_py_spy(program, answer, now)

    def _run_py_spy(self, program: str, answer: Answer, now: float) -> None:
        try:
            run = start_py_spy(program, answer, now + PY_SPY_S, native=self._native)
            self._runs.append((run, answer))
        except OSError as error:
            self._take([answer.without_threads(f"py-spy: {error.strerror}")])


def write_stacks(folder: int, headline: str, answers: Sequence[Answer]) -> str:
    """Write all stacks to a new file in the directory with this descriptor; return its name.

    Raises:
        OSError: The file cannot be written.
    """
    data = render_stacks(headline, answers).encode("utf-8", "replace")
    for number in range(1, 1000):
        name = f"{REPORT}{number}.txt"
        try:
            create_file(data, name, 0o600, at=folder)
        except FileExistsError:  # from an earlier stall
            continue
        return name
    raise FileExistsError(0, "too many reports in this directory")


class Lane:
    """Processes that answer into the same file, a rank and its descendants, one after the other.

    Attributes:
        path: The file.
        unanswered: Processes that gave no answer, with the reason, and those that were not asked because of
            that.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.unanswered: list[Answer] = []
        self._waiting: list[Answer] = []
        self._answered: list[Answer] = []
        self._asked: Answer | None = None
        self._asked_at = 0.0
        self._blocking: set[str] = set()
        self._start = 0

    @property
    def complete(self) -> bool:
        """Whether no process is left to ask."""
        return self._asked is None and not self._waiting

    def add(self, answer: Answer) -> None:
        """Add a process to ask."""
        self._waiting.append(answer)

    def take_answered(self) -> list[Answer]:
        """Return the answers since the last call."""
        taken, self._answered = self._answered, []
        return taken

    def go_on(self, now: float) -> None:
        """Take an answer if it is complete, and ask the next process."""
        if self._asked is not None:
            self._look(self._asked, now)
        if self._asked is not None and not is_alive(self._asked.pid):
            self._release()  # it has ended without an answer
        while self._asked is None and self._waiting and self.path not in _in_use:
            self._ask(self._waiting.pop(0), now)

    def close(self) -> None:
        """Stop asking."""
        if self._asked is not None:
            self._release()

    def _release(self) -> None:
        self._asked = None
        _in_use.discard(self.path)

    def _ask(self, answer: Answer, now: float) -> None:
        try:
            self._start, self._blocking = os.stat(self.path).st_size, find_blocking(answer.pid)
            ask(answer.pid, self.path)
        except OSError as error:
            self.unanswered.append(answer.without_threads(f"it cannot be asked: {error.strerror}"))
            return
        self._asked, self._asked_at = answer, now
        _in_use.add(self.path)

    def _look(self, answer: Answer, now: float) -> None:
        text = read_from(self.path, self._start)
        if text.endswith(b"\n") and not is_answering(answer.pid, self._blocking):
            text = read_from(self.path, self._start)  # it may have grown before the handler ended
            threads = parse_faulthandler(text.decode("utf-8", "replace"))
            self._answered.append(answer.with_threads(threads, "faulthandler"))
            self._release()
            return
        if now - self._asked_at > ANSWER_S:
            # A late answer would get mixed up with the answer of the next process.
            silent = answer.without_threads(f"it does not answer within {ANSWER_S:g} s")
            self.unanswered += [silent, *self._waiting]
            self._release()
            self._waiting.clear()


def ask(pid: int, path: str) -> None:
    """Send the stack signal to a process that is ready for it; it would end any other process.

    Raises:
        OSError: The process is gone, not ours, or no longer ready.
    """
    pidfd = os.pidfd_open(pid)  # from here on another process with this PID cannot get the signal
    try:
        if find_stacks_file(pid, os.path.dirname(path)) != path:
            raise OSError(ESRCH, "it has closed its file")
        signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
    finally:
        os.close(pidfd)


def find_stacks_file(pid: int, folder: str | None) -> str | None:
    """Return the file below ``directory`` that a process writes its stacks to; None if it has none.

    The process itself must catch the signal and have the file open. Then the handler is the hook's, and it
    does not write to another file that got the descriptor of one that a script closed.
    """
    if folder is None or not has_signal(pid, STACK_SIGNAL, "SigCgt"):
        return None
    for link in list_open(pid):
        if link.startswith(f"{folder}/") and link.endswith(STACKS_NAME):
            return link
    return None


def is_young(pid: int) -> bool:
    """Whether a process was started a moment ago."""
    found = read_stat(pid)
    return found is not None and time.clock_gettime(time.CLOCK_BOOTTIME) - found.started_s < YOUNG_S


def find_blocking(pid: int) -> set[str]:
    """Return the threads of a process that block the stack signal: the handler, and some libraries."""
    threads = list_folder(f"/proc/{pid}/task")
    return {thread for thread in threads if has_signal(int(thread), STACK_SIGNAL, "SigBlk")}


def is_answering(pid: int, before: set[str]) -> bool:
    """Whether the process still writes: the signal is pending, or a thread is in the handler.

    Args:
        pid: The process.
        before: The threads that blocked the signal before it was sent.
    """
    return has_signal(pid, STACK_SIGNAL, "ShdPnd") or not find_blocking(pid) <= before


def read_from(path: str, start: int) -> bytes:
    """Return the part of a file after ``start``; empty if the file is no longer ours.

    At most the last MiB: the main thread comes last.
    """
    try:
        fd = open_own(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, LIMIT_BYTES, max(start, os.fstat(fd).st_size - LIMIT_BYTES))
    except OSError:
        return b""
    finally:
        os.close(fd)


def start_py_spy(program: str, answer: Answer, until: float, *, native: bool) -> Tool:
    """Start py-spy on a process. With ``--nonblocking`` it stops no thread while it reads.

    For C functions it must stop the process, which it does not do with one that is stopped or waits in the
    kernel: that would not let itself be stopped.

    Raises:
        OSError: It cannot be started.
    """
    how = "--native" if native and answer.state not in "TtD" else "--nonblocking"
    return Tool((program, "dump", how, "--json", "--pid", str(answer.pid)), until)


def read_py_spy(run: Tool, answer: Answer) -> Answer:
    """Return the result of a finished py-spy run."""
    out, err = run.finish()
    if run.was_killed:
        return answer.without_threads(f"py-spy did not end within {PY_SPY_S:g} s")
    try:
        return answer.with_threads(parse_py_spy(out), "py-spy")
    except ValueError:
        return answer.without_threads(f"py-spy: {explain_refusal(err)}")


def explain_refusal(error: str) -> str:
    """Return in one line why py-spy failed, from what it wrote."""
    first = next(
        (line.strip() for line in shorten(error, 4 * WHY_LIMIT).splitlines() if line.strip()),
        "it wrote nothing",
    )
    if "permission denied" in error.lower() or "not permitted" in error.lower():
        return "it may not read other processes here (in a container: --cap-add SYS_PTRACE)"
    return first[:WHY_LIMIT]


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside our Python, beside our packages, or on PATH; None without one."""
    packages = SITE.removesuffix("/launcher/guest/site")  # pip install --target puts programs into their bin/
    folders = [os.path.dirname(sys.executable), f"{packages}/bin"]
    folders += os.environ.get("PATH", "").split(os.pathsep)
    for path in [os.path.join(folder, "py-spy") for folder in folders if folder]:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None
