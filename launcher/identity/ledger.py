"""Decides which claim wins, by one rule for every fact.

The claim with the most direct trust wins, and within one level that of the inner source. The user's request
wins over all. Two claims that differ on a fact of identity are a contradiction.

The *starter* of this process is the innermost source that counts what was started. `srun`, `mpiexec` and
`flux run` pass on the variables of the process that called them, so the claims of sources around the starter
may be about another process. Their rank, world_size and local_rank never fill a gap.

Their node_rank may be another node's, and their counts another job's (`sift_node`, `sift_sizes`). We test
them against rank and sizes, which the starter states: in a job whose nodes all run as many processes as this
one, only few nodes can have a given rank.
"""

from __future__ import annotations

from launcher.core.environ import OWN_PLACE
from launcher.core.errors import Problem
from launcher.core.model import Claim, Evidence, Fact, Finding, Lost, Trust, Value
from launcher.identity.topology import find_node, is_by_domain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from launcher.core.model import Claim
    from launcher.options.reading import Options

IDENTITY = (
    Fact.RANK,
    Fact.WORLD_SIZE,
    Fact.LOCAL_RANK,
    Fact.LOCAL_SIZE,
    Fact.NODE_RANK,
    Fact.NODE_COUNT,
)
STARTED = (Fact.RANK, Fact.WORLD_SIZE, Fact.LOCAL_RANK)
"""Facts about the units that a platform started: processes, or one launcher per node."""
DEFAULTS = "torch_env"
"""The source of variables (RANK, WORLD_SIZE) that users and images may set too."""
RULE = "rule"
"""Source name of claims that follow only from other facts."""
FLAG_OF = {Fact.NODE_RANK: "--node-rank R", Fact.NODE_COUNT: "--nnodes N"}


