"""Collects what the processes of one node are doing, within a time limit, before the launcher continues."""

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
    from launcher.hang.ask import Inquiry
    from launcher.hang.model import Answer, RankRecord
    from launcher.hang.recorder import Recorder
    from launcher.process.spawn import Child

    Then = Callable[[Sequence[Answer]], None]


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
        """Read what the recorders of an attempt have left, whose processes have ended."""
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

    def _take(self, answers: Sequence[Answer]) -> None:
        if not self._coordination.takes_evidence(answers):
            self.join(answers)

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

    # --- the answers of a job of one node

    def join(self, answers: Sequence[Answer]) -> None:
        """Keep the ranks by place; these answers cover all nodes."""
        from launcher.hang.report import make_groups

        self.groups = make_groups(answers, self.records, self._runtime.place.world_size)


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
