"""The claims of all sources as one immutable value, and the rule that decides which claim wins.

The claim with the most direct trust wins, and within one level that of the inner source. The user's request
wins over all. Two claims that differ on a fact of identity are a contradiction.

A rule is a function of a `Ledger` that yields what follows: claims to add or to leave out, problems, notes.
`Ledger.fold` applies rules one after the other. Reading decides nothing: a value, its origin and what lost
to it follow from the claims alone.

The *starter* of this process is the innermost source that counts what was started. `srun`, `mpiexec` and
`flux run` pass on the variables of the process that called them, so the claims of sources around the starter
may be about another process (`launcher.identity.inherited`).
"""

from __future__ import annotations

from launcher.core.environ import OWN_PLACE
from launcher.core.errors import EnvironmentUntrusted, Problem, make_problem
from launcher.core.frozen import frozen, replace
from launcher.core.model import Claim, Decided, Evidence, Fact, Lost, Trust, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from launcher.options.reading import Options

STARTED = (Fact.RANK, Fact.WORLD_SIZE, Fact.LOCAL_RANK)
"""Facts about the units that a platform started: processes, or one launcher per node."""
IDENTITY = (*STARTED, Fact.LOCAL_SIZE, Fact.NODE_RANK, Fact.NODE_COUNT)
DEFAULTS = "torch_env"
"""The source of variables (RANK, WORLD_SIZE) that users and images may set too."""
USERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
"""Such variables, whichever source reads them."""
LAUNCHED = "launched"
"""The source of the contract of a launcher around this one."""
RULE = "rule"
"""Source name of claims that follow only from other facts."""
FLAG_OF = {Fact.NODE_RANK: "--node-rank R", Fact.NODE_COUNT: "--nnodes N"}


@frozen
class Out:
    """Claims to leave out, with a note that gives the reason."""

    claims: Sequence[Claim]
    why: str


if TYPE_CHECKING:
    Effect = Claim | Problem | str | Out
    Rule = Callable[["Ledger"], Iterable[Effect]]


