"""The verdict: which process failed first, and why.

`make_verdict` collects; `launcher.failure.report` and `launcher.failure.record` show. All that comes
from processes is made safe when the verdict is made; what is rendered is only put together. Nothing
here raises: a job that has failed must not fail again while that is said.
"""

from __future__ import annotations

import signal
from typing import Any

from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.failure.causes import Faults, ended_by, find_own_cause
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.reason import NEVER_MET_FIX, UNMET, Reason
from launcher.failure.stderr import LastWords, read_words_of
from launcher.failure.text import presentable
from launcher.process.signals import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STDERR_LINES = 50
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
WITH_WORDS = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGSYS: "forbidden system call",
}


def make_verdict(
    first: ProcessExit,
    others: Sequence[ProcessExit],
    *,
    host_name: str,
    node_rank: int | None,
    world_size: int | None,
    attempt: int,
    started_ns: int,
    told: str | None,
    causes: Sequence[Cause],
    leftovers: Sequence[str] = (),
    reason: Reason | None = None,
    unmet_since: str | None = None,
    faults: Faults | None = None,
) -> Verdict:
    """Return the verdict on a job that has failed: first, and how the others ended; see `Verdict`.

    Args:
        causes: From `find_causes`, or why no process could be asked.
        reason: Why the launcher itself ended the job before anything had failed.
        unmet_since: That they have not met, where that was said before one failed.
        faults: What went wrong while the causes were looked for; each becomes a note.
    """
    faults = faults or Faults()
    if unmet_since is not None and (reason is None or reason.kind != UNMET):
        causes = (*causes, _not_met(_safe(unmet_since), causes))
    causes = _complete(causes, others, first, told, reason, faults)
    return Verdict(
        first=_end(first, told, first.ended_ns, heard=reason is None),
        ended_ns=first.ended_ns,
        started_ns=started_ns,
        host_name=_safe(host_name),
        node_rank=node_rank,
        world_size=world_size,
        attempt=attempt,
        told=told,
        causes=causes,
        retryable=causes[0].retryable if causes else None,
        others=tuple(_end(one, told, first.ended_ns) for one in sorted(others, key=lambda one: one.ended_ns)),
        leftovers=tuple(_safe(text) for text in leftovers),
        also=(),
        **_quote(faults.guard("last words", lambda: read_words_of(first), LastWords()), faults),
    )


def _complete(
    causes: Sequence[Cause],
    others: Sequence[ProcessExit],
    first: ProcessExit,
    told: str | None,
    reason: Reason | None,
    faults: Faults,
) -> tuple[Cause, ...]:
    """Return the causes, in front of them why we have ended the job, or what another process died of."""
    ahead = None
    if told is not None:
        ahead = _told_to_stop(told)
        causes = [cause for cause in causes if cause.code != "interrupted"]  # the same, as Python says it
    elif reason is not None:
        ahead = replace(reason.cause, what=_safe(reason.cause.what), fix=_safe(reason.cause.fix))
    elif causes and all(cause.consequence for cause in causes):
        ahead = find_own_cause(others, first.ended_ns, faults)
    return tuple(causes) if ahead is None else (ahead, *causes)


def _told_to_stop(told: str) -> Cause:
    return Cause(
        "told-to-stop",
        f"the launcher was told to stop by {told} before any process had failed",
        "nothing, if that was wanted; the platform sends it too: preemption, time limit, a cancelled job",
    )


def _not_met(found: str, others: Sequence[Cause]) -> Cause:
    """Return what else is known of a job that failed: a process that only lost another stays just that."""

    follows = bool(others) and all(cause.consequence for cause in others)
    return Cause("never-met", found, NEVER_MET_FIX, False, follows)


def _quote(words: LastWords, faults: Faults) -> dict[str, Any]:
    """Return the last words of a process as a verdict has them."""
    return {
        "exception": " ".join(presentable([words.exception])) if words.exception else "",
        "traceback": presentable(words.traceback),
        "traceback_from": words.source,
        "stderr": presentable(words.lines[-STDERR_LINES:]),
        "note": _safe("; ".join(filter(None, (words.note, *faults.told.values())))),
    }


def _safe(text: str) -> str:
    return printable(redact(text))


def _end(death: ProcessExit, told: str | None, zero_ns: int, *, heard: bool = False) -> End:
    status = describe_end(death.code, death.asked, told, heard=heard)
    after_ns = death.ended_ns - zero_ns
    return End(death.rank, death.local_rank, death.pid, death.code, status, after_ns, death.called)


def describe_end(code: int, asked: int | None, told: str | None, *, heard: bool) -> str:
    """Return how a process ended, in words that a sentence about a rank goes on with.

    Args:
        code: As `os.waitstatus_to_exitcode` has it.
        asked: The signal that the launcher passed on or sent to it before.
        told: The signal by which the launcher itself was told to stop.
        heard: Whether what it was asked can only have come from outside: the launcher itself had no
            reason yet to ask other processes.
    """
    number = ended_by(code)
    why = "" if asked is None else _who_sent(asked, told, heard=heard)
    if code >= 0:
        words = f"exited with status {code}"
        if number is not None and code > 0:
            words += f" (as a shell does when {name_signal(number)} has ended its command)"
        # A signal to write a checkpoint may be hours old; one that asks to end is why it ended.
        return f"{words} after {name_signal(asked)}, {why}" if asked and (told or asked in TO_END) else words
    name = name_signal(-code)
    meaning = next((f" ({text})" for known, text in WITH_WORDS.items() if known == -code), "")
    verb = "killed" if -code == signal.SIGKILL else "ended"
    return f"was {verb} by {name}{meaning}" + (f", {why}" if asked == -code else "")


def _who_sent(asked: int, told: str | None, *, heard: bool) -> str:
    """Return why the launcher sent a signal, as a relative clause."""
    if asked == signal.SIGKILL:
        return "which the launcher sent to end it now"
    if told == name_signal(asked) or (told is None and heard):
        return "which the launcher was told to pass on"
    return f"which the launcher sent because it was told {told}" if told else "which the launcher sent"
