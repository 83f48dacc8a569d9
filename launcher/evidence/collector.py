"""Asks the processes of one node what they do, and then lets the launcher go on, within a limit of time."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.agent.agent import Agent
    from launcher.failure.model import RankGroup
    from launcher.recorder.facts import RankRecord
    from launcher.recorder.request import DumpRequest
    from launcher.stacks.answer import Answer
    from launcher.stacks.inquiry import Inquiry

    Then = Callable[[Sequence[Answer]], None]

LIMIT_S = 1.0
"""Maximum seconds for which the end of processes waits for their answers."""
DUMP_LIMIT_S = 20.0
"""Maximum seconds for the flight recorders of ranks that hang; gloo's needs 5 s and more on busy CPUs."""
HANG_LIMIT_S = 2.5
"""Maximum seconds for the answers of processes that hang; nothing waits for them."""
FRESH_S = 10.0
"""Age in seconds up to which answers are not asked for again."""
READ_S = 0.3
"""Seconds of a limit that are for reading dumps, after the processes have written them."""
REST_S = 3.0
"""Maximum seconds for dumps of ranks that have ended."""
STEP_S = 0.005
"""Seconds between two checks whether a process has answered."""


class Collector:
    """What the processes do: asked before they are stopped, and when the job hangs.

    Attributes:
        groups: The ranks of the whole job by place; empty if not asked.
        answers: The latest answers of this node's processes.
        records: The latest flight recorders of this node's ranks.
        dumps: Paths of copies of their dumps.
        notes: What was left out of these copies, in sentences.
        stops: Whether the processes are asked now because they are about to be stopped.
        due: When to call `fire` (monotonic seconds); None if none is asked.
    """

    def __init__(self, agent: Agent) -> None:
        self.groups: tuple[RankGroup, ...] = ()
        self.answers: Sequence[Answer] = ()
        self.records: tuple[RankRecord, ...] = ()
        self.dumps: list[str] = []
        self.notes: list[str] = []
        self.stops = False
        self.due: float | None = None
        self._agent = agent
        self._inquiry: Inquiry | None = None
        self._request: DumpRequest | None = None
        self._until = self._asked_at = 0.0
        self._then: list[Then] = []

    def begin(self) -> None:
        """Forget the attempt before."""
        self.close()
        self.groups, self.answers, self.records, self.stops = (), (), (), False

    def ask_before_stop(self, stop: Callable[[], None]) -> None:
        """Ask the processes, at most `LIMIT_S` and no longer than their grace; then stop them.

        Those of a job that hangs were asked a moment before.
        """
        agent = self._agent
        limit_s = min(LIMIT_S, agent.watch.grace_s)
        is_known = bool(self.answers) and time.monotonic() < self._asked_at + FRESH_S
        if is_known or limit_s <= 0 or not agent.group.running:
            stop()
            return
        self.stops = True

        def go_on(answers: Sequence[Answer]) -> None:
            self.stops = False
            agent.loop.guard(lambda: agent.coordination.take_evidence(answers))
            if not agent.group.stopper.begun and agent.group.running:
                stop()

        self.ask(go_on, limit_s)

    def ask(self, then: Then, limit_s: float = HANG_LIMIT_S) -> None:
        """Ask all processes, and call ``then`` with what they have answered by the limit."""
        agent, now = self._agent, time.monotonic()
        self._then.append(then)
        self._until = min(self._until, now + limit_s) if self._inquiry is not None else now + limit_s
        if self._inquiry is None:
            agent.loop.guard(self._begin)
        self.due = now

    def _begin(self) -> None:
        from launcher.stacks.inquiry import Inquiry

        running = list_running(self._agent)
        self._inquiry = Inquiry(running, self._agent.folder.path)
        recorder = self._agent.observers.recorder
        if recorder is not None and recorder.is_on:
            from launcher.recorder.watch import has_torch

            if not self.stops and recorder.is_ready:
                self._until += DUMP_LIMIT_S - HANG_LIMIT_S
            left_s = max(self._until - time.monotonic() - READ_S, 0.0)
            folder = find_folder(self._agent, hangs=not self.stops)
            ranks = [rank for rank, pid in running if has_torch(pid)]
            self._request = recorder.request(ranks, folder, left_s, self._agent.folder.place)

    def fire(self, now: float) -> None:
        """Go on with the questions; end them if all have answered, or if the time is up."""
        inquiry, request = self._inquiry, self._request
        if inquiry is not None:
            self._agent.loop.guard(lambda: inquiry.go_on(now))
        if request is not None:
            self._agent.loop.guard(lambda: request.go_on(now))
        is_told = self.stops and self._agent.group.stopper.begun  # by a signal meanwhile
        is_complete = all(one is None or one.complete for one in (inquiry, request))
        if is_complete or now >= self._until or is_told:
            self._finish()
        else:
            self.due = now + STEP_S

    def _finish(self) -> None:
        then = self._then
        if self._inquiry is not None:
            self.answers, self._asked_at = self._inquiry.answers, time.monotonic()
        if self._request is not None:
            self.records = tuple(one for _, one in sorted(self._request.records.items()))
            self.dumps += self._request.paths
            self.notes = self._request.notes
        self.close()
        for go_on in then:
            go_on(self.answers)

    def read_rest(self) -> None:
        """Read the dumps that the ranks of an attempt have left, if they were not read; at most `REST_S`.

        NCCL's watchdog dumps and ends all ranks at about the same time: then none was left to be asked.
        """
        recorder = self._agent.observers.recorder
        if recorder is None or self.dumps or not recorder.is_ready:
            return
        folder = find_folder(self._agent, hangs=False)
        self._request = request = recorder.request((), folder, 0.0, self._agent.folder.place)
        self.due = time.monotonic()
        self._until = self.due + REST_S
        self._agent.loop.turn_until(lambda: self._request is None, REST_S + 1)
        self.records = tuple(one for one in self.records if not one.missing)
        if self.records and not self._agent.coordination.has_others:
            from launcher.evidence.recorders import group_records

            self.groups = (*group_records(self.records, self._agent.place.world_size), *self.groups)
        if request.paths:
            self._agent.say(f"dumps of the flight recorders: {os.path.dirname(request.paths[-1])}", "dumps")

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of our children that help here and are not processes of the job."""
        asked = (self._inquiry, self._request)
        return tuple(pid for one in asked if one is not None for pid in one.helpers())

    def close(self) -> None:
        """Stop asking."""
        if self._inquiry is not None:
            self._inquiry.close()
        if self._request is not None:
            self._request.close()
        self._inquiry, self._request, self._then, self.due = None, None, [], None

    # --- the answers of a job of one node

    def join(self, answers: Sequence[Answer]) -> None:
        """Keep the ranks by place: these answers are those of all nodes."""
        from launcher.evidence.groups import make_groups

        self.groups = make_groups(answers)
        if self.records:
            from launcher.evidence.recorders import group_records

            world_size = self._agent.place.world_size
            self.groups = (*group_records(self.records, world_size), *self.groups)


def list_running(agent: Agent) -> list[tuple[int, int]]:
    """Return (rank, pid) of the running ranks of this node, including the workers of an engine's agent."""
    from launcher.process.families import list_ranks, read_table

    return list_ranks(agent.group.processes, read_table())


def find_folder(agent: Agent, *, hangs: bool) -> str:
    """Return the folder of this node for copies of dumps; empty for none.

    The folder of the run is the last choice, and only if the job hangs: it is kept with them.
    """
    from launcher.failure.record import default_failure_file
    from launcher.machine.host import Host
    from launcher.recorder.watch import choose_folder

    watch, node_rank = agent.watch, agent.place.node_rank
    record = watch.failure_file or default_failure_file(agent.environ, Host(), node_rank)
    return choose_folder(watch.evidence_dir, record, agent.folder.path if hangs else None, node_rank)
