"""Notes and warnings about a job before it starts: sentences for ``launcher plan``."""

from __future__ import annotations

from launcher.command.line import is_python, may_be_shell, read_flags
from launcher.core.model import Agent, Fact
from launcher.engines.choice import MPIRUN, Choice
from launcher.frameworks import table
from launcher.frameworks.script import note_framework
from launcher.identity.ledger import RULE, Ledger
from launcher.options.flags import find_unknown
from launcher.planning.supervision import list_idle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.engines.agents import Request
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options

VERIFY = "--verify-fabric"
DISABLE, HOOKED = "LAUNCHER_DISABLE", "LAUNCHER_HOOKED"
ABOUT_THE_JOB = frozenset(
    (
        *("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port", "standalone", "engine"),
        *("max_restarts", "rdzv_backend", "rdzv_endpoint", "rdzv_id"),
    )
)
"""Flags of ours that scripts rarely have."""


def note_job(
    case: Case, request: Request, choice: Choice, agent: Agent | None, ledger: Ledger, host: Host
) -> tuple[str, ...]:
    """Return the notes about frameworks, engine, port and options.

    Raises:
        LauncherError: The job's framework cannot work in this job.
    """
    return (
        *note_framework(case.options),
        *table.check(case),
        *check_deepspeed(case, request, host),
        f"engine {choice.engine}: {choice.why}",
        *(_note_lone_node(ledger) if choice.engine == MPIRUN else ()),
        *_note_port(ledger, case),
        *_note_rules(case, agent),
        *case.options.files.notes,
        *name_unknown(case.environ),
        *_note_disabled(case.environ),
        *_note_hook(case.environ),
    )


def _note_port(ledger: Ledger, case: Case) -> tuple[str, ...]:
    """Return a note if the rendezvous takes another free port at each start."""
    found = ledger.findings.get(Fact.MASTER_PORT)
    if found is None or found.claim.value != 0:
        return ()
    port = case.topology.master_port
    return (f"MASTER_PORT is a port that is free when the job starts; here {port} stands for it",)


def _note_rules(case: Case, agent: Agent | None) -> tuple[str, ...]:
    """Return a note about rules of restarts, from variables, that do nothing with this agent."""
    if agent is None or not case.options.number("restarts", 0):
        return ()
    idle = case.options.origins(*list_idle(agent))
    return (f"{', '.join(idle)}: no effect, {agent.engine} starts the processes",) if idle else ()


