"""Linux calls that Python's library lacks: prctl, signalfd and inotify, through the C library.

`ctypes` would cost 2 ms and 60 pages that every fork copies. Its C part, `_ctypes`, is enough for these
calls.
"""

from __future__ import annotations

import _ctypes
import os
from errno import EAGAIN, EMFILE, ENFILE, ENOMEM, EPERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
SIG_SETMASK = 2
SIGSET_BYTES = 128
SFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
FULL = (EMFILE, ENFILE, ENOMEM, EAGAIN)
"""Errors for an exhausted resource: descriptors, memory or processes."""
RECORD_BYTES = 128
"""Size of a signalfd_siginfo; it starts with four 32-bit numbers: signo, errno, code, pid."""


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no generic at run time
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: the libraries that are loaded already
_prctl = _Function(_ctypes.dlsym(_library, "prctl"))
_signalfd = _Function(_ctypes.dlsym(_library, "signalfd"))
_pthread_sigmask = _Function(_ctypes.dlsym(_library, "pthread_sigmask"))


def has_children() -> bool:
    """Return whether we have any child; waits for none and reaps none.

    Raises:
        OSError: The kernel refuses the call.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def collect(pid: int, flags: int = os.WNOHANG) -> int | None:
    """Reap a child; return its code as from `os.waitstatus_to_exitcode`, or None if it has not ended.

    With waitid, which supervision needs anyway: a kernel that refuses wait4 makes no difference.

    Raises:
        ChildProcessError: It is not our child.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | flags)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def become_subreaper() -> bool:
    """Adopt the orphans among our descendants; return False if the kernel refuses."""
    return bool(_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def die_with_parent(number: int) -> None:
    """Have the kernel send us this signal when the thread that forked us ends. This survives exec."""
    _prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name that ps and top show, at most 15 bytes."""
    _prctl(PR_SET_NAME, name.encode() + b"\0", 0, 0, 0)


def pack_signals(signals: Iterable[int]) -> bytes:
    """Return a set of signals in the C library's format."""
    return sum(1 << number - 1 for number in signals).to_bytes(SIGSET_BYTES, "little")


def set_mask(packed: bytes) -> None:
    """Block these signals and no others.

    Python's own function creates a set of the signals blocked before, which touches 20 pages that a forked
    child would have to copy.
    """
    _pthread_sigmask(SIG_SETMASK, packed, None)


def open_signal_file(signals: Iterable[int]) -> int:
    """Return a descriptor that is readable when one of these (blocked) signals is pending."""
    fd = int(_signalfd(-1, pack_signals(signals), SFD_NONBLOCK_CLOEXEC))
    if fd < 0:
        number = _ctypes.get_errno() or EPERM
        raise OSError(number, os.strerror(number))
    return fd


def read_signals(fd: int) -> list[tuple[int, int, int]]:
    """Return (signal, code, sender's pid) of all pending signals, in the kernel's order."""
    try:
        data = os.read(fd, 32 * RECORD_BYTES)
    except BlockingIOError:
        return []
    return [_parse(data[start : start + RECORD_BYTES]) for start in range(0, len(data), RECORD_BYTES)]


def _parse(record: bytes) -> tuple[int, int, int]:
    number, code, pid = (int.from_bytes(record[at : at + 4], "little") for at in (0, 8, 12))
    return number, code, pid
