"""A command that is a launcher itself: tells it the node rank by variables that it reads, otherwise by flags.

Our flags come right after its name, before its own flags. Each of these launchers lets the last flag count,
so the user's flags take precedence. mpirun and horovodrun start the processes of all nodes, so they are only
for one node, or for the node that a job is started from.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, parse_int, shorten
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.model import NodeCommand, Setting
from launcher.core.mpi import STARTED_BY_MPI
from launcher.engines.hostfile import render_hostfile
from launcher.engines.job import KnownJob
from launcher.engines.torchrun import bracket, plan_flags, plan_settings
from launcher.frameworks import starters
from launcher.identity.rendezvous import LOOPBACK
from launcher.options.given import PET_PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.command.launchers import Command

COUNTS = ("np", "n", "c", "num_proc", "npernode", "N", "ppn", "perhost", "app", "configfile", "pernode")
PLACES = ("host", "hosts", "H", "hostfile", "machinefile", "default_hostfile", "f", "host_discovery_script")
"""Flags of mpirun and horovodrun with hosts; `COUNTS` has those with numbers of processes."""
KINDS = ("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file")
"""Flags of accelerate with the kind of processes to start, if it does not see several GPUs."""
HOSTFILE = "{hostfile}"
"""Placeholder on a command line for the file that `launcher.agent.starter` creates."""


@frozen
class Told:
    """The flags, variables and files for a launcher; placeholders in the flags stand for the files."""

    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


def plan_agent(job: KnownJob, own: Command) -> NodeCommand:
    """Return a launcher's command line and variables.

    Raises:
        UsageError: It starts the processes of all nodes from each node, starts them without ranks, or counts
            other processes than the job's.
    """
    name, head = own.launcher.name, own.head
    told = TELL[name](job, own)
    variables = {**_tell_node(job, own), **dict(told.variables)}
    settings = [Setting(one, text, f"tells {name} about the job") for one, text in variables.items()]
    return NodeCommand(
        engine=name,
        argv=(*job.argv[:head], *told.flags, *job.argv[head:]),
        settings=(*settings, *(plan_settings(job) if own.launcher.has_agent else ())),
        unset=tuple(sorted(_plan_unset(job, own))),
        files=told.files,
    )


def _tell_node(job: KnownJob, own: Command) -> dict[str, str]:
    """Return this node's rank for its processes, unless the launcher may pass it on to other nodes."""
    known = job.allocation.node_rank is not None and not job.allocation.ranks_at_start
    is_here = known and not own.launcher.whole_job
    return {"NODE_RANK": str(job.allocation.node_rank)} if is_here else {}


def _plan_unset(job: KnownJob, own: Command) -> set[str]:
    name, environ = own.launcher.name, job.environ
    if own.launcher.whole_job and not any(starter in environ for starter in STARTED_BY_MPI):
        return {
            variable for variable in environ if variable in starters.CONTRACT
        }  # OMPI_MCA_* are its settings
    dropped = {*starters.plan_agent_unset(environ, torch=own.launcher.has_agent, rewritten=False)}
    return dropped if name == "torchrun" else {*dropped, *(v for v in environ if v.startswith(PET_PREFIX))}


def _tell_torchrun(job: KnownJob, own: Command) -> Told:
    """Return PET_*, torchrun's own variables for its flags; flags on its command line take precedence."""
    flags = plan_flags(job)
    if job.nodes == 1 and not job.allocation.ranks_at_start:
        # It takes a free port by itself, unless it is given one
        flags = {n: text for n, text in flags.items() if n not in ("node_rank", "master_addr", "master_port")}
        flags.setdefault("local_addr", LOOPBACK)
    missing = {name: text for name, text in flags.items() if not own.has(name)}
    return Told(variables=tuple((PET_PREFIX + n.upper(), _as_pet(n, text)) for n, text in missing.items()))


def _as_pet(name: str, text: str) -> str:
    return "1" if name == "virtual_local_rank" else text


