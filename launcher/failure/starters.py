"""What programs that start others (mpirun, srun, a shell, DeepSpeed) say of a child that a signal ended.

Their own exit status does not tell the signal, and their children's output is mixed with theirs.
"""

from __future__ import annotations

import re

from launcher.core.signal import signal
from launcher.failure.text import compile_kind, read_kind, read_pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_WORDS = {words: getattr(signal, name) for words, name in read_pairs("words").items()}
_TOLD = [re.compile(row.replace("WORDS", "|".join(_WORDS))) for row in read_kind("told").items]
_OWN_ERROR = compile_kind("own error")


def read_told_signal(lines: Sequence[str]) -> tuple[int, str] | None:
    """Return (signal, line) of the last line that names the signal that ended a child; None without one.

    SIGTERM does not count: a starter sends it to the children that still run when one has failed.
    """
    for line in reversed(lines):
        for pattern in _TOLD:
            found = pattern.search(line)
            number = _number(found[1]) if found else None
            if number not in (None, signal.SIGTERM):
                return number, line
    return None


def is_own_error(exception: str) -> bool:
    """Whether an exception only tells that a child of a starter has failed."""
    return _OWN_ERROR.match(exception) is not None


def _number(text: str) -> int | None:
    if text.isdecimal():
        return int(text) if 0 < int(text) < signal.NSIG else None
    return _WORDS.get(text.capitalize()) or getattr(signal, text, None)
