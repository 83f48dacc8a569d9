"""What is worth a word about a job before it starts: sentences for ``launcher plan``."""

from __future__ import annotations

from launcher.engines.agents import Request
from launcher.engines.choice import MPIRUN, Choice
from launcher.flags import find_unknown
from launcher.frameworks import table
from launcher.frameworks.case import Case
from launcher.host import Host
from launcher.ledger import RULE, Ledger
from launcher.model import Agent, Fact
from launcher.options import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def note_job(
    case: Case, request: Request, choice: Choice, agent: Agent | None, ledger: Ledger, host: Host
) -> tuple[str, ...]:
    """Return what is worth a word about frameworks and engine.

    Raises:
        LauncherError: The job's framework cannot work so.
    """
    return (
        *note_unheard(case.options, agent),
        *table.check(case),
        *check_deepspeed(case, request, host),
        f"engine {choice.engine}: {choice.why}",
        *(_note_lone_node(ledger) if choice.engine == MPIRUN else ()),
        *name_unknown(case.environ),
    )


def name_unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each LAUNCHER_* variable that is most likely a typing error."""
    unknown = find_unknown(environ)
    if not unknown:
        return ()
    from launcher.unknown import describe_unknown

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
    return [
        f"--verify-fabric: {agent.engine} starts the processes, so nothing is verified: see NCCL_DEBUG=INFO"
    ]


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
