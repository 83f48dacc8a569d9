"""Programs in front of a command: ``nice -n 5 python train.py``, ``uv run torchrun train.py``.

We look behind them for the script or the launcher of the job, however many there are. They stay where they
are: before each process, or before a launcher that starts the processes. The table is ``fronts.txt``.

Sources: the manuals of coreutils 9.1, util-linux 2.38, numactl 2.0.16, uv 0.8, conda 25, nsys and ncu 2025.1,
apptainer 1.4, and Python 3.13.
"""

from __future__ import annotations

import os

from launcher.command.line import STARTERS, is_python, is_shell, part_module, read_flags
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fronts.txt")
SCRIPT, PROJECT, ELSEWHERE = "script", "project", "elsewhere"
ASSIGNS = "NAME=VALUE"
_rows: list[Front] = []
_by_word: dict[str, list[Front]] = {}


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
        count: Number of words in front; 0 without a front.
        kind: Kind of the last front.
        python: The Python that runs the script behind the last front: the front's own; empty if none does.
        is_elsewhere: Whether the command sees other files than we do: it runs in a container.
    """

    count: int = 0
    kind: str = ""
    python: str = ""
    is_elsewhere: bool = False

    def runs(self, word: str) -> bool:
        """Whether the last front itself runs a command that begins with this word, by a Python of its own."""
        return self.kind == SCRIPT or (self.kind == PROJECT and word.endswith(".py"))


NOTHING = Fronted()


def look_behind(argv: Sequence[str], python: str) -> tuple[str, ...]:
    """Return the command line behind all fronts; a script that a front runs comes behind its Python.

    Args:
        argv: The whole command line.
        python: The Python of a front that does not name one.
    """
    front = find_front(argv)
    words = tuple(argv[front.count :])
    return part_module((front.python or python, *words)) if front.count and front.runs(words[0]) else words


def read_fronts() -> list[Front]:
    """Return the rows of the table, which is read once."""
    if not _rows:
        with open(TABLE, encoding="utf-8") as file:
            for line in file:
                if not line.startswith("#"):
                    words, valued, before, kind = (part.strip() for part in line.split("|"))
                    _rows.append(Front(tuple(words.split()), frozenset(valued.split()), before, kind))
                    _by_word.setdefault(_rows[-1].words[0], []).append(_rows[-1])
    return _rows


def find_front(argv: Sequence[str]) -> Fronted:
    """Return what is in front of the command in a command line; nothing if no command comes behind it."""
    found = NOTHING
    read_fronts()
    while argv and found.kind != SCRIPT:
        word = argv[found.count]
        called = "-m" if is_python(word) else word.rpartition("/")[2]
        for front in _by_word.get(called, ()):
            place = _match(argv, found.count, front)
            place = place and _skip(argv, place, front)
            if place and place < len(argv):
                runner = word if is_python(word) else ""
                is_elsewhere = found.is_elsewhere or front.kind == ELSEWHERE
                found = Fronted(place, front.kind, runner if front.kind == SCRIPT else "", is_elsewhere)
                break
        else:
            break
    return found


def _match(argv: Sequence[str], place: int, front: Front) -> int:
    """Return the index after a front's own words if it is called at this index; otherwise 0."""
    words = front.words
    if words[0] == "-m":
        if not is_python(argv[place]):
            return 0
        at, flag, after = read_flags(argv[place:])
        name = argv[place + after - 1 : place + after] if flag == "m" else ()
        if at + 1 == after:  # -mNAME
            name = (argv[place + at].partition("m")[2],) if flag == "m" else ()
        end = place + after + len(words) - 2
        return end if (*name, *argv[place + after : end]) == words[1:] else 0
    end = place + len(words)
    return end if (argv[place].rpartition("/")[2], *argv[place + 1 : end]) == words else 0


def _skip(argv: Sequence[str], place: int, front: Front) -> int:
    """Return the index of the command behind a front's flags and own words."""
    if front.before.startswith("-"):
        return argv.index(front.before, place) + 1 if front.before in argv[place:] else 0
    left = int(front.before) if front.before.isdecimal() else 0
    while place < len(argv):
        word = argv[place]
        if word == "--":
            place += 1
            if not left:
                break
        elif word in ("-m", "-c") and front.kind == SCRIPT and word not in front.valued:
            break  # of the script behind it
        elif word.startswith("-") and word != "-":
            place += 2 if word in front.valued else 1
        elif left:
            left, place = left - 1, place + 1
        elif front.before == ASSIGNS and "=" in word:
            place += 1
        else:
            break
    return place


def refuse_unknown(argv: Sequence[str]) -> None:
    """Refuse a launcher behind a program that may start it in any way.

    Its name alone is no call: ``pip install deepspeed numpy``. It is one before a script, a module or a
    Python, and for mpirun behind flags.

    Raises:
        UsageError: The first word is unknown, and a call of a launcher comes behind it.
    """
    if is_python(argv[0]) or is_shell(argv[0]):
        return
    from launcher.command.launchers import find_launcher

    for place in range(1, len(argv) - 1):
        before = argv[place - 1]
        is_value = before.startswith("-") and "=" not in before
        if argv[place].rpartition("/")[2] not in STARTERS or is_value:
            continue
        words = argv[place:]
        own = find_launcher(words)
        if own is None or own.inner >= len(words):
            continue
        script = words[own.inner]
        starts = script.endswith(".py") or is_python(script) or own.has("m", "module", "module_mode")
        if starts or (own.launcher.whole_job and own.own):
            raise UsageError(_unknown(argv[0], own.launcher.name))


def _unknown(front: str, name: str) -> Problem:
    return Problem(
        "unknown-front",
        f"{front!r} starts {name}, but the launcher does not know {front!r}, so it can't pass {name} the job",
        "command line",
        f"let {name} start it: launcher run -- {name} ... {front} ...; or run the line as it is, once per "
        f"process: launcher run --engine process -- {front} ...",
    )
