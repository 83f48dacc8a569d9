"""Passes the node rank to a command that is a launcher itself, by its variables or else by its flags.

Our flags come right after its name, before its own flags. Each of these launchers lets the last flag count,
so the user's flags take precedence. mpirun and horovodrun start the processes of all nodes, so they are only
for one node, or for the node that a job is started from.
"""

from __future__ import annotations

from launcher.command.launchers import read_pairs
from launcher.core.environ import Malformed, bracket, parse_int, shorten
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import NodeCommand, Setting
from launcher.core.mpi import STARTED_BY_MPI
from launcher.engines.torchrun import plan_flags, plan_settings
from launcher.frameworks import starters
from launcher.identity.rendezvous import LOOPBACK
from launcher.machine.gpus import VISIBLE
from launcher.options.given import PET_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.command.launchers import Command
    from launcher.frameworks.case import Case

HOSTFILE = "{hostfile}"
"""Placeholder on a command line for the file that `launcher.agent.starter` creates."""


@frozen
class Told:
    """The flags, variables and files for a launcher; flags name files by placeholders."""

    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    files: tuple[tuple[str, str], ...] = ()


def plan_agent(job: Case, own: Command) -> NodeCommand:
    """Return a launcher's command line and variables.

    Raises:
        UsageError: It starts the processes of all nodes from each node, starts them without ranks, or counts
            other processes than the job's.
    """
    told = _tell(job, own)
    rank = job.allocation.node_rank
    if rank is not None and not own.starts_job and not job.allocation.ranks_at_start:
        told = replace(told, variables={"NODE_RANK": str(rank), **told.variables})
    settings = [
        Setting(name, text, f"passes the job on to {own.name}") for name, text in told.variables.items()
    ]
    unset = {*starters.plan_agent_unset(job.environ, torch=own.has_agent, rewritten=False)}
    if own.starts_job and not any(starter in job.environ for starter in STARTED_BY_MPI):
        unset = job.environ.keys() & {*starters.CONTRACT}  # OMPI_MCA_* are its settings
    elif own.name != "torchrun":
        unset |= {name for name in job.environ if name.startswith(PET_PREFIX)}
    return NodeCommand(
        engine=own.name,
        argv=(*job.argv[: own.head], *told.flags, *job.argv[own.head :]),
        settings=(*settings, *(plan_settings(job) if own.has_agent else ())),
        unset=tuple(sorted(unset)),
        files=told.files,
    )


def _tell(job: Case, own: Command) -> Told:
    """Return a launcher's flags and variables: from its row of the table, or its own function."""
    row = own.launcher
    variables = _state(job, read_pairs(row, "variables"))
    if "pet" in row.words("is"):
        variables |= _plan_pets(job, own)
    flags = row.words("adds")
    if "flags" in row.words("is") and job.each * (job.nodes or 1) > 1:
        missing = [
            (name, text) for name, text in _state(job, read_pairs(row, "facts")).items() if not own.has(name)
        ]
        dash = "-" if "dashes" in row.words("is") else "_"
        flags += tuple(f"--{name.replace('_', dash)}={text}" for name, text in missing)
    told = Told(flags, {**variables, **read_pairs(row, "sets")})
    return MORE[own.name](job, own, told) if own.name in MORE else told


def _plan_pets(job: Case, own: Command) -> dict[str, str]:
    """Return PET_*, torchrun's own variables for its flags; flags on its command line take precedence."""
    flags = plan_flags(job)
    if job.nodes == 1 and not job.allocation.ranks_at_start:
        # It takes a free port by itself, unless it is given one
        flags = {n: text for n, text in flags.items() if n not in ("node_rank", "master_addr", "master_port")}
        flags.setdefault("local_addr", LOOPBACK)
    return {PET_PREFIX + name.upper(): text for name, text in flags.items() if not own.has(name)}


def _state(job: Case, names: Mapping[str, str]) -> dict[str, str]:
    """Return the facts about the job by a launcher's names for them: of flags, or of variables."""
    facts = {
        "nnodes": str(job.nodes),
        "node_rank": str(job.allocation.node_rank),
        "nproc_per_node": str(job.each),
        "world_size": str(job.each * (job.nodes or 1)),
    }
    if job.nodes != 1:
        facts["address"] = job.allocation.master_addr
        facts["master_addr"] = bracket(job.allocation.master_addr)
        facts["master_port"] = str(job.allocation.master_port)
    return {theirs: facts[ours] for theirs, ours in names.items() if ours in facts}


