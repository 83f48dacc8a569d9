"""Compares the nodes in the roll call, and prints the result; the controller decides whether to start."""

from __future__ import annotations

from launcher.cluster.consistency import compare, render_table
from launcher.cluster.reach import find_reasons, read_reasons
from launcher.core.errors import EXIT_UNTRUSTED, make_problem
from launcher.core.redact import printable
from launcher.core.version import __version__
from launcher.job.commands import Refusal
from launcher.job.refusals import describe_missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.channel.acceptor import Acceptor
    from launcher.cluster.members import Member, Members
    from launcher.cluster.settings import Shape
    from launcher.process.helper import Helpers

    Facts = Mapping[str, object]
    Reasons = Mapping[int, str]
    FindReasons = Callable[[list[int], Callable[[Reasons], None]], None]

NAMED_MAX = 20
"""Maximum number of nodes that are named in one message, and probed."""
LOOK_S = 3.0
"""Seconds for that."""


def is_odd(caller: Member, shape: Shape) -> bool:
    """Whether a launcher cannot work with node 0, whatever the others are."""
    has_place = caller.index < shape.node_count + shape.spare_count
    is_counted = caller.facts["node_count"] in (None, shape.node_count)
    return not (has_place and is_counted and caller.facts["launcher"] == __version__)


def find_refusal(
    caller: Member, first: str, present: Mapping[str, Facts], shape: Shape
) -> tuple[Refusal | None, list[str]]:
    """Return why a launcher cannot work with the others, if it cannot, and a table of what they differ in.

    Args:
        caller: The launcher.
        first: Name of node 0.
        present: The facts of the nodes that are here, by their names.
        shape: The job.
    """
    name, version = f"{shape.member} {caller.index} ({caller.host})", caller.version
    if version != __version__:
        problem = make_problem("other-version", name=name, version=version, first=first, own=__version__)
        return Refusal(EXIT_UNTRUSTED, problem), []
    refusal, lines = find_disagreement({**present, name: caller.facts}, shape.member)
    if refusal is None and caller.index >= shape.node_count + shape.spare_count:
        problem = make_problem("no-such-node", name=name, count=shape.node_count, kind=shape.member)
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
        members: Members,
        find_reasons: FindReasons,
        acceptor: Acceptor,
        name_host: Callable[[str], str],
    ) -> None:
        """Do nothing yet.

        Args:
            members: The nodes that are here.
            find_reasons: Probes hosts by rank, and later passes on what it found for each.
            acceptor: Knows which connections were turned away.
            name_host: Returns the name of the host with an address.
        """
        self._members, self._find_reasons = members, find_reasons
        self._acceptor, self._name_host = acceptor, name_host
        self._waiting: list[Callable[[str], None]] = []

    def look(self, then: Callable[[str], None]) -> None:
        """Probe the hosts of missing nodes, and pass their description on to ``then`` if any still are."""
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return  # one look at a time

        def take(reasons: Reasons) -> None:
            waiting, self._waiting = self._waiting, []
            missing = self._members.missing()
            if missing:
                left = {rank: f"it had joined, and {how}" for rank, how in self._members.state.left.items()}
                what = self._describe(missing, {**reasons, **left})
                for each in waiting:
                    each(what)

        self._find_reasons(self._members.missing()[:NAMED_MAX], take)

    def _describe(self, missing: Sequence[int], reasons: Reasons) -> str:
        shape, turned_away = self._members.shape, self._acceptor.turned_away.reasons()
        away = {self._name_host(address): why for address, why in turned_away.items()}
        return printable(
            describe_missing(
                shape.member,
                missing,
                shape.hosts,
                reasons,
                away,
                shown=NAMED_MAX,
                has_heard=self._acceptor.has_heard,
            )
        )


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
