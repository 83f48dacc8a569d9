"""One process of a measured job: ``python -I -S rank.py MODE [FIFO [BLOCKS]]``, no packages, no site.

- ``print``: print one line and end.
- ``wait``: say its pid into the FIFO, sleep; SIGUSR1 makes it exit with status 3, SIGTERM ends it.
- ``ignore``: the same, but SIGTERM does nothing.
- ``write``: say its pid, on SIGUSR1 write BLOCKS blocks to stdout, say it is done, end on SIGUSR1.

It speaks through a FIFO and is led by signals to its own pid, so that no launcher's way of treating
output or input matters.
"""

from __future__ import annotations

import sys

FIRST_LINE = "first-line"
STATUS = 3
LINE_BYTES = 80
LINES_PER_BLOCK = 8192
BLOCK_BYTES = LINE_BYTES * LINES_PER_BLOCK
WRITE_BYTES = 8192
"""What Python's own buffer hands to a pipe at once: 102.4 lines, so most writes end inside of a line."""


def block(pid: int) -> bytes:
    """Return the lines that this process writes again and again, each of them different."""
    lines = (
        f"{pid:>10} {number:>10} ".ljust(LINE_BYTES - 1, "x") + "\n" for number in range(LINES_PER_BLOCK)
    )
    return "".join(lines).encode()


def main(mode: str, fifo: str = "", blocks: str = "0") -> int:
    """Do what the mode says and return the status."""
    if mode == "print":
        print(FIRST_LINE)
        return 0
    import os
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "ignore" else signal.SIG_DFL)
    reports = os.open(fifo, os.O_WRONLY)
    text = memoryview(block(os.getpid())) if mode == "write" else memoryview(b"")
    os.write(reports, b"%d\n" % os.getpid())
    signal.sigwait({signal.SIGUSR1})
    if mode != "write":
        return STATUS
    for _ in range(int(blocks)):
        at = 0
        while at < len(text):
            at += os.write(1, text[at : at + WRITE_BYTES])
    os.write(reports, b"%d done\n" % os.getpid())
    signal.sigwait({signal.SIGUSR1})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
