"""What is worth a word about a job before it starts: sentences for ``launcher plan``."""

from __future__ import annotations

from launcher.command.line import may_be_shell
from launcher.core.model import Agent, Fact
from launcher.engines.choice import MPIRUN, Choice
from launcher.frameworks import table
from launcher.frameworks.script import note_framework
from launcher.identity.ledger import RULE, Ledger
from launcher.options.flags import find_unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.engines.agents import Request
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options

VERIFY = "--verify-fabric"
HOOKED = "LAUNCHER_HOOKED"


def note_job(case: Case, request: Request, choice: Choice, ledger: Ledger, host: Host) -> tuple[str, ...]:
    """Return what is worth a word about frameworks and engine.

    Raises:
        LauncherError: The job's framework cannot work so.
    """
    return (
        *note_framework(case.options),
        *table.check(case),
        *check_deepspeed(case, request, host),
        f"engine {choice.engine}: {choice.why}",
        *(_note_lone_node(ledger) if choice.engine == MPIRUN else ()),
        *name_unknown(case.environ),
        *_note_hook(case.environ),
    )


def _note_hook(environ: Mapping[str, str]) -> tuple[str, ...]:
    if not environ.get(HOOKED):
        return ()
    from launcher.guest.marker import describe_marker

    return describe_marker(environ)


def warn_job(case: Case, agent: Agent | None, network: Sequence[str], host: Host) -> tuple[str, ...]:
    """Return what is said at the start, too: the job may not be what it was meant to be.

    Args:
        case: The job.
        agent: Who starts its processes, unless we do.
        network: What is worth a word about the network.
        host: The machine.

    Raises:
        LauncherError: It is certain that each process, or node, would be a job of its own.
    """
    unheard = [note for note in network if note.startswith(VERIFY)]
    return (
        *unheard,
        *note_unheard(case.options, agent),
        *table.warn(case, host),
        *_note_cpus(case, agent),
        *_check_shell(case),
    )


def _check_shell(case: Case) -> tuple[str, ...]:
    """Return that a shell file may start processes of its own for each process; loaded only for a shell.

    Raises:
        LauncherError: It is certain, or that each node would be a job of its own.
    """
    if not may_be_shell(case.argv):
        return ()
    from launcher.engines.shells import check_shell

    return check_shell(case)


def _note_cpus(case: Case, agent: Agent | None) -> tuple[str, ...]:
    """Return that accelerate's own launcher has its processes join no job where there are only CPUs."""
    machine = case.machine
    alone = case.topology.world_size == 1 or machine.gpu_count != 0 or machine.has_others
    if agent is None or agent.engine != "accelerate" or alone:
        return ()
    return (
        "accelerate launch without an accelerator: each process is a job of its own unless the script says "
        "Accelerator(cpu=True); or leave accelerate launch out: launcher run -- python train.py",
    )


def name_unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each LAUNCHER_* variable that is most likely a typing error."""
    unknown = find_unknown(environ)
    if not unknown:
        return ()
    from launcher.options.unknown import describe_unknown

    return describe_unknown(unknown)


def _note_lone_node(ledger: Ledger) -> tuple[str, ...]:
    """Return that mpirun starts one node, where that is so only because nobody speaks of others."""
    found = ledger.findings.get(Fact.NODE_COUNT)
    if found is None or found.claim.value != 1 or found.claim.source != RULE:
        return ()
    hosts = "--hosts HOST,... or --hostfile FILE"
    return (f"mpirun starts processes on this node alone: nothing names others ({hosts})",)


def note_unheard(options: Options, agent: Agent | None) -> list[str]:
    """Return that NCCL's word is not heard: only of processes that are ours, or an mpirun's of ours."""
    if agent is None or agent.fleet is not None or not options.switch("verify_fabric"):
        return []
    return [f"{VERIFY}: {agent.engine} starts the processes, so nothing is verified: see NCCL_DEBUG=INFO"]


def check_deepspeed(case: Case, request: Request, host: Host) -> tuple[str, ...]:
    """Return what is worth a word about a job that is named as one of DeepSpeed, or started by its command.

    Raises:
        LauncherError: What would keep it from starting right.
    """
    own = request.own if request.own is not None and request.own.launcher.name == "deepspeed" else None
    if own is None and case.options.text("framework") != "deepspeed":
        return ()
    from launcher.frameworks.deepspeed_checks import check

    return check(case, own, host)


def note_metrics(options: Options, agent: Agent | None, *, stays: bool) -> tuple[str, ...]:
    """Return that nobody serves metrics, where they were asked for and nobody does."""
    if not options.get("metrics_port") or (stays and (agent is None or agent.fleet is None)):
        return ()
    why = "mpirun starts the processes" if stays else "the launcher becomes the command (--init: it stays)"
    return (f"no metrics: {why}",)
