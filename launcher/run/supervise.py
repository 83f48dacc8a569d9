"""Start the processes of a node, pass signals on, wait, and return the first failure's status.

No handlers and no polling: the signals that matter are blocked, and one `sigtimedwait` is the only
place where the launcher waits. A signal that arrives between two waits stays pending, so nothing is
missed.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from launcher.errors import EXIT_BUG
from launcher.frozen import frozen
from launcher.run.execute import RESTORED, find_program, refusal

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
WATCHED = frozenset((*PASSED_ON, signal.SIGCHLD))
SI_KERNEL = 0x80
"""si_code of a signal that the kernel sends, as the terminal's driver does for Ctrl-C."""
KILL_WAIT_S = 5.0
"""After SIGKILL a process is gone at once, or the kernel holds it (D state) and we must not wait."""


@frozen
class Child:
    """One process to start: its name for messages, command line and whole environment."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]


def supervise(children: Sequence[Child], grace_s: float, *, widen_cpus: bool = False) -> int:
    """Run all children to their end and return the job's status.

    The first failure stops the others: SIGTERM, SIGKILL after ``grace_s``. So does a signal that
    asks us to end, which is passed on as it is.

    Returns:
        0, the first failing child's own status, or 128+n if signal n ended it.

    Raises:
        LauncherError: A child cannot be started (126, 127); those already started are stopped.
    """
    paths = [find_program(child.argv[0], child.environ) for child in children]
    if widen_cpus:
        # The kernel cuts this down to the cgroup's cpuset, which is exactly what is wanted.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    # A blocked signal that is ignored (nohup, a background job of a script) would still be delivered
    # to us, and an ignored SIGCHLD would let the kernel swallow every status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        return _Watch(grace_s, before, watched).run(children, paths)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Watch:
    """The running processes, the first status that ends the job, and the deadline if it is ending."""

    def __init__(self, grace_s: float, mask: set[int | signal.Signals], watched: set[signal.Signals]) -> None:
        self.grace_s = grace_s
        self.mask = mask
        self.watched = watched
        self.running: dict[int, str] = {}
        self.status: int | None = None
        self.deadline: float | None = None
        self.killed = False

    def run(self, children: Sequence[Child], paths: Sequence[str]) -> int:
        try:
            for child, path in zip(children, paths, strict=True):
                self.start(child, path)
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        while self.running and not self.give_up():
            self.handle(self.wait())
        return self.status or 0

    def start(self, child: Child, path: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.posix_spawn(path, child.argv, child.environ, setsigmask=self.mask, setsigdef=RESTORED)
        except (OSError, ValueError) as error:
            raise refusal(child.argv[0], error) from error
        self.running[pid] = child.name

    def wait(self) -> signal.struct_siginfo | None:
        """Return the next signal, or None when the deadline has passed."""
        if self.deadline is None:
            return signal.sigwaitinfo(self.watched)
        return signal.sigtimedwait(self.watched, max(0.0, self.deadline - time.monotonic()))

    def handle(self, info: signal.struct_siginfo | None) -> None:
        if info is not None and info.si_signo == signal.SIGCHLD:
            self.reap()
        elif info is not None:
            self.pass_on(signal.Signals(info.si_signo), from_terminal=info.si_code == SI_KERNEL)
        if self.deadline is not None and time.monotonic() >= self.deadline and not self.killed:
            _say(f"{len(self.running)} processes still run {self.grace_s:g} s after the signal: SIGKILL")
            self.stop(signal.SIGKILL)

    def reap(self) -> None:
        while self.running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                _say(f"lost sight of {', '.join(self.running.values())}: somebody else took their status")
                self.running.clear()
                self.status = self.status or EXIT_BUG
                return
            if pid == 0:
                return
            name = self.running.pop(pid, None)
            if name is not None:
                self.note_end(name, pid, os.waitstatus_to_exitcode(status))

    def note_end(self, name: str, pid: int, code: int) -> None:
        status = code if code >= 0 else 128 - code
        if status == 0 or self.status is not None:
            return
        self.status = status
        if self.deadline is None:
            how = f"exited with status {code}" if code > 0 else f"was ended by {_signal_name(-code)}"
            others = f"; stopping the other {len(self.running)}" if self.running else ""
            _say(f"{name} (pid {pid}) {how}{others}")
            self.stop(signal.SIGTERM)

    def pass_on(self, number: signal.Signals, *, from_terminal: bool = False) -> None:
        if number not in ENDING:
            self.send(number)
        elif number == signal.SIGINT and self.deadline is not None:
            self.stop(signal.SIGKILL)  # a second Ctrl-C: now
        else:
            # What is typed reaches the whole foreground group: a second copy would abort a script
            # that is just saving its checkpoint on the first.
            self.stop(number, tell=not from_terminal)

    def stop(self, number: signal.Signals, *, tell: bool = True) -> None:
        """Send the first or the last word; the clock of the first one is not restarted."""
        if number == signal.SIGKILL:
            self.killed = True
            self.deadline = time.monotonic() + KILL_WAIT_S
        elif self.deadline is None:
            self.deadline = time.monotonic() + self.grace_s
        if tell:
            self.send(number)

    def send(self, number: signal.Signals) -> None:
        for pid in self.running:
            try:  # noqa: SIM105 - contextlib would be one more module on the launch path
                os.kill(pid, number)  # not yet reaped, so the pid is still ours
            except ProcessLookupError:
                pass

    def give_up(self) -> bool:
        if not (self.killed and self.deadline is not None and time.monotonic() >= self.deadline):
            return False
        _say(f"{len(self.running)} processes survive SIGKILL: {', '.join(self.running.values())}")
        self.status = self.status or 128 + signal.SIGKILL
        return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"launcher: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a closed stderr must not end the job
