"""Reads the kernel log from a certain moment on, if we are allowed to.

The kernel keeps a position for every descriptor, so we need not compare times, and we see no messages of an
earlier job. Most containers have no /dev/kmsg; then there are no messages.

Source: Linux Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
from errno import EPIPE

from launcher.core.errors import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

KERNEL_LOG = "/dev/kmsg"
RECORD_BYTES = 8192
"""Maximum length of a record (CONSOLE_EXT_LOG_MAX)."""
READS_MAX = 20_000
"""More records than a log buffer holds: a kernel that keeps writing must not keep us reading."""


def open_kernel_log(host: Host) -> int | None:
    """Return a descriptor for the kernel's messages from now on; None if we may not read them.

    The descriptor does not block and is closed on exec.
    """
    # Some containers link it to a terminal, which must not become our controlling terminal.
    fd = attempt(
        lambda: os.open(host.path(KERNEL_LOG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    )
    if fd is not None and attempt(os.lseek, fd, 0, os.SEEK_END) is None:
        os.close(fd)  # a pipe or a terminal, which may contain another job's output
        return None
    return fd


def read_kernel_log(fd: int, word: str) -> list[str]:
    """Return the messages with a word since the descriptor was opened or last read, oldest first.

    Empty if the descriptor is no longer readable. Messages that the kernel has overwritten are lost.
    """
    wanted = word.encode()
    found: list[str] = []
    for _ in range(READS_MAX):
        try:
            data = os.read(fd, RECORD_BYTES)
        except OSError as error:
            if error.errno == EPIPE:
                continue  # overwritten before we read it: the next read returns the oldest message left
            break  # BlockingIOError: there are no more messages
        if not data:
            break
        found.extend(_message(line) for line in data.splitlines() if wanted in line)
    return found


def _message(line: bytes) -> str:
    """Return the text after the semicolon in ``6,339,5140900,-;NVRM: ...``."""
    head, semicolon, text = line.partition(b";")
    return (text if semicolon and b"," in head else line).decode("utf-8", "replace")
