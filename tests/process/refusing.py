"""Run a command for which the kernel refuses some system calls, as a container's seccomp profile does.

    python refusing.py ERRNO NAME,NAME,... COMMAND...

A filter as short as can be: the number of the call is looked at, and each that is named fails with the error.

Source: seccomp(2), bpf(2); asm/unistd.h for the numbers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

NUMBERS = {  # x86_64, aarch64
    "signalfd4": (289, 74),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "pipe2": (293, 59),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "prctl": (157, 167),
    "memfd_create": (319, 279),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "sched_setaffinity": (203, 122),
    "sched_getaffinity": (204, 123),
    "setpriority": (141, 140),
    "io_uring_setup": (425, 425),
    "timerfd_create": (283, 85),
    "eventfd2": (290, 19),
    "dup3": (292, 24),
    "close_range": (436, 436),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "waitid": (247, 95),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "getrandom": (318, 278),
    "statfs": (137, 43),
    "prlimit64": (302, 261),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "mkdir": (83, 34),
    "kill": (62, 129),
    "poll": (7, None),
    "ppoll": (271, 73),
    "getsockopt": (55, 209),
    "sendmsg": (46, 211),
    "syslog": (103, 116),
    "membarrier": (324, 283),
    "openat2": (437, 437),
    "statx": (332, 291),
    "splice": (275, 76),
    "fallocate": (285, 47),
    "ioctl": (16, 29),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "sendto": (44, 206),
    "wait4": (61, 260),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "uname": (63, 160),
    "dup2": (33, None),
    "select": (23, None),
    "pselect6": (270, 72),
    "setsockopt": (54, 208),
    "getsockname": (51, 204),
    "tgkill": (234, 131),
    "getppid": (110, 173),
    "access": (21, None),
    "getpeername": (52, 205),
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ARCHITECTURES = ("x86_64", "aarch64")


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def number_of(name: str) -> int | None:
    """Return the number of a call on this machine; None where it has none."""
    return NUMBERS[name][ARCHITECTURES.index(platform.machine())]


def refuse(names: list[str], error: int) -> None:
    """Have these calls fail from now on, in this process and all that it starts.

    Raises:
        OSError: The kernel takes no filter.
    """
    numbers = [number for number in map(number_of, names) if number is not None]
    steps = [(LOAD, 0, 0, 0)]
    steps += [(EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    steps += [(RETURN, 0, 0, SECCOMP_RET_ALLOW), (RETURN, 0, 0, SECCOMP_RET_ERRNO | error)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = Program(len(steps), ctypes.cast(buffer, ctypes.c_void_p))
    library = ctypes.CDLL(None, use_errno=True)
    for words in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)),
    ):
        if library.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    refuse(sys.argv[2].split(","), int(sys.argv[1]))
    os.execvp(sys.argv[3], sys.argv[3:])
