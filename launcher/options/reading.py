"""The user's options: flags, LAUNCHER_* variables, torchrun's PET_* and files of defaults in one value.

A flag wins over its variable, and both win over the platform. A file of defaults (`launcher.options.config`)
has a lower priority than any variable. The table of flags is `launcher.options.flags`.
"""

from __future__ import annotations

import os

from launcher.core.environ import (
    MEETS_AT_MASTER,
    Malformed,
    Source,
    is_loopback,
    leave_out_services,
    parse_host_port,
    shorten,
)
from launcher.core.errors import UsageError, make_problem
from launcher.core.model import Evidence, Fact, Trust
from launcher.core.supervision import GRACE_S
from launcher.options.flags import EXCLUDES, FLAGS, NEEDS, PREFIX, ROLE_FLAGS, TENSORFLOW, Flag
from launcher.options.given import CONFIG, ETC, NEAR, PET_PREFIX, Files, Given
from launcher.options.quick import read_quickly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence
    from typing import Any

    from launcher.core.errors import Problem
    from launcher.machine.host import Host

AGENTS = ("TORCHELASTIC_RUN_ID", "LAUNCHER_LAUNCHED")
"""Variables of a worker. There PET_* are options of its agent, which has also read the files of defaults."""
VARIABLES = {prefix + flag.dest.upper(): flag.dest for prefix in (PREFIX, PET_PREFIX) for flag in FLAGS}
"""Variables that may set a flag, and that flag."""
FIELDS = {flag.dest: flag.sets.split(".") for flag in FLAGS if flag.sets}
"""For flags whose value is a field of a plan as it is: the part with the field, and the field."""
FACTS = {flag.dest: flag.fact for flag in FLAGS if flag.fact is not None}
SCRIPTS = (".py", ".sh")
C10D_PORT = 29400
"""Default port of torchrun's c10d rendezvous."""
DEFAULTS = "config"
"""Name of the source of facts from files of defaults."""


class Options:
    """The user's options; a flag that was not given is absent."""

    def __init__(self, given: Mapping[str, Given] | None = None, files: Files | None = None) -> None:
        self._given = dict(given or {})
        self.files = files or Files()
        self._evidence: Evidence | None = None

    def get(self, dest: str) -> Given | None:
        """Return the given value of a flag; None if it was not given."""
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

    def words(self, dest: str) -> tuple[Any, ...]:
        """Return the value of a flag that holds several items; empty if it was not given."""
        given = self._given.get(dest)
        return given.value if given and isinstance(given.value, tuple) else ()

    def fields(self, part: str) -> dict[str, Any]:
        """Return the values of the given flags that set fields of a part of `Supervision`, by field."""
        places = ((FIELDS[dest], given) for dest, given in self._given.items() if dest in FIELDS)
        return {field: given.value for (of, field), given in places if of == part and given.value != ""}

    @property
    def framework(self) -> str:
        """The framework that ``--framework`` or a TensorFlow flag names; empty if none does."""
        if any(dest in self._given for dest in TENSORFLOW):
            return "tensorflow"
        return self.text("framework", "auto").replace("auto", "")

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL: ``--grace``, or torchrun's ``--shutdown-timeout``."""
        return self.number("grace", self.number("shutdown_timeout", GRACE_S))

    @property
    def roll_call_s(self) -> float:
        """Seconds that the launchers of a job wait for each other."""
        return self.number("roll_call_timeout", 900.0)

    def origins(self, *dests: str) -> list[str]:
        """Return the origins of the given flags that are not switched off."""
        found = [self._given[dest] for dest in dests if dest in self._given]
        return [given.origin for given in found if given.value]

    def spell(self, dests: Container[str]) -> list[str]:
        """Return the given flags as words for another launcher's command line."""
        words = []
        for flag in FLAGS:
            given = self._given.get(flag.dest)
            if given is not None and flag.dest in dests and (given.text if flag.parse else given.value):
                words.append(f"{flag.name}={given.text}" if flag.parse else flag.name)
        return words

    def with_inner(self, inner: Options) -> Options:
        """Return these options merged with ``inner`` (nearer to the processes), which wins."""
        return Options({**self._given, **inner._given}, self.files)

    def without(self, *dests: str) -> Options:
        """Return these options without some flags."""
        kept = {dest: given for dest, given in self._given.items() if dest not in dests}
        return Options(kept, self.files)

    def without_platforms(self) -> Options:
        """Return these options without those that a platform set for torchrun's agent only."""
        agents = {flag.dest for flag in FLAGS if flag.group == "torchrun"}
        kept = {d: g for d, g in self._given.items() if not (d in agents and g.is_platforms)}
        return Options(kept, self.files)

    def defaults(self) -> Evidence:
        """Return the facts in files of defaults, as the outermost source."""
        source = Source(DEFAULTS)
        for fact, value, origin in _list_facts(self.files.given):
            # A process count wins over the number of visible GPUs; a port does not win over a free port.
            trust = Trust.STATED if fact is Fact.PROCESSES_PER_NODE else Trust.INDIRECT
            source.claim(fact, value, origin, trust)
        return source.evidence()

    def evidence(self) -> Evidence:
        """Return the flags that state facts, as the innermost source: the user wins."""
        self._evidence = self._evidence or self._state()
        return self._evidence

    def _state(self) -> Evidence:
        source = Source("manual")
        source.even = True  # the user's nodes all have the same number of processes
        alone = self._given.get("standalone")
        if alone and alone.value and not alone.is_platforms:  # one node, whatever the platform says
            address = (Fact.MASTER_ADDR, "127.0.0.1"), (Fact.MASTER_PORT, 0)
            for fact, value in ((Fact.NODE_COUNT, 1), (Fact.NODE_RANK, 0), *address):
                source.claim(fact, value, alone.origin, Trust.ASKED)
        backend, endpoint = self.text("rdzv_backend", "static"), self._given.get("rdzv_endpoint")
        if endpoint and not endpoint.is_platforms and backend in MEETS_AT_MASTER:
            host, port = parse_host_port(endpoint.text, 0)
            source.claim(Fact.MASTER_ADDR, host, endpoint.origin, Trust.ASKED)
            port = C10D_PORT if port is None and backend == "c10d" else port
            if port is not None:
                source.claim(Fact.MASTER_PORT, port, endpoint.origin, Trust.ASKED)
        for fact, value, origin in _list_facts(self._given):
            is_range = fact is Fact.NODE_COUNT and isinstance(value, str)
            source.claim(Fact.NODE_RANGE if is_range else fact, value, origin, Trust.ASKED)
        self._sign_lone_master(source)
        return source.evidence()

    def _sign_lone_master(self, source: Source) -> None:
        rank = self._given.get("node_rank")
        if self._given.keys() & {"nnodes", "standalone"} or (rank is not None and rank.value != 0):
            return
        for dest in ("rdzv_endpoint", "master_addr"):
            given = self._given.get(dest)
            if given and not given.is_platforms and not is_loopback(parse_host_port(given.text, 0)[0]):
                fix = "pass --nnodes N --node-rank R as well (--nnodes 1 for a single node)"
                source.sign(given.origin, fix, of_nodes=False)
                return