class Ledger:
    """The claims of all sources, and the findings, problems and notes so far."""

    def __init__(self, evidence: Sequence[Evidence], options: Options) -> None:
        self.options = options
        defaults: tuple[Evidence, ...] = (options.defaults(),) if options.files.given else ()
        self.evidence = (options.evidence(), *evidence, *defaults)
        self.claims = [claim for item in self.evidence for claim in item.claims]
        self.problems: list[Problem] = [p for item in self.evidence for p in item.problems]
        self.notes: list[str] = [note for item in self.evidence for note in item.notes]
        self.findings: dict[Fact, Finding] = {}
        self.missed: dict[Fact, Problem] = {}
        self.speakers = _find_speakers(self.evidence)
        """Sources about this very process: its starter, and others that give it the same rank."""
        self._leave_out_inherited()
        self.beaten: dict[Fact, tuple[Lost, ...]] = {}
        """For a fact, the claims on another fact that it has ruled out."""

    def about(self, fact: Fact) -> list[Claim]:
        """Return the claims on a fact, best first, and equally trusted ones in the order of their sources."""
        return sorted((c for c in self.claims if c.fact is fact), key=lambda claim: claim.trust)

    def add(self, fact: Fact, value: Value, origin: str, trust: Trust = Trust.INDIRECT) -> None:
        """Add a claim that follows from other facts."""
        self.claims.append(Claim(fact, value, origin, RULE, trust))

    def is_inherited(self, claim: Claim) -> bool:
        """Whether a claim may be about the process that called our starter, or about another node.

        This is possible for a LAUNCHER_* variable, but not for a flag, which the user typed for this process.
        """
        if claim.trust is Trust.ASKED:
            return not is_typed(claim)
        return bool(self.speakers) and claim.source not in self.speakers and claim.source != RULE

    def leave_out(self, claims: Sequence[Claim], why: str) -> None:
        """Remove claims, with a note that gives the reason."""
        for claim in claims:
            self.claims.remove(claim)
            self.findings.pop(claim.fact, None)
            self.notes.append(f"{claim.origin} is not used as {claim.fact.value}: {why}")

    def _leave_out_inherited(self) -> None:
        """Leave out inherited claims on facts in STARTED that no source about this process states."""
        stated = {claim.fact for claim in self.claims if claim.source in self.speakers}
        gaps = [c for c in self.claims if c.fact in STARTED and c.fact not in stated and self.is_inherited(c)]
        self.leave_out(gaps, f"it is inherited, and {' and '.join(self.speakers)} started this process")

    def settle(self, fact: Fact) -> Value | None:
        """Let the best claim on a fact win, record why the others lost, and return its value."""
        claims = self.about(fact)
        if not claims:
            return None
        winner, *others = claims
        lost = tuple(Lost(claim, self._why(winner, claim)) for claim in others)
        self.findings[fact] = Finding(winner, lost + self.beaten.get(fact, ()))
        return winner.value

    def number(self, fact: Fact) -> int | None:
        """Settle a fact and return its value; None if it is unknown or not a number."""
        value = self.settle(fact)
        return value if isinstance(value, int) else None

    def origin(self, fact: Fact) -> str:
        """Return the origin of a settled fact, for messages."""
        finding = self.findings.get(fact)
        return finding.claim.origin if finding else f"no {fact.value}"

    def correct(self, *facts: Fact) -> str:
        """Return the fix for contradictory facts, with the names of their flags or variables."""
        fix = f"correct {' or '.join(map(self._name, facts))}"
        typed = all(self.origin(fact).startswith("--") for fact in facts)
        return fix if typed else f"{fix}, or unset the wrong one"

    def _name(self, fact: Fact) -> str:
        word = _name_only(self.origin(fact))
        return word if word.startswith("--") or word.isupper() else f"the {fact.value}"

    def is_broken(self) -> bool:
        """Whether a reported problem explains why other facts are missing."""
        codes = ("malformed-variable", "no-identity", "ambiguous-scope")
        return any(problem.code in codes for problem in self.problems)

    def has_contradiction(self) -> bool:
        """Whether a contradiction has been reported."""
        return any(problem.code == "contradiction" for problem in self.problems)

    def contradiction(self, what: str, fix: str, where: str = "") -> None:
        """Report a contradiction: values that cannot all be true."""
        self.problems.append(Problem("contradiction", what, where or self._where(), fix))

    def missing(self, what: str, fix: str, fact: Fact | None = None) -> None:
        """Report a fact that no source states."""
        problem = Problem("missing-variable", what, self._where(), fix)
        self.problems.append(problem)
        if fact is not None:
            self.missed[fact] = problem

    def join_missing(self) -> None:
        """Report several missing facts as one problem: its cause, and the one line to type."""
        if len(self.missed) < 2:
            return
        *facts, last = map(name_fact, self.missed)
        counts = [claim for claim in self.claims if claim.fact in IDENTITY and claim.source != RULE]
        found = list(dict.fromkeys(claim.origin for claim in counts))
        what = f"{say_needs(found)} {', '.join(facts)} and {last}"
        left = sorted({_name_only(claim.origin) for claim in counts if claim.fact in STARTED})
        alone = f"unset {', '.join(left)} for a single node; for several unset it and " if left else ""
        count = "--nnodes N " if left or Fact.NODE_COUNT in self.missed else ""
        fix = f"{alone}pass --hosts HOST,... on every node, or {count}--node-rank R --master-addr HOST"
        others = [problem for problem in self.problems if problem not in self.missed.values()]
        self.problems = [Problem("missing-variable", what, self._where(), fix), *others]

    def _where(self) -> str:
        typed = any(claim.origin.startswith("--") for claim in self.claims)
        return "command line and environment" if typed else "environment"

    def _why(self, winner: Claim, loser: Claim) -> str:
        if winner.value == loser.value:
            return "agrees"
        if self._contradicts(winner, loser):
            self._contradict(winner, loser)
            return f"contradicts {winner.origin}"
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
        if winner.fact not in IDENTITY or loser.trust is Trust.INDIRECT:
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

    def _contradict(self, one: Claim, other: Claim) -> None:
        hint = ""
        if one.fact is Fact.WORLD_SIZE and other.value in _values(self.about(Fact.NODE_COUNT)):
            hint = f" ({other.origin} counts nodes, not processes)"
        what = f"{one.origin} but {other.origin}: one {one.fact.value} expected{hint}"
        if one.trust is Trust.ASKED:
            verb = "leave out" if is_typed(one) else "unset"
            leave = f"{verb} {_name_only(one.origin)}"
            # A variable of a user or an image may be the wrong one; a platform's variable cannot be unset
            by_hand = f"unset {_name_only(other.origin)}, or {leave}"
            manual = f"{leave}, or pass --source manual to go by the flags alone"
            self.contradiction(what, by_hand if other.source == DEFAULTS else manual)
        else:
            flag = f", or pass {FLAG_OF[one.fact]}" if one.fact in FLAG_OF and not self.speakers else ""
            names = [word for c in (one, other) if (word := _name_only(c.origin)).isupper()]
            wrong = (
                f"unset {' or '.join(names)}"
                if len(names) == 1
                else f"unset the wrong one, {' or '.join(names)}"
            )
            sources = " and ".join(dict.fromkeys((one.source, other.source)))
            where = f"environment, source{'s' if ' ' in sources else ''} {sources}"
            self.contradiction(what, f"{wrong}{flag}", where)


