"""Coordination of an agent with the rest of its job: values, and callbacks for what it asks and reports.

Each kind of job makes its own: one node (`launcher.agent.lone`), several nodes (`launcher.cluster.node`), and
the head, the ranks and the serving nodes of a job that mpirun starts (`launcher.mpi`).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from launcher.agent.runtime import Runtime
    from launcher.agent.signals import Target
    from launcher.core.errors import LauncherError
    from launcher.failure.model import Verdict
    from launcher.failure.reason import Reason
    from launcher.process.spawn import Child, Process, Streams

    Answer = dict[str, object]

    class JobQuestions(Protocol):
        """Sends questions to all nodes of the job."""

        def ask(self, what: str, more: Mapping[str, object], take: Callable[[Answer], None]) -> int:
            """Ask all nodes; return the number of the question."""

        def drop(self, question: int) -> None:
            """Stop waiting for the answers to a question."""


def _ignore(*_: object) -> None:
    """Do nothing: the rest of the job does not need it."""


def _refuse(*_: object) -> bool:
    """Leave it to the agent."""
    return False


@frozen
class Coordination:
    """Coordination with a job; what is not given has no effect.

    Attributes:
        gather: Waits for the other nodes, and gives the agent its processes; returns whether there are any
            to start, or early if told to stop. May raise `LauncherError`: the nodes do not come together.
        attach: Takes the values and tools; returns the target of signals, None for the processes here.
        shares_terminal: Whether a single process may have the terminal for itself.
        lends_terminal: Whether one of the processes may read from the terminal.
        has_others: Whether processes of the job run elsewhere too.
        speaks: Whether the agent reports the signals that it forwards and the place of its logs.
        guards: Whether a watchdog ends the processes if the agent is killed.
        awaits_deadline: Whether processes get the path of the deadline file even if this node has no
            preemption watch.
        name_run: Returns the name of this run, the same on all nodes, from that of this launcher; empty until
            node 0 has sent it.
        find_mark: Returns the name in the mark of the processes that is that of any launcher in our place;
            empty for none.
        find_questions: Returns what sends questions to the other nodes; None if that is not possible.
        find_lease: Returns when the processes must have ended if nothing renews this (monotonic seconds),
            because another node may take over; None if no other node may.
        begin: Prepares for the start of an attempt's processes.
        began: Notes that the processes of an attempt have been started.
        route: Returns the standard streams of a process, if not those of its route.
        takes_signal: Handles a signal that is not for the processes here, and may come from the terminal;
            returns whether it was one.
        on_told: Notes that this launcher was told to stop.
        on_ranks_ended: Notes that the ranks of this node have succeeded; its companions go on for those of
            other nodes.
        on_failure: Notes that a process of this node has failed, and whether only because it lost another.
        on_reason: Notes that the agent ends its processes for a reason of its own.
        send_evidence: Sends node 0 a message about what the processes of this node do; None if it collects
            that of no other node.
        joins_hangs: Whether node 0 decides if the job hangs, from these messages of all nodes.
        on_refused: Notes that the processes of this node cannot be started.
        on_preemption: Notes that this node is to be preempted, or no longer: the kind of the event, what it
            is, the seconds left, and whether the processes end because of it.
        helpers: Returns the PIDs of children that are not processes of the job.
        describe_state: Returns the state of the node in words, if it is not that of its processes.
        read_delay_s: Returns the seconds that a message takes to node 0 and back; None if unknown.
        describe_nodes: Returns the counts of all, present and lost nodes of the job; None for a single node.
        restarts: Whether another attempt follows the one that has ended; returns when it is time to start it.
        finish: Reports how the job ended, when all processes of this node have; returns its status. It is
            given what reports how the last attempt of this node ended, and returns the status of that.
        takes_verdict: Takes the verdict on an attempt of this node; returns whether it is not to be published
            here.
        clean_up: Removes the private files; the watchdog calls this too if the launcher was killed.
        report_killed: Tells the job that this launcher was killed, and nothing of it runs; the watchdog calls
            this.
        close: Leaves the job.
    """

    gather: Callable[[], bool]
    attach: Callable[[Runtime], Target | None] = _ignore
    shares_terminal: bool = True
    lends_terminal: bool = True
    has_others: bool = False
    speaks: bool = True
    guards: bool = True
    awaits_deadline: bool = False
    name_run: Callable[[str], str] = lambda own: own
    find_mark: Callable[[], str] = lambda: ""
    find_questions: Callable[[], JobQuestions | None] = _ignore
    find_lease: Callable[[], float | None] = _ignore
    begin: Callable[[], None] = _ignore
    began: Callable[[], None] = _ignore
    route: Callable[[Child, Streams], Streams] = lambda child, streams: streams
    takes_signal: Callable[[int, bool], bool] = _refuse
    on_told: Callable[[int], None] = _ignore
    on_ranks_ended: Callable[[], None] = _ignore
    on_failure: Callable[[Process, bool], None] = _ignore
    on_reason: Callable[[Reason], None] = _ignore
    send_evidence: Callable[[object], None] | None = None
    joins_hangs: bool = False
    on_refused: Callable[[LauncherError], None] = _ignore
    on_preemption: Callable[[str, str, float, bool], None] = _ignore
    helpers: Callable[[], tuple[int, ...]] = lambda: ()
    describe_state: Callable[[], str | None] = _ignore
    read_delay_s: Callable[[], float | None] = _ignore
    describe_nodes: Callable[[], Mapping[str, object] | None] = _ignore
    restarts: Callable[[], bool] = _refuse
    finish: Callable[[Callable[[], int]], int] = lambda report: report()
    takes_verdict: Callable[[Verdict], bool] = _refuse
    clean_up: Callable[[], None] = _ignore
    report_killed: Callable[[], None] = _ignore
    close: Callable[[], None] = _ignore
