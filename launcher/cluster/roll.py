"""Compares the nodes in the roll call, and prints the result; the controller decides whether to start."""

from __future__ import annotations

from launcher.cluster.consistency import compare, render_table
from launcher.cluster.reach import find_reasons, read_reasons
from launcher.core.errors import EXIT_UNTRUSTED, make_problem
from launcher.core.frozen import frozen
from launcher.core.redact import printable
from launcher.core.version import __version__
from launcher.job.commands import Refusal
from launcher.job.refusals import describe_missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.cluster.settings import Shape
    from launcher.process.helper import Helpers

    Facts = Mapping[str, object]
    Reasons = Mapping[int, str]
    FindReasons = Callable[[list[int], Callable[[Reasons], None]], None]

NAMED_MAX = 20
"""Maximum number of nodes that are named in one message, and probed."""
LOOK_S = 3.0
"""Seconds for that."""


@frozen
class Caller:
    """A launcher that wants to join.

    Attributes:
        name: Its name in messages.
        index: Its index among all nodes.
        version: Version of its launcher, printable.
        facts: Its facts.
    """

    name: str
    index: int
    version: str
    facts: Facts


def is_odd(index: int, facts: Facts, shape: Shape) -> bool:
    """Whether a launcher with this index cannot work with node 0, whatever the others are."""
    has_place, is_counted = (
        index < shape.node_count + shape.spare_count,
        facts["node_count"] in (None, shape.node_count),
    )
    return not (has_place and is_counted and facts["launcher"] == __version__)


def find_refusal(
    caller: Caller, first: str, present: Mapping[str, Facts], shape: Shape
) -> tuple[Refusal | None, list[str]]:
    """Return why a launcher cannot work with the others, if it cannot, and a table of what they differ in.

    Args:
        caller: The launcher.
        first: Name of node 0.
        present: The facts of the nodes that are here, by their names.
        shape: The job.
    """
    if caller.version != __version__:
        problem = make_problem(
            "other-version", name=caller.name, version=caller.version, first=first, own=__version__
        )
        return Refusal(EXIT_UNTRUSTED, problem), []
    refusal, lines = find_disagreement({**present, caller.name: caller.facts}, shape.member)
    if refusal is None and caller.index >= shape.node_count + shape.spare_count:
        problem = make_problem("no-such-node", name=caller.name, count=shape.node_count, kind=shape.member)
        return Refusal(EXIT_UNTRUSTED, problem), lines
    return refusal, lines


def find_disagreement(facts: Mapping[str, Facts], kind: str) -> tuple[Refusal | None, list[str]]:
    """Return why nodes cannot work together, if they cannot, and a table of what they differ in.

    Args:
        facts: The facts of the nodes, by their names.
        kind: `Shape.member`.
    """
    found = compare(facts)
    lines = render_table(found)
    problems = [item for item in found if item.is_problem]
    if not problems:
        return None, lines
    titles = ", ".join(item.rule.title for item in problems)
    problem = make_problem("nodes-differ", kind=kind, titles=titles, fix=problems[0].fix)
    return Refusal(EXIT_UNTRUSTED, problem, tuple(lines)), lines


class Missing:
    """Probes the hosts of nodes that are missing, and describes these."""

    def __init__(
        self,
        shape: Shape,
        find_reasons: FindReasons,
        turned_away: Callable[[], Mapping[str, str]],
        has_heard: Callable[[], bool],
    ) -> None:
        """Do nothing yet.

        Args:
            shape: The job.
            find_reasons: Probes hosts by rank, and later passes on what it found for each.
            turned_away: Returns why connections were turned away, by address.
            has_heard: Returns whether any client has connected.
        """
        self._shape, self._find_reasons = shape, find_reasons
        self._turned_away, self._has_heard = turned_away, has_heard
        self._waiting: list[Callable[[str], None]] = []

    def look(
        self,
        find_missing: Callable[[], Sequence[int]],
        find_left: Callable[[], Mapping[int, str]],
        then: Callable[[str], None],
    ) -> None:
        """Probe the hosts of missing nodes, and pass their description on to ``then`` if any still are."""
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return  # one look at a time

        def take(reasons: Reasons) -> None:
            waiting, self._waiting = self._waiting, []
            missing = find_missing()
            if missing:
                what = self._describe(missing, {**reasons, **_describe_left(find_left())})
                for each in waiting:
                    each(what)

        self._find_reasons(list(find_missing()[:NAMED_MAX]), take)

    def _describe(self, missing: Sequence[int], reasons: Reasons) -> str:
        shape = self._shape
        away, has_heard = self._turned_away(), self._has_heard()
        return printable(
            describe_missing(
                shape.member, missing, shape.hosts, reasons, away, shown=NAMED_MAX, has_heard=has_heard
            )
        )


def _describe_left(left: Mapping[int, str]) -> dict[int, str]:
    return {rank: f"it had joined, and {how}" for rank, how in left.items()}


def look_for(
    ranks: Sequence[int],
    take: Callable[[Mapping[int, str]], None],
    shape: Shape,
    port: int,
    helpers: Helpers,
) -> None:
    """Probe the hosts of missing nodes in a helper, if they are listed, and pass on the results later."""
    hosts = {rank: shape.hosts[rank] for rank in ranks if rank < len(shape.hosts)}
    try:
        helpers.ask(lambda: find_reasons(hosts, port), lambda lines: take(read_reasons(lines)), LOOK_S)
    except OSError:
        take({})
