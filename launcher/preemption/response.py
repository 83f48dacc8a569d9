"""What a node does when a machine of the job is taken back: says so, has a checkpoint saved, ends with 75."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timezone

from launcher.core.errors import EXIT_NOT_READY
from launcher.core.files import replace_file
from launcher.core.signal import signal
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.verdict import make_verdict
from launcher.machine.host import Host
from launcher.preemption.events import ANNOUNCED, FIX, MARGIN_S, STATUS_WORDS, WITHDRAWN
from launcher.process.signals import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.agent.agent import Agent

REASON = "preempted"
LEAST_GRACE_S = 3.0
LAST_WORD_S = 2.0
"""Before the machine goes: for our verdict, its record, and our status."""


def plan_grace(grace_s: float, left_s: float) -> float:
    """Return how long the processes have: their grace, but not longer than the machine lasts."""
    return min(grace_s, max(LEAST_GRACE_S, left_s - LAST_WORD_S))


def render_deadline(what: str, deadline: float) -> str:
    """Return what the file of LAUNCHER_DEADLINE holds: when, seconds since 1970, and why."""
    return json.dumps({"deadline": round(deadline, 3), "reason": REASON, "what": what}) + "\n"


class Response:
    """The part of an agent that deals with it; loaded when something is announced.

    Attributes:
        has_begun: The processes have been told to end because of it, and nothing had failed before.
    """

    def __init__(self, agent: Agent) -> None:
        self.has_begun = False
        self._agent = agent
        self._what = ""
        self._begun_ns = 0
        self._notices: dict[int | None, tuple[float, str]] = {}

    def on_event(self, kind: str, what: str, left_s: float, node: int | None = None) -> bool:
        """Act on what is announced, withdrawn or due; return whether this has begun to end the processes.

        Args:
            kind: One of `launcher.preemption.events`.
            what: For people.
            left_s: How long the machine lasts.
            node: Whose machine it is; None for ours. Each has one notice at a time.
        """
        if kind == WITHDRAWN:
            self.withdraw(what, node)
        elif kind == ANNOUNCED:
            self.announce(what, left_s, node)
        else:
            return self.begin(what, left_s, node)
        return False

    def announce(self, what: str, left_s: float, node: int | None) -> None:
        """It will be so: the processes can read when."""
        self._note(what, left_s, node)
        wait_s = max(0.0, left_s - self._agent.watch.grace_s - MARGIN_S)
        self._say(f"{what}; {_when(left_s)}: {self._signal_name} in {wait_s:.0f} s unless it is withdrawn")

    def withdraw(self, what: str, node: int | None) -> None:
        """It will not be so; what was announced of other machines stands."""
        self._notices.pop(node, None)
        path = self._agent.deadline_file
        if self._notices:
            self._write()
        elif path is not None and os.path.exists(path):
            os.unlink(path)
        self._say(f"withdrawn: {what}; the job goes on")

    def begin(self, what: str, left_s: float, node: int | None) -> bool:
        """It is time: the signal, and no longer a grace than the machine lasts."""
        agent = self._agent
        running = len(agent.group.running)
        if not running or agent.group.stopper.begun:
            why = "the processes are ending already" if running else "nothing runs here any more"
            self._say(f"{what}; {_when(left_s)}: {why}")
            return False
        self._note(what, left_s, node)
        self.has_begun, self._what, self._begun_ns = True, what, time.time_ns()
        grace_s = plan_grace(agent.watch.grace_s, left_s)
        to = f"{self._signal_name} to {running} process{'es' if running > 1 else ''}"
        self._say(f"{what}; {_when(left_s)}: {to}, SIGKILL after {grace_s:.0f} s")
        agent.group.stopper.grace_s = grace_s
        agent.group.stopper.begin(self._number)
        return True

    def make_verdict(self, exits: Sequence[ProcessExit], survivors: Sequence[str]) -> Verdict:
        """Return the verdict: the machine is why, whatever the processes have made of the signal."""
        agent = self._agent
        node = agent.place.node_rank or 0
        ours = ProcessExit(0, 0, os.getpid(), EXIT_NOT_READY, self._begun_ns, called=f"node {node}")
        verdict = make_verdict(
            ours,
            exits,
            host_name=Host().hostname(),
            node_rank=agent.place.node_rank,
            world_size=agent.place.world_size,
            attempt=agent.attempt,
            started_ns=agent.started_ns,
            told=None,
            causes=[Cause("preempted", self._what, FIX, True)],
            leftovers=survivors,
        )
        return Verdict(**{**vars(verdict), "first": End(**{**vars(verdict.first), "status": STATUS_WORDS})})

    @property
    def _number(self) -> int:
        """What ``--signal-map`` makes of SIGTERM."""
        return dict(self._agent.watch.signal_map).get(signal.SIGTERM, signal.SIGTERM)

    @property
    def _signal_name(self) -> str:
        return name_signal(self._number)

    def _say(self, text: str) -> None:
        self._agent.say(f"preemption: {text}")

    def _note(self, what: str, left_s: float, node: int | None) -> None:
        self._notices[node] = (time.time() + left_s, what)
        self._write()

    def _write(self) -> None:
        """Write what comes first of all that is announced."""
        path = self._agent.deadline_file
        if path is None:
            return
        deadline, what = min(self._notices.values())
        try:
            replace_file(render_deadline(what, deadline), path)
        except OSError as error:
            self._say(f"no file for LAUNCHER_DEADLINE ({error.strerror}): the processes get the signal alone")


def _when(left_s: float) -> str:
    moment = datetime.fromtimestamp(time.time() + left_s, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}, in {left_s:.0f} s"
