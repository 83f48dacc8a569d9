"""What an mpirun is to do, and what decides one thing of it, in any dialect (`launcher.engines.dialects`)."""

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
    """What mpirun is to do.

    Attributes:
        mpi: Which one.
        hosts: Names or IPv4 addresses, the head first; no host twice.
        per_node: Ranks on each host.
        hostfile: Path of the file with `render_hostfile`'s text.
        ssh: The words that run a command on a host: ``("ssh", "-F", "/x/config")``, then host and command.
        as_root: Whether mpirun will run as root.
        forward: Names of variables that all ranks get from the environment of mpirun; each is there.
        network: In CIDR notation, where daemons and ranks may talk to each other; None for any.
        interface: Of the head, in that network; only MPICH and Intel MPI want its name.
        infiniband: Whether ranks have InfiniBand, or its ports as UCX names them, ``("mlx5_0:1",)``.
        extra: The user's own words for mpirun.
        user: Names of the variables that mpirun will find: what they decide is left to them.

    Raises:
        UsageError: A host or a word of ``ssh`` that mpirun cannot be told.
        ValueError: A variable that `carries` refuses, or a host twice.
    """

    mpi: Mpi
    hosts: tuple[str, ...]
    per_node: int
    hostfile: str
    ssh: tuple[str, ...]
    as_root: bool = False
    forward: tuple[str, ...] = ()
    network: str | None = None
    interface: str | None = None
    infiniband: bool | tuple[str, ...] = False
    extra: tuple[str, ...] = ()
    user: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        split = [word for word in self.ssh if len(word.split()) != 1]
        colons = [host for host in self.hosts if ":" in host]
        if split or colons:
            raise UsageError(*map(_bad_ssh_word, split), *map(_bad_host, colons))
        lost = [name for name in self.forward if not carries(self.mpi, name)]
        if lost or len(set(self.hosts)) < len(self.hosts):
            raise ValueError(f"hosts {self.hosts}, variables that mpirun cannot carry: {lost}")

    @property
    def rank_count(self) -> int:
        """Ranks of the whole job."""
        return len(self.hosts) * self.per_node


def carries(mpi: Mpi, name: str) -> bool:
    """Return whether mpirun brings a variable of this name to all ranks, whatever its value.

    Values arrive bit for bit from all four, on all nodes: tried with blanks, quotes, backslashes, dollars,
    line ends, control characters, bytes that are no UTF-8, an empty value, 128 KiB in one value and 900 KB
    in 3,000 of them. Names do not: Open MPI takes a name that begins with a dash for an option, 5 takes an
    asterisk for a pattern, a comma ends a name in MPICH's list, and Intel's mpirun is a shell script, which
    drops names that are none for a shell (``com.nvidia.cuda.version``).
    """
    if mpi.dialect == OPEN_MPI:
        return not name.startswith("-") and "*" not in name
    if mpi.dialect == INTEL:
        return name.isascii() and name.isidentifier()
    return "," not in name and not name.startswith("'")


@frozen
class Choice:
    """One thing that we decide.

    Attributes:
        words: It, for the line.
        variables: It, for the environment of mpirun.
        names: Options and parameters, without dashes, that decide it among the user's words.
        yields_to: Variables that decide it where the user has set one.
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
    """Return on which ports UCX is to stay: left alone it also takes Ethernet ports of the same adapters."""
    if not isinstance(job.infiniband, tuple):
        return ()
    return (("UCX_NET_DEVICES", ",".join(job.infiniband)),)


def has_own_fabric(job: MpirunJob) -> bool:
    """Whether the user has set up UCX or chosen how MPI sends."""
    asked = read_asked(job.extra)
    names: Iterable[str] = (*job.user, *(name[2:] for name in asked if name.startswith("x ")))
    return "pml" in asked or any(name == "OMPI_MCA_pml" or name.startswith("UCX_") for name in names)


def _bad_ssh_word(word: str) -> Problem:
    what = f"{word!r} in the words for ssh: mpirun takes them apart at blanks, and knows no quotes"
    return Problem("mpirun-line", what, "engine mpirun", "put the file under a path without blanks")


def _bad_host(host: str) -> Problem:
    what = f"host {host!r}: no mpirun takes an IPv6 address in a hostfile"
    return Problem("mpirun-line", what, "engine mpirun", "use names or IPv4 addresses for the nodes")
