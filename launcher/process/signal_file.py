"""Signals that a launcher forwards, and their names."""

from __future__ import annotations

import os

from launcher.core.errors import attempt
from launcher.core.signal import signal
from launcher.options.flag_values import NOT_PASSED_ON
from launcher.process.kernel import open_signal_file, pack_signals, set_mask

NOT_FORWARDED = tuple(int(getattr(signal, f"SIG{name}")) for name in NOT_PASSED_ON)
ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that request an end: they start the grace period (``--grace``)."""
ENDING_IDLE = (*ENDING, signal.SIGHUP, signal.SIGQUIT)
"""Signals that request an end while no process runs to which they can be forwarded."""
OF_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
"""Blocked, so that the terminal does not stop a launcher that writes from the background."""
TYPED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP)
"""Sent by a terminal to the process group in its foreground: keys, and the hang-up."""
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""Signals that Python changes, and that are reset to their default action for the processes.

They are blocked here, so the default action does nothing to us.
"""
SI_KERNEL = 0x80
"""si_code of a signal that the kernel sends, e.g. the terminal driver for Ctrl-C."""


def ending_of(number: int) -> int:
    """Return the signal that ends the processes of other nodes if this one asks for the end of a launcher."""
    return number if number in ENDING else signal.SIGTERM


_mask_at_start: frozenset[int] | None = None


def hold() -> None:
    """Block the signals that will be forwarded, as early as possible. Only for process 1.

    The kernel drops a signal for process 1 that has no handler for it. A SIGTERM in the milliseconds before
    we watch for signals would be lost, and the requested stop with it.
    """
    global _mask_at_start
    numbers = signal.valid_signals() - set(NOT_FORWARDED)
    _mask_at_start = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))


def release() -> None:
    """Undo `hold`, because we exec the command."""
    if _mask_at_start is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask_at_start)


class SignalFile:
    """The signals for us, blocked and read from a descriptor.

    A blocked signal would still be delivered if it is ignored (nohup, a background job of a script). So
    signals that were ignored when we started stay ignored, by us and by our processes.

    The action of each signal is set here once, as a process must find it: a forked process only has to
    restore the mask.
    """

    def __init__(self) -> None:
        forwarded = signal.valid_signals() - set(NOT_FORWARDED)
        ours = (signal.SIGPIPE, signal.SIGXFSZ)  # ignored by Python itself
        kept = {number for number in forwarded if signal.getsignal(number) is signal.SIG_IGN} - set(ours)
        for number in set(DEFAULTED) - kept:
            signal.signal(number, signal.SIG_DFL)
        numbers = (forwarded - kept) | {signal.SIGCHLD}
        mask = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, numbers | set(OF_TERMINAL)))
        self._mask = pack_signals(mask if _mask_at_start is None else _mask_at_start)
        self.fd = open_signal_file(numbers)

    def reset(self) -> None:
        """Restore the mask, in a forked child. Pending signals then act as usual."""
        set_mask(self._mask)


def send(pid: int, number: int) -> None:
    """Send a signal to a process or, if negative, a group, if it exists and we may signal it."""
    if pid != -1:  # not group 1, but all processes of this machine
        attempt(os.kill, pid, number)


def name_signal(number: int) -> str:
    """Return the name of a signal, e.g. ``SIGTERM`` or ``SIGRTMIN+3``."""
    import signal as with_names

    found = attempt(with_names.Signals, number)
    unnamed = f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"
    return found.name if found else unnamed
