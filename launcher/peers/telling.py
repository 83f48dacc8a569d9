"""A node's supervisor, so far as it tells node 0 what happens here: signals, failures, notes.

What comes back from there is for `launcher.peers.together` to hear.
"""

from __future__ import annotations

from launcher.errors import EXIT_UNTRUSTED, HardwareMissing, LauncherError
from launcher.peers import tidings
from launcher.peers.court import RANK, REFUSED, STALLED, UNMET, UNPROVEN
from launcher.peers.hub import Hub
from launcher.peers.link import Link
from launcher.process.signals import name_signal
from launcher.process.spawn import Process
from launcher.run.supervise import Supervisor

Message = dict[str, object]


class Teller(Supervisor):
    """The processes of this node; what ends them here is to end them everywhere.

    Attributes:
        channel: To the other nodes: `Hub` on node 0, `Link` on all others.
        is_told: Node 0 knows that we were told to end, or has told us.
        has_failed: We have told of something that ends the job.
    """

    channel: Hub | Link
    is_told = False
    has_failed = False

    def tell_signal(self, told: int) -> None:
        """We were told to end: so is the job, unless we have it from there."""
        if not self.is_told:
            self.is_told = True
            self.say_to_hub({"is": "told", "number": int(told), "name": name_signal(told)})

    def say_to_hub(self, message: Message) -> None:
        """Tell node 0 something, which may be we."""
        if isinstance(self.channel, Hub):
            self.channel.hear_own(message)
        else:
            self.channel.send(message)

    def publish_note(self, kind: str, body: object) -> None:
        """Tell node 0 a fact or an event of this node: a small value that JSON can hold.

        `Hub.subscribers` has who hears it there; `Hub.broadcast` reaches `subscribers` of all nodes.
        """
        self.say_to_hub({"is": "note", "kind": kind, "body": body})

    def tell_refusal(self, error: LauncherError) -> None:
        """Our processes cannot be started: the others would wait for them."""
        what = "; ".join(f"[{problem.code}] {problem.what}" for problem in error.problems)
        self.loop.guard(lambda: self.tell_event(REFUSED, error.exit_status, what, {}))
        self.say_to_hub({"is": "ended", "status": error.exit_status, "record": None})

    def tell_event(self, kind: str, status: int, what: str, more: Message) -> None:
        """Report what ends the job."""
        self.has_failed = True
        add_ns = 0
        if isinstance(self.channel, Link) and self.channel.offset is not None:
            add_ns = self.channel.offset.add_ns
        self.say_to_hub(tidings.tell_event(kind, status, what, more, add_ns))

    def on_end(self, process: Process) -> None:
        """One of our processes has ended; a first failure is news for all nodes."""
        before = self.first
        super().on_end(process)
        if before is None and self.first is not None:
            self.tell_failure(self.first)

    def tell_failure(self, first: Process) -> None:
        """Report our first failure, with its time by node 0's clock."""
        if first.child.called and self.told_before is not None:
            return  # an agent that was told to end, as we were: nobody has failed
        what = f"{first.name} {first.end}"
        self.tell_event(RANK, first.status, what, tidings.describe_process(first))

    def stop_stalled(self, reason: str) -> None:
        """The job hangs here, and is to end as a failure everywhere."""
        super().stop_stalled(reason)
        self.tell_event(STALLED, 1, f"stalled: {reason}", {})

    def stop_unproven(self, reason: str, fix: str) -> None:
        """NCCL uses another network than the one that is required: the job is to end so everywhere."""
        super().stop_unproven(reason, fix)
        self.tell_event(
            UNPROVEN, HardwareMissing.exit_status, f"not the fabric that is required: {reason}", {}
        )

    def fail_unmet(self, reason: str, fix: str) -> None:
        """The processes do not meet, and have to: the job is to end as a failure everywhere."""
        super().fail_unmet(reason, fix)
        self.tell_event(UNMET, EXIT_UNTRUSTED, f"--require-meeting: {reason}", {})
