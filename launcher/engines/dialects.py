"""One job in the options of each mpirun: a hostfile, a command line, and variables.

There are three dialects: Open MPI (with Spectrum MPI; version 5 has other names for most of it), MPICH (with
MVAPICH) and Intel MPI. Everything here is pure. docs/mpi.md explains each option, and what happens without
it. Each was tried with Open MPI 4.1.4 and 5.0.11, MPICH 5.0.2 and Intel MPI 2021.18.

The user's own words come last and take precedence. None of the four handles a repeated option well: Open MPI
4 refuses some and takes the last of others, 5 refuses some and takes the first of others, MPICH refuses all.
So we leave out our options that the user's words decide.
"""

from __future__ import annotations

from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.machine.mpi import INTEL, MPICH, MVAPICH, OPEN_MPI, Mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Variables = tuple[tuple[str, str], ...]

CHANGED = ("PATH", "LD_LIBRARY_PATH")
"""Variables in which Open MPI, called by path, puts its own folders first: 4 on all nodes, 5 on its own."""
PARAMETER_OPTIONS = frozenset(("mca", "gmca", "omca", "prtemca", "pmixmca"))
EXECUTABLES = ("launcher-exec", "bootstrap-exec")
EVERYWHERE = ("-wdir", "/")
"""A working directory that every node has."""
RESOURCE_MANAGERS = "^slurm,tm,pbs,lsf,gridengine,loadleveler,alps,flux"
"""Resource managers whose allocation is ignored.

A host that is not in the allocation, or has another name there, would be refused.
"""


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
    names = (*job.user, *(name[2:] for name in asked if name.startswith("x ")))
    return "pml" in asked or any(name == "OMPI_MCA_pml" or name.startswith("UCX_") for name in names)


def _bad_rsh_word(word: str) -> Problem:
    what = f"{word!r} in the command that reaches other nodes: mpirun splits it at blanks and has no quoting"
    return Problem("mpirun-line", what, "engine mpirun", "move the file to a path without blanks")


def _bad_host(host: str) -> Problem:
    what = f"host {host!r}: no mpirun takes an IPv6 address in a hostfile"
    return Problem("mpirun-line", what, "engine mpirun", "use names or IPv4 addresses for the nodes")


def render_hostfile(mpi: Mpi, hosts: Sequence[str], per_node: int) -> str:
    """Return a hostfile's text, with the hosts in order, so that rank r runs on ``hosts[r // per_node]``."""
    form = "{} slots={}\n" if mpi.dialect == OPEN_MPI else "{}:{}\n"
    return "".join(form.format(host, per_node) for host in hosts)


def plan_line(job: MpirunJob) -> tuple[str, ...]:
    """Return all words before the command: mpirun by its path, our options, the user's words.

    By its path, because ssh gives a bare environment: all four then find their daemons beside it.
    """
    return (job.mpi.path, *(word for choice in _plan(job) for word in choice.words), *job.extra)


def plan_variables(job: MpirunJob) -> tuple[tuple[str, str], ...]:
    """Return the variables for mpirun's environment, sorted.

    They say the same as the command line, to both generations of Open MPI, in case the line is changed by
    hand. They also override a platform's: inside an allocation Slurm sets HYDRA_LAUNCHER_EXTRA_ARGS and
    I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS to a word that ssh does not know.
    """
    return tuple(sorted(pair for choice in _plan(job) for pair in choice.variables))


def changed(mpi: Mpi) -> tuple[str, ...]:
    """Return the variables that mpirun changes for ranks, and that must be restored there.

    Open MPI that is called by path puts its folders first, where a python beside mpirun (all of /usr/bin, for
    Debian's) would hide the user's python.
    """
    return CHANGED if mpi.dialect == OPEN_MPI else ()


