"""Files of hosts, of any mpirun and of none: a host for each line, or an error, short and printable."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
from ipaddress import IPv6Address

from launcher.core.environ import COUNT_LIMIT
from launcher.core.errors import UsageError, print_problems
from launcher.identity.hosts import Listed, read_hostfile
from launcher.machine.host import Host
from tests.fuzz.engine import pattern_of
from tests.fuzz.mutate import mutate_lines

MESSAGE_LENGTH = 1000
ORIGIN = "--hostfile hosts"


def seeds() -> list[bytes]:
    """Return none: those in the corpus are of each mpirun."""
    return []


def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return a file with other lines."""
    return mutate_lines(case, other, dice)


def try_one(case: bytes) -> str:
    """Read a file of hosts."""
    with tempfile.TemporaryFile() as file:
        file.write(case)
        file.flush()
        try:
            listed = read_hostfile(f"/proc/{os.getpid()}/fd/{file.fileno()}", ORIGIN, Host())
        except UsageError as error:
            return _judge_error(error)
    _judge(listed, case)
    return f"{min(len(listed.hosts), 3)} hosts, {'no' if listed.per_node is None else 'a'} number"


def _judge_error(error: UsageError) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        print_problems(error)
    text = shown.getvalue()
    assert len(text) <= MESSAGE_LENGTH, len(text)
    assert all(line.isprintable() for line in text.split("\n")), text
    assert text.startswith("launcher: error: [malformed-hostfile] ")
    return pattern_of(text.rpartition("expected")[2])  # what stands before it may be redacted


def _judge(listed: Listed, case: bytes) -> None:
    text = case.decode("utf-8", "surrogateescape")
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    assert len(listed.hosts) == len(lines), "one host per line"
    for host, line in zip(listed.hosts, lines, strict=True):
        assert host in line
        assert 0 < len(host) <= 253 and host.isascii() and host.isprintable() and not host.startswith("-")
        if ":" in host:
            IPv6Address(host)
    assert len(set(listed.hosts)) == len(listed.hosts)
    assert listed.per_node is None or 1 <= listed.per_node < COUNT_LIMIT
