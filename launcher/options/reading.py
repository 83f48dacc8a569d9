"""What the user asked for: flags, LAUNCHER_* variables, torchrun's PET_* and files of defaults, as one value.

A flag beats its variable; both beat whatever the platform says. A file is below all variables
(`launcher.options.config`). The table is `launcher.options.flags`.
"""

from __future__ import annotations

from launcher.core.environ import MEETS_AT_MASTER, Malformed, Reader, is_loopback, parse_host_port, shorten
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.model import Evidence, Fact, Trust
from launcher.machine.host import Host
from launcher.options.flags import (
    EMPTY_IS_UNSET,
    EXCLUDES,
    FLAGS,
    NEEDS,
    PREFIX,
    ROLE_FLAGS,
    TENSORFLOW,
    Flag,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

PET_PREFIX = "PET_"
DEFAULT_GRACE_S = 30.0
AGENTS = ("TORCHELASTIC_RUN_ID", "LAUNCHER_LAUNCHED")
"""In a worker PET_* are what its agent was told, not what we are; and its agent has read the files."""
ETC, CONFIG = "/etc/launcher.conf", "LAUNCHER_CONFIG"
DEFAULTS = "config"
"""The source of the facts that such files state."""


@frozen
class Given:
    """A value that the user gave, how (``--nnodes 2`` or ``LAUNCHER_NNODES='2'``), and as which text."""

    value: object
    origin: str
    text: str = ""

    @property
    def is_typed(self) -> bool:
        """Whether it stands on the command line."""
        return self.origin.startswith("-")

    @property
    def is_platforms(self) -> bool:
        """Whether a platform set it for torchrun (PET_*), and no user for us."""
        return self.origin.startswith(PET_PREFIX)


@frozen
class Files:
    """What files of defaults say.

    Attributes:
        given: By the name of the flag; where two files say it, the one that goes before the other.
        notes: Which lines are not used, and why.
        warnings: Which file is not used.
    """

    given: Mapping[str, Given] = {}
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Options:
    """What the user asked for; absent where nothing was asked."""

    def __init__(self, given: Mapping[str, Given] | None = None, files: Files | None = None) -> None:
        self._given = dict(given or {})
        self.files = files or Files()

    def get(self, dest: str) -> Given | None:
        """Return what was given for a flag."""
        return self._given.get(dest)

    def text(self, dest: str, default: str = "") -> str:
        """Return a flag's value as text."""
        given = self._given.get(dest)
        return default if given is None else str(given.value)

    def given_text(self, dest: str) -> str:
        """Return a flag's value as it was written; empty if it was not given."""
        given = self._given.get(dest)
        return "" if given is None else given.text

    def number(self, dest: str, default: float) -> float:
        """Return a flag's numeric value."""
        given = self._given.get(dest)
        return float(given.value) if given and isinstance(given.value, (int, float)) else default

    def switch(self, dest: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        given = self._given.get(dest)
        return default if given is None else bool(given.value)

    def pairs(self, dest: str) -> tuple[tuple[int, int], ...]:
        """Return the value of a flag that holds pairs of numbers."""
        return self._tuple(dest) or ()

    def streams(self, dest: str) -> tuple[tuple[int | None, int], ...]:
        """Return (local rank or None for all, bits) of ``--redirects`` or ``--tee``."""
        return self._tuple(dest) or ()

    def numbers(self, dest: str) -> tuple[int, ...] | None:
        """Return the value of a flag that holds a list of numbers, None if it was not given."""
        return self._tuple(dest)

    def words(self, dest: str) -> tuple[str, ...]:
        """Return the value of a flag that holds several texts; empty if it was not given."""
        return self._tuple(dest) or ()

    def _tuple(self, dest: str) -> tuple[Any, ...] | None:
        given = self._given.get(dest)
        return given.value if given and isinstance(given.value, tuple) else None

    @property
    def framework(self) -> str:
        """The framework that the job is named to be of, or plainly is; empty if neither."""
        if any(dest in self._given for dest in TENSORFLOW):
            return "tensorflow"
        return self.text("framework", "auto").replace("auto", "")

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL, as we have it or as torchrun has it."""
        return self.number("grace", self.number("shutdown_timeout", DEFAULT_GRACE_S))

    def origins(self, *dests: str) -> list[str]:
        """Return how these flags were given, those that were and that are not switched off."""
        found = [self._given[dest] for dest in dests if dest in self._given]
        return [given.origin for given in found if given.value]

    def with_inner(self, inner: Options) -> Options:
        """Return these options, less what ``inner`` (nearer to the processes) says otherwise."""
        return Options({**self._given, **inner._given}, self.files)

    def without(self, *dests: str) -> Options:
        """Return these options less some flags."""
        kept = {dest: given for dest, given in self._given.items() if dest not in dests}
        return Options(kept, self.files)

    def without_platforms(self) -> Options:
        """Return these options without what a platform set for torchrun's agent alone."""
        agents = {flag.dest for flag in FLAGS if flag.group == "torchrun"}
        kept = {d: g for d, g in self._given.items() if not (d in agents and g.is_platforms)}
        return Options(kept, self.files)

    def defaults(self) -> Evidence:
        """Return the facts that files of defaults state, as the outermost source."""
        reader = Reader(DEFAULTS, {}, Host())
        for flag in FLAGS:
            given = self.files.given.get(flag.dest) if flag.fact is not None else None
            if flag.fact is not None and given is not None and isinstance(given.value, (int, str)):
                # A number of processes goes before the visible GPUs, a port not before one that is free
                trust = Trust.STATED if flag.fact is Fact.PROCESSES_PER_NODE else Trust.INDIRECT
                reader.claim(flag.fact, given.value, given.origin, trust)
        return reader.evidence()

    def evidence(self) -> Evidence:
        """Return the flags that state facts, as the innermost source: the user wins."""
        reader = Reader("manual", {}, Host())
        reader.even = True  # the user names the nodes to answer how many processes each has
        if not self._is_platforms("standalone"):
            _claim_standalone(reader, self._given.get("standalone"))
        backend = self.text("rdzv_backend", "static")
        if not self._is_platforms("rdzv_endpoint") and backend in MEETS_AT_MASTER:
            _claim_endpoint(
                reader, self._given.get("rdzv_endpoint"), C10D_PORT if backend == "c10d" else None
            )
        for flag in FLAGS:
            given = self._given.get(flag.dest)
            if flag.fact is not None and given is not None and isinstance(given.value, (int, str)):
                is_range = flag.fact is Fact.NODE_COUNT and isinstance(given.value, str)
                reader.claim(
                    Fact.NODE_RANGE if is_range else flag.fact, given.value, given.origin, Trust.ASKED
                )
        self._sign_lone_master(reader)
        return reader.evidence()

    def _is_platforms(self, dest: str) -> bool:
        given = self._given.get(dest)
        return given is not None and given.is_platforms

    def _sign_lone_master(self, reader: Reader) -> None:
        rank = self._given.get("node_rank")
        if self._given.keys() & {"nnodes", "standalone"} or (rank is not None and rank.value != 0):
            return
        for dest in ("rdzv_endpoint", "master_addr"):
            given = self._given.get(dest)
            if given and not given.is_platforms and not is_loopback(parse_host_port(given.text, 0)[0]):
                fix = "pass --nnodes N --node-rank R as well (--nnodes 1 for a single machine)"
                reader.sign(given.origin, fix)
                return


C10D_PORT = 29400
"""Where torchrun's c10d rendezvous is, by default."""


def _claim_standalone(reader: Reader, given: Given | None) -> None:
    """One node, whatever the platform says; port 0 stands for one that is free."""
    if given is not None and given.value:
        reader.claim(Fact.NODE_COUNT, 1, given.origin, Trust.ASKED)
        reader.claim(Fact.NODE_RANK, 0, given.origin, Trust.ASKED)
        reader.claim(Fact.MASTER_ADDR, "127.0.0.1", given.origin, Trust.ASKED)
        reader.claim(Fact.MASTER_PORT, 0, given.origin, Trust.ASKED)


def _claim_endpoint(reader: Reader, given: Given | None, default_port: int | None) -> None:
    if given is not None:
        host, named = parse_host_port(given.text, 0)
        port = default_port if named is None else named
        reader.claim(Fact.MASTER_ADDR, host, given.origin, Trust.ASKED)
        if port is not None:
            reader.claim(Fact.MASTER_PORT, port, given.origin, Trust.ASKED)


def read_options(
    typed: Mapping[str, str | bool], environ: Mapping[str, str], host: Host | None = None
) -> Options:
    """Combine typed flags (dest to text, or True for a switch) with variables and files.

    Args:
        typed: What was typed.
        environ: The environment.
        host: Whose files of defaults count; None for none.

    Raises:
        UsageError: Values that are not what they should be, all at once.
    """
    given: dict[str, Given] = {}
    files, problems = _read_files(environ, host)
    pets = _honours_pet(typed, environ)
    for flag in FLAGS:
        text, name = _look_up(flag, typed, environ, pets)
        if text is None:
            continue
        shown = "..." if flag.secret else text
        typed_as = (
            f"{flag.name} {shown}" if flag.parse else flag.name if text == "1" else f"--no-{flag.name[2:]}"
        )
        origin = typed_as if name == flag.name else f"{name}={shorten(shown)!r}"
        try:
            value = flag.parse(text) if flag.parse else is_on(text)
        except Malformed as error:
            where = "command line" if name == flag.name else "environment"
            problems.append(
                Problem("malformed-flag", f"{origin}: expected {error}", where, f"correct {name}")
            )
            continue
        given[flag.dest] = Given(value, origin, text)
    _settle_standalone(given)
    problems += _find_conflicts(given)
    if problems:
        raise UsageError(*problems)
    return _add_defaults(given, files) if files else Options(given)


def _read_files(environ: Mapping[str, str], host: Host | None) -> tuple[Files | None, list[Problem]]:
    """Return what files of defaults say, None without one, and what is wrong with them."""
    if host is None or any(environ.get(name) for name in AGENTS):
        return None, []
    if not environ.get(CONFIG) and not host.has_file(ETC):
        return None, []
    from launcher.options.config import read_files

    return read_files(environ, host)


def _add_defaults(given: dict[str, Given], files: Files) -> Options:
    """Return options with the defaults of files; those that state facts are a source of their own."""
    facts = {flag.dest for flag in FLAGS if flag.fact is not None}
    beaten = {one: two for pair in EXCLUDES for one, two in (pair, pair[::-1]) if two in given}
    notes = list(files.notes)
    defaults: dict[str, Given] = {}
    for dest, default in files.given.items():
        if dest in facts:
            continue  # a plan shows what came of them anyhow
        winner = given.get(dest) or given.get(beaten.get(dest, ""))
        notes.append(f"{default.origin} is not used: {winner.origin}" if winner else default.origin)
        if winner is None:
            defaults[dest] = default
    return Options({**defaults, **given}, Files(files.given, tuple(notes), files.warnings))


def _settle_standalone(given: dict[str, Given]) -> None:
    """Take a range of nodes that may be one as one, where a job is standalone: no other node can join it."""
    alone, nodes = given.get("standalone"), given.get("nnodes")
    if alone and alone.value and nodes and str(nodes.value).startswith("1:"):
        given["nnodes"] = Given(1, nodes.origin, "1")


def _find_conflicts(given: Mapping[str, Given]) -> Iterator[Problem]:
    """Yield the flags that were typed and would do nothing as the others are.

    What a variable says may stand in an image, for jobs of other kinds; but two of torchrun's variables are
    for one job, and torchrun refuses them, too.
    """
    for dest, (other, value) in NEEDS.items():
        one, two = given.get(dest), given.get(other)
        if one is not None and one.is_typed and (two is None or value not in ("", two.value)):
            needed = next(f"{flag.name} {value or flag.metavar}" for flag in FLAGS if flag.dest == other)
            found = f", and there is {two.origin}" if two is not None else ""
            yield Problem(
                "flag-conflict",
                f"{one.origin} does nothing without {needed}{found}",
                "command line",
                f"pass {needed}, or leave out {one.origin}",
            )
    for dest, other in EXCLUDES:
        one, two = given.get(dest), given.get(other)
        if not (one and two and one.value and two.value):
            continue
        if one.is_typed or two.is_typed or (one.is_platforms and two.is_platforms):
            yield _exclude(one, two)
    looks, demand = given.get("meeting"), given.get("require_meeting")
    if looks and demand and demand.value and not looks.value and (looks.is_typed or demand.is_typed):
        yield _exclude(looks, demand)
    each = given.get("nproc_per_node")
    if each is not None and each.is_typed:  # roles say how many tasks there are, and where
        yield from (_exclude(each, given[dest]) for dest in ROLE_FLAGS if dest in given)
    named = given.get("framework")
    if named is not None and named.is_typed and named.value not in ("auto", "tensorflow"):
        mine = [given[dest] for dest in TENSORFLOW if dest in given]
        yield from (_exclude(named, one) for one in mine if one.is_typed)
    forced, required = given.get("fabric"), given.get("require_fabric")
    typed = [one for one in (forced, required) if one is not None and one.is_typed]
    if forced and required and typed and forced.value not in ("auto", required.value):
        what = f"{forced.origin} but {required.origin}: the job cannot use the one and have the other"
        yield Problem("flag-conflict", what, "command line and environment", "leave out one of them")
    alone, nodes, rank = (given.get(dest) for dest in ("standalone", "nnodes", "node_rank"))
    if alone is not None and alone.value:
        more = [two for two, value in ((nodes, 1), (rank, 0)) if two and two.is_typed and two.value != value]
        yield from (_exclude(alone, two) for two in more)


def _exclude(one: Given, two: Given) -> Problem:
    what = f"{one.origin} and {two.origin}: one of them would be ignored"
    return Problem("flag-conflict", what, "command line and environment", "leave out one of them")


def _honours_pet(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> bool:
    """Whether PET_* are for us: not in a worker, and not if another source is the only one to believe."""
    only = typed.get("source") or environ.get(f"{PREFIX}SOURCE") or "torch_agent"
    return only == "torch_agent" and not any(environ.get(name) for name in AGENTS)


def _look_up(
    flag: Flag, typed: Mapping[str, str | bool], environ: Mapping[str, str], pets: bool
) -> tuple[str | None, str]:
    """Return what was given for a flag, and under which name."""
    value = typed.get(flag.dest)
    if isinstance(value, bool):
        return str(int(value)), flag.name
    if isinstance(value, str) and (value or flag.dest not in EMPTY_IS_UNSET):
        return value, flag.name
    if environ.get(flag.variable):
        return environ[flag.variable], flag.variable
    pet = PET_PREFIX + flag.dest.upper()
    return (environ.get(pet) or None if flag.pet and pets else None), pet


def is_on(text: str) -> bool:
    """Return whether a switch is on.

    Raises:
        Malformed: A word that says neither.
    """
    if text.lower() not in ("0", "1", "true", "false"):
        raise Malformed("0, 1, false or true")
    return text.lower() in ("1", "true")