def _state(job: KnownJob, names: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the facts about the job by a launcher's names for them: of flags, or of variables."""
    facts = {
        "nnodes": str(job.nodes),
        "node_rank": str(job.allocation.node_rank),
        "nproc_per_node": str(job.each),
        "world_size": str(job.each * (job.nodes or 1)),
    }
    if job.nodes != 1:
        facts["master_addr"] = bracket(job.allocation.master_addr)
        facts["master_port"] = str(job.allocation.master_port)
    return {theirs: facts[ours] for theirs, ours in names if ours in facts}


def _tell_accelerate(job: KnownJob, own: Command) -> Told:
    total = job.each * (job.nodes or 1)
    if total > 1 and own.has("cpu") and not own.has("mpirun_hostfile"):
        raise UsageError(_alone_on_cpus(total))
    flags = [f"--{name}={text}" for name, text in _state(job, own.launcher.facts).items()]
    if not own.has("num_processes"):
        flags.append(f"--num_processes={total}")
    if job.nodes != 1:
        # pdsh, its default, would start the whole job again from every node
        flags.append("--deepspeed_multinode_launcher=standard")
    if total > 1 and (job.machine.gpu_count or 0) < 2 and not own.has(*KINDS):
        # It detects several GPUs of a node itself; otherwise it would start one process without a rank
        flags.append("--multi_gpu")
    return Told(tuple(flags))


def _tell_deepspeed(job: KnownJob, own: Command) -> Told:
    if job.nodes == 1:
        chooses = own.has("include", "i", "exclude", "e", "hostfile", "H", "num_gpus", "num_accelerators")
        asked = job.options.get("nproc_per_node") is not None
        # With --num_gpus it ignores CUDA_VISIBLE_DEVICES
        counts = not chooses and (asked or not job.environ.get("CUDA_VISIBLE_DEVICES"))
        return Told((f"--num_gpus={job.each}",) if counts else ())
    flags = ["--no_ssh", f"--node_rank={job.allocation.node_rank}"]
    flags.append(f"--master_addr={job.allocation.master_addr}")
    flags.append(f"--master_port={job.allocation.master_port}")
    if own.has("hostfile", "H"):
        return Told(tuple(flags))
    text = render_hostfile(_name_hosts(job), job.each)
    return Told((f"--hostfile={HOSTFILE}", *flags), files=((HOSTFILE, text),))


def _name_hosts(job: KnownJob) -> tuple[str, ...]:
    """Return a name for each node; without ssh DeepSpeed only counts them."""
    hosts = job.allocation.hosts
    return hosts if len(hosts) == job.nodes else tuple(f"node{index}" for index in range(job.nodes or 1))


def _tell_fabric(job: KnownJob, own: Command) -> Told:
    missing = [(name, text) for name, text in _state(job, own.launcher.facts).items() if not own.has(name)]
    return Told(tuple(f"--{name.replace('_', '-')}={text}" for name, text in missing))


def _tell_composer(job: KnownJob, own: Command) -> Told:
    variables = _state(job, own.launcher.variables)
    if "MASTER_ADDR" in variables:
        variables["MASTER_ADDR"] = job.allocation.master_addr  # PyTorch takes it without brackets
    total, world = own.value("world_size"), variables["WORLD_SIZE"]
    if total not in (None, world):
        what = f"{job.nodes} nodes x {job.each} per node"
        raise UsageError(_uneven("composer --world_size", str(total), what, world))
    return Told(variables=tuple(variables.items()))


def _tell_variables(job: KnownJob, own: Command) -> Told:
    """Return only variables: a launcher's own flags take precedence over them."""
    return Told(variables=tuple(_state(job, own.launcher.variables).items()))


def _tell_llamafactory(job: KnownJob, own: Command) -> Told:
    """Return also the variable with which it starts torchrun without several GPUs."""
    return Told(variables=(*_tell_variables(job, own).variables, ("FORCE_TORCHRUN", "1")))


def _tell_axolotl(job: KnownJob, own: Command) -> Told:
    """Return torchrun's variables, and the flag for torchrun: accelerate, its default, reads no variable."""
    return Told(("--launcher=torchrun",), _tell_torchrun(job, own).variables)


def _tell_mpirun(job: KnownJob, own: Command) -> Told:
    if job.allocation.ranks_at_start:
        return Told()
    if job.nodes != 1:
        raise UsageError(once_per_node(own.launcher.name, own.launcher.name, job.nodes))
    return Told() if own.has(*COUNTS, *PLACES) else Told(("-np", str(job.each)))


def _alone_on_cpus(total: int) -> Problem:
    return Problem(
        "accelerate-cpu",
        f"accelerate launch --cpu starts one process without a rank, each a job of its own; here are {total}",
        "command line",
        "let the launcher start them: launcher run -- python train.py, with ACCELERATE_USE_CPU=1 or "
        "Accelerator(cpu=True); or leave --cpu out",
    )


def _uneven(flag: str, total: str, nodes: str, expected: str) -> Problem:
    """Return the problem of a total on a launcher's command line that does not fit the job."""
    return Problem(
        "flag-conflict",
        f"{flag} {shorten(total)} counts the processes of all nodes, here {nodes}: expected {expected}",
        "command line",
        f"leave {flag.partition(' ')[2]} out: the launcher passes it",
    )


def once_per_node(what: str, name: str, nodes: int | None) -> Problem:
    """Return the problem of a launcher of whole jobs that is started on each node.

    Args:
        what: The program that starts the processes: the launcher, or the file that calls it.
        name: The launcher.
        nodes: Number of nodes.
    """
    return Problem(
        "job-per-node",
        f"{what} starts the processes of all nodes, but the launcher was started on each of {nodes} "
        f"nodes: there would be {nodes} such jobs",
        "command line and environment",
        f"leave {name} out: launcher run -- COMMAND starts the processes of this node, launcher run --engine "
        "mpirun -- COMMAND those of all nodes by mpirun (or --source manual --standalone for a job of its "
        "own on each node)",
    )


def count_own(command: Command, node_count: int | None) -> int | None:
    """Return the number of processes per node from a launcher's own total; None without one.

    Raises:
        UsageError: accelerate's total is not a multiple of the number of nodes.
    """
    names = ("num_processes",) if command.launcher.name == "accelerate" else ("np", "n", "num_proc")
    if command.launcher.name != "accelerate" and not command.launcher.whole_job:
        return None
    total = next((value for name in names if (value := command.value(name)) is not None), "")
    try:
        each, rest = divmod(parse_int(total), node_count or 1)
    except Malformed:
        return None
    if command.launcher.name == "accelerate" and (rest or not each):
        raise UsageError(_uneven("accelerate --num_processes", total, f"{node_count} nodes", "a multiple"))
    return max(1, each)


TELL = {
    "torchrun": _tell_torchrun,
    "accelerate": _tell_accelerate,
    "deepspeed": _tell_deepspeed,
    "fabric": _tell_fabric,
    "lightning": _tell_fabric,
    "composer": _tell_composer,
    "axolotl": _tell_axolotl,
    "llamafactory": _tell_llamafactory,
    "swift": _tell_variables,
    "horovodrun": _tell_mpirun,
    "mpirun": _tell_mpirun,
}
