"""Which claim wins: one rule for every fact.

The claim with the most direct trust wins, and within one level the inner source; what the user asked
for beats all. Two variables that *state* different values for a fact of identity are a contradiction.
"""

from __future__ import annotations

from launcher.errors import Problem
from launcher.model import Claim, Evidence, Fact, Finding, Lost, Trust, Value
from launcher.options import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY = (
    Fact.RANK,
    Fact.WORLD_SIZE,
    Fact.LOCAL_RANK,
    Fact.LOCAL_SIZE,
    Fact.NODE_RANK,
    Fact.NODE_COUNT,
)
STARTED = (Fact.RANK, Fact.WORLD_SIZE, Fact.LOCAL_RANK)
"""Facts that count whatever a platform started: processes, or launchers one per node."""
RULE = "rule"
"""Source name of claims that follow from other facts alone."""


class Ledger:
    """The claims of all sources, and what has been settled, found wrong and noted so far."""

    def __init__(self, evidence: Sequence[Evidence], options: Options) -> None:
        self.options = options
        self.evidence = (options.evidence(), *evidence)
        self.claims = [claim for item in self.evidence for claim in item.claims]
        self.problems: list[Problem] = [p for item in self.evidence for p in item.problems]
        self.notes: list[str] = [note for item in self.evidence for note in item.notes]
        self.findings: dict[Fact, Finding] = {}
        self.beaten: dict[Fact, tuple[Lost, ...]] = {}
        """Claims on another fact that a fact has put out of question."""

    def about(self, fact: Fact) -> list[Claim]:
        """Return the claims on a fact, best first (sorting keeps the order of the sources)."""
        return sorted((c for c in self.claims if c.fact is fact), key=lambda claim: claim.trust)

    def add(self, fact: Fact, value: Value, origin: str, trust: Trust = Trust.INDIRECT) -> None:
        """Add a claim that follows from other facts."""
        self.claims.append(Claim(fact, value, origin, RULE, trust))

    def settle(self, fact: Fact) -> Value | None:
        """Let the best claim on a fact win, remember why the others lost, return the value."""
        claims = self.about(fact)
        if not claims:
            return None
        winner, *others = claims
        lost = tuple(Lost(claim, self._why(winner, claim)) for claim in others)
        self.findings[fact] = Finding(winner, lost + self.beaten.get(fact, ()))
        return winner.value

    def number(self, fact: Fact) -> int | None:
        """Settle a fact that is a number."""
        value = self.settle(fact)
        return value if isinstance(value, int) else None

    def origin(self, fact: Fact) -> str:
        """Return where a settled fact came from, for messages."""
        finding = self.findings.get(fact)
        return finding.claim.origin if finding else f"no {fact.value}"

    def correct(self, *facts: Fact) -> str:
        """Return what to do about facts that contradict each other, by their flags or variables."""
        fix = f"correct {' or '.join(map(self._name, facts))}"
        typed = all(self.origin(fact).startswith("--") for fact in facts)
        return fix if typed else f"{fix}, or unset the wrong one"

    def _name(self, fact: Fact) -> str:
        word = self.origin(fact).replace("=", " ", 1).split(" ", 1)[0]
        return word if word.startswith("--") or word.isupper() else f"the {fact.value}"

    def is_broken(self) -> bool:
        """Whether something is known to be wrong that explains why other things are missing."""
        codes = ("malformed-variable", "no-identity", "ambiguous-scope")
        return any(problem.code in codes for problem in self.problems)

    def contradiction(self, what: str, fix: str, where: str = "") -> None:
        """Report values that cannot all be true."""
        self.problems.append(Problem("contradiction", what, where or self._where(), fix))

    def missing(self, what: str, fix: str) -> None:
        """Report what nothing states."""
        self.problems.append(Problem("missing-variable", what, self._where(), fix))

    def _where(self) -> str:
        typed = any(claim.origin.startswith("--") for claim in self.claims)
        return "command line and environment" if typed else "environment"

    def _why(self, winner: Claim, loser: Claim) -> str:
        if winner.value == loser.value:
            return "agrees"
        if winner.trust is Trust.ASKED:
            return f"overruled by {winner.origin}"
        if self._is_forwarded(winner, loser):
            self._contradict(winner, loser)
            return f"contradicts {winner.origin}"
        if winner.trust < loser.trust:
            return f"less direct than {winner.origin} ({loser.trust.name.lower()})"
        if winner.fact in IDENTITY and winner.trust is Trust.STATED:
            self._contradict(winner, loser)
            return f"contradicts {winner.origin}"
        return f"{winner.source} is nearer to the process than {loser.source}"

    def _is_forwarded(self, winner: Claim, loser: Claim) -> bool:
        """Whether a platform's node rank may be the head node's, handed to all ranks by mpirun -x.

        The daemon that started us knows its node; a variable from further out that says another one
        is either another order of the nodes or another node's value, and nothing tells which.
        """
        return (
            winner.fact is Fact.NODE_RANK
            and (winner.trust, loser.trust) == (Trust.STATED, Trust.DERIVED)
            and self.claims.index(loser) < self.claims.index(winner)
        )

    def _contradict(self, one: Claim, other: Claim) -> None:
        hint = ""
        if one.fact is Fact.WORLD_SIZE and other.value in _values(self.about(Fact.NODE_COUNT)):
            hint = f" ({other.origin} counts nodes, not processes)"
        what = f"{one.origin} but {other.origin}: one {one.fact.value} expected{hint}"
        if one.source == other.source:
            self.contradiction(what, "correct or unset the wrong one", f"environment, source {one.source}")
            return
        self.contradiction(
            what,
            f"unset the wrong one, or name the one to believe: --source {one.source}",
            f"environment, sources {one.source} and {other.source}",
        )


def _values(claims: Sequence[Claim]) -> set[Value]:
    return {claim.value for claim in claims}
