"""Detects a command that is a launcher itself, and reads the job facts in its flags.

We run such a launcher once per node and tell it its node rank. Its own flags win over all that we know: we
put ours before them on the command line, or in variables that it reads only if a flag is missing. The table
of launchers is ``launchers.txt``.
"""

from __future__ import annotations

from launcher.command.line import find_script, is_python
from launcher.core.blocks import read_blocks
from launcher.core.environ import Malformed, shorten
from launcher.core.frozen import frozen
from launcher.options.flags import FLAGS
from launcher.options.given import Given
from launcher.options.reading import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


TABLE = "command/launchers.txt"
_rows: list[Launcher] = []


@frozen
class Launcher:
    """One launcher of the table.

    Attributes:
        name: Its name in plans and messages.
        calls: Words that start it on a command line; ``-m MODULE`` after a Python.
        switches: Its flags without a value, with underscores for dashes.
        pairs: Its flags with two values.
        facts: Its flags that mean the same as one of ours: (its name, our name).
        variables: The same for variables by which it is told of the job.
        module: What it runs in each process, if its command line does not name it.
        unless: A flag and its value with which it starts nothing.
        abbreviates: Whether it accepts abbreviated flags.
        scattered: Whether it accepts flags after the script, too.
        whole_job: Whether it starts the processes of all nodes.
        has_agent: Whether it contains torchrun's agent.
    """

    name: str
    calls: tuple[str, ...]
    switches: tuple[str, ...]
    pairs: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    variables: tuple[tuple[str, str], ...]
    module: str
    unless: tuple[str, ...]
    abbreviates: bool
    scattered: bool
    whole_job: bool
    has_agent: bool


def read_launchers() -> list[Launcher]:
    """Return the launchers of the table, which is read once."""
    for row in () if _rows else read_blocks(TABLE):
        kinds = row.words("is")
        _rows.append(
            Launcher(
                row.name,
                row.items,
                row.words("switches"),
                row.words("pairs"),
                _read_pairs(row.words("facts")),
                _read_pairs(row.words("variables")),
                row.fields.get("module", ""),
                row.words("unless"),
                "abbreviates" in kinds,
                "scattered" in kinds,
                "whole-job" in kinds,
                "agent" in kinds,
            )
        )
    return _rows


def _read_pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = (word.partition("=") for word in words)
    return tuple((theirs, ours or theirs) for theirs, _, ours in pairs)


@frozen
class Command:
    """A command that is a launcher.

    Attributes:
        launcher: The launcher.
        head: Number of words that call it; its own flags come next.
        own: Its own flags, with underscores for dashes, and their values ("1" for a switch).
        inner: Index of the first word of a process's command line, which is its script.
    """

    launcher: Launcher
    head: int
    own: tuple[tuple[str, str], ...]
    inner: int = 0

    def has(self, *names: str) -> bool:
        """Whether one of these flags is given."""
        return any(name in names for name, _ in self.own)

    def value(self, name: str) -> str | None:
        """Return the last value of a flag."""
        return dict(self.own).get(name)


def find_launcher(argv: Sequence[str]) -> Command | None:
    """Return the launcher that a command calls; None for any other command, including a shell."""
    for launcher in read_launchers():
        for call in launcher.calls:
            head = _match(argv, call.split())
            if head:
                own, inner = _read_own(launcher, argv[head:])
                if launcher.unless in own:
                    return None
                return Command(launcher, head, tuple(own), head + inner)
    return None


def _match(argv: Sequence[str], call: Sequence[str]) -> int:
    """Return the number of words that this call takes on a command line; 0 if it does not match."""
    start = find_script(argv) if argv and is_python(argv[0]) else 0
    if start is None:
        return 0
    words = list(argv[start : start + len(call)])
    if words and call[0] != "-m":
        words[0] = words[0].rpartition("/")[2]
    by_module = call[0] == "-m"
    return start + len(call) if words == list(call) and (start > 0 or not by_module) else 0


def find_inner(command: Command, argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return the command line of a process that a launcher starts, with this Python first if it needs one."""
    module, words = command.launcher.module, argv[command.inner :]
    if command.launcher.whole_job:
        return ()
    if not module and (not words or command.has("no_python", "command_mode", "c")):
        return words
    by_name = module or command.has("m", "module", "module_mode")
    return (python, *(["-m"] if by_name else []), *([module] if module else words))


def _read_own(launcher: Launcher, words: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """Return a launcher's own flags and the index of its script.

    Reads the flags before the script, or all of them if the launcher accepts flags anywhere.
    """
    own: list[tuple[str, str]] = []
    place, script = 0, len(words)
    while place < len(words) and words[place] != "--":
        word = words[place]
        place += 1
        if not word.startswith("-") or word == "-":
            script = min(script, place - 1)
            if launcher.scattered:
                continue
            break
        flag, equals, value = word.partition("=")
        name = _full_name(launcher, flag)
        if _is_attached(launcher, flag, name):
            own.append((flag[1], word[2:]))
            continue
        if name in launcher.switches:
            own.append((name, "1"))
        elif equals:
            own.append((name, value))
        elif place < len(words):
            own.append((name, words[place]))
            place += 2 if name in launcher.pairs else 1
    return own, script if script < len(words) else place + (words[place : place + 1] == ["--"])


def _is_attached(launcher: Launcher, flag: str, name: str) -> bool:
    """Whether a word is a short flag with its value: ``-t3``. Never for MPI: its long flags have one dash."""
    one_dash = flag[1] != "-" and len(flag) > 2
    return one_dash and name not in launcher.switches and not launcher.whole_job


def _full_name(launcher: Launcher, flag: str) -> str:
    """Return a flag's full name without leading dashes and with underscores for dashes."""
    name = flag.lstrip("-").replace("-", "_")
    known = {*launcher.switches, *(theirs for theirs, _ in launcher.facts)}
    if not launcher.abbreviates or name in known or not flag.startswith("--"):
        return name
    found = [full for full in known if full.startswith(name)]
    return found[0] if len(found) == 1 else name


def read_facts(command: Command) -> tuple[Options, list[str]]:
    """Return the job facts in a launcher's own flags as options of ours, and notes.

    A value that we cannot parse gives a note and is left to the launcher.
    """
    names = dict(command.launcher.facts)
    flags = {flag.dest: flag for flag in FLAGS}
    given: dict[str, Given] = {}
    notes: list[str] = []
    for theirs, text in command.own:
        if theirs not in names:
            continue
        flag = flags[names[theirs]]
        origin = f"{command.launcher.name} --{theirs}" + (f" {shorten(text)}" if flag.parse else "")
        try:
            given[flag.dest] = Given(flag.parse(text) if flag.parse else True, origin, text)
        except Malformed:
            notes.append(f"{origin} is for {command.launcher.name} to understand: the job may be another one")
    return Options(given), notes
