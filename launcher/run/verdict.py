"""The verdict: who failed first and why, as the last screen of the log and as JSON.

`make_verdict` collects, `render_text` and `render_json` show, `write_verdict` stores. All that comes
from processes is made safe when the verdict is made; what is rendered is only put together. Nothing
here raises: a job that has failed must not fail again while that is said.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence

from launcher import __version__
from launcher.frozen import frozen
from launcher.redact import printable, redact
from launcher.run.causes import Cause, ended_by, find_own_cause
from launcher.run.failure_file import default_failure_file, write_verdict
from launcher.run.last_words import presentable, read_last_words, shorten_lines
from launcher.run.signals import name_signal

__all__ = [
    "Death",
    "End",
    "Verdict",
    "default_failure_file",
    "make_verdict",
    "render_json",
    "render_text",
    "write_verdict",
]

SCHEMA = 1
SCREEN_LINES = 40
WIDTH = 200
"""Characters of a quoted line on the screen; the record has more."""
CAUSES_SHOWN = 3
GROUPS_SHOWN = 4
LEFT_SHOWN = 3
STDERR_LINES = 50
STDERR_SHOWN = 8
"""Lines of stderr on the screen at least, beside a long traceback."""
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
ENDED_BY_US = ("stalled", "other-fabric")
WITH_WORDS = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGSYS: "forbidden system call",
}


@frozen
class Death:
    """What the supervisor knows about a process that has ended.

    Attributes:
        rank: Rank in the job.
        local_rank: Rank on this node.
        pid: Its process id.
        code: As `os.waitstatus_to_exitcode` has it: negative for signals.
        ended_ns: When the kernel told of its end, nanoseconds since 1970.
        stderr: The end of its stderr, at most `last_words.STDERR_BYTES`.
        error_file: Path of its error file (TORCHELASTIC_ERROR_FILE), which need not exist.
        asked: The last signal that the launcher passed on or sent to it before it ended.
        called: What it is called if it has no rank: an agent that starts the processes, or a companion.
    """

    rank: int
    local_rank: int
    pid: int
    code: int
    ended_ns: int
    stderr: bytes = b""
    error_file: str | None = None
    asked: int | None = None
    called: str = ""


@frozen
class End:
    """How a process ended, in words; ``after_ns`` counts from the first failure."""

    rank: int
    local_rank: int
    pid: int
    code: int
    status: str
    after_ns: int
    called: str = ""


@frozen
class Verdict:
    """All that is said about a failure; every text in it is safe to show.

    Attributes:
        first: The process that failed first.
        ended_ns: When it ended, nanoseconds since 1970.
        started_ns: When this attempt was started.
        host_name: This node.
        node_rank: Its index, None if unknown.
        world_size: Processes in the job, None if unknown.
        attempt: 0 for the first, one more for each restart.
        told: The signal by which the launcher was told to stop before anything had failed.
        causes: Why, the most certain first, consequences last.
        retryable: Whether the same command can succeed when started again; None if nobody knows.
        exception: What Python raised last, empty if unknown.
        traceback: Its lines.
        traceback_from: ``"error file"``, ``"stderr"`` or None.
        stderr: The other last lines of its stderr, oldest first.
        note: Why its error file could not be used.
        others: The other processes, as they ended.
        leftovers: What could not be ended.
    """

    first: End
    ended_ns: int
    started_ns: int
    host_name: str
    node_rank: int | None
    world_size: int | None
    attempt: int
    told: str | None
    causes: tuple[Cause, ...]
    retryable: bool | None
    exception: str
    traceback: tuple[str, ...]
    traceback_from: str | None
    stderr: tuple[str, ...]
    note: str
    others: tuple[End, ...]
    leftovers: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        cause = f": {self.causes[0].what}" if self.causes else ""
        return (
            f"{self.first.called or f'rank {self.first.rank}'} on {self.host_name} {self.first.status}{cause}"
        )


def make_verdict(
    first: Death,
    others: Sequence[Death],
    *,
    host_name: str,
    node_rank: int | None,
    world_size: int | None,
    attempt: int,
    started_ns: int,
    told: str | None,
    causes: Sequence[Cause],
    leftovers: Sequence[str] = (),
    reason: str | None = None,
    mismatch: tuple[str, str] | None = None,
) -> Verdict:
    """Return the verdict on a job that has failed.

    Args:
        first: The process that failed first, by the kernel's notice.
        others: The other processes that have ended.
        host_name: This node.
        node_rank: Its index, None if unknown.
        world_size: Processes in the job, None if unknown.
        attempt: 0 for the first, one more for each restart.
        started_ns: When this attempt was started, nanoseconds since 1970.
        told: Name of the signal by which the launcher was told to stop before the first end.
        causes: From `find_causes`.
        leftovers: What could not be ended, one text each.
        reason: Why the launcher itself ended the job before anything had failed: it stalled.
        mismatch: The same, and what mends it, where NCCL uses another network than the one that is required.
    """
    words = read_last_words(first.stderr, first.error_file)
    if told is not None:
        causes = (_told_to_stop(told), *causes)
    elif reason is not None:
        causes = (_stalled(_safe(reason)), *causes)
    elif mismatch is not None:
        causes = (_other_fabric(*map(_safe, mismatch)), *causes)
    elif causes and all(cause.consequence for cause in causes):
        own = find_own_cause(others, first.ended_ns)
        causes = causes if own is None else (own, *causes)
    return Verdict(
        first=_end(first, told, first.ended_ns, heard=reason is None and mismatch is None),
        ended_ns=first.ended_ns,
        started_ns=started_ns,
        host_name=_safe(host_name),
        node_rank=node_rank,
        world_size=world_size,
        attempt=attempt,
        told=told,
        causes=tuple(causes),
        retryable=causes[0].retryable if causes else None,
        exception=" ".join(presentable([words.exception])) if words.exception else "",
        traceback=presentable(words.traceback),
        traceback_from=words.source,
        stderr=presentable(words.lines[-STDERR_LINES:]),
        note=_safe(words.note),
        others=tuple(_end(one, told, first.ended_ns) for one in sorted(others, key=lambda one: one.ended_ns)),
        leftovers=tuple(_safe(text) for text in leftovers),
    )


def _told_to_stop(told: str) -> Cause:
    return Cause(
        "told-to-stop",
        f"the launcher was told to stop by {told} before any process had failed",
        "nothing, if that was wanted; the platform sends it too: preemption, time limit, a cancelled job",
    )


def _stalled(reason: str) -> Cause:
    return Cause(
        "stalled",
        f"the launcher ended the job (--on-stall stop): {reason}",
        "the stacks printed before tell who waits where; a longer --stall-timeout if it was only slow",
    )


def _other_fabric(found: str, fix: str) -> Cause:
    what = f"the launcher ended the job (--verify-fabric, --require-fabric): {found}"
    return Cause("other-fabric", what, fix, False)


def _safe(text: str) -> str:
    return printable(redact(text))


def _end(death: Death, told: str | None, zero_ns: int, *, heard: bool = False) -> End:
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
            reason yet to ask anybody.
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


# --- text


def render_text(verdict: Verdict, color: bool = False) -> str:
    """Return the last screen of the log: at most about `SCREEN_LINES` lines, with a newline at the end."""
    head = list(_head(verdict))
    tail = list(_tail(verdict))
    room = max(10, SCREEN_LINES - len(head) - len(tail) - 2)
    wanted = (
        STDERR_SHOWN if traceback_is_enough(verdict) else max(STDERR_SHOWN, room - len(verdict.traceback))
    )
    stderr_room = min(len(verdict.stderr), wanted)
    traceback = _quoted(verdict.traceback, room - stderr_room)
    stderr = [_cut(line) for line in verdict.stderr[len(verdict.stderr) - stderr_room :]]
    lines = list(head)
    if traceback:
        lines += [f"  traceback, from its {verdict.traceback_from}:", *(f"  | {line}" for line in traceback)]
    if stderr:
        lines += ["  its stderr ended with:", *(f"  | {line}" for line in stderr)]
    lines += tail
    if color:
        lines = _colored(lines)
    return "".join(f"launcher: {line}\n" for line in lines)


def traceback_is_enough(verdict: Verdict) -> bool:
    """Whether the reason is known without many lines of what was written before."""
    return bool(verdict.traceback) or verdict.told is not None


def _head(verdict: Verdict) -> Iterator[str]:
    first = verdict.first
    of_all = "" if verdict.world_size is None else f" of {verdict.world_size}"
    was_stopped = verdict.told is not None or any(cause.code in ENDED_BY_US for cause in verdict.causes)
    what = "ended first" if was_stopped else "failed first"
    who = first.called or f"rank {first.rank}{of_all}"
    yield f"{who} {what}: it {first.status}"
    node = "" if verdict.node_rank is None else f", node {verdict.node_rank}"
    restart = "" if not verdict.attempt else f", restart {verdict.attempt}"
    seconds = _seconds(verdict.ended_ns - verdict.started_ns)
    local = "" if first.called else f"local rank {first.local_rank}, "
    place = f"{local}pid {first.pid}, host {verdict.host_name}{node}{restart}"
    yield f"  where: {place}, {seconds} s after the start"
    for cause in verdict.causes[:CAUSES_SHOWN]:
        yield f"  {'consequence' if cause.consequence else 'cause'}: [{cause.code}] {cause.what}"
        yield f"  fix:   {cause.fix}"
    if len(verdict.causes) > CAUSES_SHOWN:
        yield f"  and:   {', '.join(cause.code for cause in verdict.causes[CAUSES_SHOWN:])}"
    if not verdict.causes:
        yield "  cause: not known"
    yield {
        True: "  retry: can help",
        False: "  retry: does not help",
        None: "  retry: nobody knows whether it helps",
    }[verdict.retryable]
    if verdict.note:
        yield f"  note:  {verdict.note}"


def _tail(verdict: Verdict) -> Iterator[str]:
    groups: dict[str, list[End]] = {}
    for end in verdict.others:
        groups.setdefault(end.status, []).append(end)
    for status, ends in list(groups.items())[:GROUPS_SHOWN]:
        ranks = name_ends(ends)
        status = status.removeprefix("was ") if len(ends) > 1 else status
        verb = "were " if len(ends) > 1 and not status.startswith("exited") else ""
        comma = "," if "," in status else ""
        yield f"  then:  {ranks} {verb}{status}{comma} {_when(ends)}"
    if len(groups) > GROUPS_SHOWN:
        more = [end for ends in list(groups.values())[GROUPS_SHOWN:] for end in ends]
        yield f"  then:  {name_ends(more)} in {len(groups) - GROUPS_SHOWN} other ways"
    for text in verdict.leftovers[:LEFT_SHOWN]:
        yield f"  left:  {_cut(text)}"
    if len(verdict.leftovers) > LEFT_SHOWN:
        yield f"  left:  {len(verdict.leftovers) - LEFT_SHOWN} more"


def name_ends(ends: Sequence[End]) -> str:
    """Return e.g. ``ranks 0-3, ps 0, evaluator 0``."""
    ranks = [end.rank for end in ends if not end.called]
    called = [end.called for end in ends if end.called]
    return ", ".join([*([name_ranks(ranks)] if ranks else []), *called])


def name_ranks(ranks: Sequence[int]) -> str:
    """Return e.g. ``rank 3`` or ``ranks 0, 2-7, 9``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    names = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank {names}" if len(set(ranks)) == 1 else f"ranks {names}"


