"""One job, said to each mpirun in its own words: a hostfile, a line, and variables.

Three dialects: Open MPI (with Spectrum MPI; version 5 has other names for most of it), MPICH (with
MVAPICH) and Intel MPI. Everything here is pure. What each option is for, and what happens without it,
stands in docs/mpi.md; each was tried with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18.

The user's own words come last and win. None of the four does well with an option that comes twice (Open
MPI 4 refuses some and takes the last of others, 5 refuses some and takes the first of others, MPICH
refuses all), so of ours those are left out that the user's words decide.
"""

from __future__ import annotations

from launcher.errors import Problem, UsageError
from launcher.frozen import frozen
from launcher.machine.mpi import INTEL, MPICH, MVAPICH, OPEN_MPI, Mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Variables = tuple[tuple[str, str], ...]

RESOURCE_MANAGERS = "^slurm,tm,pbs,lsf,gridengine,loadleveler,alps,flux"
"""Whose allocation is not asked for: a host that is not in it, or is under another name, would be refused."""
PARAMETER_OPTIONS = frozenset(("mca", "gmca", "omca", "prtemca", "pmixmca"))
EXECUTABLES = ("launcher-exec", "bootstrap-exec")
EVERYWHERE = ("-wdir", "/")
"""A folder that every node has."""
CHANGED = ("PATH", "LD_LIBRARY_PATH")
"""Where Open MPI that is named by path puts its own folders in front: 4 on all nodes, 5 on its own."""


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


def render_hostfile(mpi: Mpi, hosts: Sequence[str], per_node: int) -> str:
    """Return a hostfile's text; hosts in order, so that rank r runs on ``hosts[r // per_node]``."""
    form = "{} slots={}\n" if mpi.dialect == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(host, per_node) for host in hosts)


def plan_line(job: MpirunJob) -> tuple[str, ...]:
    """Return all words before the command: mpirun by its path, our options, the user's.

    By its path, because ssh gives a bare environment: all four find their daemons beside it then.
    """
    return (job.mpi.path, *(word for choice in _plan(job) for word in choice.words), *job.extra)


def plan_variables(job: MpirunJob) -> tuple[tuple[str, str], ...]:
    """Return variables that mpirun is to be started with, sorted.

    They say what the line says, to both generations of Open MPI: for a line that somebody changes by hand.
    And they undo what a platform says: inside of an allocation Slurm sets HYDRA_LAUNCHER_EXTRA_ARGS and
    I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS to a word that ssh does not know.
    """
    return tuple(sorted(pair for choice in _plan(job) for pair in choice.variables))


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


def changed(mpi: Mpi) -> tuple[str, ...]:
    """Return the variables that reach ranks changed, and are to be put right there.

    Open MPI that is named by path puts its folders in front, where a python beside mpirun (all of
    /usr/bin, for Debian's) would hide the one that the user meant.
    """
    return CHANGED if mpi.dialect == OPEN_MPI else ()


@frozen
class _Choice:
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


def _plan(job: MpirunJob) -> list[_Choice]:
    """Return what is ours to decide, in the order of the line."""
    planners: dict[str, Callable[[MpirunJob], Iterator[_Choice]]]
    planners = {OPEN_MPI: _plan_open_mpi, MPICH: _plan_mpich, INTEL: _plan_intel}
    asked, user = _read_asked(job.extra), frozenset(job.user)
    return [
        choice
        for choice in planners[job.mpi.dialect](job)
        if asked.isdisjoint(choice.names) and user.isdisjoint(choice.yields_to)
    ]


def _read_asked(extra: Sequence[str]) -> frozenset[str]:
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


