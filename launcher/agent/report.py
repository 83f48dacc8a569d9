"""Finds how the processes of a node ended, and why. Loaded only after a failure, when all have ended."""

from __future__ import annotations

from functools import partial

from launcher.agent.ends import describe_exit, find_hidden, only_follows
from launcher.agent.runtime import Outcome
from launcher.core.errors import EXIT_NOT_READY, name_page
from launcher.core.frozen import replace
from launcher.core.log import read_platform_attempt
from launcher.core.signal import signal
from launcher.fabrics import explain_network
from launcher.failure import arbiter
from launcher.failure.arbiter import RANK, Event
from launcher.failure.causes import Faults, find_causes
from launcher.failure.counters import Counters, read_counters
from launcher.failure.model import Cause, ProcessExit, Verdict
from launcher.failure.record import default_failure_file, render_json, summarize, write_verdict
from launcher.failure.report import render_text
from launcher.failure.stderr import read_root_cause
from launcher.failure.verdict import make_verdict
from launcher.machine.host import Host
from launcher.machine.ports import is_reserved
from launcher.machine.xids import Xid
from launcher.process.signal_file import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.observers import Observers
    from launcher.agent.runtime import Runtime
    from launcher.process.spawn import Process

SURVIVORS_SHOWN = 20
ABOVE_BYTES = 4096
"""Output after the failed process's last errors that still fits on one page of a terminal."""


def find_outcome(runtime: Runtime, observers: Observers) -> Outcome:
    """Return how the processes of a node ended; call it once, when all have ended."""
    preempted = observers.preemption.make_verdict()
    if preempted is not None:
        return Outcome(EXIT_NOT_READY, preempted)
    survivors = runtime.group.describe_survivors()
    first, reason = runtime.loop.guarded(lambda: find_first(runtime), runtime.first), runtime.reason
    if first is None and reason is not None:
        # All ended with 0, before or when they were told to end: the job that the launcher ended has failed.
        first = min(runtime.group.ended, key=_order_of_ends, default=None)
    if first is None and survivors:
        line = f"{len(survivors)} survive SIGKILL: {'; '.join(survivors[:SURVIVORS_SHOWN])}"
        runtime.say(line, "survivors")
        return Outcome(128 + signal.SIGKILL)
    if first is None:
        return Outcome(0)
    verdict = runtime.loop.guarded(lambda: judge(runtime, observers, first, survivors), None)
    status = first.status if reason is None else reason.status
    # A process that shares our terminal has printed the reason right above.
    typed = runtime.shares_terminal and not first.child.called and (first.code or 0) > 0
    return Outcome(status, verdict, shown=not typed)


def _order_of_ends(process: Process) -> tuple[bool, bool, int]:
    """Return the order of processes that ended with 0: ranks first, and of these the one told to end."""
    return process.child.companion, process.passed_on is None, process.ended_ns


def find_first(runtime: Runtime) -> Process | None:
    """Return the process that failed first, leaving out those that only lost another process."""
    failed = [one for one in runtime.failed if one is not runtime.first]
    failed = [runtime.first, *failed] if runtime.first is not None else []
    events = [
        Event(
            runtime.place.node_rank or 0, RANK, one.ended_ns, one.status, follows=only_follows(runtime, one)
        )
        for one in failed
    ]
    first = arbiter.find_first(events, lambda event: event.follows)
    return None if first is None else failed[events.index(first)]


def foresee(runtime: Runtime, observers: Observers) -> Verdict | None:
    """Return the verdict on an attempt whose last processes are about to be killed; None without ranks."""
    ranks = (one for one in runtime.group.running.values() if not one.child.companion)
    first = runtime.first or next(ranks, None)
    if first is None or first.child.called:
        return None
    return observers.preemption.make_verdict() or judge(runtime, observers, first, ())


def judge(runtime: Runtime, observers: Observers, first: Process, survivors: Sequence[str]) -> Verdict | None:
    """Return the verdict on a node's processes; None if an agent among them was only told to stop.

    Args:
        runtime: Values and tools of the launcher; all processes have ended.
        observers: What was seen while they ran.
        first: The process that failed first.
        survivors: Descriptions of the processes that survived SIGKILL.
    """
    ends = [describe_exit(runtime, first)]
    ends += [describe_exit(runtime, one) for one in runtime.group.ended if one is not first]
    if first.child.called and not first.child.companion:
        runtime.say(f"{first.name} {first.end}", "starter-ended")
        if runtime.told_before is not None and first.passed_on is not None:
            return None  # the agent's traceback only reports the signal; nothing has failed
        ends = [read_root_cause(ends[0]) or ends[0]]
    host, faults = Host(), Faults()
    port = first.child.environ.get("MASTER_PORT", "")
    before = observers.counters_before or faults.guard("counters", lambda: read_counters(host), Counters())
    explain = partial(explain_network, host, first.child.environ)
    after = observers.counters_after
    after = after or faults.guard("counters", lambda: read_counters(host, before), Counters())
    none_yet = tuple[Xid, ...]()
    if observers.gpus is not None:
        after = replace(after, xids=faults.guard("the GPUs' errors", observers.gpus.read, none_yet))
    causes: Sequence[Cause] = find_causes(ends[0], before, host, after, faults, ends[1:], explain)
    causes = faults.guard("ports", lambda: name_reserved(causes, port), causes)
    verdict = _make(runtime, observers, ends, causes, faults, survivors)
    none = list[Cause]()
    hidden = (
        faults.guard("hidden failures", lambda: find_hidden(runtime), none) if verdict.told is None else none
    )
    also = (f"{one.what}; fix: {one.fix}" for one in hidden)
    return replace(verdict, also=(*verdict.also, *also))