def _note_disabled(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note if the launcher is disabled, so that the plan is not carried out."""
    value = environ.get(DISABLE, "")
    if value.lower() not in ("1", "true"):
        return ()
    return (f"{DISABLE}={value!r}: launcher run runs the command unchanged, and does none of this",)


def _note_hook(environ: Mapping[str, str]) -> tuple[str, ...]:
    if not environ.get(HOOKED):
        return ()
    from launcher.guest.marker import describe_marker

    return describe_marker(environ)


def warn_job(case: Case, agent: Agent | None, network: Sequence[str], host: Host) -> tuple[str, ...]:
    """Return the warnings that are also printed at the start: the job may not be what the user meant.

    Args:
        case: The job.
        agent: The command that starts its processes; None if we do.
        network: Notes about the network.
        host: The machine.

    Raises:
        LauncherError: Each process or node would certainly be a job of its own.
    """
    unheard = [note for note in network if note.startswith(VERIFY)]
    return (
        *case.options.files.warnings,
        *unheard,
        *_note_behind(case),
        *note_unheard(case.options, agent),
        *table.warn(case, host),
        *_note_cpus(case, agent),
        *_check_shell(case),
    )


def _note_behind(case: Case) -> tuple[str, ...]:
    """Return a warning if flags about the shape of the job come after a script and may be meant for us.

    Ignores flags that are also given to us, and flags that occur in the script's text: the script has them.
    """
    if not case.forks or case.is_wrapped or not case.argv or not is_python(case.command[0]):
        return ()
    words = case.command[read_flags(case.command)[2] :]
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    behind = [
        name
        for name in dict.fromkeys(names)
        if (dest := _about_the_job(name[2:].replace("-", "_")))
        and case.options.get(dest) is None
        and not any(spelling in case.script.text for spelling in (dest, name[2:]))
    ]
    if not behind:
        return ()
    stand, them = ("stands", "it") if len(behind) == 1 else ("stand", "them")
    said = f"{', '.join(behind)} {stand} behind the command, which gets {them}"
    return (f"{said}: for the launcher put {them} before the command: launcher run {behind[0]} ...",)


def _about_the_job(word: str) -> str:
    """Return the flag about the shape of the job that a word names or abbreviates; empty if none."""
    near = [dest for dest in ABOUT_THE_JOB if dest == word or (len(word) > 4 and dest.startswith(word))]
    return min(near, default="")


def _check_shell(case: Case) -> tuple[str, ...]:
    """Return a warning if a shell script may start several processes for each process of the job.

    The check is loaded only for a shell.

    Raises:
        LauncherError: The script certainly does, or each node would be a job of its own.
    """
    if not may_be_shell(case.argv):
        return ()
    from launcher.engines.shells import check_shell

    return check_shell(case)


def _note_cpus(case: Case, agent: Agent | None) -> tuple[str, ...]:
    """Return a warning if accelerate's launcher runs on CPUs only: there its processes join no job."""
    machine = case.machine
    alone = case.topology.world_size == 1 or machine.gpu_count != 0 or machine.has_others
    if agent is None or agent.engine != "accelerate" or alone:
        return ()
    return (
        "accelerate launch without an accelerator: each process is a job of its own unless the script says "
        "Accelerator(cpu=True); or leave accelerate launch out: launcher run -- python train.py",
    )


def name_unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each unknown LAUNCHER_* variable, which is most likely a typing error."""
    unknown = find_unknown(environ)
    if not unknown:
        return ()
    from launcher.options.unknown import describe_unknown

    return describe_unknown(unknown)


def _note_lone_node(ledger: Ledger) -> tuple[str, ...]:
    """Return a note if mpirun starts only this node because nothing names other nodes."""
    found = ledger.findings.get(Fact.NODE_COUNT)
    if found is None or found.claim.value != 1 or found.claim.source != RULE:
        return ()
    hosts = "--hosts HOST,... or --hostfile FILE"
    return (f"mpirun starts processes on this node only: no other nodes are named ({hosts})",)


def note_unheard(options: Options, agent: Agent | None) -> list[str]:
    """Return a warning if NCCL's log is not read: we read that of our own processes and of our mpirun's."""
    if agent is None or agent.fleet is not None or not options.switch("verify_fabric"):
        return []
    return [f"{VERIFY}: {agent.engine} starts the processes, so nothing is verified: see NCCL_DEBUG=INFO"]


def check_deepspeed(case: Case, request: Request, host: Host) -> tuple[str, ...]:
    """Return the notes about a job with ``--framework deepspeed`` or DeepSpeed's command; else nothing.

    Raises:
        LauncherError: The job would not start correctly.
    """
    own = request.own if request.own is not None and request.own.launcher.name == "deepspeed" else None
    if own is None and case.options.text("framework") != "deepspeed":
        return ()
    from launcher.frameworks.deepspeed_checks import check

    return check(case, own, host)


OF_PARENT = (
    "metrics_port",
    "prefix",
    "log_format",
    "timestamps",
    "progress",
    "redirects",
    "tee",
    "signal_to",
    "signal_map",
    "stall_timeout",
    "failure_file",
    "evidence_dir",
    "events",
    "log_rotate",
    "timings",
    "nccl_ras",
    "dedupe",
    "progress_pattern",
    "on_stall",
    *("grace", "shutdown_timeout", "log_dir", "local_ranks_filter"),
)
"""Flags that need a launcher that stays with the job."""
OF_AGENT = ("grace", "shutdown_timeout", "log_dir", "local_ranks_filter", "redirects", "tee")
"""Those that an agent that the launcher becomes may take."""
OF_PEERS = ("control_port", "token_file", "roll_call_timeout", "lost_after", "keep_going")
OF_TORCHRUN = ("rdzv_conf", "local_addr", "monitor_interval", "signals_to_handle", "start_method")


def note_gone(case: Case, agent: Agent | None, *, stays: bool) -> tuple[str, ...]:
    """Return a note about requested flags that have no effect, because the launcher does not stay."""
    if stays:
        served = agent is None or agent.fleet is None or not case.options.get("metrics_port")
        return () if served else ("no metrics: mpirun starts the processes",)
    asked = case.options.origins(*(dest for dest in OF_PARENT if agent is None or dest not in OF_AGENT))
    way = "--init" if case.forks else "--stay"
    if not asked:
        return ()
    return (f"{', '.join(asked)}: no effect, the launcher becomes the command ({way}: it stays)",)


def note_unused(case: Case, agent: Agent | None, *, has_channel: bool, looks: bool) -> tuple[str, ...]:
    """Return notes about flags of parts that this job does not have.

    Args:
        case: The job.
        agent: The command that starts its processes; None if we do.
        has_channel: Whether the launchers of all nodes have a control channel.
        looks: Whether the launcher checks that the processes connect.
    """
    parts = (
        (has_channel, OF_PEERS, "the launchers of this job have no control channel"),
        (looks, ("meeting_timeout", "require_meeting"), "nothing looks whether the processes connect"),
        (agent is not None, OF_TORCHRUN, "torchrun does not start the processes"),
    )
    found = ((case.options.origins(*dests), why) for is_there, dests, why in parts if not is_there)
    return tuple(f"{', '.join(asked)}: no effect, {why}" for asked, why in found if asked)


def warn_gone(case: Case, agent: Agent | None, *, stays: bool) -> tuple[str, ...]:
    """Return that note as a warning if one of the flags was typed."""
    typed = [dest for dest in OF_PARENT if (given := case.options.get(dest)) and given.is_typed]
    return note_gone(case, agent, stays=stays) if typed and agent is None and not stays else ()