def _plan_open_mpi(job: MpirunJob) -> Iterator[_Choice]:
    if job.as_root:
        allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        yield _Choice(
            ("--allow-run-as-root",), tuple((name, "1") for name in allowed), ("allow-run-as-root",)
        )
    yield _runtime(job, "plm", "plm", "ssh" if job.mpi.uses_prrte else "rsh")
    yield _runtime(job, "ras", "ras", RESOURCE_MANAGERS)
    yield _runtime(job, "plm_rsh_agent", "plm_ssh_agent", " ".join(job.ssh))
    yield _runtime(job, "plm_rsh_no_tree_spawn", "plm_ssh_no_tree_spawn", "1")
    if not job.mpi.uses_prrte:
        # 4 cuts names at the first dot, before it gives them to ssh. 5 does not; with its own option for
        # this it would take the head for another node than the one it runs on.
        yield _parameter("orte_keep_fqdn_hostnames", "1")
    yield _Choice(("--hostfile", job.hostfile), names=("hostfile", "machinefile", "default-hostfile"))
    yield _Choice(("--np", str(job.rank_count)), names=("np", "n", "c"))
    per_node = ("npernode", "N", "pernode", "npersocket", "ppr")
    others = ("map-by", "bynode", "byslot", "rankfile", "rf")
    yield _Choice(("--map-by", f"ppr:{job.per_node}:node"), names=(*per_node, *others))
    yield _plan_open_mpi_binding()
    if job.network:
        yield from _plan_open_mpi_network(job, job.network)
    if job.infiniband and not _has_own_fabric(job):
        yield _parameter("pml", "ucx")
        if not job.mpi.uses_prrte:
            yield _parameter("btl", "^openib")  # UCX has taken its place: it would only warn
        for pair in _ucx_variables(job):
            yield _Choice(("-x", "=".join(pair)), names=(f"x {pair[0]}",))
    for name in job.forward:
        yield _Choice(("-x", name), names=(f"x {name}",))


def _plan_open_mpi_binding() -> _Choice:
    policies = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
    others = ("bind-to", "bind-to-core", "bind-to-socket", "bind-to-none", "cpu-set", "cpu-list")
    return _Choice(
        ("--bind-to", "none"),
        tuple((name, "none") for name in policies),
        (*others, "hwloc_base_binding_policy", "hwloc_default_binding_policy"),
        policies,
    )


def _plan_open_mpi_network(job: MpirunJob, network: str) -> Iterator[_Choice]:
    """Of each framework the list of what to use and that of what not to use exclude each other."""
    yield _parameter("btl_tcp_if_include", network, excluded_by="btl_tcp_if_exclude")
    daemons = _runtime(job, "oob_tcp_if_include", "prte_if_include", network)
    lists = ("oob_tcp_if_include", "oob_tcp_if_exclude", "prte_if_include", "prte_if_exclude")
    variables = [f"{prefix}_MCA_{name}" for prefix in ("OMPI", "PRTE") for name in lists]
    yield _Choice(daemons.words, daemons.variables, lists, tuple(variables))


def _runtime(job: MpirunJob, old: str, new: str, value: str) -> _Choice:
    """Return a parameter of what starts the daemons: Open MPI 5 has given that, and its names, to PRRTE."""
    words = ("--prtemca", new, value) if job.mpi.uses_prrte else ("--mca", old, value)
    values = {"OMPI_MCA_plm": "rsh", "PRTE_MCA_plm": "ssh"}
    names = (f"OMPI_MCA_{old}", f"PRTE_MCA_{new}")
    return _Choice(words, tuple((name, values.get(name, value)) for name in names), (old, new))


def _parameter(name: str, value: str, *, excluded_by: str | None = None) -> _Choice:
    """Return a parameter that ranks read, or Open MPI 4 alone; the user's variable of that name wins."""
    names = (name, excluded_by) if excluded_by else (name,)
    variable = f"OMPI_MCA_{name}"
    return _Choice(
        ("--mca", name, value), ((variable, value),), names, tuple(f"OMPI_MCA_{name}" for name in names)
    )


