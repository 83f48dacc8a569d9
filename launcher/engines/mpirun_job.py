"""The job for an mpirun, and single choices for it, in any dialect (`launcher.engines.dialects`)."""

from __future__ import annotations

from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.machine.mpi import INTEL, OPEN_MPI, Mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Variables = tuple[tuple[str, str], ...]

PARAMETER_OPTIONS = frozenset(("mca", "gmca", "omca", "prtemca", "pmixmca"))


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
        forward: Names of variables that all ranks get from mpirun's environment, which has all of them.
        network: In CIDR notation, for the communication of daemons and ranks; None for any.
        interface: Name of the head's interface in that network, needed only by MPICH and Intel MPI.
        infiniband: Whether ranks have InfiniBand, or its ports in UCX's notation, ``("mlx5_0:1",)``.
        extra: The user's own words for mpirun.
        user: Names of the variables that mpirun will find: they override our choices.

    Raises:
        UsageError: mpirun cannot use a host or a word of ``rsh``.
        ValueError: `carries` refuses a variable, or a host occurs twice.
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
    infiniband: bool | tuple[str, ...] = False
    extra: tuple[str, ...] = ()
    user: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        split = [word for word in self.rsh if len(word.split()) != 1]
        colons = [host for host in self.hosts if ":" in host]
        if split or colons:
            raise UsageError(*map(_bad_rsh_word, split), *map(_bad_host, colons))
        lost = [name for name in self.forward if not carries(self.mpi, name)]
        if lost or len(set(self.hosts)) < len(self.hosts):
            raise ValueError(f"hosts {self.hosts}, variables that mpirun cannot carry: {lost}")

    @property
    def rank_count(self) -> int:
        """Number of ranks of the whole job."""
        return len(self.hosts) * self.per_node


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


@frozen
class Choice:
    """One choice of ours.

    Attributes:
        words: Its words on the command line.
        variables: Its variables in the environment of mpirun.
        names: Options and parameters, without dashes, with which the user's words replace it.
        yields_to: Variables with which the user replaces it.
    """

    words: tuple[str, ...]
    variables: Variables = ()
    names: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()


def read_asked(extra: Sequence[str]) -> frozenset[str]:
    """Return the names of options and parameters in the user's words; ``x NAME`` for a variable."""
    asked = set()
    for word, value in zip(extra, (*extra[1:], "")):  # noqa: B905 - zip(strict) and pairwise say less
        name = word.lstrip("-").partition("=")[0]
        if name in PARAMETER_OPTIONS:
            asked.add(value)
        elif name in ("x", "genv", "env"):
            asked.add(f"x {value.partition('=')[0]}")
        elif word.startswith("-"):
            asked.add(name)
    return frozenset(asked)


def ucx_variables(job: MpirunJob) -> Variables:
    """Return the ports for UCX, which by default also uses Ethernet ports of the same adapters."""
    if not isinstance(job.infiniband, tuple):
        return ()
    return (("UCX_NET_DEVICES", ",".join(job.infiniband)),)


def has_own_fabric(job: MpirunJob) -> bool:
    """Whether the user has configured UCX, or chosen how MPI sends."""
    asked = read_asked(job.extra)
    names: Iterable[str] = (*job.user, *(name[2:] for name in asked if name.startswith("x ")))
    return "pml" in asked or any(name == "OMPI_MCA_pml" or name.startswith("UCX_") for name in names)


def _bad_rsh_word(word: str) -> Problem:
    what = f"{word!r} in the command that reaches other nodes: mpirun splits it at blanks and has no quoting"
    return Problem("mpirun-line", what, "engine mpirun", "move the file to a path without blanks")


def _bad_host(host: str) -> Problem:
    what = f"host {host!r}: no mpirun takes an IPv6 address in a hostfile"
    return Problem("mpirun-line", what, "engine mpirun", "use names or IPv4 addresses for the nodes")
