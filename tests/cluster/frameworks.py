"""An example under ``launcher rehearse``: a platform starts it on two nodes, and rank 0 says how it went.

What a framework makes of our variables is seen where one platform starts it for each way there is: mpirun's
ranks, a launcher per process, a launcher per node. That the other platforms give the same variables is what
`tests.cluster.test_real_jobs`, `tests.cluster.test_platforms` and tests/golden say. All pairs of a framework
and a platform are in the thorough suite.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.cluster.conftest import need_namespaces
from tests.process.starting import ROOT, clean_environ

DEADLINE_S = 300.0
PREFIX = re.compile(r"^\[rank \d+\] ", flags=re.MULTILINE)
EXAMPLES = os.path.join(ROOT, "examples")


def rehearse(
    like: str,
    *command: str,
    nodes: int = 2,
    processes: int = 1,
    scope: str | None = None,
    environ: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command on simulated nodes, to its end.

    Args:
        like: The platform, of `launcher.rehearse.platforms.PLATFORMS`.
        command: What to run; ``"python"`` is the Python of the tests.
        nodes: How many nodes.
        processes: How many processes per node.
        scope: What the platform starts one of for each: ``"node"`` or ``"process"``; None for its default.
        environ: More variables for the launchers and the processes, on every node.
        deadline_s: When to give up.
    """
    need_namespaces()
    given = {"OMP_NUM_THREADS": "1", **(environ or {})}
    words = ["--like", like, "--nodes", str(nodes), "--processes", str(processes)]
    words += ["--scope", scope] if scope else []
    words += [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    return _run(("rehearse", *words, "--", *command), deadline_s)


def run_example(
    like: str,
    name: str,
    *words: str,
    nodes: int = 2,
    processes: int = 1,
    scope: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> str:
    """Run ``examples/NAME WORDS`` as `rehearse` does, and return what the job printed: rank 0's lines."""
    script = os.path.join(EXAMPLES, name)
    job = ("python", script, *words)
    return printed(rehearse(like, *job, nodes=nodes, processes=processes, scope=scope, environ=environ))


def run_alone(name: str, *words: str) -> str:
    """Run ``examples/NAME WORDS`` as a job of one process, and return what it printed."""
    line = ("run", "--standalone", "--nproc-per-node", "1", "--", "python", os.path.join(EXAMPLES, name))
    return printed(_run((*line, *words), DEADLINE_S))


def printed(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a job that has ended well has printed, without the ranks in front of lines."""
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-4000:]}"
    return PREFIX.sub("", done.stdout)


def _run(words: Sequence[str], deadline_s: float) -> subprocess.CompletedProcess[str]:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        env=clean_environ(OMP_NUM_THREADS="1", NO_COLOR="1", PATH=path),  # mpirun has a terminal for ranks
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
