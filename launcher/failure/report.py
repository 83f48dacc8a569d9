"""Failure report: a verdict as text for people, at the end of the log."""

from __future__ import annotations

from launcher.core.ranks import name_ranks
from launcher.core.shorten import shorten_lines
from launcher.core.signal import signal
from launcher.failure.causes import ERROR, FIX
from launcher.failure.stderr import find_user_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.failure.model import End, RankGroup, Verdict

SCREEN_LINES, SCREEN_LINES_OF_MANY = 23, 38
"""Maximum number of lines of the report, up to `FEW_RANKS` ranks and beyond; the record's path follows."""
FEW_RANKS = 8
WIDTH = 200
"""Maximum number of characters of a quoted line on the screen; the record has more."""
CAUSES_SHOWN = 3
GROUPS_SHOWN = 4
LEFT_SHOWN = 3
STACKS_SHOWN = 4
"""Maximum number of groups of ranks, besides those for which the others waited."""
STDERR_SHOWN = 8
"""Maximum number of stderr lines beside a traceback."""
QUOTED_MIN = 9
"""Lines that are kept for the traceback and stderr, with their headings."""
STOPPED_BY_HAND = {-signal.SIGINT, 128 + signal.SIGINT, 0}
"""Exit codes of processes that Ctrl-C stopped: those of Python, a shell, and a clean exit."""
RETRY = {True: "can help", False: "won't help", None: "unknown"}
ENDED_BY_US = ("stalled", "other-fabric", "never-met", "left-running", "preempted")