@frozen
class Ledger:
    """The claims of all sources, and the problems and notes so far.

    Attributes:
        options: The user's options.
        evidence: The user's evidence, that of the sources from the inside out, and that of files.
        claims: All claims that are not left out.
        problems: What is wrong.
        notes: Sentences for the user.
        speakers: Sources about this very process: its starter, and others that give it the same rank.
        is_own: Function that tells whether one of some names and addresses is literally this node's.
        closed: Facts that are not asked for any more.
        findings: The decided facts with their provenance, known at the end.
        by_fact: The claims on each fact, best first; follows from the claims.
    """

    options: Options
    evidence: tuple[Evidence, ...]
    claims: tuple[Claim, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    speakers: tuple[str, ...]
    is_own: Callable[..., bool]
    closed: tuple[Fact, ...] = ()
    findings: dict[Fact, Decided] = {}  # noqa: RUF012 - replaced as a whole
    by_fact: dict[Fact, list[Claim]] = {}  # noqa: RUF012 - replaced as a whole

    def __post_init__(self) -> None:
        vars(self)["by_fact"] = found = dict[Fact, list[Claim]]()
        for claim in sorted(self.claims, key=lambda claim: claim.trust):
            if claim.fact not in self.closed:
                found.setdefault(claim.fact, []).append(claim)

    def fold(self, *rules: Rule) -> Ledger:
        """Return the ledger after rules, each of which sees what the ones before it have found."""
        ledger = self
        for rule in rules:
            ledger = ledger.add(*rule(ledger))
        return ledger

    def add(self, *effects: Effect) -> Ledger:
        """Return the ledger with claims, problems and notes, and without claims that are left out."""
        if not effects:
            return self
        outs = [(claim, out.why) for out in effects if isinstance(out, Out) for claim in out.claims]
        left_out = {id(claim) for claim, _ in outs}
        claims = [*self.claims, *(effect for effect in effects if isinstance(effect, Claim))]
        problems = [*self.problems, *(effect for effect in effects if isinstance(effect, Problem))]
        notes = [*self.notes, *(effect for effect in effects if isinstance(effect, str))]
        notes += [f"{claim.origin} is not used as {claim.fact.value}: {why}" for claim, why in outs]
        left = tuple(claim for claim in claims if id(claim) not in left_out)
        return replace(self, claims=left, problems=tuple(problems), notes=tuple(notes))

    def about(self, fact: Fact) -> list[Claim]:
        """Return the claims on a fact, best first, and equally trusted ones in the order of their sources."""
        return self.by_fact.get(fact, [])

    def best(self, fact: Fact) -> Claim | None:
        """Return the claim on a fact that wins; None if there is none."""
        return self.by_fact[fact][0] if fact in self.by_fact else None

    def number(self, fact: Fact) -> int | None:
        """Return the value of a fact; None if it is unknown or not a number."""
        claim = self.best(fact)
        return claim.value if claim is not None and isinstance(claim.value, int) else None

    def origin(self, fact: Fact) -> str:
        """Return the origin of a fact, for messages."""
        claim = self.findings[fact].claim if fact in self.findings else self.best(fact)
        return claim.origin if claim is not None else f"no {fact.value}"

    def find(self, *facts: Fact) -> dict[Fact, Decided]:
        """Return the claims on facts that win, with those that lose and why."""
        found = {}
        for best, *others in filter(None, map(self.about, facts)):
            found[best.fact] = Decided(best, tuple(Lost(c, self._why(best, c)) for c in others))
        return found

    def is_inherited(self, claim: Claim) -> bool:
        """Whether a claim may be about the process that called our starter, or about another node.

        This is possible for a LAUNCHER_* variable, but not for a flag, which the user typed for this process.
        """
        if claim.trust is Trust.ASKED:
            return not is_typed(claim)
        return bool(self.speakers) and claim.source not in (*self.speakers, RULE)

    def list_seats(self, claim: Claim) -> list[int]:
        """Return the places of this node in the list of hosts of a claim's source; none without a list."""
        hosts = next((c.hosts for c in self.about(Fact.HOSTS) if c.source == claim.source), ())
        return [place for place, host in enumerate(hosts) if self.is_own(host)]

    def is_even(self, count: Claim | None) -> bool:
        """Whether a source counts nodes that all have the same number of processes."""
        return count is not None and any(item.even and item.source == count.source for item in self.evidence)

    def has_problem(self, *codes: str) -> bool:
        """Whether a problem with one of these codes has been reported."""
        return any(problem.code in codes for problem in self.problems)

    def is_broken(self) -> bool:
        """Whether a reported problem explains why other facts are missing."""
        return self.has_problem("malformed-variable", "no-identity", "ambiguous-scope")

    def refuse(self, row: str, /, **values: object) -> Problem:
        """Return the problem of a row of ``errors.txt``, which gets the origin of the values as ``where``."""
        return make_problem(row, where=self.where(), **values)

    def check(self) -> None:
        """Raise EnvironmentUntrusted with all problems, if there are any."""
        if self.problems:
            raise EnvironmentUntrusted(*self.problems, notes=self.notes)

    def correct(self, *facts: Fact) -> str:
        """Return the fix for contradictory facts, with the names of their flags or variables."""
        words = {fact: name_only(self.origin(fact)) for fact in facts}
        named = [w if w.startswith("--") or w.isupper() else f"the {fact.value}" for fact, w in words.items()]
        typed = all(self.origin(fact).startswith("--") for fact in facts)
        return f"correct {' or '.join(dict.fromkeys(named))}{'' if typed else ', or unset the wrong one'}"

    def refuse_facts(self, row: str, /, *facts: Fact, **values: object) -> Problem:
        """Return the problem of a row about facts that cannot all be true, with their origins and a fix."""
        origins = ", ".join(dict.fromkeys(self.origin(fact) for fact in facts if self.about(fact)))
        return self.refuse(row, values=origins, fix=self.correct(*facts), **values)

    def where(self) -> str:
        """Return where the values came from."""
        typed = any(claim.origin.startswith("--") for claim in self.claims)
        return "command line and environment" if typed else "environment"

    def list_several(self) -> Iterator[Claim]:
        """Yield the claims that show several processes on this node."""
        for fact, alone in ((Fact.LOCAL_RANK, 0), (Fact.LOCAL_SIZE, 1)):
            yield from (c for c in self.about(fact) if isinstance(c.value, int) and c.value > alone)

    def _why(self, winner: Claim, loser: Claim) -> str:
        if winner.value == loser.value:
            return "agrees"
        if winner.trust is Trust.ASKED:
            return f"overruled by {winner.origin}"
        if winner.trust < loser.trust:
            return f"less direct than {winner.origin} ({loser.trust.name.lower()})"
        return f"{winner.source} is closer to the process than {loser.source}"

    def _contradicts(self, winner: Claim, loser: Claim) -> bool:
        """Whether two different values of one fact are a contradiction.

        A flag overrules platforms, but it cannot change which process the starter has started. A variable may
        come from an image, or may have been set to the same value on all nodes.
        """
        if winner.fact not in IDENTITY or loser.trust is Trust.INDIRECT or winner.value == loser.value:
            return False
        if winner.trust is not Trust.ASKED:
            # Our index in a list is correct, but the list may have another order than the starter's nodes
            orders = winner.fact is Fact.NODE_RANK and winner.trust is loser.trust is Trust.DERIVED
            return not (orders and self.is_inherited(loser))
        if winner.origin.startswith(OWN_PLACE):
            return False  # no other node has this place in the list
        is_left_over = loser.source == DEFAULTS and loser.source not in self.speakers
        may_be_inherited = winner.fact in (Fact.NODE_RANK, Fact.NODE_COUNT) and not is_typed(winner)
        return loser.source in self.speakers or (may_be_inherited and not is_left_over)

    def find_contradictions(self, *facts: Fact) -> Iterator[Problem]:
        """Yield a problem for each claim that contradicts the best one on a fact."""
        for best, *others in filter(None, map(self.about, facts)):
            yield from (self._describe(best, other) for other in others if self._contradicts(best, other))

    def _describe(self, one: Claim, other: Claim) -> Problem:
        where, name, other_name = self.where(), name_only(one.origin), name_only(other.origin)
        counts = one.fact is Fact.WORLD_SIZE and any(
            c.value == other.value for c in self.about(Fact.NODE_COUNT)
        )
        hint = f" ({other.origin} counts nodes, not processes)" if counts else ""
        # A variable of a user or an image may be the wrong one; a platform's variable cannot be unset
        if one.trust is Trust.ASKED and is_typed(one):
            leave, manual = f"leave out {name}", ", or pass --source manual to go by the flags alone"
            fix = f"unset {other_name}, or {leave}" if other_name in USERS else f"{leave}{manual}"
        elif one.trust is Trust.ASKED:
            fix = f"unset the wrong one, {name} or {other_name}" if other_name in USERS else f"unset {name}"
        else:
            flag = f", or pass {FLAG_OF[one.fact]}" if one.fact in FLAG_OF and not self.speakers else ""
            names = [word for word in (name, other_name) if word.isupper()]
            fix = f"unset {'' if len(names) == 1 else 'the wrong one, '}{' or '.join(names)}{flag}"
            sources = " and ".join(dict.fromkeys((one.source, other.source)))
            where = f"environment, source{'s' if ' ' in sources else ''} {sources}"
        named = {"one": one.origin, "other": other.origin, "fact": one.fact.value, "hint": hint}
        return make_problem("two-values", where=where, fix=fix, **named)


def open_ledger(evidence: Sequence[Evidence], options: Options, is_own: Callable[..., bool]) -> Ledger:
    """Return the ledger of the user's options and of sources, without claims that are certainly inherited."""
    every = (options.evidence(), *evidence, *([options.defaults()] if options.files.given else []))
    claims, problems, notes = (
        tuple(item for one in every for item in getattr(one, name))
        for name in ("claims", "problems", "notes")
    )
    ledger = Ledger(options, every, claims, problems, notes, _find_speakers(every), is_own)
    return ledger.fold(_leave_out_inherited)


def _leave_out_inherited(ledger: Ledger) -> Iterator[Out]:
    """Leave out inherited claims on facts in STARTED that no source about this process states."""
    stated = {claim.fact for claim in ledger.claims if claim.source in ledger.speakers}
    gaps = [c for c in ledger.claims if c.fact in {*STARTED} - stated and ledger.is_inherited(c)]
    if gaps:
        yield Out(gaps, f"it is inherited, and {' and '.join(ledger.speakers)} started this process")


def list_several(item: Evidence, *, counted: bool = True) -> Iterator[str]:
    """Yield the origins of an item's statements that there are several nodes.

    ``counted``: whether any item counts the nodes. Else several processes may be on several nodes.
    """
    known = {claim.fact: claim for claim in reversed(item.claims) if claim.trust is not Trust.INDIRECT}
    of_nodes = ((Fact.NODE_COUNT, 1), (Fact.NODE_RANK, 0), (Fact.HOSTS, 1), (Fact.NODE_RANGE, 0))
    yield from (known[fact].origin for fact, alone in of_nodes if _is_above(known.get(fact), alone))
    yield from item.several
    world, size = known.get(Fact.WORLD_SIZE), known.get(Fact.LOCAL_SIZE)
    is_here = counted or (world and size and world.value == size.value)
    if world is not None and _is_above(world, 1) and not is_here:
        yield world.origin


def _is_above(claim: Claim | None, limit: int) -> bool:
    """Whether a number, the length of a list or that of a text is above a limit."""
    value = claim.value if claim is not None else 0
    return (value if isinstance(value, int) else len(value)) > limit


def derive(fact: Fact, value: Value, origin: str, trust: Trust = Trust.INDIRECT) -> Claim:
    """Return a claim that follows from other facts."""
    return Claim(fact, value, origin, RULE, trust)


def is_typed(claim: Claim) -> bool:
    """Whether a claim is a flag on this command line (``torchrun --nnodes 2``) and not a variable."""
    return name_only(claim.origin).startswith("-")


def name_only(origin: str) -> str:
    """Return the flag or variable in an origin, which may begin with a command or a sentence."""
    words = origin.replace("=", " ", 1).split(" ")
    flag = next((word for word in words[:3] if word.startswith("-")), "")
    return flag or next((word for word in words if word.isupper()), words[0])


def _find_speakers(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Return the sources about this very process, the starter first; empty without a starter.

    A WORLD_SIZE of 1 does not show a starter, because images have it as a default.
    """
    found: list[str] = []
    rank: Value | None = None
    world: Value | None = None
    for item in evidence:
        known = {claim.fact: claim.value for claim in item.claims if claim.fact in STARTED}
        own, whole = known.get(Fact.RANK), known.get(Fact.WORLD_SIZE)
        if not known or (item.source == DEFAULTS and whole in (None, 1)):
            continue
        if not found or (own == rank and (None in (world, whole) or world == whole)):
            found.append(item.source)
            rank, world = own, world or whole
    return tuple(found)
