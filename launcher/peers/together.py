"""The parent of a node's processes in a job of several nodes: starts with the others, ends with the others.

The same supervisor as on one node, with a channel to the launchers of the other nodes. Before the start it
waits for all; after a failure anywhere it stops its processes; at the end it says what node 0 has decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from launcher.errors import EXIT_NOT_READY, LauncherError, NotReady
from launcher.failure.model import Verdict
from launcher.model import Supervision
from launcher.peers import preemption, tidings
from launcher.peers import verdict as on_its_way
from launcher.peers.hub import Hub
from launcher.peers.link import Link
from launcher.peers.parting import Parting
from launcher.peers.questions import Questions
from launcher.peers.refusals import node_0_missing
from launcher.peers.relay import PeerRelay
from launcher.peers.settings import Shape
from launcher.peers.telling import Teller
from launcher.peers.wire import Garbled, number, text, words
from launcher.preemption.events import DUE
from launcher.process.execute import find_program
from launcher.process.signals import name_signal, signal
from launcher.process.spawn import Child, Process
from launcher.run.relay import Relay
from launcher.run.report import publish
from launcher.run.supervise import Node

Message = dict[str, object]
MakeChannel = Callable[["Together"], "Hub | Link"]

WHAT_LENGTH = 800
"""Of what has happened on another node, with its name."""


class Together(Teller):
    """The processes of this node, as a part of the whole job.

    Attributes:
        has_begun: The processes have been started, or are about to be.
        agreed: What came with the start signal.
    """

    answers = True
    may_share_terminal = False
    may_be_preempted = True

    def __init__(
        self,
        shape: Shape,
        make_channel: MakeChannel,
        make_children: Callable[[Mapping[str, object]], Sequence[Child]],
        watch: Supervision,
        environ: Mapping[str, str],
    ) -> None:
        """Open the channel.

        Args:
            shape: The job.
            make_channel: Opens it.
            make_children: From what was agreed at the start to the processes of this node.
            watch: How they are watched.
            environ: Our own environment.
        """
        super().__init__([], [], watch, Node(shape.node_rank, shape.world_size), environ)
        self.shape, self.make_children = shape, make_children
        self.has_begun = False
        self.agreed: dict[str, object] | None = None
        self.refusal: Message | None = None
        self.over: Message | None = None
        self.processes, self.running = [], {}
        self.stop_message: Message | None = None
        self.subscribers: dict[str, Callable[[object], None]] = {}
        self.parting = Parting(self)
        self.channel = make_channel(self)
        self.questions = Questions(self)
        self.started_ns = time.time_ns()
        preemption.subscribe(self)

    def make_relay(self) -> Relay:
        """Signals are for the job."""
        return PeerRelay(self)

    # --- the roll call

    def run(self) -> int:
        """Wait for the other nodes, run our processes, end as the job does.

        Raises:
            LauncherError: The nodes did not come together (75), cannot work together (78), or our processes
                cannot be started.
        """
        has_run = False
        try:
            self.gather()
            if self.relay.told is not None:
                return 128 + self.relay.told
            self.prepare_children()
            self.has_begun = has_run = True
            return super().run()
        finally:
            self.channel.close()
            if not has_run:
                self.output.close()
                self.close_door()
                self.folder.remove()

    def prepare_children(self) -> None:
        """Make our processes from what was agreed.

        Raises:
            LauncherError: They cannot be started.
        """
        try:
            children = self.make_children(self.agreed or {})
            self.take_children(children, [find_program(child.argv[0], child.environ) for child in children])
        except LauncherError as error:
            self.tell_refusal(error)
            self.parting.wait_for_word()
            raise

    def run_once(self) -> None:
        """Start our processes, and wait until they have ended.

        Raises:
            LauncherError: They cannot be started.
        """
        try:
            super().run_once()
        except LauncherError as error:
            self.tell_refusal(error)
            self.parting.wait_for_word()
            raise

    def gather(self) -> None:
        """Return when all nodes are here, or when we are told to end.

        Raises:
            LauncherError: They will not be.
        """
        self.loop.timers[:] = [self.channel]
        self.loop.guard(self.open_door)
        if isinstance(self.channel, Hub):
            self.loop.guard(self.channel.roll.check)
        while self.agreed is None and self.refusal is None and self.relay.told is None:
            self.loop.turn()
            self.reap()
            if isinstance(self.channel, Link) and self.channel.is_late and self.refusal is None:
                raise NotReady(node_0_missing(self.shape.timeout_s, self.channel.explain()))
        if self.relay.told is not None and isinstance(self.channel, Hub):
            self.channel.roll.refuse_by_signal(name_signal(self.relay.told))
        if self.refusal is not None:
            if self.relay.told is not None:
                self.parting.say_good_bye()
                return
            lines, error = tidings.read_refusal(self.refusal)
            for line in lines:
                self.say(line)
            self.parting.leave_refused(error)
            raise error

    # --- what the channel says

    def deliver(self, message: Message) -> None:
        """Take what node 0 tells all nodes.

        Raises:
            Garbled: It is no message.
        """
        match message.get("is"):
            case "start":
                agreed = message.get("agreed")
                if self.agreed is None:
                    self.agreed = dict(agreed) if isinstance(agreed, dict) else {}
            case "refuse":
                self.refusal = self.refusal or message
            case "stop":
                self.on_stop(message)
            case "news":
                if message.get("by") != self.shape.node_rank:
                    self.say(f"{words(message, 'what', WHAT_LENGTH)} (--keep-going: this node goes on)")
            case "waiting":
                pass  # node 0 has said so already
            case "over":
                self.over = self.over or message
            case "note":
                subscriber = self.subscribers.get(text(message, "kind"))
                if subscriber is not None:
                    self.loop.guard(lambda: subscriber(message.get("body")))
            case _:
                raise Garbled("a message of an unknown kind")

    def on_stop(self, message: Message) -> None:
        """The job ends, because of something on some node: our processes have nobody to work with."""
        if self.stop_message is not None:
            return
        what = words(message, "what", WHAT_LENGTH)
        told = number(message, "told") if "told" in message else None
        self.stop_message = message
        is_ours = message.get("by") == self.shape.node_rank
        if "left_ms" in message and not is_ours and self.has_begun:
            self.respond(DUE, what, preemption.read_left_s(message), number(message, "by"))
            return
        if told is not None:
            if not is_ours and isinstance(self.relay, PeerRelay):
                self.say(f"{what}: for all nodes")
                self.is_told = True
                self.relay.pass_on_for_job(told)
            return
        if not is_ours:
            count = len(self.running)
            stopping = f"; stopping {count} process{'' if count == 1 else 'es'} here" if count else ""
            self.say(f"{what}{stopping}")
        if self.has_begun and not self.stopper.begun:
            self.stopper.begin(signal.SIGTERM)

    def on_preemption(self, kind: str, what: str, left_s: float) -> bool:
        """Our machine is to be taken back, or is not any more: so hear all nodes."""
        has_begun = self.respond(kind, what, left_s)
        preemption.tell(self, kind, what, left_s, has_begun or self.has_ended_well)
        return has_begun

    @property
    def has_ended_well(self) -> bool:
        """Whether our processes have, and nothing ends the job: we wait for those of other nodes."""
        is_ending = self.stop_message is not None or self.relay.told is not None or self.has_failed
        return not self.running and self.first is None and not is_ending

    # --- who asks what the job does

    def answer(self, what: str, more: Mapping[str, object], take: Callable[[Message], None]) -> None:
        """Say, now or later, what there is to say of this node; nobody asks before the door is there."""
        if self.door is not None:
            self.door.desk().answer(what, more, take)

    def describe_state(self) -> str:
        """Return what the processes of this node do as a whole, in a word or two."""
        if not self.has_begun:
            return "waits for the other nodes"
        return super().describe_state() if self.running else "ended, waits for the other nodes"

    def describe_nodes(self) -> dict[str, object]:
        """Return how many of the job's nodes are there, as far as this node knows."""
        if isinstance(self.channel, Hub):
            return self.channel.count_nodes()
        heard = 1 + self.channel.is_connected
        return {"count": self.shape.node_count, "heard": heard, "lost": int(self.channel.is_lost)}

    # --- our processes, to their end

    def start_all(self) -> None:
        """Start our processes, unless the job has ended meanwhile."""
        self.loop.timers += [self.channel, self.parting]
        super().start_all()
        if self.stop_message is not None and not self.stopper.begun:
            self.stopper.begin(signal.SIGTERM)

    def finish(self) -> int:
        """Say how the job ended, and return its status."""
        self.tell_logs()
        survivors = self.find_survivors()
        first = self.first
        verdict: Verdict | None = None
        if first is not None:
            verdict = self.guarded_verdict(first, survivors)
            own = self.find_status(first)
        elif survivors:
            own = 128 + signal.SIGKILL
        else:
            own = self.end_of_stall()
        record = None if verdict is None else on_its_way.render(verdict)
        self.say_to_hub({"is": "ended", "status": own, "record": record})
        self.parting.wait_for_end(own)
        over = self.over
        if over is None or (self.shape.keep_going and self.parting.has_lost_hub):
            if verdict is not None:
                self.publish(verdict, shown=True)
            return own if over is None else own or EXIT_NOT_READY
        self.loop.guard(lambda: self.say_verdict(over, verdict))
        return tidings.read_status(over)

    def say_verdict(self, over: Message, own: Verdict | None) -> None:
        """Say who failed first: the same on every node."""
        verdict = tidings.read_verdict(over, own, self.shape, self.started_ns)
        if verdict is not None:
            publish(verdict, self.output, self.watch, self.environ)

    def guarded_verdict(self, first: Process, survivors: Sequence[int]) -> Verdict | None:
        """Return the verdict on our own processes; a fault of ours in making it keeps nobody waiting."""
        found: list[Verdict | None] = []
        self.loop.guard(lambda: found.append(self.find_verdict(first, survivors)))
        return found[0] if found else None
