"""Is a command a launcher itself, and what do its own flags say of the job?

A launcher is run once per node, and told which node this is. Its own flags win over all that we know:
ours stand before them on the command line, or in variables that it reads where a flag is missing.
"""

from __future__ import annotations

from launcher.command.launcher_table import TABLE, Launcher
from launcher.command.line import find_script, is_python
from launcher.core.environ import Malformed, shorten
from launcher.core.frozen import frozen
from launcher.options.flags import FLAGS
from launcher.options.reading import Given, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen
class Command:
    """A command that is a launcher.

    Attributes:
        launcher: Which one.
        head: How many words call it; its own flags come next.
        own: Its own flags, dashes as underscores, and their values; of a switch "1".
        inner: Where the command line of a process begins, its script first.
    """

    launcher: Launcher
    head: int
    own: tuple[tuple[str, str], ...]
    inner: int = 0

    def has(self, *names: str) -> bool:
        """Whether one of these flags is there."""
        return any(name in names for name, _ in self.own)

    def value(self, name: str) -> str | None:
        """Return the last value of a flag."""
        return dict(self.own).get(name)


def find_launcher(argv: Sequence[str]) -> Command | None:
    """Return which launcher a command is, None for any other command. A shell's words are not looked into."""
    for launcher in TABLE:
        for call in launcher.calls:
            head = _match(argv, call.split())
            if head:
                own, inner = _read_own(launcher, argv[head:])
                return Command(launcher, head, tuple(own), head + inner)
    return None


def _match(argv: Sequence[str], call: Sequence[str]) -> int:
    """Return how many words of a command line are this call, 0 if it is another."""
    start = find_script(argv) if argv and is_python(argv[0]) else 0
    if start is None:
        return 0
    words = list(argv[start : start + len(call)])
    if words and call[0] != "-m":
        words[0] = words[0].rpartition("/")[2]
    by_module = call[0] == "-m"
    return start + len(call) if words == list(call) and (start > 0 or not by_module) else 0


def find_inner(command: Command, argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return the command line of a process that a launcher starts: with this Python, unless it needs none."""
    words = argv[command.inner :]
    if not words or command.launcher.whole_job or command.has("no_python", "command_mode", "c"):
        return () if command.launcher.whole_job else words
    return (python, *(["-m"] if command.has("m", "module", "module_mode") else []), *words)


def _read_own(launcher: Launcher, words: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """Return a launcher's own flags, and where its script is.

    Those before its script, or all of them if it takes them anywhere.
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
    """Whether a word is a short flag and its value at once, ``-t3``. MPI's long flags have one dash, too."""
    one_dash = flag[1] != "-" and len(flag) > 2
    return one_dash and name not in launcher.switches and not launcher.whole_job


def _full_name(launcher: Launcher, flag: str) -> str:
    """Return a flag's name without dashes before and with underscores inside, abbreviations resolved."""
    name = flag.lstrip("-").replace("-", "_")
    known = {*launcher.switches, *(theirs for theirs, _ in launcher.facts)}
    if not launcher.abbreviates or name in known or not flag.startswith("--"):
        return name
    found = [full for full in known if full.startswith(name)]
    return found[0] if len(found) == 1 else name


def read_facts(command: Command) -> tuple[Options, list[str]]:
    """Return what a launcher's own flags say of the job, as our own flags would, and notes.

    What we cannot read is left to the launcher.
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
