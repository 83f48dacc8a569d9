"""What does passing output on cost? ``python -m benchmarks.log_lines``: MiB/s through real pipes.

Writers send lines through pipes as fast as they can; the launcher's streams put ``[rank N] `` in front
of each and write them to a null device, a file in memory, or a pipe that somebody reads. MiB are those
of the writers. The last rows write one line at a time, as Python's print to an unbuffered stream
does: there the system calls count, not the bytes. The promise: 500 MiB/s for lines of 80 bytes.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.machine import describe_machine
from benchmarks.tables import cell, markdown, promise
from launcher.output.console import BACKLOG_LIMIT_BYTES, Console, Screen
from launcher.output.formats import PlainLines
from launcher.output.prefixes import make_prefix
from launcher.output.streams import Stream

PROMISE_MIB_S = 500.0
TOTAL_BYTES = 1 << 29
ALONE_BYTES = 1 << 26
LINE = b"x" * 79 + b"\n"
CHUNK_BYTES = 1 << 16


WRITER = """
import os, sys
piece, left = sys.argv[1].encode().decode("unicode_escape").encode() * int(sys.argv[2]), int(sys.argv[3])
while left > 0:
    left -= os.write(1, piece)
"""


@contextmanager
def writers(line: bytes, lines_per_write: int, total_bytes: int, count: int) -> Iterator[list[int]]:
    """Start processes that write lines until they have written a total; yield what to read from."""
    words = [
        line.decode("ascii").encode("unicode_escape").decode(),
        str(lines_per_write),
        str(total_bytes // count),
    ]
    command = [sys.executable, "-I", "-S", "-c", WRITER, *words]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    readers = [process.stdout.fileno() for process in running if process.stdout]
    for reader in readers:
        select.select([reader], [], [])
    yield readers
    for process in running:
        process.communicate()


def pass_on(streams: dict[int, Stream], console: Console) -> None:
    """Read until all streams have ended, as the launcher's loop does: not while too much is queued."""
    with select.epoll() as loop:
        for fd in streams:
            loop.register(fd, select.EPOLLIN)
        while streams:
            for fd, _ in loop.poll():
                if not streams[fd].read():
                    streams.pop(fd).finish()
                    loop.unregister(fd)
                if console.backlog_bytes > BACKLOG_LIMIT_BYTES:
                    console.drain(time.monotonic() + 60)


def measure(
    target: int, line: bytes = LINE, *, count: int = 1, prefix: bool = True, alone: bool = False
) -> float:
    """Return the MiB/s from ``count`` writers to a descriptor; ``alone`` writes one line at a time."""
    total_bytes = ALONE_BYTES if alone else TOTAL_BYTES
    with writers(line, 1 if alone else CHUNK_BYTES // len(line), total_bytes, count) as readers:
        console = Console(target, "benchmark")
        screen = Screen(console)
        streams = {
            fd: Stream(
                fd,
                screen,
                PlainLines(make_prefix(f"rank {rank}", rank, colour=False) if prefix else b""),
                None,
            )
            for rank, fd in enumerate(readers)
        }
        started = time.perf_counter()
        pass_on(streams, console)
        console.drain(time.monotonic() + 60)
        elapsed_s = time.perf_counter() - started
        console.close()
    assert console.lost_bytes == 0
    return total_bytes / elapsed_s / (1 << 20)


def main() -> int:
    """Print the table; the exit status says whether the promise holds."""
    null = os.open(os.devnull, os.O_WRONLY)
    file = os.memfd_create("log")
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=null)
    assert cat.stdin is not None
    rows = {
        "null device, no prefix": measure(null, prefix=False),
        "null device": measure(null),
        "null device, 4 writers": measure(null, count=4),
        "null device, lines end in CR LF": measure(null, LINE[1:-1] + b"\r\n"),
        "null device, lines end in CR": measure(null, LINE[:-1] + b"\r"),
        "file in memory, no prefix": measure(file, prefix=False),
        "file in memory": measure(file),
        "pipe to cat": measure(cat.stdin.fileno()),
        "null device, one write per line, no prefix": measure(null, prefix=False, alone=True),
        "null device, one write per line": measure(null, alone=True),
    }
    cat.communicate()
    print(f"{describe_machine()}.\n")
    print(
        "\n".join(
            markdown(("lines of 80 bytes to", "MiB/s"), [(name, cell(rate)) for name, rate in rows.items()])
        )
    )
    print(f"\n{promise('MiB/s of lines', PROMISE_MIB_S, rows['null device'], least=True)}")
    return 0 if rows["null device"] >= PROMISE_MIB_S else 1


if __name__ == "__main__":
    sys.exit(main())