def _make(
    runtime: Runtime,
    observers: Observers,
    ends: Sequence[ProcessExit],
    causes: Sequence[Cause],
    faults: Faults,
    survivors: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on an attempt whose processes have ended like this, the decisive one first."""
    told = runtime.told_before if runtime.first is not None else runtime.forwarder.told
    has_failed = runtime.first is not None or runtime.reason is not None
    return make_verdict(
        ends[0],
        ends[1:],
        host_name=Host().hostname(),
        node_rank=runtime.place.node_rank,
        world_size=runtime.place.world_size,
        attempt=runtime.attempt + runtime.restarts_of_torchrun,
        started_ns=runtime.started_ns,
        told=None if told is None else name_signal(told),
        told_by=runtime.told_by,
        causes=causes,
        faults=faults,
        reason=runtime.reason,
        unmet_since=observers.network.unmet if has_failed else None,
        leftovers=survivors,
    )


RESERVED = (
    "if it is MASTER_PORT ({}), the launcher reserves it for a server that sets SO_REUSEADDR, as torch's does"
)
REUSE = "`sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)`, `TCPServer.allow_reuse_address = True`"


def name_reserved(causes: Sequence[Cause], port: str) -> Sequence[Cause]:
    """Explain a port that cannot be bound if it may be the one we hold for rank 0."""
    if not any(one.code == "port-in-use" and "[Errno 98]" in one.what for one in causes):
        return causes
    if not port.isdecimal() or not is_reserved(int(port)):
        return causes
    what = f"{RESERVED.format(port)}; or another process has this port"
    return [
        replace(one, what=f"{what}: {one.what.partition(': ')[2]}", fix=f"{REUSE}; otherwise {one.fix}")
        if one.code == "port-in-use"
        else one
        for one in causes
    ]


def record_doubts(runtime: Runtime, observers: Observers) -> None:
    """Write a record of a job that ended with 0 although something shows that it may have failed."""
    ends = [describe_exit(runtime, one) for one in runtime.group.ended]
    verdict = _make(runtime, observers, ends, observers.doubts, Faults())
    path, complaint = record(runtime, observers, verdict)
    if complaint is not None:
        runtime.say(f"no failure record: {complaint}", "no-failure-record")
    elif path is not None:
        runtime.say(f"the record of this warning: {path}", "failure-record", path=path)


def publish(
    runtime: Runtime,
    observers: Observers,
    verdict: Verdict,
    *,
    shown: bool = True,
    speaks: bool = True,
    known: str | None = None,
) -> str | None:
    """Print the verdict at the end of the log, and write the failure record; return its path if written.

    ``speaks``: whether this launcher prints job-wide messages, here the path of the record.
    ``known``: the path that was printed for an earlier attempt.
    """
    output = runtime.output
    if shown:
        page = name_page("failures", verdict.causes[0].code, runtime.environ) if verdict.causes else ""
        text = render_text(verdict, output.has_colour, above=stands_above(runtime, verdict), page=page)
        output.say_as_is(text, "first-failure", **summarize(verdict))
    else:
        output.pass_on(verdict.summary, "first-failure", summarize(verdict))
    path, complaint = record(runtime, observers, verdict)
    if complaint is not None:
        output.say(f"no failure record: {complaint}", "no-failure-record")
    elif path is not None and path != known:
        text = f"the failure record: {path}"
        if speaks:
            output.say(text, "failure-record", path=path)
        else:
            output.pass_on(text, "failure-record", {"path": path})
    return path


def record(runtime: Runtime, observers: Observers, verdict: Verdict) -> tuple[str | None, str | None]:
    """Write the failure record; return its path if written, or why it could not be written."""
    path = runtime.watch.failure_file or default_failure_file(runtime.environ, Host(), verdict.node_rank)
    if path is None:
        return None, None
    text = render_json(verdict, observers.read_timings(), read_platform_attempt(runtime.environ))
    complaint = write_verdict(text, path)
    return (path, None) if complaint is None else (None, complaint)


def stands_above(runtime: Runtime, verdict: Verdict) -> bool:
    """Whether our log shows the last errors of the process that failed first right above."""
    first = verdict.first
    processes = runtime.group.processes if verdict.node_rank == runtime.place.node_rank else []
    index = next((place for place, one in enumerate(processes) if one.pid == first.pid), None)
    since = None if index is None else runtime.output.shown_since(index)
    last = verdict.exception or next((line for line in reversed(verdict.stderr) if line), "")
    if index is None or since is None or since > ABOVE_BYTES or not last:
        return False
    return last in runtime.output.read_errors(index).decode("utf-8", "replace")
