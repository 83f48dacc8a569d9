"""Detects a command that is a launcher itself, and reads the job facts in its flags.

We run such a launcher once per node and tell it its node rank. Its own flags win over all that we know: we
put ours before them on the command line, or in variables that it reads only if a flag is missing. The table
of launchers is ``launchers.txt``.
"""

from __future__ import annotations

from launcher.command.words import find_script, is_python, is_shell, match_call, name_program
from launcher.core.blocks import read_blocks
from launcher.core.environ import Malformed, shorten
from launcher.core.errors import make_error
from launcher.core.frozen import frozen
from launcher.options.flags import FLAGS
from launcher.options.given import Given
from launcher.options.reading import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.core.blocks import Block

TABLE = "command/launchers.txt"
_calls: list[tuple[list[str], Block]] = []
SRUN = "srun"
"""Starts the tasks of all nodes: it belongs in front of us."""


@frozen
class Command:
    """A command that is a launcher.

    Attributes:
        launcher: Its row of the table, which explains the fields.
        head: Number of words that call it; its own flags come next.
        own: Its own flags, with underscores for dashes, and their values ("1" for a switch).
        inner: Index of the first word of a process's command line, which is its script.
    """

    launcher: Block
    head: int
    own: tuple[tuple[str, str], ...]
    inner: int = 0

    @property
    def name(self) -> str:
        """The launcher's name in plans and messages."""
        return self.launcher.name

    @property
    def starts_job(self) -> bool:
        """Whether it starts the processes of all nodes."""
        return "whole-job" in self.launcher.words("is")

    @property
    def has_agent(self) -> bool:
        """Whether it contains torchrun's agent."""
        return "agent" in self.launcher.words("is")

    def has(self, *names: str) -> bool:
        """Whether one of these flags is given."""
        return any(name in names for name, _ in self.own)

    def value(self, *names: str) -> str | None:
        """Return the last value of the first of these flags that is given."""
        return next((dict(self.own)[name] for name in names if self.has(name)), None)

    @property
    def names_module(self) -> bool:
        """Whether what it starts is a module rather than a script."""
        return self.has("m", "module", "module_mode")


def list_names() -> frozenset[str]:
    """Return the programs and modules that may be launchers."""
    return frozenset(call[call[0] == "-m"] for call, _ in read_calls())


def read_calls() -> list[tuple[list[str], Block]]:
    """Return the words that call each launcher, which may have several calls; they are read once."""
    if not _calls:
        _calls.extend((call.split(), row) for row in read_blocks(TABLE) for call in row.items)
    return _calls


def read_pairs(launcher: Block, field: str) -> dict[str, str]:
    """Return the names of a field, ``THEIRS=OURS`` or one word for both, and ours for each."""
    pairs = (word.partition("=") for word in launcher.words(field))
    return {theirs: ours or theirs for theirs, _, ours in pairs}


def find_launcher(argv: Sequence[str]) -> Command | None:
    """Return the launcher that a command calls; None for any other command, including a shell."""
    place = find_script(argv) if argv and is_python(argv[0]) else 0
    first = name_program(argv[place]) if argv and place is not None else None
    for call, launcher in read_calls():
        head = match_call(argv, call) if call[0] == first else 0
        if head:
            own, inner = _read_own(launcher, argv[head:])
            nothing = launcher.words("unless") in own
            return None if nothing else Command(launcher, head, tuple(own), head + inner)
    return None


