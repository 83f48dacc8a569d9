"""Finds how the processes of a node ended, and why. Loaded only after a failure, when all have ended."""

from __future__ import annotations

import time
from functools import partial

from launcher.agent.coordination import Outcome
from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.fabrics import explain_network
from launcher.failure import arbiter
from launcher.failure.arbiter import RANK, Event
from launcher.failure.causes import Faults, find_causes
from launcher.failure.counters import Counters, read_counters
from launcher.failure.model import Cause, ProcessExit, Verdict
from launcher.failure.record import default_failure_file, render_json, summarize, write_verdict
from launcher.failure.report import render_text
from launcher.failure.stderr import add_fatal_stacks, read_root_cause, read_uncaught, read_words_of
from launcher.failure.symptoms import find_symptoms
from launcher.failure.text import quote
from launcher.failure.verdict import make_verdict
from launcher.machine.host import Host
from launcher.machine.ports import is_reserved
from launcher.machine.xids import Xid
from launcher.output.folder import ERROR_FILE, STACKS_FILE
from launcher.process.signals import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.agent import Agent
    from launcher.process.spawn import Process

SURVIVORS_SHOWN = 20
ABOVE_BYTES = 4096
"""Output after the failed process's last errors that still fits on one page of a terminal."""


def find_outcome(agent: Agent) -> Outcome:
    """Return how the processes of a node ended; call it when all have ended."""
    preempted = agent.observers.preemption_verdict()
    if preempted is not None:
        return Outcome(EXIT_NOT_READY, preempted)
    survivors = agent.group.describe_survivors()
    firsts: list[Process | None] = []
    agent.loop.guard(lambda: firsts.append(find_first(agent)))
    first, reason = firsts[0] if firsts else agent.first, agent.reason
    if first is None and reason is not None:
        # All ended with 0, before or when they were told to end: the job that the launcher ended has failed.
        first = min(agent.group.ended, key=_order_of_ends, default=None)
    if first is None and survivors:
        line = f"{len(survivors)} survive SIGKILL: {'; '.join(survivors[:SURVIVORS_SHOWN])}"
        return Outcome(128 + signal.SIGKILL, line=line)
    if first is None:
        return Outcome(0)
    found: list[Verdict | None] = []
    agent.loop.guard(lambda: found.append(judge(agent, first, survivors)))
    verdict = found[0] if found else None
    status = first.status if reason is None else reason.status
    # A process that shares our terminal has printed the reason right above.
    typed = agent.shares_terminal and not first.child.called and (first.code or 0) > 0
    return Outcome(status, verdict, shown=not typed)


def _order_of_ends(process: Process) -> tuple[bool, bool, int]:
    """Return the order of processes that ended with 0: ranks first, and of these the one told to end."""
    return process.child.companion, process.passed_on is None, process.ended_ns


def find_first(agent: Agent) -> Process | None:
    """Return the process that failed first, leaving out those that only lost another process."""
    failed = [one for one in agent.failed if one is not agent.first]
    failed = [agent.first, *failed] if agent.first is not None else []
    events = [
        Event(agent.place.node_rank or 0, RANK, one.ended_ns, one.status, follows=only_follows(agent, one))
        for one in failed
    ]
    first = arbiter.find_first(events, lambda event: event.follows)
    return None if first is None else failed[events.index(first)]


def only_follows(agent: Agent, process: Process) -> bool:
    """Whether the last error output of a process reports only a failure elsewhere."""
    if process.child.called or (process.code or 0) <= 0:
        return False
    symptoms = [symptom for symptom, _ in find_symptoms(read_words_of(describe_exit(agent, process)))]
    return bool(symptoms) and all(symptom.consequence for symptom in symptoms)


def foresee(agent: Agent) -> Verdict | None:
    """Return the verdict on an attempt whose last processes are about to be killed; None without ranks."""
    ranks = (one for one in agent.group.running.values() if not one.child.companion)
    first = agent.first or next(ranks, None)
    if first is None or first.child.called:
        return None
    return agent.observers.preemption_verdict() or judge(agent, first, ())


def judge(agent: Agent, first: Process, survivors: Sequence[str]) -> Verdict | None:
    """Return the verdict on a node's processes; None if an agent among them was only told to stop.

    Args:
        agent: The parent of the processes, all of which have ended.
        first: The process that failed first.
        survivors: Descriptions of the processes that survived SIGKILL.
    """
    ends = [describe_exit(agent, first)]
    ends += [describe_exit(agent, one) for one in agent.group.ended if one is not first]
    if first.child.called and not first.child.companion:
        agent.say(f"{first.name} {first.end}", "starter-ended")
        if agent.told_before is not None and first.passed_on is not None:
            return None  # the agent's traceback only reports the signal; nothing has failed
        ends = [read_root_cause(ends[0]) or ends[0]]
    host, observers, faults = Host(), agent.observers, Faults()
    port = first.child.environ.get("MASTER_PORT", "")
    before = observers.counters_before or faults.guard("counters", lambda: read_counters(host), Counters())
    explain = partial(explain_network, host, first.child.environ)
    after = observers.counters_after
    after = after or faults.guard("counters", lambda: read_counters(host, before), Counters())
    none_yet = tuple[Xid, ...]()
    after = replace(after, xids=faults.guard("the GPUs' errors", observers.read_gpu_errors, none_yet))
    causes: Sequence[Cause] = find_causes(ends[0], before, host, after, faults, ends[1:], explain)
    causes = faults.guard("ports", lambda: name_reserved(causes, port), causes)
    verdict = _make(agent, ends, causes, faults, survivors)
    none = list[Cause]()
    hidden = (
        faults.guard("hidden failures", lambda: find_hidden(agent), none) if verdict.told is None else none
    )
    also = (f"{one.what}; fix: {one.fix}" for one in hidden)
    return replace(verdict, also=(*verdict.also, *also))