def _tell_accelerate(job: Case, own: Command, told: Told) -> Told:
    total = job.each * (job.nodes or 1)
    if total > 1 and own.has("cpu") and not own.has("mpirun_hostfile"):
        raise make_error("accelerate-cpu", total=total)
    flags = [] if own.has("num_processes") else [f"--num_processes={total}"]
    if job.nodes != 1:
        # pdsh, its default, would start the whole job again from every node
        flags.append("--deepspeed_multinode_launcher=standard")
    if total > 1 and (job.machine.gpu_count or 0) < 2 and not own.has(*own.launcher.words("decides")):
        # It detects several GPUs of a node itself; otherwise it would start one process without a rank
        flags.append("--multi_gpu")
    return replace(told, flags=(*told.flags, *flags))


def _tell_deepspeed(job: Case, own: Command, _told: Told) -> Told:
    nodes, hosts = job.nodes or 1, job.allocation.hosts
    if job.nodes == 1:
        # With --num_gpus it ignores CUDA_VISIBLE_DEVICES
        is_free = job.options.get("nproc_per_node") is not None or not job.environ.get(VISIBLE)
        counts = is_free and not own.has(*own.launcher.words("decides"))
        return Told((f"--num_gpus={job.each}",) if counts else ())
    names = {"node_rank": "node_rank", "master_addr": "address", "master_port": "master_port"}
    flags = ("--no_ssh", *(f"--{name}={text}" for name, text in _state(job, names).items()))
    if own.has("hostfile", "H"):
        return Told(flags)
    # Without ssh it only counts the lines
    names_of = hosts if len(hosts) == nodes else [f"node{index}" for index in range(nodes)]
    return Told((f"--hostfile={HOSTFILE}", *flags), files=((HOSTFILE, render_hostfile(names_of, job.each)),))


def render_hostfile(hosts: Sequence[str], per_node: int) -> str:
    """Return the text of a hostfile, one line for each node."""
    return "".join(f"{host} slots={per_node}\n" for host in hosts)


def _tell_composer(job: Case, own: Command, told: Told) -> Told:
    total, world = own.value("world_size"), told.variables["WORLD_SIZE"]
    if total not in (None, world):
        what = f"{job.nodes} nodes x {job.each} per node"
        raise _refuse_total("composer --world_size", str(total), what, world)
    return told


def _tell_mpirun(job: Case, own: Command, told: Told) -> Told:
    if job.allocation.ranks_at_start:
        return told
    if job.nodes != 1:
        raise make_error("job-per-node", name=own.name, nodes=job.nodes)
    return told if own.has(*own.launcher.words("decides")) else Told(("-np", str(job.each)))


def _refuse_total(flag: str, total: str, nodes: str, expected: str) -> LauncherError:
    """Return the error of a total on a launcher's command line that does not fit the job."""
    name, total = flag.partition(" ")[2], shorten(total)
    return make_error("other-total", flag=flag, name=name, total=total, nodes=nodes, expected=expected)


def count_own(command: Command, node_count: int | None) -> int | None:
    """Return the number of processes per node from a launcher's own total; None without one.

    Raises:
        UsageError: The total is not a multiple of the number of nodes.
    """
    names = command.launcher.words("total")
    total = command.value(*names) or ""
    try:
        each, rest = divmod(parse_int(total), node_count or 1)
    except Malformed:
        return None
    if not command.starts_job and (rest or not each):
        raise _refuse_total(f"{command.name} --{names[0]}", total, f"{node_count} nodes", "a multiple")
    return max(1, each)


MORE = {
    "accelerate": _tell_accelerate,
    "trl": _tell_accelerate,
    "deepspeed": _tell_deepspeed,
    "composer": _tell_composer,
    "horovodrun": _tell_mpirun,
    "mpirun": _tell_mpirun,
}
"""What the table can't say."""