def refuse_unknown(fronts: Sequence[str], argv: Sequence[str]) -> None:
    """Refuse a launcher behind a program that may start it in any way, which may come behind fronts.

    Its name alone is no call: ``pip install deepspeed numpy``. It is one before a script, a module or a
    Python, and for mpirun behind flags.

    Raises:
        UsageError: The first word is unknown, and a call of a launcher comes behind it.
    """
    if is_python(argv[0]) or is_shell(argv[0]) or "=" in argv[0]:
        return
    names = list_names()
    for place in range(1, len(argv) - 1):
        before, word = argv[place - 1], argv[place]
        is_value = before.startswith("-") and "=" not in before and len(before) > 2  # not sudo's -E
        may_call = not is_value and (is_python(word) or name_program(word) in names)
        words = argv[place:] if may_call else ()
        own = find_launcher(words)
        if own is None or own.inner >= len(words):
            continue
        script = words[own.inner]
        if script.endswith(".py") or is_python(script) or own.names_module or (own.starts_job and own.own):
            import shlex

            before, behind = shlex.join((*fronts, *argv[:place])), shlex.join(words)
            raise make_error("unknown-front", front=argv[0], name=own.name, before=before, behind=behind)


def find_inner(command: Command, argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return the command line of a process that a launcher starts, with this Python first if it needs one."""
    module, words = command.launcher.fields.get("module", ""), argv[command.inner :]
    if command.starts_job:
        return ()
    if module:
        return (python, "-m", module)
    if not words or command.has("no_python", "command_mode", "c"):
        return words
    return (python, *(["-m"] if command.names_module else []), *words)


def _read_own(launcher: Block, words: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """Return a launcher's own flags and the index of its script.

    Reads the flags before the script, or all of them if the launcher accepts flags anywhere.
    """
    kinds, switches, pairs = (launcher.words(field) for field in ("is", "switches", "pairs"))
    # A word such as -t3 is a short flag with its value; but MPI's long flags have one dash
    attaches = "whole-job" not in kinds
    own: list[tuple[str, str]] = []
    place, script = 0, len(words)
    while place < len(words) and words[place] != "--":
        word = words[place]
        place += 1
        if not word.startswith("-") or word == "-":
            script = min(script, place - 1)
            if "scattered" in kinds:
                continue
            break
        flag, equals, value = word.partition("=")
        name = _full_name(launcher, flag)
        if name in switches:
            own.append((name, "1"))
        elif attaches and len(flag) > 2 and flag[1] != "-":
            own.append((flag[1], word[2:]))
        elif equals:
            own.append((name, value))
        elif "scattered" in kinds and words[place : place + 1] and words[place].startswith("--"):
            own.append((name, ""))  # a switch of what it starts
        elif place < len(words):
            own.append((name, words[place]))
            place += 2 if name in pairs else 1
    return own, script if script < len(words) else place + (words[place : place + 1] == ["--"])


def _full_name(launcher: Block, flag: str) -> str:
    """Return a flag's full name without leading dashes and with underscores for dashes."""
    name = flag.lstrip("-").replace("-", "_")
    known = {*launcher.words("switches"), *read_pairs(launcher, "facts")}
    if "abbreviates" not in launcher.words("is") or name in known or not flag.startswith("--"):
        return name
    found = [full for full in known if full.startswith(name)]
    return found[0] if len(found) == 1 else name


def read_facts(command: Command, options: Options) -> tuple[Options, list[str]]:
    """Return the job facts in another launcher's flags as our options, and notes.

    A value that we cannot parse gives a note and is left to the launcher; so does a value that overrides
    another one of the user's options.
    """
    names = read_pairs(command.launcher, "facts")
    flags = {flag.dest: flag for flag in FLAGS}
    given: dict[str, Given] = {}
    notes: list[str] = []
    for theirs, text in command.own:
        if theirs not in names:
            continue
        flag = flags[names[theirs]]
        origin = f"{command.name} --{theirs}" + (f" {shorten(text)}" if flag.parse else "")
        try:
            given[flag.dest] = Given(flag.parse(text) if flag.parse else True, origin, text)
        except Malformed:
            notes.append(f"only {command.name} understands {origin}, so this may be a different job")
    for dest, nearer in given.items():
        ours = options.get(dest)
        if ours is not None and not ours.is_platforms and ours.value != nearer.value:
            notes.append(f"{ours.origin}: no effect, {nearer.origin} is closer to the script")
    return Options(given), notes
