"""Which signals a launcher passes on, and what they are called."""

from __future__ import annotations

import os

from launcher.core.signal import signal
from launcher.options.flag_values import NOT_PASSED_ON
from launcher.process.kernel import open_signal_file, pack_signals, set_mask

NOT_FORWARDED = tuple(int(getattr(signal, f"SIG{name}")) for name in NOT_PASSED_ON)
ENDING = (signal.SIGTERM, signal.SIGINT)
"""Requests to end: they start the clock of ``--grace``."""
OF_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
"""A launcher in the background that has to say something must not be stopped by its terminal."""
DEFAULTED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)
"""What Python has changed, and a process gets as it should be; blocked, they do nothing to us either.
An ignored SIGCHLD would let the kernel swallow every status."""
SI_KERNEL = 0x80
"""si_code of a signal that the kernel sends, as the terminal's driver does for Ctrl-C."""


_mask_at_start: frozenset[int] | None = None


def hold() -> None:
    """Block what will be forwarded, as early as we can. For process 1.

    The kernel drops a signal for process 1 that has no handler for it: a SIGTERM in the milliseconds
    before we watch would be lost, and with it an end that is waited for.
    """
    global _mask_at_start
    numbers = signal.valid_signals() - set(NOT_FORWARDED)
    _mask_at_start = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, numbers))


def release() -> None:
    """Undo `hold`, where we do not stay."""
    if _mask_at_start is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask_at_start)


class SignalFile:
    """The signals that are for us: blocked, and read from a descriptor.

    A blocked signal that is ignored (nohup, a background job of a script) would still be delivered:
    what was ignored when we started stays ignored, by us and by our processes.

    What each signal does is set here, once, as a process is to find it: all that a process itself has
    to undo is the mask.
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
        """In a forked child: give back the mask. Pending signals then act as they should."""
        set_mask(self._mask)


def send(pid: int, number: int) -> bool:
    """Send a signal to a process or, negative, to a group; return whether it is there, and ours to tell."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def name_signal(number: int) -> str:
    """Return e.g. ``SIGTERM``, ``SIGRTMIN+3``."""
    import signal as with_names

    try:
        return with_names.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"
