"""Tables of error messages of frameworks, CUDA, NCCL, gloo and Python, with their meanings.

Rows are in the order in which causes are named: certain and special ones before general ones, consequences
last. A line matches a row if it contains all parts of one of its patterns in order (``*`` separates parts,
``^`` is the beginning of the line, ``!`` before all marks a pattern as loud, see `Symptom`). The messages are
of real failures: tests/corpus has those that were made, and those of public bug reports.
"""

from __future__ import annotations

from launcher.failure.symptoms import files, hardware, lost_peers, meeting, program, tensors, training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from launcher.failure.stderr import LastWords
    from launcher.failure.symptoms.symptom import Symptom

LOUD = "!"
SYMPTOMS = (
    *hardware.SYMPTOMS,
    *meeting.SYMPTOMS,
    *training.SYMPTOMS,
    *files.SYMPTOMS,
    *program.SYMPTOMS,
    *tensors.SYMPTOMS,
    *lost_peers.SYMPTOMS,
)


def find_symptoms(words: LastWords, *, killed: bool = False) -> Iterator[tuple[Symptom, str]]:
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
    for symptom in SYMPTOMS:
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
