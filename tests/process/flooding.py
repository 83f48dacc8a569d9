"""A process that calls a port many times a second, says nothing, and does not hang up."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence

FLOOD = """
import resource, socket, sys, time
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
address, port, per_s, source = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
held, made, began = [], 0, time.monotonic()
print("begun", flush=True)
while True:
    while made < (time.monotonic() - began) * per_s:
        caller = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if source:
            caller.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            caller.bind((source.replace("*", f"7.{made // 250 % 32}.{made % 250 + 1}"), 0))
        caller.connect_ex((address, port))
        held.append(caller)
        made += 1
        if len(held) > min(20_000, hard - 50):
            held.pop(0).close()
    time.sleep(0.002)
"""


def argv_of(where: tuple[str, int], per_s: float, source: str = "") -> tuple[str, ...]:
    """Return the command line of such a process."""
    return (sys.executable, "-c", FLOOD, where[0], str(where[1]), str(per_s), source)


@contextlib.contextmanager
def flood(
    where: tuple[str, int], per_s: float, source: str = "", before: Sequence[str] = ()
) -> Iterator[None]:
    """Return while a port is called so often.

    Args:
        where: Address and port.
        per_s: Connections a second.
        source: Where they come from; ``127.*`` for 8,000 addresses in turn.
        before: What stands before the command: to enter a node.
    """
    argv = [*before, *argv_of(where, per_s, source)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield
        finally:
            process.kill()
