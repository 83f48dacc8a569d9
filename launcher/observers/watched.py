"""The processes that the meeting watch checks: the launcher's children, or its agent's workers.

Workers are recognized by their environment: each has its own RANK and LOCAL_RANK, while the agent's other
children have those of the agent.
"""

from __future__ import annotations

from launcher.machine.process import find_children, read_environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.process.spawn import Process

IDENTITY = ("RANK", "LOCAL_RANK")
SINGLE = ("ACCELERATE_USE_CPU", "False")
"""What ``accelerate launch`` gives only the one process that it starts without a place in a job of its own.

Source: accelerate/utils/launch.py, prepare_simple_launcher_cmd_env (1.15).
"""
DIGITS = "0123456789"


class Watched:
    """One process that may meet another one.

    Attributes:
        began: When it was first seen; this and the other times are monotonic seconds.
        seen: When it was last seen.
        ended: When it ended, if the kernel has reported that.
        loaded: When it, or a process below it, was first seen to have loaded a framework's library.
        changed: When it, or a process below it, was last seen to have loaded any library.
        is_single: Whether Accelerate runs it, or a process below it, alone, whatever it connects to.
        ports: All ports that its environment names.
    """

    def __init__(self, pid: int, rank: int, environ: Mapping[str, str], began: float) -> None:
        self.pid, self.rank = pid, rank
        self.began = self.seen = self.changed = began
        self.ended: float | None = None
        self.loaded: float | None = None
        self.is_single = False
        self.ports = {port for value in environ.values() for port in _find_ports(value)}

    @property
    def end(self) -> float:
        """When it ended, or was last seen."""
        return self.seen if self.ended is None else self.ended


def _find_ports(value: str) -> Iterator[int]:
    """Yield the ports in the value of a variable: MASTER_PORT's, or those after the host of a coordinator.

    `re` would be loaded while the processes start, 3 ms.
    """
    for part in value.split(":"):
        digits = part[: len(part) - len(part.lstrip(DIGITS))]
        if len(digits) in (4, 5):
            yield int(digits)


def is_single(environ: Mapping[str, str], *, on_cpus: bool) -> bool:
    """Whether Accelerate runs a process with this environment alone: without an accelerator, or a rank.

    With both it joins the job. Without an accelerator it may join a group, but does not use it.
    """
    name, value = SINGLE
    return environ.get(name) == value and (on_cpus or "LOCAL_RANK" not in environ)


class Children:
    """The processes that we have started, except companions."""

    of_agent = False

    def __init__(self, processes: Sequence[Process], began: float) -> None:
        self._processes = [one for one in processes if not one.child.companion]
        self.members = [Watched(one.pid, one.child.rank, one.child.environ, began) for one in self._processes]
        self.running = list(self.members)

    def update(self, now: float) -> bool:
        """Note which processes still run; return whether others replaced them, which never happens here."""
        self.running = []
        for process, member in zip(self._processes, self.members, strict=True):
            if process.code is None:
                member.seen = now
                self.running.append(member)
            elif member.ended is None:
                member.ended = process.ended_ns / 1e9
        return False


class Workers:
    """The processes that our agent has started, at any depth below it."""

    of_agent = True

    def __init__(self, agent: Process) -> None:
        self._agent = agent
        self._own = tuple(agent.child.environ.get(name) for name in IDENTITY)
        self.members: list[Watched] = []
        self.running: list[Watched] = []

    def update(self, now: float) -> bool:
        """Note which workers run; return whether all are new: an agent restarts all of them together."""
        known = {one.pid: one for one in self.members}
        found = []
        level = [] if self._agent.code is not None else find_children(self._agent.pid)
        while level:
            below: list[int] = []
            for pid in level:
                member = known.get(pid) or self._recognize(pid, now)
                if member is None:
                    below += find_children(pid)
                else:
                    member.seen = now
                    found.append(member)
            level = below
        self.running = found
        is_new = bool(found) and not any(one.pid in known for one in found)
        if is_new:
            self.members = []
        self.members = sorted({*self.members, *found}, key=lambda one: one.rank)
        return is_new

    def _recognize(self, pid: int, now: float) -> Watched | None:
        """Return a worker; None for a process that has no rank of its own, or not yet.

        Accelerate's single process has none: the node's index counts it.
        """
        environ = read_environ(pid)
        if is_single(environ, on_cpus=False):
            return Watched(pid, int(environ.get("NODE_RANK", "0")), environ, now)
        rank, local_rank = (environ.get(name) for name in IDENTITY)
        if rank is None or local_rank is None or (rank, local_rank) == self._own or not rank.isdecimal():
            return None
        return Watched(pid, int(rank), environ, now)