def _make(
    agent: Agent,
    ends: Sequence[ProcessExit],
    causes: Sequence[Cause],
    faults: Faults,
    survivors: Sequence[str] = (),
) -> Verdict:
    """Return the verdict on an attempt whose processes have ended like this, the decisive one first."""
    told = agent.told_before if agent.first is not None else agent.forwarder.told
    return make_verdict(
        ends[0],
        ends[1:],
        host_name=Host().hostname(),
        node_rank=agent.place.node_rank,
        world_size=agent.place.world_size,
        attempt=agent.attempt + agent.restarter.restarts_of_torchrun,
        started_ns=agent.started_ns,
        told=None if told is None else name_signal(told),
        causes=causes,
        faults=faults,
        reason=agent.reason,
        unmet_since=agent.observers.unmet if agent.first is not None or agent.reason is not None else None,
        leftovers=survivors,
    )


RESERVED = (
    "if it is MASTER_PORT ({}), the launcher reserves it for a server that sets SO_REUSEADDR, as torch's does"
)
REUSE = "`sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)`, `TCPServer.allow_reuse_address = True`"


def name_reserved(causes: Sequence[Cause], port: str) -> Sequence[Cause]:
    """Return causes in which a port that cannot be bound may be the one that we reserve for rank 0."""
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


HIDDEN_MAX = 4
HIDDEN_FIX = "`set -o pipefail` before a pipeline, `set -e` in a script, `wait $!` after `&`"


def find_hidden(agent: Agent) -> list[Cause]:
    """Return a cause for each process that ended with 0, and whose last output is an uncaught exception."""
    found = []
    for index, one in enumerate(agent.group.processes):
        tails = agent.output.read_tails(index) if one.code == 0 and not one.child.companion else []
        raised = next(filter(None, map(read_uncaught, tails)), "")
        if raised:
            what = f"{one.name} exited with status 0, but an uncaught exception ends its output"
            found.append(Cause("hidden-failure", f"{what}: {quote(raised)}", HIDDEN_FIX, False))
    return found[:HIDDEN_MAX]


def record_doubts(agent: Agent, doubts: Sequence[Cause]) -> None:
    """Write a record of a job that ended with 0 although something shows that it may have failed."""
    ends = [describe_exit(agent, one) for one in agent.group.ended]
    verdict = _make(agent, ends, doubts, Faults())
    path, complaint = record(agent, verdict)
    if complaint is not None:
        agent.say(f"no failure record: {complaint}", "no-failure-record")
    elif path is not None:
        agent.say(f"the record of this warning: {path}", "failure-record", path=path)


def describe_exit(agent: Agent, process: Process) -> ProcessExit:
    """Return what is known about the exit of a process; one that still runs is about to be killed."""
    child = process.child
    stderr = agent.output.read_errors(agent.group.processes.index(process))
    runs = process.code is None
    code = -signal.SIGKILL if process.code is None else process.code
    if code < 0:
        stderr = add_fatal_stacks(stderr, child.environ.get(STACKS_FILE), code)
    return ProcessExit(
        rank=child.rank,
        local_rank=child.local_rank,
        pid=process.pid,
        code=code,
        ended_ns=agent.at_ns(time.monotonic_ns() if runs else process.ended_ns),
        stderr=stderr,
        error_file=child.environ.get(ERROR_FILE),
        asked=int(signal.SIGKILL) if runs else process.passed_on,
        called=child.called,
    )


def publish(agent: Agent, verdict: Verdict, *, shown: bool = True, known: str | None = None) -> str | None:
    """Print the verdict at the end of the log, and write the failure record; return its path if written.

    ``known``: the path that was printed for an earlier attempt.
    """
    output = agent.output
    if shown:
        text = render_text(verdict, output.has_colour, above=stands_above(agent, verdict))
        output.say_as_is(text, "first-failure", **summarize(verdict))
    else:
        output.pass_on(verdict.summary, "first-failure", summarize(verdict))
    path, complaint = record(agent, verdict)
    if complaint is not None:
        output.say(f"no failure record: {complaint}", "no-failure-record")
    elif path is not None and path != known:
        output.say(f"the failure record: {path}", "failure-record", path=path)
    return path


def record(agent: Agent, verdict: Verdict) -> tuple[str | None, str | None]:
    """Write the failure record; return its path if written, or why it could not be written."""
    path = agent.watch.failure_file or default_failure_file(agent.environ, Host(), verdict.node_rank)
    if path is None:
        return None, None
    complaint = write_verdict(render_json(verdict, agent.read_timings()), path)
    return (path, None) if complaint is None else (None, complaint)


def stands_above(agent: Agent, verdict: Verdict) -> bool:
    """Whether our log shows the last errors of the process that failed first right above."""
    first = verdict.first
    processes = agent.group.processes if verdict.node_rank == agent.place.node_rank else []
    index = next((place for place, one in enumerate(processes) if one.pid == first.pid), None)
    since = None if index is None else agent.output.shown_since(index)
    last = verdict.exception or next((line for line in reversed(verdict.stderr) if line), "")
    if index is None or since is None or since > ABOVE_BYTES or not last:
        return False
    return last in agent.output.read_errors(index).decode("utf-8", "replace")
