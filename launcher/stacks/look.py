"""Reads what /proc shows of a process."""

from __future__ import annotations

import os
import re

from launcher.core.redact import printable, quote_command
from launcher.machine.process import (
    read_command,
    read_environ,
    read_file,
    read_link,
    read_name,
    read_stat,
)
from launcher.stacks.answer import RUNNING, Answer

COMMAND_LIMIT = 200
_OPTIONS = re.compile(r"-([a-zA-Z?]+)$")

# System calls in which a process may wait, by the number in /proc/PID/syscall; others keep their number.
_X86_64 = (
    "0 read 1 write 2 open 4 stat 5 fstat 6 lstat 7 poll 16 ioctl 17 pread64 18 pwrite64 23 select "
    "24 sched_yield 34 pause 35 nanosleep 42 connect 43 accept 44 sendto 45 recvfrom 46 sendmsg 47 recvmsg "
    "61 wait4 72 fcntl 73 flock 74 fsync 128 rt_sigtimedwait 130 rt_sigsuspend 202 futex 217 getdents64 "
    "230 clock_nanosleep 232 epoll_wait 247 waitid 257 openat 262 newfstatat 270 pselect6 271 ppoll "
    "281 epoll_pwait 288 accept4 332 statx 441 epoll_pwait2"
)
_AARCH64 = (
    "22 epoll_pwait 25 fcntl 29 ioctl 32 flock 56 openat 61 getdents64 63 read 64 write 67 pread64 "
    "68 pwrite64 72 pselect6 73 ppoll 79 newfstatat 82 fsync 95 waitid 98 futex 101 nanosleep "
    "115 clock_nanosleep 124 sched_yield 133 rt_sigsuspend 137 rt_sigtimedwait 202 accept 203 connect "
    "206 sendto 207 recvfrom 211 sendmsg 212 recvmsg 242 accept4 260 wait4 291 statx 441 epoll_pwait2"
)


def _list_calls() -> dict[str, str]:
    """Return the names of this machine's calls by their numbers; none if the machine is not known."""
    try:
        words = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(os.uname().machine, "").split()
    except OSError:  # uname is refused
        return {}
    return dict(zip(words[::2], words[1::2], strict=True))


CALLS = _list_calls()


def look_at(rank: int, pid: int) -> Answer | None:
    """Return what is known about a process without its help; None if it is gone."""
    found = read_stat(pid)
    if found is None:
        return None
    words = read_command(pid)
    kernel = read_file(f"/proc/{pid}/wchan").decode("ascii", "replace").strip()
    return Answer(
        rank,
        pid,
        command=quote_command(words or [f"[{read_name(pid)}]"], COMMAND_LIMIT),
        state=found.state,
        call=read_call(pid),
        kernel=printable(kernel) if kernel != "0" else "",
        folder=read_link(f"/proc/{pid}/cwd"),
        is_python=_is_python(pid),
    )


def explain_unarmed(pid: int, site: str) -> str:
    """Return why a Python has not run our ``sitecustomize``; empty if unknown.

    Args:
        pid: Its PID.
        site: Directory that the launcher has put into its PYTHONPATH.
    """
    environ = read_environ(pid)
    if site not in environ.get("PYTHONPATH", "").split(os.pathsep):
        if "LAUNCHER_STACKS_FILE" not in environ:
            return "it does not have the job's environment"
        return "a script has set PYTHONPATH anew (PYTHONPATH=DIR:$PYTHONPATH keeps the launcher's)"
    for word in read_command(pid)[1:]:
        options = _OPTIONS.match(word)
        if options is None:
            break
        if set(options[1]) & set("EIS"):
            return f"python {word} leaves the launcher's sitecustomize out"
    return "" if _is_interpreter(pid) else "a program with Python inside may not read PYTHONPATH"


def read_call(pid: int) -> str:
    """Return the system call of a main thread, `RUNNING`, or empty: unknown, or a wait outside of one."""
    words = read_file(f"/proc/{pid}/syscall").decode("ascii", "replace").split()
    if not words or words[0] == "-1":
        return ""
    return words[0] if words[0] == RUNNING else CALLS.get(words[0], f"system call {words[0]}")


def _is_python(pid: int) -> bool:
    # Or a program with another name that embeds Python.
    return _is_interpreter(pid) or b"/libpython3" in read_file(f"/proc/{pid}/maps")


def _is_interpreter(pid: int) -> bool:
    return os.path.basename(read_link(f"/proc/{pid}/exe")).startswith(("python", "pypy"))
