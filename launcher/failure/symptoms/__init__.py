"""Tables of error messages of frameworks, CUDA, NCCL, gloo and Python, with their meanings.

Rows are in the order in which causes are named: certain and special ones before general ones, consequences
last. A line matches a row if it contains all parts of one of its patterns in order (``*`` separates parts,
``^`` is the beginning of the line). The messages come from real failures: torch 2.13 and gloo were made to
fail for the tests, those of NCCL and CUDA are from public bug reports.
"""

from __future__ import annotations

from launcher.failure.symptoms import hardware, lost_peers, meeting, program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from launcher.failure.stderr import LastWords
    from launcher.failure.symptoms.symptom import Symptom

SYMPTOMS = (*hardware.SYMPTOMS, *meeting.SYMPTOMS, *program.SYMPTOMS, *lost_peers.SYMPTOMS)


def find_symptoms(words: LastWords) -> Iterator[tuple[Symptom, str]]:
    """Yield the symptoms in the last output, each with the line that shows it, in the table's order.

    If there is a traceback, only messages of its exceptions count, and rows that are ``loud``: a line about a
    connection that was lost and restored an hour ago does not explain why a process ended. Each line is used
    once: a line that a special row has explained is not explained again by a general one. At most one
    consequence is yielded.
    """
    said: set[str] = set()
    elsewhere = False
    for symptom in SYMPTOMS:
        if symptom.consequence and elsewhere:
            return
        line = _last_match(symptom, words.messages, said)
        if line is None and (symptom.loud or not words.messages):
            line = _last_match(symptom, words.lines, said)
        if line is not None:
            said.add(line)
            elsewhere = symptom.consequence
            yield symptom, line


def _last_match(symptom: Symptom, lines: Sequence[str], said: Container[str]) -> str | None:
    for line in reversed(lines):
        if line not in said and any(_holds(line, pattern) for pattern in symptom.patterns):
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
