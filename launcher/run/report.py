"""The last word of a job that has failed: gathered here, loaded only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.failure.causes import find_causes, read_counters
from launcher.failure.model import Death, Verdict, make_verdict
from launcher.failure.record import default_failure_file, render_json, write_verdict
from launcher.failure.report import render_text
from launcher.failure.root_cause import read_root_cause
from launcher.host import Host
from launcher.model import Supervision
from launcher.output.router import Output
from launcher.process.descendants import describe
from launcher.process.signals import name_signal
from launcher.process.spawn import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.run.supervise import Supervisor


def judge(supervisor: Supervisor, first: Process, survivors: Sequence[int]) -> Verdict | None:
    """Return the verdict on the processes of this node; None where nobody has failed.

    Args:
        supervisor: Their parent, when all have ended.
        first: Who has failed first.
        survivors: The pids of those that SIGKILL has not ended.
    """
    deaths = read_deaths(supervisor, first)
    if first.child.called and not first.child.companion:  # an agent
        supervisor.say(f"{first.name} {first.end}")
        if supervisor.told_before is not None:
            return None  # its own traceback is about the signal, and nobody has failed
        deaths = [read_root_cause(deaths[0]) or deaths[0]]
    host, watching = Host(), supervisor.watching
    before = (None if watching is None else watching.before) or read_counters(host)
    after = (None if watching is None else watching.after) or read_counters(host, before)
    return make_verdict(
        deaths[0],
        deaths[1:],
        host_name=host.hostname(),
        node_rank=supervisor.node.node_rank,
        world_size=supervisor.node.world_size,
        attempt=supervisor.attempt,
        started_ns=supervisor.started_ns,
        told=None if supervisor.told_before is None else name_signal(supervisor.told_before),
        causes=find_causes(deaths[0], before, host, after),
        reason=supervisor.stalled,
        mismatch=supervisor.mismatch,
        unmet=supervisor.unmet,
        unmet_since=None if watching is None else watching.unmet,
        leftovers=[describe(pid) for pid in survivors],
    )


def read_deaths(supervisor: Supervisor, first: Process) -> list[Death]:
    """Return how the processes of this node have ended, and their last words: first who failed first."""
    ends = [first, *(process for process in supervisor.ended if process is not first)]
    return [one.death(supervisor.output.read_errors(supervisor.processes.index(one))) for one in ends]


def publish(
    verdict: Verdict,
    output: Output,
    watch: Supervision,
    environ: Mapping[str, str],
    *,
    shown: bool = True,
) -> None:
    """Write the verdict as the last screen of the log, and as JSON where somebody looks for it."""
    if shown:
        output.write(render_text(verdict, output.has_colour))
    path = watch.failure_file or default_failure_file(environ, Host(), verdict.node_rank)
    if path is not None:
        complaint = write_verdict(render_json(verdict), path)
        output.say(f"the failure record: {path}" if complaint is None else f"no failure record: {complaint}")
