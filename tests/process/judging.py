"""A parent that only judges: ``python -m tests.process.judging PROGRAM ARGUMENT...``.

Reads the counters, runs the program to its end, and writes to standard output what a supervisor would:
the screen, or with ``JUDGE=json`` the record. ``JOIN`` names cgroups (their ``cgroup.procs``) to enter
first, so that the counters that are read are those of the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from launcher.failure.causes import find_causes
from launcher.failure.counters import read_counters
from launcher.failure.model import ProcessExit
from launcher.failure.record import render_json
from launcher.failure.report import render_text
from launcher.failure.stderr import STDERR_BYTES
from launcher.failure.verdict import make_verdict
from launcher.machine.host import Host


def main() -> None:
    """Run a program and judge it."""
    for path in os.environ.get("JOIN", "").split():
        with open(path, "w") as file:
            file.write(str(os.getpid()))
    host = Host()
    before, started_ns = read_counters(host), time.time_ns()
    child = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE)
    _, stderr = child.communicate()
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    death = ProcessExit(0, 0, child.pid, child.returncode, time.time_ns(), stderr[-STDERR_BYTES:], error_file)
    verdict = make_verdict(
        death,
        (),
        host_name="node0",
        node_rank=0,
        world_size=1,
        attempt=0,
        started_ns=started_ns,
        told=None,
        causes=find_causes(death, before, host, read_counters(host, before)),
    )
    render = render_json if os.environ.get("JUDGE") == "json" else render_text
    sys.stdout.write(render(verdict))


if __name__ == "__main__":
    main()