def _plan(job: MpirunJob) -> list[Choice]:
    """Return our choices that the user's words and variables leave open, in the order of the command line."""
    asked, user = read_asked(job.extra), frozenset(job.user)
    return [
        choice
        for choice in PLANNERS[job.mpi.dialect](job)
        if asked.isdisjoint(choice.names) and user.isdisjoint(choice.yields_to)
    ]


def plan_open_mpi(job: MpirunJob) -> Iterator[Choice]:
    """Yield our choices, in the order of the command line."""
    if job.as_root:
        allowed = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        yield Choice(("--allow-run-as-root",), tuple((name, "1") for name in allowed), ("allow-run-as-root",))
    yield _runtime(job, "plm", "plm", "ssh" if job.mpi.uses_prrte else "rsh")
    yield _runtime(job, "ras", "ras", RESOURCE_MANAGERS)
    yield _runtime(job, "plm_rsh_agent", "plm_ssh_agent", " ".join(job.rsh))
    yield _runtime(job, "plm_rsh_no_tree_spawn", "plm_ssh_no_tree_spawn", "1")
    if not job.mpi.uses_prrte:
        # Version 4 cuts names at the first dot before it passes them to ssh. Version 5 does not; with its own
        # option for this it would take the head for another node than the one it runs on.
        yield _parameter("orte_keep_fqdn_hostnames", "1")
    yield Choice(("--hostfile", job.hostfile), names=("hostfile", "machinefile", "default-hostfile"))
    yield Choice(("--np", str(job.rank_count)), names=("np", "n", "c"))
    per_node = ("npernode", "N", "pernode", "npersocket", "ppr")
    others = ("map-by", "bynode", "byslot", "rankfile", "rf")
    yield Choice(("--map-by", f"ppr:{job.per_node}:node"), names=(*per_node, *others))
    yield _plan_open_mpi_binding()
    if job.network:
        yield from _plan_open_mpi_network(job, job.network)
    if job.infiniband and not has_own_fabric(job):
        yield _parameter("pml", "ucx")
        if not job.mpi.uses_prrte:
            yield _parameter("btl", "^openib")  # UCX has replaced it: it would only print warnings
        for pair in ucx_variables(job):
            yield Choice(("-x", "=".join(pair)), names=(f"x {pair[0]}",))
    for name in job.forward:
        yield Choice(("-x", name), names=(f"x {name}",))


def _plan_open_mpi_binding() -> Choice:
    policies = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
    others = ("bind-to", "bind-to-core", "bind-to-socket", "bind-to-none", "cpu-set", "cpu-list")
    return Choice(
        ("--bind-to", "none"),
        tuple((name, "none") for name in policies),
        (*others, "hwloc_base_binding_policy", "hwloc_default_binding_policy"),
        policies,
    )


def _plan_open_mpi_network(job: MpirunJob, network: str) -> Iterator[Choice]:
    """Yield the network for ranks and daemons; an include list and an exclude list cannot be combined."""
    yield _parameter("btl_tcp_if_include", network, excluded_by="btl_tcp_if_exclude")
    daemons = _runtime(job, "oob_tcp_if_include", "prte_if_include", network)
    lists = ("oob_tcp_if_include", "oob_tcp_if_exclude", "prte_if_include", "prte_if_exclude")
    variables = [f"{prefix}_MCA_{name}" for prefix in ("OMPI", "PRTE") for name in lists]
    yield Choice(daemons.words, daemons.variables, lists, tuple(variables))


def _runtime(job: MpirunJob, old: str, new: str, value: str) -> Choice:
    """Return a parameter of the program that starts the daemons: PRRTE in Open MPI 5, with other names."""
    words = ("--prtemca", new, value) if job.mpi.uses_prrte else ("--mca", old, value)
    values = {"OMPI_MCA_plm": "rsh", "PRTE_MCA_plm": "ssh"}
    names = (f"OMPI_MCA_{old}", f"PRTE_MCA_{new}")
    return Choice(words, tuple((name, values.get(name, value)) for name in names), (old, new))


