"""Reader of variables: one `Reader` per source records what it read, claimed and refused.

A source decides what a variable *means*; this module parses, checks and records it. An empty variable counts
as unset everywhere: platforms template ``MASTER_ADDR=""`` into images, and no fact of a job is an empty text.
"""

from __future__ import annotations

from launcher.core.environ import PORT_LIMIT, Source, parse_host_port, parse_hosts, parse_int, shorten
from launcher.core.errors import make_problem
from launcher.core.model import Claim, Fact, Trust
from launcher.core.mpi import STARTED
from launcher.identity.ledger import IDENTITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from launcher.core.model import Value
    from launcher.machine.host import Host

    Parsed = TypeVar("Parsed")
    Stated = TypeVar("Stated", bound=Value)


def short(host: str) -> str:
    """Return a host without its domain."""
    return host.partition(".")[0]


OF_PROCESS = (*IDENTITY, Fact.MASTER_PORT)
AT_LEAST_ONE = (Fact.WORLD_SIZE, Fact.LOCAL_SIZE, Fact.NODE_COUNT, Fact.MASTER_PORT)
"""Numbers that are never 0."""


class Reader(Source):
    """Recorder of one source: the variables it reads, its claims and its problems.

    ``environ``: the environment; `launcher.sources.gather` passes it without empty variables.
    ``starts_job``: we start the processes of all nodes, so nodes count even if nothing was started there.
    ``is_named``: the user named this source (``--source``), and no other one is asked.
    ``read_before``: names that sources nearer to the process have read.
    """

    starts_job = is_named = False
    read_before: frozenset[str] = frozenset()

    def __init__(self, source: str, environ: Mapping[str, str], host: Host, node_count: int | None) -> None:
        super().__init__(source, node_count)
        self.environ = environ
        self.host = host
        self.names: set[str] = set()
        self._origins: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        """Return a variable, or None if it is unset or empty."""
        value = self.environ.get(name)
        if not value:
            return None
        self.names.add(name)
        return value

    def has(self, *names: str) -> bool:
        """Whether one of some variables is set and not empty."""
        return self.first(*names) is not None

    def first(self, *names: str) -> str | None:
        """Return the first of some variables that is set and not empty; None if none is."""
        return next((name for name in names if self.text(name) is not None), None)

    def is_started(self) -> bool:
        """Whether a starter numbers the processes (mpirun, srun): it passes on what its own node has."""
        return self.has(*STARTED)

    def own_name(self) -> str:
        """Return this node's name, without its domain."""
        return short(self.host.hostname())

    def find_ancestor(self, *programs: str) -> tuple[str, ...]:
        """Return the command line of the nearest ancestor that is one of some programs; empty without one."""
        lines = (line for line in self.host.ancestors() if line and line[0].rpartition("/")[2] in programs)
        return next(lines, ())

    def matching(self, prefix: str, suffix: str) -> list[str]:
        """Return the names of variables that are set and match ``PREFIX?*SUFFIX``, sorted."""
        least = len(prefix) + len(suffix)
        names = [n for n in self.environ if n.startswith(prefix) and n.endswith(suffix) and len(n) > least]
        return sorted(name for name in names if self.has(name))

    def unread(self, end: str) -> list[str]:
        """Return the sorted names of variables with a suffix that no nearer source has read."""
        return sorted(n for n in self.environ if n.endswith(end) and n not in self.read_before)

    def parsed(self, name: str, parse: Callable[[str], Parsed]) -> Parsed | None:
        """Return what a function makes of a variable; None if unset, None and a problem if it refuses."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.malformed(name, str(error))
            return None

    def integer(self, name: str, minimum: int = 0, *limit: int) -> int | None:
        """Return a variable as an integer; None if unset, None and a problem if malformed."""
        return self.parsed(name, lambda text: parse_int(text, minimum, *limit))

    def claim_parsed(
        self, fact: Fact, name: str, parse: Callable[[str], Stated], trust: Trust = Trust.STATED
    ) -> Stated | None:
        """State a fact from a variable; return what a function makes of it, as `parsed` does."""
        value = self.parsed(name, parse)
        if value is not None:
            self.claim(fact, value, name, trust)
        return value

    def claim_int(
        self, fact: Fact, name: str, minimum: int | None = None, trust: Trust = Trust.STATED
    ) -> int | None:
        """State a fact from a variable with a number; return the number, or None if unset or malformed.

        ``minimum`` is 1 for counts and ports, and 0 for indices, if it is not given.
        """
        limit = (PORT_LIMIT,) if fact is Fact.MASTER_PORT else ()
        least = int(fact in AT_LEAST_ONE) if minimum is None else minimum
        return self.claim_parsed(fact, name, lambda text: parse_int(text, least, *limit), trust)

    def claim_numbers(
        self, names: Iterable[tuple[Fact, str]], trust: Trust = Trust.STATED
    ) -> list[int | None]:
        """State a fact from each of some variables; return the numbers."""
        return [self.claim_int(fact, name, trust=trust) for fact, name in names]

    def claim_process(self, names: Sequence[str]) -> list[int | None]:
        """State the facts of `OF_PROCESS`, or the first of them, from a variable each; return the numbers."""
        return self.claim_numbers(zip(OF_PROCESS, names))  # noqa: B905 - there may be fewer names

    def set_least(self, index: int, name: str) -> None:
        """State that this node's rank is not below a variable's index."""
        self.least = Claim(Fact.NODE_RANK, index, self.origin(name), self.source, Trust.STATED)

    def confirm(self, name: str, value: int | None, said: str) -> None:
        """Report a variable whose number differs from ``value``, which ``said`` gives."""
        found = self.integer(name) if value is not None else None
        if found is not None and found != value:
            self.contradict(name, said, f"{self.origin(said)}: expected the same number")

    def contradict(self, name: str, other: str, what: str) -> None:
        """Report two variables of which one is wrong; ``what`` describes the other one."""
        self.refuse("two-variables", name, what=what, other=other)

    def claim_host(self, fact: Fact, name: str, trust: Trust = Trust.STATED) -> str | None:
        """State a fact from a variable with a host; a port after it is dropped."""
        return self.claim_parsed(fact, name, lambda text: parse_host_port(text)[0], trust)

    def hosts(self, name: str, separator: str | None = ",") -> tuple[str, ...]:
        """Return a variable as a list of hosts; empty if unset, empty and a problem if malformed."""
        return self.parsed(name, lambda text: parse_hosts(text, separator)) or ()

    def malformed(self, name: str, expected: str) -> None:
        """Report a variable with a malformed value."""
        self.refuse("malformed-variable", name, expected=expected)

    def note(self, sentence: str) -> None:
        """Add a note for ``launcher plan``."""
        self.notes.append(sentence)

    def refuse(self, row: str, name: str, **values: object) -> None:
        """Report the problem of a row of ``errors.txt`` with a variable."""
        of_name = {"source": self.source, "value": self.origin(name), "name": name}
        self.problems.append(make_problem(row, **of_name, **values))

    def origin(self, name: str) -> str:
        """Return ``NAME='value'`` for a variable that is set, else the text as it is."""
        value = self.environ.get(name)
        if value is None:
            return name
        if name not in self._origins:  # a long value is searched for secrets
            self._origins[name] = f"{name}={shorten(value)!r}"
        return self._origins[name]
