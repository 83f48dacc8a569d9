"""One step of a job in progress: the state as far as it has changed, and the commands so far."""

from __future__ import annotations

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.frozen import replace
from launcher.job.commands import EndJob, HangUp, StartAttempt, To
from launcher.job.row import FrozenRow
from launcher.job.settings import LEAVE_S
from launcher.job.state import Attempt, Link, Node, Pause, Phase, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher.job.commands import JobCommand, Refusal

REPLACED = "it was lost, and the job goes on without it"
"""Why a launcher leaves whose place is taken: it must not go on with an old attempt."""


class Turn:
    """One step.

    Attributes:
        state: The state so far.
        now: The time.
        commands: The commands so far.
    """

    def __init__(self, state: State, now: float) -> None:
        self.state, self.now = state, now
        self.commands: list[JobCommand] = []

    # --- the state

    @property
    def attempt(self) -> Attempt:
        """The attempt that runs, or ran last."""
        assert self.state.attempt is not None  # noqa: S101 - after the roll call
        return self.state.attempt

    @property
    def pause(self) -> Pause:
        """The wait for the next attempt."""
        assert self.state.pause is not None  # noqa: S101 - between attempts
        return self.state.pause

    def change(self, **changes: object) -> None:
        """Change fields of the state."""
        self.state = replace(self.state, **changes)

    def change_attempt(self, **changes: object) -> None:
        """Change fields of the attempt."""
        self.change(attempt=replace(self.attempt, **changes))

    def change_pause(self, **changes: object) -> None:
        """Change fields of the wait for the next attempt."""
        self.change(pause=replace(self.pause, **changes))

    def find(self, index: int) -> Node | None:
        """Return the launcher with an index; None if there is none."""
        return self.state.nodes[index] if 0 <= index < len(self.state.nodes) else None

    def put(self, index: int, node: Node | None) -> None:
        """Replace the launcher with an index, and give or take the rank that it has."""
        state, before = self.state, self.state.nodes[index]
        away, holders, missing, seats = state.away, state.holders, state.missing, state.seats
        if (node is not None and node.link is not Link.OPEN) != (index in away):
            away = away ^ {index}
        rank, rank_before = (None if one is None else one.rank for one in (node, before))
        if rank != rank_before:
            if rank_before is not None and holders[rank_before] == index:
                holders, missing = holders.put(rank_before, None), missing + 1
            if rank is not None:
                missing -= holders[rank] is None
                holders = holders.put(rank, index)
                if rank != index or seats:
                    seats = {by: taken for by, taken in seats.items() if taken != rank and by != index}
                    seats = seats if rank == index else {**seats, index: rank}
        nodes = state.nodes.put(index, node)
        self.state = replace(state, nodes=nodes, away=away, holders=holders, missing=missing, seats=seats)

    def change_node(self, index: int, **changes: object) -> None:
        """Change fields of a launcher."""
        node = self.find(index)
        if node is not None:
            self.put(index, replace(node, **changes))

    def held(self) -> Iterator[tuple[int, Node]]:
        """Yield the nodes that hold a rank, in the order of the ranks, with their indices."""
        for index in self.state.holders:
            node = None if index is None else self.state.nodes[index]
            if index is not None and node is not None:
                yield index, node

    def rank_of(self, index: int) -> int:
        """Return the rank of a launcher, or its index if it holds none."""
        node = self.find(index)
        return index if node is None or node.rank is None else node.rank

    def name(self, index: int) -> str:
        """Return the name of a launcher in texts: its rank, or index, and its host."""
        node, member = self.find(index), self.state.job.member
        host = f" ({node.host})" if node is not None and node.host else ""
        return f"{member} {self.rank_of(index)}{host}"

    def count_spares(self) -> str:
        """Return e.g. `` and 2 spare``; empty without spare nodes."""
        count = sum(node is not None and node.rank is None for node in self.state.nodes)
        return f" and {count} spare" if count else ""

    # --- commands

    def send(self, command: JobCommand) -> None:
        """Add a command."""
        self.commands.append(command)

    def dismiss(self, session: str, why: str = REPLACED) -> None:
        """Let one launcher leave the job, which goes on."""
        what = f"this {self.state.job.member} leaves the job: {why}; status {EXIT_NOT_READY}"
        self.send(To(session, EndJob(EXIT_NOT_READY, why=what, leaves=True)))

    def reject(self, session: str, refusal: Refusal) -> None:
        """Send away one launcher that does not fit; the job goes on."""
        self.send(To(session, EndJob(refusal.status, refusal=refusal, leaves=True)))

    def drop(self, index: int) -> None:
        """Forget a launcher that was lost; it must not go on with an old attempt."""
        node = self.find(index)
        if node is not None:
            self.put(index, None)
            self.send(HangUp(node.session))

    def start(self, number: int) -> None:
        """Start an attempt on all nodes."""
        order = tuple(index for index in self.state.holders if index is not None)

        def begin(node: Node | None) -> Node | None:
            if node is None or node.rank is None:
                return node
            return Node(
                node.session, node.rank, node.host, node.described, node.link, node.heard, node.since,
                node.why, node.has_exited, part=number, health=node.health,
            )  # fmt: skip

        self.change(nodes=FrozenRow(map(begin, self.state.nodes)))
        pause = self.state.pause
        attempt = Attempt(number, self.now, len(order), after=None if pause is None else pause.again.over)
        self.change(phase=Phase.RUNNING, attempt=attempt, pause=None)
        self.send(StartAttempt(number, order))

    def finish(self, over: EndJob, leave_s: float = LEAVE_S) -> None:
        """End the job; ``leave_s``: for how long node 0 stays, so that all can hear it."""
        self.change(phase=Phase.OVER, over=over, pause=None, leave_by=self.now + leave_s)
        self.send(over)
