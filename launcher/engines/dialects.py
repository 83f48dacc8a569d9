"""One job in the options of each mpirun: a hostfile, a command line, and variables.

There are three dialects: Open MPI (with Spectrum MPI; version 5 has other names for most of it), MPICH (with
MVAPICH) and Intel MPI. Their options are rows of ``dialects.txt``. Everything here is pure. Each was tried
with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18.

The user's own words come last and take precedence. None of the four handles a repeated option well: Open MPI
4 refuses some and takes the last of others, 5 refuses some and takes the first of others, MPICH refuses all.
So we leave out our options that the user's words decide.
"""

from __future__ import annotations

from launcher.core.blocks import read_rows
from launcher.core.errors import UsageError, make_problem
from launcher.core.frozen import frozen
from launcher.machine.mpi import INTEL, MPICH, OPEN_MPI, Mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHANGED = ("PATH", "LD_LIBRARY_PATH")
"""Variables in which Open MPI, called by path, puts its directories first: 4 on all nodes, 5 on its own."""
PARAMETER_OPTIONS = frozenset(("mca", "gmca", "omca", "prtemca", "pmixmca"))
EXECUTABLES = ("launcher-exec", "bootstrap-exec")
EVERYWHERE = ("-wdir", "/")
"""A working directory that every node has."""
ARGUMENTS = {MPICH: "HYDRA_LAUNCHER_EXTRA_ARGS", INTEL: "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"}
"""Variables with the words of the remote shell after its first, which is all that their option takes."""


@frozen
class MpirunJob:
    """The job for an mpirun.

    Attributes:
        mpi: The MPI installation.
        hosts: Names or IPv4 addresses, the head first; no host twice.
        per_node: Number of ranks on each host.
        hostfile: Path of the file with `render_hostfile`'s text.
        rsh: The words that run a command on a host, then host and command.
        as_root: Whether mpirun will run as root.
        forward: Names of variables that all ranks get from mpirun's environment, which has all of them and
            `carries` them.
        network: In CIDR notation, for the communication of daemons and ranks; None for any.
        interface: Name of the head's interface in that network, needed only by MPICH and Intel MPI.
        ports: InfiniBand's ports in UCX's notation, ``("mlx5_0:1",)``.
        extra: The user's own words for mpirun.
        user: Names of the variables that mpirun will find: they override our choices.

    Raises:
        UsageError: mpirun cannot use a host or a word of ``rsh``.
    """

    mpi: Mpi
    hosts: tuple[str, ...]
    per_node: int
    hostfile: str
    rsh: tuple[str, ...]
    as_root: bool = False
    forward: tuple[str, ...] = ()
    network: str | None = None
    interface: str | None = None
    ports: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    user: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        blanks = [make_problem("mpirun-blanks", word=word) for word in self.rsh if len(word.split()) != 1]
        ipv6 = [make_problem("mpirun-ipv6", host=host) for host in self.hosts if ":" in host]
        if blanks or ipv6:
            raise UsageError(*blanks, *ipv6)


def carries(mpi: Mpi, name: str) -> bool:
    """Return whether mpirun brings a variable of this name to all ranks, whatever its value.

    All four transfer values unchanged to all nodes: tried with blanks, quotes, backslashes, dollars, line
    ends, control characters, bytes that are not UTF-8, an empty value, 128 KiB in one value and 900 KB in
    3,000 of them. Names can fail: Open MPI takes a name that starts with a dash for an option, version 5
    takes an asterisk for a pattern, a comma ends a name in MPICH's list, and Intel's mpirun is a shell
    script, which drops names that are not valid in a shell (``com.nvidia.cuda.version``).
    """
    if mpi.dialect == OPEN_MPI:
        return not name.startswith("-") and "*" not in name
    if mpi.dialect == INTEL:
        return name.isascii() and name.isidentifier()
    return "," not in name and not name.startswith("'")


def read_asked(extra: Sequence[str]) -> frozenset[str]:
    """Return the names of options and parameters in the user's words; ``x:NAME`` for a variable."""
    asked = set()
    for word, value in zip(extra, (*extra[1:], "")):  # noqa: B905 - zip(strict) and pairwise say less
        name = word.lstrip("-").partition("=")[0]
        if name in PARAMETER_OPTIONS:
            asked.add(value)
        elif name in ("x", "genv", "env"):
            asked.add(f"x:{value.partition('=')[0]}")
        elif word.startswith("-"):
            asked.add(name)
    return frozenset(asked)


def render_hostfile(mpi: Mpi, hosts: Sequence[str], per_node: int) -> str:
    """Return a hostfile's text, with the hosts in order, so that rank r runs on ``hosts[r // per_node]``."""
    form = "{} slots={}\n" if mpi.dialect == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(host, per_node) for host in hosts)


def plan_line(job: MpirunJob) -> tuple[str, ...]:
    """Return all words before the command: mpirun by its path, our options, the user's words.

    By its path, because ssh gives a bare environment: all four then find their daemons beside it.
    """
    asked = read_asked(job.extra)
    names = [name for name in job.forward if f"x:{name}" not in asked]
    exports = [word for name in names for word in ("-x", name)] if job.mpi.dialect == OPEN_MPI else []
    return (job.mpi.path, *_plan_options(job, asked, names), *exports, *job.extra)


def _plan_options(job: MpirunJob, asked: frozenset[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the words of the table for this job that the user's words and variables leave open."""
    values = {
        **vars(job),
        "rsh": " ".join(job.rsh),
        "shell": job.rsh[0],
        "nodes": len(job.hosts),
        "ranks": len(job.hosts) * job.per_node,
        "ports": ",".join(job.ports),
        "names": ",".join(names),
    }
    facts = {*_name_kind(job.mpi), *(name for name, value in values.items() if value)}
    facts |= {"nameless"} if not names else set()
    chosen = (*job.user, *(name.removeprefix("x:") for name in asked))
    has_own = any(name in ("pml", "OMPI_MCA_pml") or name.startswith("UCX_") for name in chosen)
    facts |= {"ucx"} if job.ports and not has_own else set()
    for when, words, others in read_rows("engines/dialects.txt"):
        if facts.issuperset(when.split()) and {*asked, *job.user}.isdisjoint(others.split()):
            yield from (word.format_map(values) for word in words.split())


def _name_kind(mpi: Mpi) -> tuple[str, ...]:
    """Return the words of the table for an MPI."""
    if mpi.dialect == OPEN_MPI:
        return ("open-mpi", "5" if mpi.uses_prrte else "4")
    return ("hydra", *(name.partition(" ")[0].lower() for name in (mpi.dialect, mpi.family)))


def plan_variables(job: MpirunJob) -> tuple[tuple[str, str], ...]:
    """Return the variables for mpirun's environment: what its options cannot say.

    Slurm sets them in every allocation, to a word that our remote shell does not know.
    """
    name = ARGUMENTS.get(job.mpi.dialect)
    is_replaced = not read_asked(job.extra).isdisjoint(EXECUTABLES)
    return ((name, " ".join(job.rsh[1:])),) if name and not is_replaced else ()


def changed(mpi: Mpi) -> tuple[str, ...]:
    """Return the variables that mpirun changes for ranks, and that must be restored there.

    Open MPI that is called by path puts its directories first, where a python beside mpirun (all of /usr/bin,
    for Debian's) would hide the user's python.
    """
    return CHANGED if mpi.dialect == OPEN_MPI else ()
