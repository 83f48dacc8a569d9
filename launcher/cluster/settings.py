"""Settings of the control channel, for both of its ends."""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.model import NODE
from launcher.core.supervision import GRACE_S
from launcher.job.settings import find_given_up_s
from launcher.job.state import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.supervision import Restarts


@frozen
class Shape:
    """One job as its control channel sees it.

    Attributes:
        node_rank: Rank of this node.
        node_count: Number of nodes.
        world_size: Number of processes in the job; None if unknown.
        address: Node 0's name or address, as this node was told it.
        ports: Candidate ports of the coordinator, which listens at the first free one.
        hosts: The nodes by rank, if they are listed.
        timeout_s: Time limit of the roll call.
        lost_after_s: Seconds of silence after which a node, or node 0, counts as lost.
        grace_s: Seconds between SIGTERM and SIGKILL.
        keep_going: Whether the others go on after a failure or a lost node.
        master_port: Port at which the processes of the job will meet.
        member: Unit with its own launcher: `NODE`, or `RANK`; "node" in the other names here then means a
            rank.
        speaks: Whether this launcher reports what concerns all; of several ranks on a machine only one does.
        spare_count: Number of nodes that wait to take the place of a lost one.
        index: Index of this node among all nodes, with the spare ones.
        is_spare: Whether this node is a spare one at the start; its rank is only a placeholder then.
        tells_hosts: Whether the start signal has the addresses of all nodes.
        has_token: Whether the key of the channel is made from a token.
        serves: See `launcher.job.state.Job`.
    """

    node_rank: int
    node_count: int
    world_size: int | None
    address: str
    ports: tuple[int, ...]
    hosts: tuple[str, ...] = ()
    timeout_s: float = 900.0
    lost_after_s: float = 10.0
    grace_s: float = GRACE_S
    keep_going: bool = False
    master_port: int = 0
    member: str = NODE
    speaks: bool = True
    spare_count: int = 0
    index: int = 0
    is_spare: bool = False
    tells_hosts: bool = False
    has_token: bool = False
    serves: bool = False

    @property
    def given_up_s(self) -> float:
        """Seconds after the last message until a node, or node 0, counts as lost."""
        return find_given_up_s(self.lost_after_s)

    def make_job(self, restarts: Restarts, roll_call_s: float, seed: str = "") -> Job:
        """Return the job as its state machines know it.

        Args:
            restarts: What the user allows after a failure.
            roll_call_s: Time limit of the roll call.
            seed: Seed for the random part of waits.
        """
        return Job(
            self.node_count, self.spare_count, self.grace_s, self.lost_after_s, roll_call_s,
            self.member, self.keep_going, restarts, seed, self.serves,
        )  # fmt: skip
