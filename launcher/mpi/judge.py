"""Makes the verdict on the whole job from the reports that the head has received."""

from __future__ import annotations

from launcher.cluster.outcome import read_verdict
from launcher.core.frozen import replace
from launcher.core.redact import printable
from launcher.failure.arbiter import STARTER
from launcher.failure.model import End
from launcher.failure.verdict import describe_end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.cluster.messages import Over
    from launcher.cluster.settings import Shape
    from launcher.failure.model import Verdict
    from launcher.mpi.protocol import RankEnded


def judge(
    over: Over,
    ends: Mapping[int, tuple[RankEnded, int]],
    shape: Shape,
    *,
    attempt: int,
    started_ns: int,
    started_mono_ns: int,
    told: str | None,
) -> Verdict | None:
    """Return the verdict on the whole job; None if nothing has failed.

    Args:
        over: How the attempt has ended.
        ends: How each rank has ended, and when the head heard of it (monotonic nanoseconds); by rank.
        shape: The job.
        attempt: Number of the attempt, 0 for the first.
        started_ns: When mpirun was started, nanoseconds since 1970.
        started_mono_ns: The same by the monotonic clock.
        told: Name of the signal by which the head was told to end; None if it was not.
    """
    verdict = read_verdict(over, None, shape, started_ns, attempt)
    first = None if over.first is None else over.first.event
    if verdict is None or first is None or first.kind == STARTER:
        return verdict
    own = None if first.facts is None else first.facts["rank"]
    others = tuple(_end(*ends[rank], first.at_ns, told) for rank in sorted(ends) if rank != own)
    ended_ns = started_ns + first.at_ns - started_mono_ns
    changed = replace(verdict, ended_ns=ended_ns, started_ns=started_ns, node_rank=first.node)
    return replace(changed, others=others, told=told)


def _end(end: RankEnded, at_ns: int, zero_ns: int, told: str | None) -> End:
    words = printable(describe_end(end.code, end.asked, told, heard=False))
    return End(end.rank, end.local_rank, end.pid, end.code, words, at_ns - zero_ns)
