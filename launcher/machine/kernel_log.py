"""The kernel's log from a certain moment on, where we may read it.

The descriptor keeps our place: the kernel gives every reader its own. So nothing has to be compared
with clocks, and what an earlier job has left in the log is not ours. Most containers have no
/dev/kmsg; then there is nothing.

Source: Linux Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
from errno import EPIPE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

KERNEL_LOG = "/dev/kmsg"
RECORD_BYTES = 8192
"""No record is longer (CONSOLE_EXT_LOG_MAX)."""
READS_MAX = 20_000
"""More than a log buffer holds: a kernel that writes while we read must not keep us."""


def open_kernel_log(host: Host) -> int | None:
    """Return a descriptor that reads what the kernel says from now on; None where it may not be read.

    The descriptor does not block and is closed on exec.
    """
    # Some containers link it to a terminal, which must not become ours.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        fd = os.open(host.path(KERNEL_LOG), flags)
    except (OSError, ValueError):
        return None
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:  # a pipe or a terminal, with another job's words in it
        os.close(fd)
        return None
    return fd


def read_kernel_log(fd: int, word: str) -> list[str]:
    """Return the messages since the descriptor was opened or last read that hold a word, oldest first.

    Empty if the descriptor is not readable any more. What the kernel has overwritten is lost.
    """
    wanted = word.encode()
    found: list[str] = []
    for _ in range(READS_MAX):
        try:
            data = os.read(fd, RECORD_BYTES)
        except OSError as error:
            if error.errno == EPIPE:
                continue  # overwritten before we came: the next read goes on with the oldest there is
            break  # BlockingIOError: that was all
        if not data:
            break
        found.extend(_message(line) for line in data.splitlines() if wanted in line)
    return found


def _message(line: bytes) -> str:
    """Return the text of ``6,339,5140900,-;NVRM: ...``."""
    head, semicolon, text = line.partition(b";")
    return (text if semicolon and b"," in head else line).decode("utf-8", "replace")
