"""The verdict: which process failed first, and why.

`make_verdict` collects the facts; `launcher.failure.report` and `launcher.failure.record` show them. All text
from processes is made safe here, so that rendering only has to assemble it. Nothing here raises: the report
of a failed job must not fail too.
"""

from __future__ import annotations

import signal
from typing import Any

from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.failure.arbiter import UNMET
from launcher.failure.causes import Faults, ended_by, find_own_cause
from launcher.failure.model import Cause, End, ProcessExit, Verdict
from launcher.failure.reason import Reason
from launcher.failure.stderr import LastOutput, read_words_of
from launcher.failure.symptoms import make_cause
from launcher.failure.text import presentable, read_pairs
from launcher.process.signal_file import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STDERR_LINES = 50
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
WITH_WORDS = read_pairs("signals")


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
    told_by: str = "",
    leftovers: Sequence[str] = (),
    reason: Reason | None = None,
    unmet_since: str | None = None,
    faults: Faults | None = None,
) -> Verdict:
    """Return the verdict on a failed job: the first process, and how the others ended; see `Verdict`.

    Args:
        first: The process that failed first.
        others: The other processes.
        host_name, node_rank, world_size, attempt, started_ns, told: As in `Verdict`.
        causes: Causes from `find_causes`, or the cause of an event without a process.
        told_by: ``node 2 (gpu-7) received SIGTERM`` if another node received it; empty if this one did.
        leftovers: Descriptions of processes that survived SIGKILL.
        reason: The launcher's own reason for ending the job before any process had failed.
        unmet_since: Message that the processes have not met, if it was reported before one failed.
        faults: Faults of the launcher while it looked for causes; each becomes a note.
    """
    faults = faults or Faults()
    if unmet_since is not None and (reason is None or reason.kind != UNMET):
        follows = bool(causes) and all(cause.consequence for cause in causes)
        causes = (*causes, replace(make_cause("unmet", what=_safe(unmet_since)), consequence=follows))
    if told is not None and not told_by:
        told_by = f"the launcher received {told}"
    causes = _complete(causes, others, first, told_by, reason, faults)
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
        evidence=(),
        **_quote(faults.guard("last output", lambda: read_words_of(first), LastOutput()), faults),
    )


def _complete(
    causes: Sequence[Cause],
    others: Sequence[ProcessExit],
    first: ProcessExit,
    told: str,
    reason: Reason | None,
    faults: Faults,
) -> tuple[Cause, ...]:
    """Return the causes, preceded by our reason for ending the job, or by what another process died of."""
    ahead = None
    if told:
        ahead = make_cause("told-to-stop", received=_safe(told))
        causes = [cause for cause in causes if cause.code != "interrupted"]  # the same in Python's words
    elif reason is not None:
        ahead = replace(reason.cause, what=_safe(reason.cause.what), fix=_safe(reason.cause.fix))
    elif causes and all(cause.consequence for cause in causes):
        ahead = find_own_cause(others, first.ended_ns, faults)
    return tuple(causes) if ahead is None else (ahead, *causes)


def _quote(words: LastOutput, faults: Faults) -> dict[str, Any]:
    """Return the fields of a verdict that quote a process's output."""
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
    """Return how a process ended, as a clause that continues a sentence about a rank.

    Args:
        code: Exit code as in `os.waitstatus_to_exitcode`.
        asked: The signal that the launcher forwarded or sent to it before.
        told: The signal that told the launcher itself to stop.
        heard: Whether that signal can only have come from outside, because the launcher had no reason of its
            own yet to stop processes.
    """
    number = ended_by(code)
    if code >= 0:
        words = f"exited with code {code}"
        if number is not None and code > 0:
            words += f" (as a shell does when {name_signal(number)} has ended its command)"
        # A signal to write a checkpoint may be hours old; a signal to stop is why the process ended.
        if asked and (told or asked in TO_END):
            words += f" after the launcher {_say_sent(asked, told, heard=heard)}"
        return words
    name = name_signal(-code)
    meaning = f" ({WITH_WORDS[name]})" if name in WITH_WORDS else ""
    if asked != -code:
        return f"was {'killed' if -code == signal.SIGKILL else 'ended'} by {name}{meaning}"
    if asked == signal.SIGKILL:  # a second Ctrl-C does not wait for the end of the grace period
        return f"was killed by the launcher (SIGKILL){'' if told == 'SIGINT' else ' after the grace period'}"
    if _is_passed_on(asked, told, heard=heard):
        return f"was ended by {name}{meaning}, forwarded by the launcher"
    return f"was stopped by the launcher ({name}){f' after it received {told}' if told else ''}"


def _is_passed_on(asked: int, told: str | None, *, heard: bool) -> bool:
    """Whether the launcher only forwarded the signal."""
    return told == name_signal(asked) or (told is None and heard)


def _say_sent(asked: int, told: str | None, *, heard: bool) -> str:
    """Return that the launcher sent a signal, and why."""
    name = name_signal(asked)
    if _is_passed_on(asked, told, heard=heard):
        return f"forwarded {name}"
    return f"sent {name}{f' because it received {told}' if told else ''}"