def _plan_mpich(job: MpirunJob) -> Iterator[_Choice]:
    yield from _plan_hydra_start(job, "launcher", ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"))
    yield _Choice((), (("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(job.ssh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "HYDRA_IFACE")
    yield _Choice(("-bind-to", "none"), names=("bind-to", "binding"), yields_to=("HYDRA_BINDING",))
    # A node that lacks the head's folder ends the job with no reason; a rank's launcher goes there, and says.
    yield _Choice(EVERYWHERE, names=("wdir", "wd"))
    if job.mpi.family == MVAPICH:
        yield _set_for_ranks("MV2_ENABLE_AFFINITY", "0")
    yield from _plan_hydra_ranks(job)


def _plan_intel(job: MpirunJob) -> Iterator[_Choice]:
    variables = ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
    yield from _plan_hydra_start(job, "bootstrap", variables)
    yield _Choice((), (("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", " ".join(job.ssh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "I_MPI_HYDRA_IFACE")
    # By default it starts 16 daemons itself, and they the others, through ssh and without our keys.
    width, variable = str(len(job.hosts)), "I_MPI_HYDRA_BRANCH_COUNT"
    yield _Choice(("-branch-count", width), ((variable, width),), ("branch-count",))
    # -bind-to is taken and ignored; and the variable alone would not reach ranks on other nodes.
    yield _set_for_ranks("I_MPI_PIN", "0")
    yield from _plan_hydra_ranks(job)


def _plan_hydra_start(job: MpirunJob, starter: str, variables: Sequence[str]) -> Iterator[_Choice]:
    words = (f"-{starter}", "ssh", f"-{starter}-exec", job.ssh[0])
    values = zip(variables, ("ssh", job.ssh[0]), strict=True)
    yield _Choice(words, tuple(values), ("launcher", "bootstrap", *EXECUTABLES))


def _hydra_interface(interface: str, variable: str) -> _Choice:
    return _Choice(("-iface", interface), ((variable, interface),), ("iface",), (variable,))


def _plan_hydra_ranks(job: MpirunJob) -> Iterator[_Choice]:
    """Where ranks run, and what they get: a list, or else they would get all that mpirun has."""
    yield _Choice(("-f", job.hostfile), names=("f", "hostfile", "machinefile", "machine", "hosts", "host"))
    yield _Choice(("-ppn", str(job.per_node)), names=("ppn", "perhost", "rr", "grr"))
    if job.infiniband and not _has_own_fabric(job):
        for pair in _ucx_variables(job):
            yield _set_for_ranks(*pair)
    asked = _read_asked(job.extra)
    names = [name for name in job.forward if f"x {name}" not in asked]
    words = ("-genvlist", ",".join(names)) if names else ("-genvnone",)
    yield _Choice(words, names=("genvlist", "genvnone", "genvall"))
    yield _Choice(("-n", str(job.rank_count)), names=("n", "np"))


def _set_for_ranks(name: str, value: str) -> _Choice:
    return _Choice(("-genv", name, value), ((name, value),), (f"x {name}",), (name,))


def _ucx_variables(job: MpirunJob) -> Variables:
    """Return on which ports UCX is to stay: left alone it also takes Ethernet ports of the same adapters."""
    if not isinstance(job.infiniband, tuple):
        return ()
    return (("UCX_NET_DEVICES", ",".join(job.infiniband)),)


def _has_own_fabric(job: MpirunJob) -> bool:
    """Whether the user has set up UCX or chosen how MPI sends."""
    asked = _read_asked(job.extra)
    names: Iterable[str] = (*job.user, *(name[2:] for name in asked if name.startswith("x ")))
    return "pml" in asked or any(name == "OMPI_MCA_pml" or name.startswith("UCX_") for name in names)


def _bad_ssh_word(word: str) -> Problem:
    what = f"{word!r} in the words for ssh: mpirun takes them apart at blanks, and knows no quotes"
    return Problem("mpirun-line", what, "engine mpirun", "put the file under a path without blanks")


def _bad_host(host: str) -> Problem:
    what = f"host {host!r}: no mpirun takes an IPv6 address in a hostfile"
    return Problem("mpirun-line", what, "engine mpirun", "use names or IPv4 addresses for the nodes")
