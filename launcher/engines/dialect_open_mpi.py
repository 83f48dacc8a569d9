"""Options of Open MPI (and Spectrum MPI) for a job; version 5 has other names for most of them."""

from __future__ import annotations

from launcher.engines.mpirun_job import Choice, MpirunJob, has_own_fabric, ucx_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

RESOURCE_MANAGERS = "^slurm,tm,pbs,lsf,gridengine,loadleveler,alps,flux"
"""Resource managers whose allocation is ignored.

A host that is not in the allocation, or has another name there, would be refused.
"""


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