def _parameter(name: str, value: str, *, excluded_by: str | None = None) -> Choice:
    """Return a parameter that ranks read, or only Open MPI 4; the user's variable for it takes precedence."""
    names = (name, excluded_by) if excluded_by else (name,)
    variable = f"OMPI_MCA_{name}"
    return Choice(
        ("--mca", name, value), ((variable, value),), names, tuple(f"OMPI_MCA_{name}" for name in names)
    )


def plan_mpich(job: MpirunJob) -> Iterator[Choice]:
    """Yield our choices for MPICH, in the order of the command line."""
    yield from _plan_hydra_start(job, "launcher", ("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"))
    yield Choice((), (("HYDRA_LAUNCHER_EXTRA_ARGS", " ".join(job.rsh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "HYDRA_IFACE")
    yield Choice(("-bind-to", "none"), names=("bind-to", "binding"), yields_to=("HYDRA_BINDING",))
    # A node without the head's folder ends the job without a reason. The rank's launcher changes to the
    # folder, and reports an error.
    yield Choice(EVERYWHERE, names=("wdir", "wd"))
    if job.mpi.family == MVAPICH:
        yield _set_for_ranks("MV2_ENABLE_AFFINITY", "0")
    yield from _plan_hydra_ranks(job)


def plan_intel(job: MpirunJob) -> Iterator[Choice]:
    """Yield our choices for Intel MPI, in the order of the command line."""
    variables = ("I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC")
    yield from _plan_hydra_start(job, "bootstrap", variables)
    yield Choice((), (("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", " ".join(job.rsh[1:])),), EXECUTABLES)
    if job.interface:
        yield _hydra_interface(job.interface, "I_MPI_HYDRA_IFACE")
    # By default it starts 16 daemons itself, and these start the others, by an ssh of their own.
    width, variable = str(len(job.hosts)), "I_MPI_HYDRA_BRANCH_COUNT"
    yield Choice(("-branch-count", width), ((variable, width),), ("branch-count",))
    # -bind-to is accepted and ignored, and the variable alone would not reach ranks on other nodes.
    yield _set_for_ranks("I_MPI_PIN", "0")
    yield from _plan_hydra_ranks(job)


def _plan_hydra_start(job: MpirunJob, starter: str, variables: Sequence[str]) -> Iterator[Choice]:
    words = (f"-{starter}", "ssh", f"-{starter}-exec", job.rsh[0])
    values = zip(variables, ("ssh", job.rsh[0]), strict=True)
    yield Choice(words, tuple(values), ("launcher", "bootstrap", *EXECUTABLES))


def _hydra_interface(interface: str, variable: str) -> Choice:
    return Choice(("-iface", interface), ((variable, interface),), ("iface",), (variable,))


def _plan_hydra_ranks(job: MpirunJob) -> Iterator[Choice]:
    """Yield where ranks run, and their variables: without a list they would get all of mpirun's variables."""
    yield Choice(("-f", job.hostfile), names=("f", "hostfile", "machinefile", "machine", "hosts", "host"))
    yield Choice(("-ppn", str(job.per_node)), names=("ppn", "perhost", "rr", "grr"))
    if job.infiniband and not has_own_fabric(job):
        for pair in ucx_variables(job):
            yield _set_for_ranks(*pair)
    asked = read_asked(job.extra)
    names = [name for name in job.forward if f"x {name}" not in asked]
    words = ("-genvlist", ",".join(names)) if names else ("-genvnone",)
    yield Choice(words, names=("genvlist", "genvnone", "genvall"))
    yield Choice(("-n", str(job.rank_count)), names=("n", "np"))


def _set_for_ranks(name: str, value: str) -> Choice:
    return Choice(("-genv", name, value), ((name, value),), (f"x {name}",), (name,))


PLANNERS = {OPEN_MPI: plan_open_mpi, MPICH: plan_mpich, INTEL: plan_intel}
