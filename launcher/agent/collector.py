"""Collects what the processes of one node do, before they are stopped and if they stall, and reports a stall.

On one node the agent asks its own processes. In a job of several nodes each node tells node 0 that it is
quiet; when all of them are, node 0 asks all (`launcher.hang.job`).
"""

from __future__ import annotations

import os
import time

from launcher.hang.limits import BEFORE_STOP_S, DUMP_HANG_S, FRESH_S, HANG_S, READ_SHARE_S, REST_S, STEP_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.coordination import Coordination
    from launcher.agent.runtime import Runtime
    from launcher.failure.model import RankGroup
    from launcher.failure.reason import Reason
    from launcher.hang.ask import Inquiry
    from launcher.hang.model import Answer, Hung, Look, RankRecord, Seen
    from launcher.hang.recorder import Recorder
    from launcher.observers.stall import StallDetector
    from launcher.observers.stragglers import Numbers
    from launcher.process.spawn import Child

    Then = Callable[[Sequence[Answer]], None]

IDLE_WINDOWS = 10
"""Number of windows without movement that make a stall, without ``--stall-timeout``."""


class Collector:
    """What the processes do: asked before they are stopped, and when the job hangs.

    Attributes:
        groups: The ranks of the whole job by place; empty if not asked.
        answers: The latest answers of this node's processes.
        records: The latest flight recorders of this node's ranks.
        dumps: Paths of copies of their dumps.
        notes: What was left out of these copies, in sentences.
        due: When to call `fire` (monotonic seconds); None if none is asked.
    """

    def __init__(self, runtime: Runtime, coordination: Coordination) -> None:
        self.groups: tuple[RankGroup, ...] = ()
        self.answers: Sequence[Answer] = ()
        self.records: tuple[RankRecord, ...] = ()
        self.dumps: list[str] = []
        self.notes: list[str] = []
        self.due: float | None = None
        self._runtime, self._coordination = runtime, coordination
        self._recorder: Recorder | None = None
        self._inquiry: Inquiry | None = None
        self._detector: StallDetector | None = None
        self._until = self._asked_at = 0.0
        self._then: list[Then] = []

    def begin(self) -> None:
        """Forget the attempt before."""
        self.close()
        self.groups, self.answers, self.records = (), (), ()

    # --- flight recorders

    def plan(self, child: Child) -> dict[str, str]:
        """Return the variables that switch on PyTorch's flight recorder, unless the user has decided."""
        if child.companion:
            return {}
        if self._recorder is None:
            from launcher.hang.recorder import Recorder

            folders = self._runtime.folder.private_folders
            self._recorder = Recorder(lambda: next(folders(), None))
        return self._recorder.plan(child.argv, child.environ, self._runtime.attempt)

    def end_attempt(self) -> None:
        """Stop watching, and read what the recorders of an attempt have left, whose processes have ended."""
        if self._detector is not None:
            self._detector.close()
            self._detector = None
        if self._recorder is not None:
            if self._runtime.failed:
                self._runtime.loop.guard(self.read_rest)
            self._recorder.end_attempt()

    # --- questions

    def ask_before_stop(self, stop: Callable[[], None]) -> None:
        """Ask the processes, at most `BEFORE_STOP_S` and no longer than their grace; then stop them.

        Those of a job that hangs were asked a moment before.
        """
        runtime = self._runtime
        limit_s = min(BEFORE_STOP_S, runtime.watch.grace_s)
        is_known = bool(self.answers) and time.monotonic() < self._asked_at + FRESH_S
        if is_known or limit_s <= 0 or not runtime.group.running:
            stop()
            return
        runtime.asks = True

        def go_on(answers: Sequence[Answer]) -> None:
            runtime.asks = False
            runtime.loop.guard(lambda: self._take(answers))
            if not runtime.group.stopper.begun and runtime.group.running:
                stop()

        self.ask(go_on, limit_s)

    def _take(self, answers: Sequence[Answer], progress: Numbers = (), number: int = 0) -> None:
        """Send node 0 what the ranks here do, or keep it; ``number``: of its `Look`, or 0 before a stop."""
        send = self._coordination.send_evidence
        if send is None:
            self.join(answers)
            return
        from launcher.core.shorten import fit_all
        from launcher.core.wire import SECONDS_MAX
        from launcher.hang.model import Looked, Reached
        from launcher.hang.packing import pack

        reached = tuple(Reached(rank, at) for rank, at in progress if 0 <= at <= SECONDS_MAX)
        packed, records = pack(answers, threads=False), fit_all(self.records)
        send(Looked(packed, number, self._runtime.attempt, reached, records))

    def ask(self, then: Then, limit_s: float = HANG_S) -> None:
        """Ask all processes, and call ``then`` with what they have answered by the limit."""
        runtime, now = self._runtime, time.monotonic()
        self._then.append(then)
        self._until = min(self._until, now + limit_s) if self._inquiry is not None else now + limit_s
        if self._inquiry is None:
            runtime.loop.guard(self._begin)
        self.due = now

    def _begin(self) -> None:
        from launcher.hang.ask import Inquiry

        runtime, recorder = self._runtime, self._recorder
        running = list_running(runtime)
        self._inquiry = Inquiry(running, runtime.folder.path)
        if recorder is not None and recorder.places:
            from launcher.hang.recorder import has_torch

            if not runtime.asks and recorder.is_ready:
                self._until += DUMP_HANG_S - HANG_S
            left_s = max(self._until - time.monotonic() - READ_SHARE_S, 0.0)
            ranks = [rank for rank, pid in running if has_torch(pid)]
            self._want_dumps(self._inquiry, ranks, left_s, hangs=not runtime.asks)

    def _want_dumps(self, inquiry: Inquiry, ranks: Sequence[int], dump_s: float, *, hangs: bool) -> None:
        assert self._recorder is not None  # noqa: S101 - see the callers
        evidence, place = find_folder(self._runtime, hangs=hangs), self._runtime.folder.place
        inquiry.want_dumps(ranks, self._recorder.places, evidence=evidence, run=place, dump_s=dump_s)

    def fire(self, now: float) -> None:
        """Go on with the questions; end them if all have answered, or if the time is up."""
        runtime, inquiry = self._runtime, self._inquiry
        if inquiry is not None:
            runtime.loop.guard(lambda: inquiry.go_on(now))
        is_told = runtime.asks and runtime.group.stopper.begun  # by a signal meanwhile
        if inquiry is None or inquiry.complete or now >= self._until or is_told:
            self._finish()
        else:
            self.due = now + STEP_S

    def _finish(self) -> None:
        then, inquiry = self._then, self._inquiry
        if inquiry is not None and then:
            self.answers, self._asked_at = inquiry.answers, time.monotonic()
        if inquiry is not None and self._recorder is not None and self._recorder.places:
            self.records = tuple(one for _, one in sorted(inquiry.records.items()))
            self.dumps += inquiry.paths
            self.notes = inquiry.notes
        self.close()
        for go_on in then:
            go_on(self.answers)

    def read_rest(self) -> None:
        """Read the dumps that the ranks of an attempt have left, if they were not read; at most `REST_S`.

        NCCL's watchdog dumps and ends all ranks at about the same time: then none was left to be asked.
        """
        from launcher.hang.ask import Inquiry

        runtime, recorder = self._runtime, self._recorder
        if recorder is None or self.dumps or not recorder.is_ready:
            return
        self._inquiry = inquiry = self._inquiry or Inquiry((), None)
        self._want_dumps(inquiry, (), 0.0, hangs=False)
        self.due = time.monotonic()
        self._until = self.due + REST_S
        runtime.loop.turn_until(lambda: self._inquiry is None, REST_S + 1)
        self.records = tuple(one for one in self.records if not one.missing)
        if self.records and not self._coordination.has_others:
            from launcher.hang.report import make_groups

            self.groups = (*make_groups((), self.records, runtime.place.world_size), *self.groups)
        if inquiry.paths:
            runtime.say(f"dumps of the flight recorders: {os.path.dirname(inquiry.paths[-1])}", "dumps")

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help here and are not processes of the job."""
        return () if self._inquiry is None else self._inquiry.helpers()

    def close(self) -> None:
        """Stop asking."""
        if self._inquiry is not None:
            self._inquiry.close()
        self._inquiry, self._then, self.due = None, [], None

    # --- a job that hangs

    def watch(
        self, started: float, end_for: Callable[[Reason], None], has_progressed: Callable[[], bool | None]
    ) -> None:
        """Watch an attempt for a stall.

        Args:
            started: When it started, by the monotonic clock.
            end_for: Ends the job for a reason of the launcher's own.
            has_progressed: Whether the user's pattern has matched; None without one.
        """
        from launcher.observers.stall import StallDetector
        from launcher.output.progress import Gpus

        runtime, watch, group = self._runtime, self._runtime.watch, self._runtime.group
        movement = phases = None
        usual_s, more_s = watch.stall_timeout_s or watch.idle_timeout_s, 0.0
        if not watch.stall_timeout_s:  # CPU time and network count
            from launcher.observers.movement import Movement
            from launcher.process.families import list_ranks

            window_s = watch.idle_timeout_s / IDLE_WINDOWS
            movement = Movement(lambda table: list_ranks(group.processes, table), window_s)
        if watch.stall_limits:  # each phase may have its own limit
            from launcher.observers.connections import with_descendants
            from launcher.observers.phases import FIRST, Phases

            limits = dict(watch.stall_limits)
            if self._coordination.joins_hangs and limits.get(FIRST, 0.0) > usual_s:
                more_s = limits.pop(FIRST) - usual_s  # another node's output may be the job's progress
            phases = Phases(
                limits,
                has_progressed,
                lambda: (pid for one in group.running for pid in with_descendants(one)),
                runtime.folder.path,
            )
        self._detector = StallDetector(
            usual_s,
            lambda: runtime.output.last_s,
            lambda what: self._on_stall(what, 0.0 if has_progressed() else more_s, end_for),
            self._tell_quiet,
            started=started,
            gpus=Gpus(runtime.environ.get("CUDA_VISIBLE_DEVICES")),
            movement=movement,
            phases=phases,
            sees_output=runtime.output.sees_all,
        )
        runtime.loop.timers.append(self._detector)

    def _on_stall(self, what: str, more_s: float, end_for: Callable[[Reason], None]) -> None:
        """Ask all ranks, and report; in a job of several nodes node 0 does."""
        runtime = self._runtime
        if runtime.is_ending or self._tell_quiet(what, more_s) or not runtime.group.running:
            return
        self.ask_all(lambda answers, progress: self._report(what, answers, progress, end_for))

    def _tell_quiet(self, what: str = "", more_s: float = 0.0) -> bool:
        """Tell node 0 that nothing happens here, or that something does again, if it asks all nodes then.

        Args:
            what: What was seen; empty if something happens again.
            more_s: For how many more seconds that is no stall if no node has made progress yet.

        Returns:
            Whether it does.
        """
        runtime, send = self._runtime, self._coordination.send_evidence
        if send is None or not self._coordination.joins_hangs:
            return False
        from launcher.hang.model import Quiet

        send(Quiet(what, runtime.watch.on_stall == "stop", runtime.attempt, more_s))
        return True

    def hear(self, message: Look | Hung | Seen) -> None:
        """Handle a message of node 0 about what all nodes have sent."""
        from launcher.hang.model import Hung, Look, Seen

        match message:
            case Look():
                self.ask_all(lambda answers, progress: self._take(answers, progress, message.number))
            case Hung():
                self.show(message.headline, message.lines)
            case Seen() if message.attempt == self._runtime.attempt:
                self.groups = message.groups

    def ask_all(self, then: Callable[[Sequence[Answer], Numbers], None]) -> None:
        """Ask all processes what they do and how far they are."""
        self.ask(lambda answers: ask_progress(self._runtime, lambda progress: then(answers, progress)))

    def _report(
        self, what: str, answers: Sequence[Answer], progress: Numbers, end_for: Callable[[Reason], None]
    ) -> None:
        from launcher.failure.arbiter import STALLED
        from launcher.failure.reason import Reason
        from launcher.hang.report import describe_hang

        runtime = self._runtime
        if runtime.is_ending:
            return
        self.join(answers)
        world_size = runtime.place.world_size
        hang = describe_hang(what, answers, world_size, {}, (), progress, self.records)
        self.show(hang.headline, hang.lines)
        if runtime.watch.on_stall == "stop":
            end_for(Reason(STALLED, hang.headline))

    def show(self, headline: str, lines: Sequence[str]) -> None:
        """Print the report, and write all stacks of this node to a file."""
        files = [*self._write(headline), *self._name_dumps()]
        self._runtime.output.say("\n  ".join([headline, *lines, *files]), "stall")

    def _write(self, headline: str) -> list[str]:
        """Write all stacks to a file; return a line with its path, or with the error."""
        from launcher.hang.report import write_stacks

        folder = self._runtime.folder
        if folder.fd is None or not self.answers:
            return []
        try:
            name = write_stacks(folder.fd, headline, self.answers)
        except OSError as error:
            return [f"all stacks: cannot be written to {folder.path}: {error.strerror}"]
        folder.keeps = True
        return [f"all stacks: {folder.path}/{name}"]

    def _name_dumps(self) -> list[str]:
        """Return lines with the directory of the copies of dumps, and with what was left out of it."""
        from launcher.core.redact import quote
        from launcher.core.wire import LINE_LENGTH

        own = self._runtime.folder
        if not self.dumps:
            return self.notes
        folder = os.path.dirname(self.dumps[-1])
        if own.path is not None and folder.startswith(f"{own.path}/"):
            own.keeps = True
        return [f"dumps of the flight recorders: {quote(folder, LINE_LENGTH)}", *self.notes]

    # --- the answers of a job of one node

    def join(self, answers: Sequence[Answer]) -> None:
        """Keep the ranks by place; these answers cover all nodes."""
        from launcher.hang.report import make_groups

        self.groups = make_groups(answers, self.records, self._runtime.place.world_size)


def ask_progress(runtime: Runtime, take: Callable[[Numbers], None]) -> None:
    """Call ``take`` with the progress of each rank here by ``--progress-pattern``; none if not known."""
    pattern, ranks = runtime.watch.restarts.progress_pattern, runtime.group.processes
    if not pattern:
        take(())
        return
    from launcher.observers.stragglers import ask_numbers

    output = runtime.output
    tails = {one.child.rank: b"\n".join(output.read_tails(index)) for index, one in enumerate(ranks)
             if not (one.child.companion or one.child.called)}  # fmt: skip
    try:
        ask_numbers(pattern, tails, runtime.group.helpers, take)
    except OSError:  # the kernel is short of something
        take(())


def list_running(runtime: Runtime) -> list[tuple[int, int]]:
    """Return (rank, pid) of the running ranks of this node, including the workers of an engine's agent."""
    from launcher.process.families import list_ranks, read_table

    return list_ranks(runtime.group.processes, read_table())


def find_folder(runtime: Runtime, *, hangs: bool) -> str:
    """Return the directory of this node for copies of dumps; empty for none.

    The directory of the run is the last choice, and only if the job hangs: it is kept with them.
    """
    from launcher.failure.record import default_failure_file
    from launcher.hang.recorder import choose_folder
    from launcher.machine.host import Host

    watch, node_rank = runtime.watch, runtime.place.node_rank
    record = watch.failure_file or default_failure_file(runtime.environ, Host(), node_rank)
    return choose_folder(watch.evidence_dir, record, runtime.folder.path if hangs else None, node_rank)
