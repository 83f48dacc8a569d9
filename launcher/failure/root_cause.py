"""Which process failed first, as torchrun's agent tells it on its standard error.

Source: torch/distributed/elastic/multiprocessing/errors/__init__.py, ChildFailedError.format_msg (2.13).
"""

from __future__ import annotations

import re

from launcher.failure.model import ProcessExit

_BLOCK = re.compile(
    rb"Root Cause \(first observed failure\):\s+\[\d+\]:\s+time\s*: [^\n]*\s+host\s*: (?P<host>\S*)\s+"
    rb"rank\s*: (?P<rank>\d{1,9}) \(local_rank: (?P<local>\d{1,9})\)\s+"
    rb"exitcode\s*: (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\)[^\n]*\s+"
    rb"error_file: (?P<file>[^\n]*)"
)
_AGENT_SPEAKS = re.compile(rb"^[^\n]*\] failed \(exitcode: ", re.MULTILINE)


def read_root_cause(agent: ProcessExit) -> ProcessExit | None:
    """Return the end of the process that the agent names; None where it names none.

    Args:
        agent: The end of the agent, with the last of its standard error, where its processes write too.
    """
    blocks = list(_BLOCK.finditer(agent.stderr))
    if not blocks:
        return None
    found = blocks[-1]
    speaks = _AGENT_SPEAKS.search(agent.stderr)
    file = found["file"].decode("utf-8", "replace").strip()
    return ProcessExit(
        rank=int(found["rank"]),
        local_rank=int(found["local"]),
        pid=int(found["pid"]),
        code=int(found["code"]),
        ended_ns=agent.ended_ns,
        stderr=agent.stderr[: speaks.start()] if speaks else b"",
        error_file=file if file.startswith("/") else None,
    )
