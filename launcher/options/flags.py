"""Table of the flags of ``launcher run``: name, meaning and LAUNCHER_* variable of each.

The table is ``flags.txt``. The command line parser, the variables, what excludes or needs what, where a flag
has no effect, and the reference in docs/ come from it. `launcher.options.flag_values` parses the values, and
`launcher.options.reading` combines what the user gave.
"""

from __future__ import annotations

from launcher.core.blocks import read_blocks, read_rows
from launcher.core.environ import SERVICE
from launcher.core.frozen import frozen
from launcher.core.model import Fact
from launcher.options.flag_values import is_on, one_of, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from launcher.core.blocks import Block

PREFIX = "LAUNCHER_"
FRAMEWORKS = ("torch", "tensorflow", "horovod", "deepspeed", "lightning", "accelerate", "jax")
OTHER_PREFIXES = ("LAUNCHER_TEST_", "LAUNCHER_BENCH_")
"""Prefixes of further variables: of the tests and benchmarks."""


@frozen
class Flag:
    """One flag: ``dest`` gives ``--dest-with-dashes`` and ``LAUNCHER_DEST``.

    ``parse`` turns text into the value and raises `Malformed`; None marks a switch. ``kinds`` are the words
    of the table's column ``is``. For the other fields see the table.
    """

    dest: str
    metavar: str
    help: str
    parse: Callable[[str], object] | None
    fact: Fact | None = None
    short: str | None = None
    group: str = "job"
    kinds: tuple[str, ...] = ()
    needs: str = ""
    excludes: tuple[str, ...] = ()
    works: tuple[str, ...] = ()
    sets: str = ""

    @property
    def is_torchruns(self) -> bool:
        """Whether torchrun has this flag too."""
        return self.fact is not None or "pet" in self.kinds or self.group == "torchrun"

    @property
    def is_of_one_job(self) -> bool:
        """Whether it describes a single job, node or command, and so cannot be a default."""
        return not {"one-job", "tensorflow"}.isdisjoint(self.kinds)

    @property
    def name(self) -> str:
        """The flag as typed, e.g. ``--node-rank``."""
        return "--" + self.dest.replace("_", "-")

    @property
    def variable(self) -> str:
        """The variable that sets the flag, e.g. ``LAUNCHER_NODE_RANK``."""
        return PREFIX + self.dest.upper()

    def read(self, text: str) -> object:
        """Return the value of a text; a switch is on or off.

        Raises:
            Malformed: It is no value of this flag.
        """
        return self.parse(text) if self.parse else is_on(text)


GROUPS = {
    "job": "the job",
    "command": "the command",
    "watch": "stopping and failures",
    "restarts": "restarts of the whole job after a failure",
    "peers": "several nodes: roll call and shared verdict",
    "output": "output",
    "framework": "frameworks",
    "mpirun": "the nodes of the job, and mpirun (--engine mpirun)",
    "torchrun": "torchrun's own flags, for jobs that torchrun's agent starts",
}
"""The groups of flags, in the order of the documentation."""


def _read(row: Block) -> Flag:
    fields, metavar, kind = row.fields, row.fields.get("value", ""), row.fields.get("kind")
    choice = one_of(*metavar.split("|")) if kind == "choice" else None
    return Flag(
        row.name,
        metavar,
        fields["help"],
        choice or (parser_of(kind, fields.get("form", "")) if kind else None),
        Fact(fields["fact"]) if "fact" in fields else None,
        fields.get("short"),
        fields.get("group", "job"),
        row.words("is"),
        fields.get("needs", ""),
        row.words("excludes"),
        row.words("works"),
        fields.get("sets", ""),
    )


def _list(kind: str) -> tuple[str, ...]:
    return tuple(flag.dest for flag in FLAGS if kind in flag.kinds)


FLAGS = tuple(map(_read, read_blocks("options/flags.txt")))
ROLE_FLAGS, TENSORFLOW = _list("role"), _list("tensorflow")
ONLY_TORCHRUN, OURS = _list("agent"), _list("ours")
PASSED_TO_TORCHRUN, PASSED_TO_WORKERS, PASSED_TO_RANKS = map(_list, ("to-torchrun", "to-workers", "to-ranks"))
RESTART_RULES = tuple(flag.dest for flag in FLAGS if flag.group == "restarts" and flag.dest != "restarts")
NEEDS = {
    flag.dest: (flag.needs.partition("=")[0], flag.needs.partition("=")[2]) for flag in FLAGS if flag.needs
}
"""For each flag that does nothing without another one: that one, and the value that it must have."""
WORKING = {
    place: tuple(flag.dest for flag in FLAGS if place in flag.works)
    for place in dict.fromkeys(place for flag in FLAGS for place in flag.works)
}
"""For each place, a word of the table's column ``works``: the flags that work only there."""
EXCLUDES = tuple((flag.dest, other) for flag in FLAGS for other in flag.excludes)
"""Pairs of flags that exclude each other: one of them would be ignored."""


def list_others() -> list[str]:
    """Return the LAUNCHER_* variables that are neither flags of the table nor typing errors."""
    return [name for name, _ in read_rows("options/variables.txt")]


def find_unknown(names: Iterable[str]) -> list[str]:
    """Return the unknown LAUNCHER_* variables, sorted; they are likely typing errors."""
    ours = [name for name in names if name.startswith(PREFIX)]
    if not ours:
        return []
    known = {*list_others(), *(flag.variable for flag in FLAGS)}
    services = [name.removesuffix(SERVICE) for name in ours if name.endswith(SERVICE)]
    others = (*OTHER_PREFIXES, *(f"{name}_{of}" for name in services for of in ("SERVICE_", "PORT")))
    return sorted(name for name in ours if name not in known and not name.startswith(others))