def is_typed(claim: Claim) -> bool:
    """Whether a claim is a flag on this command line (``torchrun --nnodes 2``) and not a variable."""
    return _name_only(claim.origin).startswith("-")


def _name_only(origin: str) -> str:
    """Return the flag or variable in an origin, which may begin with the command that the flag belongs to."""
    words = origin.replace("=", " ", 1).split(" ")
    return next((word for word in words[:3] if word.startswith("-")), words[0])


def _find_speakers(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Return the sources about this very process, the starter first; empty without a starter.

    A WORLD_SIZE of 1 does not show a starter, because images have it as a default.
    """
    found: list[str] = []
    rank: Value | None = None
    world: Value | None = None
    for item in evidence:
        known = {claim.fact: claim.value for claim in item.claims if claim.fact in STARTED}
        if not known or (item.source == DEFAULTS and known.get(Fact.WORLD_SIZE, 1) == 1):
            continue
        if not found:
            rank, world = known.get(Fact.RANK), known.get(Fact.WORLD_SIZE)
            found.append(item.source)
        elif rank == known.get(Fact.RANK) and None in (worlds := (world, known.get(Fact.WORLD_SIZE))):
            found.append(item.source)
            world = next((value for value in worlds if value is not None), None)
        elif (rank, world) == (known.get(Fact.RANK), known.get(Fact.WORLD_SIZE)):
            found.append(item.source)
    return tuple(found)


def _values(claims: Sequence[Claim]) -> set[Value]:
    return {claim.value for claim in claims}


def sift_sizes(ledger: Ledger) -> None:
    """Leave out an inherited node_count and local_size that nothing proves.

    Like `sift_node`, this is for a launcher that was started once per process.
    """
    _sift_count(ledger)
    _sift_size(ledger)


def _sift_count(ledger: Ledger) -> None:
    """Leave out a node_count that the job's processes do not fill evenly: it may be an outer job's."""
    world, size = ledger.number(Fact.WORLD_SIZE), _known_size(ledger)
    even = {item.source for item in ledger.evidence if item.even}  # for these another size is a contradiction
    for claim in list(_inherited(ledger, Fact.NODE_COUNT)):
        count = claim.value
        # One node, or more than half of the processes here: correct, or reported elsewhere as a contradiction
        if not world or not size or not isinstance(count, int) or 1 in (count, world // size):
            continue
        if count * size != world and count - 1 <= world - size and claim.source not in even:
            hosts = [other for other in ledger.about(Fact.HOSTS) if other.source == claim.source]
            why = f"{size} of {world} processes run on this node, which does not prove this number of nodes"
            ledger.leave_out([claim, *hosts], why)


def _sift_size(ledger: Ledger) -> None:
    """Leave out an inherited local_size whose product with node_count is not world_size.

    Nothing is left out if a source about this process states local_size.
    """
    world, nodes = ledger.number(Fact.WORLD_SIZE), ledger.number(Fact.NODE_COUNT)
    wrong = [
        claim
        for claim in _inherited(ledger, Fact.LOCAL_SIZE)
        if _states(ledger, Fact.LOCAL_SIZE) is None
        and not (world and nodes and isinstance(claim.value, int) and claim.value * nodes == world)
    ]
    ledger.leave_out(wrong, "nothing proves that it is this node's")


def sift_node(ledger: Ledger, is_own: Callable[..., bool]) -> None:
    """Leave out a node_rank that nothing proves; report one that does not fit the rank and the sizes.

    Args:
        ledger: Each fact with its provenance.
        is_own: Function that tells whether one of some names and addresses is literally this node's.
    """
    if _states(ledger, Fact.NODE_RANK) is not None:
        return
    places = _list_places(ledger)
    counts = ledger.about(Fact.NODE_COUNT)
    is_own_job = bool(counts) and counts[0].value == 1 and is_typed(counts[0])
    for claim in list(_inherited(ledger, Fact.NODE_RANK)):
        if is_own_job and claim.trust is not Trust.ASKED:
            ledger.leave_out([claim], f"{counts[0].origin}: this node is a job of its own")
        elif _is_of_another(ledger, claim, is_own):
            ledger.leave_out([claim], "it is of another node: its own list has this one elsewhere")
        elif places is None:
            ledger.leave_out([claim], "it is inherited, and nothing proves that it is this node's")
        elif claim.value not in places:
            _refuse_or_leave(ledger, claim)
        elif claim.value != places[0]:
            ledger.leave_out([claim], f"this rank may be on node {places[0]} or {places[1]}")
    for claim in ledger.about(Fact.NODE_RANK):
        if (
            claim.trust is Trust.ASKED
            and is_typed(claim)
            and places is not None
            and claim.value not in places
        ):
            _refuse_or_leave(ledger, claim)


def _is_of_another(ledger: Ledger, claim: Claim, is_own: Callable[..., bool]) -> bool:
    """Whether the list of hosts of the source of a node_rank has this node at another place."""
    of_source = (c.value for c in ledger.about(Fact.HOSTS) if c.source == claim.source)
    listed = next((hosts for hosts in of_source if isinstance(hosts, tuple)), ())
    places = [place for place, name in enumerate(listed) if is_own(name)]
    return bool(places) and claim.value not in places


def _refuse_or_leave(ledger: Ledger, claim: Claim) -> None:
    """Report a node_rank that does not fit; only leave it out if it is from a host list.

    A host list may have another order than the ranks.
    """
    if claim.trust is Trust.DERIVED:
        ledger.leave_out([claim], "its list orders the nodes differently from the ranks")
        return
    ledger.settle(Fact.LOCAL_SIZE)
    rank, size = ledger.origin(Fact.RANK), ledger.origin(Fact.LOCAL_SIZE)
    verb = "leave out" if is_typed(claim) else "unset"
    ledger.contradiction(
        f"{claim.origin} but {rank} with {size} on each node: node {claim.value} has no such rank",
        f"{verb} {claim.origin.replace('=', ' ').split(' ', 1)[0]}: it is another node's",
    )


def _list_places(ledger: Ledger) -> list[int] | None:
    """Return the nodes that can have this rank, that of placement in blocks first.

    None if numbers are missing, or if nodes may run different numbers of processes.
    """
    rank, local = ledger.number(Fact.RANK), ledger.number(Fact.LOCAL_RANK)
    world, size = ledger.number(Fact.WORLD_SIZE), _known_size(ledger)
    nodes = ledger.number(Fact.NODE_COUNT)
    if rank is None or local is None or not size or not nodes or world != nodes * size:
        return None
    places = list(dict.fromkeys(node for node in find_node(rank, local, size, nodes) if node is not None))
    return places or ([rank // size] if is_by_domain(rank, local, size) else [])


def _known_size(ledger: Ledger) -> int | None:
    """Return the best claimed local_size that is a number, without settling it; None if there is none."""
    return next((c.value for c in ledger.about(Fact.LOCAL_SIZE) if isinstance(c.value, int)), None)


def _states(ledger: Ledger, fact: Fact) -> object:
    """Return the value that the sources about this process state for a fact; None if they state none."""
    return next((c.value for c in ledger.about(fact) if c.source in ledger.speakers), None)


def _inherited(ledger: Ledger, fact: Fact) -> Iterator[Claim]:
    return (claim for claim in ledger.about(fact) if ledger.is_inherited(claim))


def name_fact(fact: Fact) -> str:
    """Return a fact with its article, as people call it: ``a node rank``."""
    names = {Fact.NODE_COUNT: "number of nodes", Fact.MASTER_ADDR: "master address"}
    return f"a {names.get(fact) or fact.value.replace('_', ' ')}"


def say_needs(origins: Sequence[str]) -> str:
    """Return the start of a sentence about what a job lacks: ``--nnodes 2 needs``."""
    return f"{', '.join(origins) or 'the job'} need{'' if len(origins) > 1 else 's'}"
