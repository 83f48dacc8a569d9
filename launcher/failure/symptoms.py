"""Error messages of frameworks, CUDA, NCCL, gloo and Python, and what each cause means and needs.

The table is ``symptoms.txt``, which says what its rows mean.
"""

from __future__ import annotations

from functools import cache

from launcher.core.blocks import read_blocks
from launcher.core.frozen import frozen
from launcher.core.signal import signal
from launcher.failure.model import Cause
from launcher.failure.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from launcher.failure.stderr import LastOutput

TABLE = "failure/symptoms.txt"
LOUD, AS = "!", "as "
RETRY = {"yes": True, "no": False, "unknown": None}


@frozen
class Symptom:
    """Error messages with one meaning: a row of the table.

    Attributes:
        code: Stable name, see docs/failures.md.
        patterns: Patterns for a line; one must match.
        meaning: The meaning as text; the line itself is quoted after it.
        fix: How to fix it.
        retryable: Whether the same command can succeed when started again; None if unknown.
        consequence: Whether it only shows that another process has failed.
        of_network: Whether it may be due to network variables, which are then checked.
        frames: Parts of the traceback that show it if the exception says nothing more exact.
        loud: Whether a process writes it only if it is about to end because of it: then it counts outside of
            the last traceback, too.
        signal: The signal that shows it, without ``SIG``.
        why: What made the launcher end the job for this reason.
    """

    code: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False
    loud: bool = False
    of_network: bool = False
    frames: tuple[str, ...] = ()
    signal: str = ""
    why: str = ""

    def explain(self, line: str) -> Cause:
        """Return the cause that a line shows."""
        return Cause(self.code, f"{self.meaning}: {quote(line)}", self.fix, self.retryable, self.consequence)


@cache
def _read_rows() -> list[tuple[str, Symptom]]:
    """Return the rows of the table with their names, in its order."""
    rows: list[tuple[str, Symptom]] = []
    fixes: dict[str, str] = {}
    for row in read_blocks(TABLE):
        fix, kinds = row.fields["fix"], row.words("is")
        fix = fixes[fix.removeprefix(AS)] if fix.startswith(AS) else fix
        fixes.setdefault(row.name, fix)
        symptom = Symptom(
            row.fields.get("code", row.name),
            row.items,
            row.fields["meaning"],
            fix,
            RETRY[row.fields["retry"]],
            "consequence" in kinds,
            "loud" in kinds,
            "network" in kinds,
            tuple(filter(None, row.fields.get("frames", "").split(" | "))),
            row.fields.get("signal", ""),
            row.fields.get("why", ""),
        )
        rows.append((row.name, symptom))
    return rows


def read_symptoms() -> dict[str, Symptom]:
    """Return the rows of the table with patterns by their codes, in its order."""
    return {name: row for name, row in _read_rows() if row.patterns}


def read_signals() -> dict[int, Symptom]:
    """Return the rows that a signal shows, by its number."""
    return {getattr(signal, f"SIG{row.signal}"): row for _, row in _read_rows() if row.signal}


def read_conclusions() -> dict[str, Symptom]:
    """Return the rows of what the launcher concludes, by their names."""
    return {name: row for name, row in _read_rows() if not (row.patterns or row.signal)}


def make_cause(row: str, /, fix: str | None = None, **values: str) -> Cause:
    """Return the cause of a conclusion; ``values`` replace the names in its texts, ``fix`` its fix."""
    found = read_conclusions()[row]
    texts = found.meaning.format_map(values), fix or found.fix.format_map(values)
    return Cause(found.code, *texts, found.retryable)


def find_symptoms(words: LastOutput, *, killed: bool = False) -> Iterator[tuple[Symptom, str]]:
    """Yield the symptoms in the last output, each with the line that shows it, in the table's order.

    If there is a traceback of an exception, only its messages count, and rows that are ``loud``: a line about
    a connection that was lost and restored an hour ago does not explain why a process ended. Each line is
    used once: a line that a special row has explained is not explained again by a general one. At most one
    consequence is yielded.

    Args:
        words: The last output of a process.
        killed: Whether a signal ended it amid its work: then lines without an exception count only if they
            are of rows that are ``loud``, because any other may be a warning.
    """
    said: set[str] = set()
    elsewhere = False
    exact = killed or (words.messages and words.source != "faulthandler")
    messages, others = (("\n".join(lines), lines) for lines in (words.messages, words.lines))
    for symptom in read_symptoms().values():
        if symptom.consequence and elsewhere:
            return
        line = _last_match(symptom.patterns, *messages, said)
        if line is None:
            patterns = [one for one in symptom.patterns if symptom.loud or one[0] == LOUD or not exact]
            line = _last_match(patterns, *others, said)
        if line is not None:
            said.add(line)
            elsewhere = symptom.consequence
            yield symptom, line


def _last_match(patterns: Sequence[str], text: str, lines: Sequence[str], said: Container[str]) -> str | None:
    """Return the last line that matches a pattern; few patterns begin with what is in the text at all."""
    near = [one.removeprefix(LOUD) for one in patterns]
    near = [one for one in near if one.removeprefix("^").partition("*")[0] in text]
    for line in reversed(lines) if near else ():
        if line not in said and any(_holds(line, pattern) for pattern in near):
            return line
    return None


def _holds(line: str, pattern: str) -> bool:
    """Whether a line contains all parts of a pattern, in order."""
    if pattern.startswith("^"):
        return line.startswith(pattern[1:])
    place = 0
    for part in pattern.split("*"):
        place = line.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True
