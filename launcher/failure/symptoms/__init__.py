"""Words by which frameworks, CUDA, NCCL, gloo and Python say what went wrong, and what that means.

Tables, in the order in which causes are named: what is certain and special before what is general,
consequences last. A line matches a row if it holds all parts of one of its patterns, in their order
(``*`` stands between parts, ``^`` for the beginning of the line). The words are those of real failures:
torch 2.13 and gloo were made to fail for the tests, NCCL's and CUDA's are from public bug reports.
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
    """Yield what the last words mean with the line that says so, in the table's order.

    If there is a traceback, only what its exceptions say counts, and what is loud: a line about a
    connection that was lost and made again an hour ago is not why a process ended. A line is quoted
    once: what a special row has explained is not explained again by a general one. One consequence is
    enough.
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
    """Whether a line holds all parts of a pattern, in their order."""
    if pattern.startswith("^"):
        return line.startswith(pattern[1:])
    place = 0
    for part in pattern.split("*"):
        place = line.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True
