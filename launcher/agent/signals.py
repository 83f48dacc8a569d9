"""Signal forwarder: decides what a signal to the launcher means for the processes, and sends it to them."""

from __future__ import annotations

import os
import time

from launcher.core.signal import signal
from launcher.machine.process import is_orphaned
from launcher.process.signal_file import ENDING, ENDING_IDLE, name_signal, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from launcher.core.log import Say
    from launcher.core.supervision import Supervision
    from launcher.process.group import ProcessGroup

    class Target(Protocol):
        """The receiver of signals: the processes of this node, or all ranks that mpirun has started."""

        @property
        def count(self) -> int:
            """Number of running processes."""

        def describe(self) -> str:
            """Return the processes in words: ``2 processes``."""

        def pass_on(self, number: int, *, whole: bool, reached: bool = False) -> None:
            """Send a signal that does not ask for the end, to ``whole`` process groups or their leaders.

            ``reached``: the terminal has sent it to the process that reads it.
            """

        def note(self, number: int) -> None:
            """Record the signal as the last one that the processes received."""

        def stop(self, number: int, *, to_group: bool = False, reached: bool = False) -> None:
            """Begin to stop the processes; ``reached`` as in `pass_on`."""

        def kill(self) -> None:
            """Kill the processes now."""

        @property
        def suspends(self) -> bool:
            """Whether the processes may be suspended; across a network connections would time out."""


TWICE_S = 2.0
"""Two Ctrl-C within this many seconds ask for the end now."""
PROMPT_S = 1.0
"""Within this many seconds a prompt reads keys again; a program that hangs does not."""
LOOK_S = 0.05
HEARD_S = 10.0
"""A process that exits within this many seconds after a Ctrl-C has exited because of it."""