def _list_facts(given: Mapping[str, Given]) -> Iterator[tuple[Fact, int | str, str]]:
    """Yield each fact that a flag states, with its value and its origin."""
    for dest, fact in FACTS.items():
        one = given.get(dest)
        if one is not None and isinstance(one.value, (int, str)):
            yield fact, one.value, one.origin


def read_options(
    typed: Mapping[str, str | bool],
    environ: Mapping[str, str],
    host: Host | None = None,
    command: Sequence[str] | None = None,
) -> Options:
    """Combine typed flags (dest to text, or True for a switch) with variables and files.

    Args:
        typed: The flags on the command line.
        environ: The environment.
        host: The machine with the files of defaults; None for no files.
        command: The command, whose script may have a ``launcher.toml`` beside it or above it; empty for one
            in the working directory or above, None for none.

    Raises:
        UsageError: Values are malformed or conflict; lists all of them.
    """
    given: dict[str, Given] = {}
    environ = leave_out_services(environ)
    files, problems = _read_files(environ, host, command)
    pets = _honours_pet(typed, environ)
    named = {*typed, *(VARIABLES[name] for name in VARIABLES.keys() & environ.keys())}
    for flag in [flag for flag in FLAGS if flag.dest in named]:
        text, name = _look_up(flag, typed, environ, pets)
        if text is None:
            continue
        shown = "..." if "secret" in flag.kinds else text
        typed_as = (
            f"{flag.name} {shown}" if flag.parse else flag.name if text == "1" else f"--no-{flag.name[2:]}"
        )
        origin = typed_as if name == flag.name else f"{name}={shorten(shown)!r}"
        try:
            value = flag.read(text)
        except Malformed as error:
            where = "command line" if name == flag.name else "environment"
            problems.append(
                make_problem("malformed-flag", where=where, origin=origin, expected=error, name=name)
            )
            continue
        given[flag.dest] = Given(value, origin, text)
    alone, nodes, spares = (given.get(dest) for dest in ("standalone", "nnodes", "spares"))
    if alone and alone.value and nodes and str(nodes.value).startswith("1:"):  # no other node can join it
        given["nnodes"] = nodes = Given(1, nodes.origin, "1")
    if nodes and spares and isinstance(nodes.value, int) and isinstance(spares.value, int) and spares.value:
        total = nodes.value + spares.value  # the platform's node count includes both
        given["nnodes"] = Given(total, f"{nodes.origin} {spares.origin}", str(total))
    problems += _find_conflicts(given)
    if problems:
        raise UsageError(*problems)
    return _add_defaults(given, files) if files else Options(given)


