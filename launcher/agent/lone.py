"""A job on one node: runs its processes, and restarts them if that may help."""

from __future__ import annotations

from launcher.agent.agent import Agent, find_programs, widen_cpus
from launcher.agent.coordination import Coordination
from launcher.core.errors import LauncherError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import AgentParts, Serve
    from launcher.agent.life import Life
    from launcher.agent.observers import Checks
    from launcher.agent.runtime import NodePlace, Runtime
    from launcher.core.supervision import Supervision
    from launcher.process.spawn import Child


class LoneNode:
    """Decides alone whether another attempt follows.

    Attributes:
        parts: The parts of the agent; set before it runs, like `runtime`.
        runtime: Values and tools of the launcher.
    """

    parts: AgentParts
    runtime: Runtime

    def __init__(self, renew: Callable[[], Sequence[Child]] | None, paths: Sequence[str]) -> None:
        """Prepare.

        Args:
            renew: Returns the processes of another attempt; None if they are the same.
            paths: Paths of their programs.
        """
        self._renew, self._paths = renew, paths
        self._life: Life | None = None

    def coordinate(self) -> Coordination:
        """Return what the agent asks and reports."""
        return Coordination(self._gather, began=self._began, restarts=self._restarts, finish=self._finish)

    def _gather(self) -> bool:
        """Whether the processes are to be started: there is nothing to wait for."""
        return self.runtime.forwarder.told is None

    def _began(self) -> None:
        """Begin the life of the job now, while the processes begin: a restart need not load it."""
        if self.runtime.watch.restarts.most:
            self.runtime.loop.guard(self._begin_life)

    def _begin_life(self) -> None:
        from launcher.agent.life import Life

        self._life = self._life or Life(self.runtime, self.parts)

    def _restarts(self) -> bool:
        """Whether the processes of this node start again; returns when it is time."""
        if self._life is None or not (self.parts.outcomes.has_failed and self._life.restarts()):
            return False
        if self._renew is not None:
            from contextlib import suppress

            with suppress(LauncherError):  # what was planned before still holds: its port, too
                self.parts.take(self._renew(), self._paths)
        return True

    def _finish(self, report: Callable[[], int]) -> int:
        """Report how the job ended, and why no attempt follows; return its status."""
        status = report()
        if self._life is not None:
            self._life.say_decision()
            if self._life.over is not None and status:
                self.parts.outcomes.is_stopped = self._life.over.is_stopped
                status = self._life.over.status
        return status


def run_processes(
    children: Sequence[Child],
    watch: Supervision,
    place: NodePlace,
    environ: Mapping[str, str],
    *,
    widen: bool = False,
    checks: Checks | None = None,
    serve: Serve | None = None,
    renew: Callable[[], Sequence[Child]] | None = None,
) -> int:
    """Run processes on this node only, and return the job's status; see `Agent`.

    Args:
        children: The companions, then the ranks by local rank, in the order in which they start.
        watch: How to watch, stop and report them.
        place: Node rank and world size.
        environ: The launcher's own environment.
        widen: Whether to undo the CPU binding that mpirun gave us.
        checks: Checks this node while the processes run.
        serve: Makes the server that answers questions about the job.
        renew: Returns the processes of another attempt; None if they are the same.

    Raises:
        LauncherError: A process cannot be started (126, 127), or a log file cannot be written (75).
    """
    paths = find_programs(children)
    if widen:
        widen_cpus()
    node = LoneNode(renew, paths)
    agent = Agent(
        watch, place, environ, node.coordinate(), single=len(children) == 1, checks=checks, serve=serve
    )
    node.parts, node.runtime = agent.parts, agent.runtime
    agent.take(children, paths)
    return agent.run()
