"""What a signal that arrives at the launcher means for the job."""

from __future__ import annotations

import os
import time

from launcher.process.descendants import is_orphaned
from launcher.process.signals import ENDING, name_signal, send, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.model import Supervision
    from launcher.process.spawn import Process
    from launcher.process.stop import Stopper

TWICE_S = 2.0
"""Two Ctrl-C within this time are one request to end now."""
PROMPT_S = 1.0
"""Within these a prompt is back, and reads keys; whoever hangs does not."""
LOOK_S = 0.05
HEARD_S = 10.0
"""A process that ends within this time after a Ctrl-C has ended because of it."""


class Relay:
    """Passes signals on to the processes of one attempt after the other.

    Attributes:
        told: The signal by which we were asked to end, None if we were not.
        due: When `fire` looks what has become of two Ctrl-C.
    """

    def __init__(self, watch: Supervision, *, shares_terminal: bool, say: Callable[[str], None]) -> None:
        self.told: int | None = None
        self.due: float | None = None
        self._watch, self._shares_terminal, self._say = watch, shares_terminal, say
        self._interrupted_at = -HEARD_S
        self._patience = 0.0

    def attach(self, stopper: Stopper, running: Mapping[int, Process]) -> None:
        """Speak to the processes of an attempt."""
        self._stopper, self._running = stopper, running

    def pass_on(self, number: int, *, from_terminal: bool) -> None:
        """Do with a signal what its sender wants to happen to the job."""
        reached = from_terminal and self._shares_terminal  # the terminal has told the process itself
        if number == signal.SIGHUP and os.getsid(0) == os.getpid():
            reached = False  # a hangup is for the session's leader alone, tty_signal_session_leader
        if number == signal.SIGTSTP and from_terminal:
            self._suspend(reached)
        elif number not in ENDING and self._translate(number) not in ENDING:
            self._tell_leaders(number, reached=reached, typed=from_terminal)
        elif reached and number == signal.SIGINT:
            self._interrupt()
        elif self.told is not None and number == signal.SIGINT and from_terminal:
            self._stopper.kill()  # a second Ctrl-C: now
        else:
            self._end_by(number, typed=from_terminal)

    def note_end(self) -> None:
        """A process has ended: right after a Ctrl-C that is what was asked for."""
        if time.monotonic() - self._interrupted_at < HEARD_S:
            self.told = self.told or signal.SIGINT

    def _end_by(self, number: int, *, typed: bool) -> None:
        """We are asked to end: so are the processes, by the signal that they want to hear.

        What is typed goes to whole groups, as it does without us: a shell that waits for its child does
        nothing about a Ctrl-C that its child has not heard.
        """
        sent = self._translate(number)
        count = len(self._running)
        if self.told is None and count:
            to = "" if sent == number else f" as {name_signal(sent)}"
            processes = f"{count} process{'es' if count > 1 else ''}"
            grace = f"{self._watch.grace_s:g} s until SIGKILL"
            now = "; again to end them now" if number == signal.SIGINT and typed else ""
            self._say(f"{name_signal(number)}: passed on{to} to {processes}, {grace}{now}")
        self.told = self.told or number
        self._stopper.begin(sent, to_group=typed)

    def _interrupt(self) -> None:
        """Ctrl-C at the terminal of a single process, which has heard it, too.

        What that means is the process's to say: a prompt goes on. Whoever types it twice in a row means
        it, unless a moment later the process reads each key itself, as prompts and editors do.
        """
        now = time.monotonic()
        if now - self._interrupted_at < TWICE_S:
            self.due, self._patience = now, now + PROMPT_S
        self._interrupted_at = now
        for process in self._running.values():
            process.passed_on = signal.SIGINT

    def fire(self, now: float) -> None:
        """Two Ctrl-C have been typed, and this is a moment later."""
        self.due = None if reads_keys(0) else now + LOOK_S
        if self.due is not None and now >= self._patience:
            self.due = None
            self._stopper.kill()

    def _translate(self, number: int) -> int:
        """Return what is sent where a signal arrives."""
        return dict(self._watch.signal_map).get(number, number)

    def _tell_leaders(self, number: int, *, reached: bool, typed: bool) -> None:
        """Pass a signal on that does not ask us to end."""
        sent = self._translate(number)
        for process in self._running.values():
            process.passed_on = sent
        if not reached:
            whole = typed or self._watch.signal_to == "group" or number == signal.SIGCONT
            for pid in self._running:
                send(-pid if whole and not self._shares_terminal else pid, sent)

    def _suspend(self, reached: bool) -> None:
        """Ctrl-Z: the processes stop, and so do we, as the shell expects."""
        if is_orphaned():
            return  # no shell: nobody could continue us
        if not reached:
            for pid in self._running:
                send(-pid, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)


def reads_keys(fd: int) -> bool:
    """Whether the program at a terminal has asked for each key instead of lines."""
    import termios

    try:
        return not termios.tcgetattr(fd)[3] & termios.ICANON
    except termios.error:
        return False