def render_text(verdict: Verdict, color: bool = False, *, above: bool = False, page: str = "") -> str:
    """Return the failure report: one screen, see `SCREEN_LINES`, with a newline at the end.

    ``above``: the process's own error output is right above, and is not repeated. ``page``: address of the
    page about the first cause.
    """
    if is_stopped_by_hand(verdict):
        return f"launcher: stopped by Ctrl-C (SIGINT), {_seconds(verdict.lasted_ns)} s after the start\n"
    few = (verdict.world_size or 1) <= FEW_RANKS
    limit = SCREEN_LINES if few else SCREEN_LINES_OF_MANY
    head = list(_head(verdict))
    head += [f"  docs:  {page}"] if page else []
    tail = _cut_lines(list(_tail(verdict)), limit - len(head) - QUOTED_MIN)
    news = _leave_out_said(verdict)
    room = limit - len(head) - len(tail) - bool(verdict.traceback) - bool(news)
    wanted = min(STDERR_SHOWN, room // 3) if traceback_is_enough(verdict) else room
    stderr_room = min(len(news), max(wanted, room - len(verdict.traceback)))
    if traceback_is_enough(verdict):
        stderr_room = min(stderr_room, STDERR_SHOWN)
    traceback = [_cut(line) for line in shorten_lines(verdict.traceback, max(3, room - stderr_room))]
    stderr = [_cut(line) for line in news[len(news) - stderr_room :]]
    lines = list(head)
    if above:
        lines.append(f"  {'traceback' if traceback else 'stderr'}: above, in its output")
        traceback, stderr = [], []
    if traceback:
        lines += [f"  traceback, from its {verdict.traceback_from}:", *(f"  | {line}" for line in traceback)]
    if stderr:
        lines += ["  its stderr ended with:", *(f"  | {line}" for line in stderr)]
    lines += tail
    if color:
        lines = _colored(lines)
    return "".join(f"launcher: {line}\n" for line in lines)


def is_stopped_by_hand(verdict: Verdict) -> bool:
    """Whether Ctrl-C was typed, and every process has ended because of it or with status 0."""
    codes = {verdict.first.code, *(end.code for end in verdict.others)}
    quiet = not verdict.leftovers and not verdict.also and len(verdict.causes) == 1
    return verdict.told == "SIGINT" and quiet and codes <= STOPPED_BY_HAND


def traceback_is_enough(verdict: Verdict) -> bool:
    """Whether the reason is known without many lines of the output before it."""
    return bool(verdict.traceback) or verdict.told is not None


def _leave_out_said(verdict: Verdict) -> list[str]:
    """Return the stderr lines that do not repeat what the report shows above them.

    Repeated are an error message of a launcher that is the cause, and the same traceback of other ranks
    behind one agent.
    """
    lines = list(verdict.stderr)
    size = len(verdict.traceback)
    for place in range(len(lines) - size, -1, -1) if size else ():
        if tuple(lines[place : place + size]) == tuple(verdict.traceback):
            del lines[place : place + size]
    for cause in verdict.causes[:CAUSES_SHOWN]:
        error = f"{ERROR}{cause.code}] {cause.what}"
        start = lines.index(error) if error in lines else len(lines)
        fixes = [place for place in range(start, len(lines)) if lines[place] == FIX + cause.fix]
        if fixes:
            del lines[start : fixes[0] + 1]
    return lines


def _head(verdict: Verdict) -> Iterator[str]:
    first = verdict.first
    of_all = "" if verdict.world_size is None else f" of {verdict.world_size}"
    was_stopped = verdict.told is not None or any(cause.code in ENDED_BY_US for cause in verdict.causes[:1])
    what = "ended first" if was_stopped else "failed first"
    who = first.called or f"rank {first.rank}{of_all}"
    yield f"{who} {what}: {_say_end('it', first.status)}"
    node = "" if verdict.node_rank is None else f", node {verdict.node_rank}"
    restart = "" if not verdict.attempt else f", restart {verdict.attempt}"
    seconds = _seconds(verdict.lasted_ns)
    frame = find_user_frame(verdict.traceback)
    code = f"{'' if first.called else f'rank {first.rank}, '}{frame}" if frame else ""
    local = "" if first.called else f", local rank {first.local_rank}"
    pid = f", pid {first.pid}" if first.pid else ""  # a lost node has none
    host = f", host {verdict.host_name}" if verdict.host_name else ""
    place = f"{code}{local}{pid}{host}{node}{restart}".removeprefix(", ")
    yield f"  where: {place}, {seconds} s after the start"
    for cause in verdict.causes[:CAUSES_SHOWN]:
        yield f"  {'consequence' if cause.consequence else 'cause'}: [{cause.code}] {cause.what}"
        yield f"  fix:   {cause.fix}"
    if len(verdict.causes) > CAUSES_SHOWN:
        yield f"  and:   {', '.join(cause.code for cause in verdict.causes[CAUSES_SHOWN:])}"
    if not verdict.causes:
        yield "  cause: unknown"
    yield f"  retry: {RETRY[verdict.retryable]}"
    if verdict.note:
        yield f"  note:  {verdict.note}"


def _tail(verdict: Verdict) -> Iterator[str]:
    for text in verdict.also:
        yield f"  also:  {_cut(text)}"
    groups: dict[str, list[End]] = {}
    for end in verdict.others:
        groups.setdefault(end.status, []).append(end)
    for status, ends in list(groups.items())[:GROUPS_SHOWN]:
        ranks = name_ends(ends)
        many = len(ends) > 1 and status.startswith("was ")
        what = _say_end(ranks, f"were {status.removeprefix('was ')}" if many else status)
        yield f"  then:  {what}{',' if ',' in status else ''} {_when(ends)}"
    if len(groups) > GROUPS_SHOWN:
        more = [end for ends in list(groups.values())[GROUPS_SHOWN:] for end in ends]
        yield f"  then:  {name_ends(more)} in {len(groups) - GROUPS_SHOWN} other ways"
    if not any(cause.code == "stalled" for cause in verdict.causes):  # the stall report above has them
        yield from _say_stacks(verdict.evidence)
    for text in verdict.leftovers[:LEFT_SHOWN]:
        yield f"  left:  {_cut(text)}"
    if len(verdict.leftovers) > LEFT_SHOWN:
        yield f"  left:  {len(verdict.leftovers) - LEFT_SHOWN} more"


def _cut_lines(lines: list[str], limit: int) -> list[str]:
    """Return at most ``limit`` lines; the last one tells how many are missing."""
    limit = max(limit, 2)
    if len(lines) <= limit:
        return lines
    return [*lines[: limit - 1], f"  and {len(lines) - limit + 1} more lines, see the failure record"]


def _say_stacks(groups: Sequence[RankGroup]) -> Iterator[str]:
    """Say what the ranks did before they were stopped: those for which the others waited come last."""
    shown = [one for one in groups if one.stack or one.differs]
    waited = [one for one in shown if not one.differs]
    differing = [one for one in shown if one.differs]
    for one in [*waited[:STACKS_SHOWN], *differing[:STACKS_SHOWN]]:
        yield f"  stacks: {_cut(one.doing)}"
    more = len(waited[STACKS_SHOWN:]) + len(differing[STACKS_SHOWN:])
    if more:
        yield f"  stacks: ranks in {more} other places"


def _say_end(who: str, status: str) -> str:
    """Return how processes ended, with the launcher as the subject if it stopped them."""
    verb, by_us, rest = status.partition(" by the launcher ")
    return f"the launcher {verb.split()[-1]} {who} {rest}" if by_us else f"{who} {status}"


def name_ends(ends: Sequence[End]) -> str:
    """Return e.g. ``ranks 0-3, ps 0, evaluator 0``."""
    ranks = [end.rank for end in ends if not end.called]
    called = [end.called for end in ends if end.called]
    return ", ".join([*([name_ranks(ranks)] if ranks else []), *called])


def _when(ends: Sequence[End]) -> str:
    earliest, latest = min(end.after_ns for end in ends), max(end.after_ns for end in ends)
    if latest < 0:
        earliest, latest, word = -latest, -earliest, "earlier"
    elif earliest < 0:
        return f"from {_seconds(-earliest)} s earlier to {_seconds(latest)} s later"
    else:
        word = "later"
    if _seconds(earliest) == _seconds(latest):
        return f"{_seconds(latest)} s {word}"
    return f"{_seconds(earliest)} to {_seconds(latest)} s {word}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[:WIDTH]}..."


def _colored(lines: Sequence[str]) -> list[str]:
    """Return the lines with the first in red, and the labels before the colons in bold."""
    rest = [
        line
        if line.startswith("  |")
        else f"\x1b[1m{line[: line.find(':') + 1]}\x1b[0m{line[line.find(':') + 1 :]}"
        for line in lines[1:]
    ]
    return [f"\x1b[1;31m{lines[0]}\x1b[0m", *rest]
