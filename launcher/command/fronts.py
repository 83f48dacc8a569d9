"""Programs in front of a command: ``nice -n 5 python train.py``, ``uv run torchrun train.py``.

We look behind them for the script or the launcher of the job, however many there are. They stay where they
are: before each process, or before a launcher that starts the processes. The table is ``fronts.txt``.

Sources: the manuals of coreutils 9.1, util-linux 2.38, numactl 2.0.16, uv 0.8, conda 25, nsys and ncu 2025.1,
apptainer 1.4, and Python 3.13.
"""

from __future__ import annotations

from launcher.command.words import find_script, is_python, match_call, name_program, part_module, read_flag
from launcher.core.blocks import read_rows
from launcher.core.frozen import frozen
from launcher.machine.pythons import own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCRIPT, PROJECT, ELSEWHERE = "script", "project", "elsewhere"
ASSIGNS = "NAME=VALUE"
OF_SCRIPT = {SCRIPT: ("-m", "-c"), PROJECT: ("-m", "--module")}
"""Flags of fronts that begin the command, as Python's do."""
_fronts: dict[str, list[Front]] = {}


@frozen
class Front:
    """One program of the table.

    Attributes:
        words: How it is called; ``-m NAME`` comes after a Python.
        valued: Its flags whose value is the next word.
        before: What comes before the command: a number of words, ``NAME=VALUE``, a flag, or nothing.
        kind: ``script``, ``project``, ``elsewhere``, or empty.
    """

    words: tuple[str, ...]
    valued: frozenset[str]
    before: str
    kind: str


@frozen
class Fronted:
    """A command line, and where its command begins.

    Attributes:
        argv: The whole line, with a Python's ``-m`` and its module as separate words.
        count: Number of words in front; 0 without a front.
        kind: Kind of the last front.
        python: The Python of the last front; empty if it is no Python's module.
        is_elsewhere: Whether the command sees other files than we do: it runs in a container.
    """

    argv: tuple[str, ...]
    count: int = 0
    kind: str = ""
    python: str = ""
    is_elsewhere: bool = False

    @property
    def runs_next(self) -> bool:
        """Whether the last front itself runs the command as a script, by a Python of its own."""
        word, own = self.argv[self.count], OF_SCRIPT[PROJECT]
        return self.kind == SCRIPT or (self.kind == PROJECT and (word in own or word.endswith(".py")))


def look_behind(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line behind programs such as ``nice -n 5``.

    A script that a front runs comes behind the front's Python, or behind ours if it names none.
    """
    front = find_front(argv)
    words = front.argv[front.count :]
    if not words or not front.runs_next:
        return words
    flag = "-m" if words[0] == "--module" else words[0]
    return part_module((front.python or own_python(environ), flag, *words[1:]))


def read_fronts() -> dict[str, list[Front]]:
    """Return the rows of the table by the first word of each; it is read once."""
    for call, valued, before, kind in () if _fronts else read_rows("command/fronts.txt"):
        row = Front(tuple(call.split()), frozenset(valued.split()), before, kind)
        _fronts.setdefault(row.words[0], []).append(row)
    return _fronts


def find_front(argv: Sequence[str]) -> Fronted:
    """Return a command line with the number of words in front of its command."""
    found = Fronted(part_module(tuple(argv)) if argv else ())
    while found.argv and found.kind != SCRIPT:
        rows = _list_rows(found.argv[found.count :])
        further = next(filter(None, (_pass(found, row) for row in rows)), None)
        if further is None:
            break
        found = further
    return found


def _list_rows(argv: Sequence[str]) -> list[Front]:
    """Return the rows of the front that a command line may begin with: for a Python those that it runs."""
    if not is_python(argv[0]):
        return read_fronts().get(name_program(argv[0]), [])
    place = find_script(argv)
    rows = [] if place is None else read_fronts().get(name_program(argv[place]), [])
    return [row for row in rows if row.kind == SCRIPT]


def _pass(found: Fronted, front: Front) -> Fronted | None:
    """Return what is behind one more front; None if it is not called, or no command comes behind it."""
    words = found.argv[found.count :]
    called = match_call(words, front.words[:1])
    behind = words[_skip(words, called, front) :] if called else ()
    if not behind:
        return None
    count = len(found.argv) - len(behind)
    argv = (*found.argv[:count], *part_module(behind))
    python = words[0] if is_python(words[0]) else ""
    return Fronted(argv, count, front.kind, python, found.is_elsewhere or front.kind == ELSEWHERE)


def _skip(argv: Sequence[str], place: int, front: Front) -> int:
    """Return the index of the command behind a front's flags and own words; the end if it is not called."""
    is_until = front.before.startswith("-")
    own = [*front.words[1:], *[""] * (int(front.before) if front.before.isdecimal() else 0)]
    while place < len(argv):
        word = argv[place]
        is_flag = word.startswith("-") and (word != "-" or front.before == ASSIGNS)
        if own and not is_flag:
            if own.pop(0) not in ("", word):
                return len(argv)
        elif word == (front.before if is_until else "--") and not own and front.before != ASSIGNS:
            return place + 1
        elif word in OF_SCRIPT.get(front.kind, ()) and word not in front.valued:
            break
        elif is_flag and word != "--":
            place += read_flag(word, front.valued)[1]
        elif word != "--" and not is_until and not (front.before == ASSIGNS and "=" in word):
            break
        place += 1
    return place