class SignalForwarder:
    """Forwards signals to a target.

    Attributes:
        told: The signal that told us to stop; None if there was none.
        due: When `fire` checks the effect of two Ctrl-C.
    """

    def __init__(self, target: Target, watch: Supervision, say: Say, *, shares_terminal: bool) -> None:
        self.told: int | None = None
        self.due: float | None = None
        self._target, self._watch, self._say = target, watch, say
        self._shares_terminal = shares_terminal
        self._interrupted_at = -HEARD_S
        self._patience = 0.0
        self._early: list[int] | None = [] if watch.preload is not None else None

    def on_signal(self, number: int, *, from_terminal: bool) -> None:
        """Apply a signal to the processes as its sender intends."""
        reached = from_terminal  # the terminal has sent it to the process that reads it, too
        if number == signal.SIGHUP and os.getsid(0) == os.getpid():
            reached = False  # only the session leader gets a hangup, see tty_signal_session_leader
        if number == signal.SIGTSTP and from_terminal:
            self._suspend()
        elif number in ENDING_IDLE and not self._target.count and self._early is None:
            self._end_by(number, typed=from_terminal, reached=reached)
        elif number not in ENDING and self.translate(number) not in ENDING:
            self._pass_on(number, reached=reached, typed=from_terminal)
        elif reached and self._shares_terminal and self._target.count and self._is_plain_interrupt(number):
            self._interrupt()
        elif self.told is not None and number == signal.SIGINT and from_terminal:
            self._target.kill()  # a second Ctrl-C: now
        else:
            self._end_by(number, typed=from_terminal, reached=reached)

    def note_end(self) -> None:
        """Note the exit of a process: right after a Ctrl-C, the Ctrl-C counts as a request to stop."""
        if time.monotonic() - self._interrupted_at < HEARD_S:
            self.told = self.told or signal.SIGINT

    @property
    def was_interrupted(self) -> bool:
        """Whether a Ctrl-C has reached the process: if it fails later, perhaps after a checkpoint, it does so
        because of that, or its user is there."""
        return self._interrupted_at >= 0

    def translate(self, number: int) -> int:
        """Return the signal to send for one that arrives (``--signal-map``)."""
        return dict(self._watch.signal_map).get(number, number)

    def _is_plain_interrupt(self, number: int) -> bool:
        return number == signal.SIGINT == self.translate(number)

    def _end_by(self, number: int, *, typed: bool, reached: bool) -> None:
        """Stop the processes because of a signal that asks for it; send them the signal of ``--signal-map``.

        A typed signal goes to whole process groups, as it does without the launcher: a shell that waits for
        its child ignores a Ctrl-C that the child has not received.
        """
        sent = self.translate(number)
        if self.told is None and self._target.count:
            to = "" if sent == number else f" as {name_signal(sent)}"
            grace = f"{self._watch.grace_s:g} s until SIGKILL"
            now = "; press Ctrl-C again to kill them now" if number == signal.SIGINT and typed else ""
            self._say(
                f"{name_signal(number)}: passed on{to} to {self._target.describe()}, {grace}{now}", "signal"
            )
        self.told = self.told or number
        self._target.stop(sent, to_group=typed, reached=reached and sent == number)

    def _interrupt(self) -> None:
        """Handle Ctrl-C at the terminal of a single process, which has received it too.

        The process decides what it means: a prompt goes on. Two Ctrl-C in a row end the process, unless it
        reads each key itself a moment later, as prompts and editors do.
        """
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_S:
            self.due, self._patience = now, now + PROMPT_S
        self._interrupted_at = now
        self._target.note(signal.SIGINT)

    def fire(self, now: float) -> None:
        """After two Ctrl-C, kill the processes unless one reads keys within `PROMPT_S`."""
        self.due = None if reads_keys(0) else now + LOOK_S
        if self.due is not None and now >= self._patience:
            self.due = None
            self._target.kill()

    def _pass_on(self, number: int, *, reached: bool, typed: bool) -> None:
        """Forward a signal that does not ask us to stop; if modules are still imported, once that is over."""
        sent = self.translate(number)
        if self._early is not None:
            self._early.append(sent)
            return
        self._target.note(sent)
        whole = typed or self._watch.signal_to == "group" or number == signal.SIGCONT
        self._target.pass_on(sent, whole=whole, reached=reached and sent == number)

    def release(self) -> None:
        """Forward what has come before the first processes."""
        early, self._early = self._early, None
        for number in early or ():
            self._target.note(number)
            self._target.pass_on(number, whole=self._watch.signal_to == "group")

    def _suspend(self) -> None:
        """Handle Ctrl-Z: stop the processes, then ourselves, as the shell expects."""
        if not self._target.suspends or is_orphaned():
            return  # without a shell nothing would continue us
        self._target.pass_on(signal.SIGTSTP, whole=True, reached=True)
        os.kill(os.getpid(), signal.SIGSTOP)


class GroupTarget:
    """The processes of this node."""

    suspends = True

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    @property
    def count(self) -> int:
        """Number of running processes."""
        return len(self._group.running)

    def describe(self) -> str:
        """Return the processes in words."""
        return f"{self.count} process{'es' if self.count > 1 else ''}"

    def pass_on(self, number: int, *, whole: bool, reached: bool = False) -> None:
        """Send a signal to ``whole`` process groups or to their leaders."""
        for pid, process in self._group.running.items():
            if not (process.child.serves or (reached and process.has_terminal)):
                send(-pid if whole and not process.has_terminal else pid, number)

    def note(self, number: int) -> None:
        """Record the signal as the last one that the processes received."""
        for process in self._group.running.values():
            if not process.child.serves:
                process.passed_on = number

    def stop(self, number: int, *, to_group: bool = False, reached: bool = False) -> None:
        """Begin to stop the processes."""
        self._group.stopper.begin(number, to_group=to_group, reached=reached)

    def kill(self) -> None:
        """Kill the processes now."""
        self._group.stopper.kill()


def reads_keys(fd: int) -> bool:
    """Whether the program at a terminal reads single keys instead of lines."""
    import termios

    try:
        return not termios.tcgetattr(fd)[3] & termios.ICANON
    except termios.error:
        return False
