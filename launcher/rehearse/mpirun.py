"""The command lines that start a rehearsed job with this machine's mpirun, as a platform would."""

from __future__ import annotations

import os

from launcher.core.errors import make_error
from launcher.machine.mpi import MPICH, OPEN_MPI, Mpi, find_mpi
from launcher.rehearse.node import ENVIRON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.rehearse.cluster import SimulatedNode

NOT_FORWARDED = frozenset({"HOME", "PWD", "SHLVL", "_"})
"""Variables that each node has of its own, as after a login."""
OPEN_MPI_LINE = "--allow-run-as-root {agent_option} {agent} --host {slots} -np {count}"
"""Whatever our user is, on a node we are root, if only in a user namespace."""
MPICH_LINE = "-launcher ssh -launcher-exec {agent} -hosts {slots} -n {count}"
INTEL_LINE = "-bootstrap ssh -bootstrap-exec {agent} -hosts {hosts} -ppn {per_node} -n {count}"


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """Return the mpirun of this machine.

    Raises:
        NotReady: There is none.
        Unavailable: We have no command line for its family.
    """
    mpi = find_mpi(environ)
    if mpi is None:
        raise make_error("rehearsal-mpirun")
    return mpi


def command_line(
    mpirun: Mpi, agent: str, nodes: Sequence[SimulatedNode], per_node: int, forward: Mapping[str, str]
) -> list[str]:
    """Return the beginning of an mpirun command line; the command follows.

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
    values = {
        "agent": agent,
        # Open MPI 5 has a new option, and silently ignores the old one.
        "agent_option": "--prtemca plm_ssh_agent" if mpirun.uses_prrte else "--mca plm_rsh_agent",
        "count": len(nodes) * per_node,
        "per_node": per_node,
        "hosts": ",".join(node.hostname for node in nodes),
        "slots": ",".join(f"{node.hostname}:{per_node}" for node in nodes),
    }
    if mpirun.dialect != OPEN_MPI:
        words = MPICH_LINE if mpirun.dialect == MPICH else INTEL_LINE
        return [mpirun.path, *words.format_map(values).split()]
    # Called by its path, Open MPI puts its own directory in front of PATH on each node, where a python would
    # hide the one that the user meant.
    has_prefix = os.path.dirname(mpirun.path) not in ENVIRON["PATH"].split(":")
    line = [mpirun.path if has_prefix else os.path.basename(mpirun.path)]
    line += OPEN_MPI_LINE.format_map(values).split()
    if mpirun.uses_prrte and per_node > len(os.sched_getaffinity(0)):
        line += ["--bind-to", "core:overload-allowed"]  # it refuses more processes than cores
    names = (name for name in sorted(forward) if name not in NOT_FORWARDED)
    line += [word for name in names if name.replace(".", "_").isidentifier() for word in ("-x", name)]
    return [*line, "env", f"PATH={forward['PATH']}"] if has_prefix and "PATH" in forward else line
