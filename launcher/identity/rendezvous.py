"""Who gives out the ranks: the platform, before the start, or torchrun's rendezvous, at it. Pure.

A static rendezvous is told every node's index. All others (c10d, etcd) give out indices as nodes come,
and again after each failure; so do elastic jobs, whose number of nodes is a range.
"""

from __future__ import annotations

from launcher.core.model import Fact, Lost, Trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.identity.ledger import Ledger
    from launcher.options.options import Options

STATIC, C10D = "static", "c10d"


def choose_backend(options: Options, node_count: int | None) -> str:
    """Return the rendezvous of a job: as asked, or the one that can do what was asked.

    Args:
        options: What the user asked for.
        node_count: Number of nodes; None for a range.
    """
    asked = options.text("rdzv_backend")
    if node_count == 1 and asked in ("", STATIC, C10D):
        return STATIC  # nobody has to be met; c10d would only hide the port
    if asked and (asked != STATIC or node_count is not None):
        return asked
    # Static agents cannot tell each other to start again
    return C10D if node_count is None or options.number("max_restarts", 0) else STATIC


def gives_ranks(options: Options, node_count: int | None) -> bool:
    """Whether ranks are known only once the nodes have met; ``node_count`` is None for a range."""
    return choose_backend(options, node_count) != STATIC


def read_range(ledger: Ledger) -> tuple[int, int] | None:
    """Return (least, most) nodes if the job is elastic: a range wins, unless a number was asked for."""
    ranges, counts = ledger.about(Fact.NODE_RANGE), ledger.about(Fact.NODE_COUNT)
    if not ranges or (counts and counts[0].trust is Trust.ASKED and ranges[0].trust is not Trust.ASKED):
        return None
    least, _, most = str(ranges[0].value).partition(":")
    return int(least), int(most)


def settle_range(ledger: Ledger, node_range: tuple[int, int] | None) -> None:
    """Let the range or the count win for good, and remember the other as lost."""
    beaten = Fact.NODE_RANGE if node_range is None else Fact.NODE_COUNT
    winner = Fact.NODE_COUNT if node_range is None else Fact.NODE_RANGE
    lost = [claim for claim in ledger.claims if claim.fact is beaten]
    ledger.claims = [claim for claim in ledger.claims if claim.fact is not beaten]
    ledger.findings.pop(beaten, None)
    why = "the number of nodes is fixed" if node_range is None else "the job is elastic"
    ledger.beaten[winner] = tuple(Lost(claim, why) for claim in lost)
    if lost or node_range is not None:
        ledger.settle(winner)


def knows_who_is_who(ledger: Ledger) -> bool:
    """Whether a rendezvous will tell which node this is, so that no variable must."""
    if read_range(ledger) is not None:
        return True
    counts = ledger.about(Fact.NODE_COUNT)
    count = counts[0].value if counts else 1
    return isinstance(count, int) and gives_ranks(ledger.options, count)