def _read_files(
    environ: Mapping[str, str], host: Host | None, command: Sequence[str] | None
) -> tuple[Files | None, list[Problem]]:
    """Return the content of the files of defaults (None if there is no file) and their problems."""
    if host is None or any(environ.get(name) for name in AGENTS):
        return None, []
    near = "" if command is None else find_beside(command, host)
    if not environ.get(CONFIG) and not near and not host.has_file(ETC):
        return None, []
    from launcher.options.config import read_files

    return read_files(environ, host, near)


def read_words(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str | bool], tuple[str, ...], bool]:
    """Return the typed flags and the command of ``launcher run``, and whether this is a dry run.

    Raises:
        UsageError: ARGV is not a valid command line.
    """
    quick = read_quickly(argv, environ)
    if quick is not None:
        return (*quick, False)
    from launcher.options.parser import read_run

    return read_run(argv, environ)


def find_beside(command: Sequence[str], host: Host) -> str:
    """Return the ``launcher.toml`` beside a command's script or in the nearest directory above; empty if
    none.

    A command without a script that can be seen has that of the working directory.
    """
    script = next((word for word in command if word.endswith(SCRIPTS)), "")
    try:
        folder = os.path.abspath(os.path.dirname(script))
    except OSError:  # the working directory was removed
        return ""
    while not host.has_file(os.path.join(folder, NEAR)):
        if folder == os.path.dirname(folder):
            return ""
        folder = os.path.dirname(folder)
    return os.path.join(folder, NEAR)


def _add_defaults(given: dict[str, Given], files: Files) -> Options:
    """Return options with the defaults of files, except facts, which `Options.defaults` returns."""
    beaten = {one: two for pair in EXCLUDES for one, two in (pair, pair[::-1]) if two in given}
    notes = list(files.notes)
    defaults: dict[str, Given] = {}
    for dest, default in files.given.items():
        if dest in FACTS:
            continue  # a plan shows facts and their provenance anyway
        winner = given.get(dest) or given.get(beaten.get(dest, ""))
        notes.append(f"{default.origin} is not used: {winner.origin}" if winner else default.origin)
        if winner is None:
            defaults[dest] = default
    return Options({**defaults, **given}, Files(files.given, tuple(notes), files.warnings))


def _find_conflicts(given: Mapping[str, Given]) -> Iterator[Problem]:
    """Yield a problem for each typed flag that the other options make ineffective.

    A conflict between variables only is no error: an image may set them for other kinds of jobs. Two PET_*
    variables describe one job, and torchrun refuses them too.
    """
    for dest, (other, value) in NEEDS.items():
        one, two = given.get(dest), given.get(other)
        if one is not None and one.is_typed and (two is None or value not in ("", two.value)):
            needed = next(f"{flag.name} {value or flag.metavar}" for flag in FLAGS if flag.dest == other)
            found = f", and there is {two.origin}" if two is not None else ""
            yield make_problem("flag-needs", asked=one.origin, needed=needed, found=found)
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
    if each is not None and each.is_typed:  # roles set the number and the nodes of the tasks
        yield from (_exclude(each, given[dest]) for dest in ROLE_FLAGS if dest in given)
    named = given.get("framework")
    if named is not None and named.is_typed and named.value not in ("auto", "tensorflow"):
        mine = [given[dest] for dest in TENSORFLOW if dest in given]
        yield from (_exclude(named, one) for one in mine if one.is_typed)
    forced, required = given.get("fabric"), given.get("require_fabric")
    typed = [one for one in (forced, required) if one is not None and one.is_typed]
    if forced and required and typed and forced.value not in ("auto", required.value):
        yield make_problem("two-fabrics", forced=forced.origin, required=required.origin)
    alone, nodes, rank = (given.get(dest) for dest in ("standalone", "nnodes", "node_rank"))
    if alone is not None and alone.value:
        more = [two for two, value in ((nodes, 1), (rank, 0)) if two and two.is_typed and two.value != value]
        yield from (_exclude(alone, two) for two in more)


def _exclude(one: Given, two: Given) -> Problem:
    return make_problem("two-flags", one=one.origin, other=two.origin)


def _honours_pet(typed: Mapping[str, str | bool], environ: Mapping[str, str]) -> bool:
    """Whether to read PET_*: not in a worker, and not if ``--source`` names another source."""
    only = typed.get("source") or environ.get(f"{PREFIX}SOURCE") or "torch_agent"
    return only == "torch_agent" and not any(environ.get(name) for name in AGENTS)


def _look_up(
    flag: Flag, typed: Mapping[str, str | bool], environ: Mapping[str, str], pets: bool
) -> tuple[str | None, str]:
    """Return the text given for a flag, and the name of the flag or variable that gave it."""
    value = typed.get(flag.dest)
    if isinstance(value, bool):
        return str(int(value)), flag.name
    if isinstance(value, str) and (value or "empty" not in flag.kinds):
        return value, flag.name
    if environ.get(flag.variable):
        return environ[flag.variable], flag.variable
    pet = PET_PREFIX + flag.dest.upper()
    return (environ.get(pet) or None if pets and "pet" in flag.kinds else None), pet