def _when(ends: Sequence[End]) -> str:
    earliest, latest = min(end.after_ns for end in ends), max(end.after_ns for end in ends)
    if latest < 0:
        earliest, latest, word = -latest, -earliest, "earlier"
    else:
        word = "later"
    if _seconds(earliest) == _seconds(latest):
        return f"{_seconds(latest)} s {word}"
    return f"{_seconds(earliest)} to {_seconds(latest)} s {word}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f}"


def _quoted(lines: Sequence[str], limit: int) -> list[str]:
    return [_cut(line) for line in shorten_lines(lines, max(3, limit))]


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}..."


def _colored(lines: Sequence[str]) -> list[str]:
    """Return the lines with the first in red and what stands before a colon in bold."""
    rest = [
        line
        if line.startswith("  |")
        else f"\x1b[1m{line[: line.find(':') + 1]}\x1b[0m{line[line.find(':') + 1 :]}"
        for line in lines[1:]
    ]
    return [f"\x1b[1;31m{lines[0]}\x1b[0m", *rest]


# --- JSON


def render_json(verdict: Verdict) -> str:
    """Return the record of the failure, see docs/failures.md, with a newline at the end."""
    first = verdict.first
    record = {
        "schema": SCHEMA,
        "launcher": __version__,
        "verdict": verdict.summary,
        "retryable": verdict.retryable,
        "causes": [
            {
                "code": cause.code,
                "what": cause.what,
                "fix": cause.fix,
                "retryable": cause.retryable,
                "consequence": cause.consequence,
            }
            for cause in verdict.causes
        ],
        **_describe(first),
        "host": verdict.host_name,
        "node_rank": verdict.node_rank,
        "world_size": verdict.world_size,
        "attempt": verdict.attempt,
        "started": _iso(verdict.started_ns),
        "ended": _iso(verdict.ended_ns),
        "ended_ns": verdict.ended_ns,
        "seconds": _rounded(verdict.ended_ns - verdict.started_ns),
        "told": verdict.told,
        "exception": verdict.exception or None,
        "traceback": "\n".join(verdict.traceback) or None,
        "traceback_from": verdict.traceback_from,
        "stderr": "\n".join(verdict.stderr) or None,
        "note": verdict.note or None,
        "others": [{**_describe(end), "seconds_after": _rounded(end.after_ns)} for end in verdict.others],
        "leftovers": list(verdict.leftovers),
        "shortened": False,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _describe(end: End) -> dict[str, object]:
    return {
        "called": end.called or None,
        "rank": None if end.called else end.rank,
        "local_rank": None if end.called else end.local_rank,
        "pid": end.pid,
        "exit_status": end.code if end.code >= 0 else 128 - end.code,
        "signal": name_signal(-end.code) if end.code < 0 else None,
        "status": end.status,
    }


def _iso(nanoseconds: int) -> str | None:
    """Return a moment as RFC 3339 in UTC, to the microsecond."""
    from datetime import datetime, timedelta, timezone

    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _rounded(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 6)
