"""Renders the answers of a job's nodes as a table for terminals and logs, and as JSON for tools. Pure.

Other nodes are not trusted: malformed values are left out or shown as unknown, and control characters never
reach a terminal.
"""

from __future__ import annotations

import json
from math import inf

from launcher.control.received import TEXT_LENGTH, Message, mappings, number, rows_of, words
from launcher.control.stragglers import find_stragglers
from launcher.core.frozen import frozen
from launcher.core.redact import printable
from launcher.output.progress import clock, duration, gib
from launcher.output.tables import BOLD, DIM, RED, REVERSE, YELLOW, align, cut, lay_out, measure, paint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.output.tables import Paper

VERSION = 1
HEAD = ("node", "host", "rank", "pid", "state", "cpu", "memory", "GPU", "GPU memory", "last output")
STATE = HEAD.index("state")
RIGHT = ("cpu", "memory", "GPU", "GPU memory", "last output", "pid")
SORTS = {"n": "node", "s": "state", "c": "cpu", "m": "memory", "u": "GPU", "o": "last output"}
"""Keys of ``launcher status --watch``, and the column by which each sorts."""
UNKNOWN = "-"
EVENTS_SHOWN = 8
FRAME_LINES = 6
"""Lines of the summary, the table's head with the rules around it, its end, and the note on hidden rows."""
SCREEN_LINES = 3
"""Further lines on an interactive screen: the command, an empty line, the keys."""


@frozen
class View:
    """A job at one moment, as its nodes report it.

    Attributes:
        nodes: (rank, answer) of each launcher that has answered. The rank is that of its node, or of its
            process if each process has its own launcher.
        silent: (rank, reason) of each launcher that has not answered.
        note: Remark on the answers as a whole; empty for none.
    """

    nodes: tuple[tuple[int, Message], ...]
    silent: tuple[tuple[int, str], ...]
    note: str = ""


@frozen
class ScreenState:
    """What the user's keys have set.

    Attributes:
        by: A column of `SORTS`: nodes ascending, states other than "running" first, numbers descending.
        skip: Number of rows above the first one that is shown.
        has_quit: Whether the user has quit.
    """

    by: str = "node"
    skip: int = 0
    has_quit: bool = False


@frozen
class ShownTable:
    """A table for a screen.

    Attributes:
        lines: The lines, with the codes of their styles.
        rows: Number of rows.
        page: Number of rows that fit on the screen.
    """

    lines: tuple[str, ...]
    rows: int
    page: int


def make_view(answers: Sequence[Message]) -> View:
    """Return the view of a launcher's answers, sorted by rank; malformed ones are left out."""
    nodes: dict[int, Message] = {}
    silent: dict[int, str] = {}
    note = ""
    for message in answers:
        rank, answer = number(message, "node"), message.get("answer")
        if rank is None:
            note = note or words(message, "note")
        elif isinstance(answer, dict):
            nodes[int(rank)] = answer
        else:
            silent[int(rank)] = words(message, "why") or "no answer"
    return View(tuple(sorted(nodes.items())), tuple(sorted(silent.items())), note)


def with_cpu(before: View | None, after: View) -> View:
    """Return a view with ``cpu_percent`` of its ranks: percent of one CPU since an earlier view."""
    earlier = {
        (node, number(rank, "pid")): (number(rank, "cpu_s"), number(answer, "at_s"))
        for node, answer in (before.nodes if before is not None else ())
        for rank in rows_of(answer)
    }
    nodes = []
    for node, answer in after.nodes:
        ranks = []
        for rank in rows_of(answer):
            was_s, then_s = earlier.get((node, number(rank, "pid")), (None, None))
            now_s, at_s = number(rank, "cpu_s"), number(answer, "at_s")
            if not (was_s is None or then_s is None or now_s is None or at_s is None or at_s <= then_s):
                share = (now_s - was_s) / (at_s - then_s)
                rank = {**rank, "cpu_percent": round(max(0.0, 100 * share), 1)}
            ranks.append(rank)
        nodes.append((node, {**answer, "ranks": ranks}))
    return View(tuple(nodes), after.silent, after.note)


def render_json(view: View) -> str:
    """Return a view as JSON for tools; characters that are not ASCII are escaped."""
    document = {
        "version": VERSION,
        "nodes": [{"node": rank, **answer} for rank, answer in view.nodes],
        "silent": [{"node": rank, "why": why} for rank, why in view.silent],
        "stragglers": [
            {"ranks": one.ranks, "nodes": one.nodes, "what": one.what} for one in find_stragglers(view.nodes)
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def headline(view: View) -> str:
    """Return one line about the whole job."""
    command = command_of(view)
    return " · ".join([*([command] if command else []), summarize(view)])


def command_of(view: View) -> str:
    """Return the job's command line; empty if the first node does not report it."""
    return words(view.nodes[0][1], "command") if view.nodes else ""


def summarize(view: View) -> str:
    """Return the number of nodes and ranks, the elapsed time, unusual states and restarts."""
    rows = [row for _, answer in view.nodes for row in rows_of(answer)]
    ranks = [row for row in rows if number(row, "rank") is not None]
    up = sum(words(row, "state") == "running" for row in ranks)
    count = len({_place(rank, answer) for rank, answer in view.nodes}) + len(view.silent)
    first = view.nodes[0][1] if view.nodes else {}
    world = number(first, "world_size")
    parts = [
        f"{count} node{'s' if count > 1 else ''}",
        f"{up} of {len(ranks) if world is None else int(world)} ranks run",
        clock(max((number(answer, "elapsed_s") or 0.0 for _, answer in view.nodes), default=0.0)),
    ]
    states = sorted({words(answer, "state") for _, answer in view.nodes} - {"running", ""})
    waits = [state for state in states if " for restart " in state]
    states = [state for state in states if state not in waits] + waits[:1]  # only node 0 knows the seconds
    attempt = None if waits else number(first, "attempt")
    parts += [", ".join(states)] if states else []
    most = number(first, "restarts")
    if attempt and most:
        parts.append(f"restart {attempt:g} of {most:g}")
    elif attempt:
        parts.append(f"torchrun restarted its processes {attempt:g} time{'s' if attempt > 1 else ''}")
    return " · ".join([*parts, *_name_spares(first.get("nodes"))])


def _name_spares(nodes: object) -> list[str]:
    """Return the number of spare nodes and their hosts, as node 0 counts them; nothing if there are none."""
    spares = number(nodes, "spares") if isinstance(nodes, dict) else None
    if not spares or not isinstance(nodes, dict):
        return []
    told = nodes.get("spare_hosts")
    known = [host for host in (told if isinstance(told, list) else []) if isinstance(host, str)]
    hosts = [printable(host)[:TEXT_LENGTH] for host in known] + ["..."] * (len(known) < spares)
    return [f"{spares:g} spare node{'s' if spares > 1 else ''} ({', '.join(hosts)})"]


def _place(rank: int, answer: Message) -> str:
    """Return the node rank of a launcher, as several may run on one node; its own rank if it reports none."""
    node = number(answer, "node_rank")
    return f"{rank if node is None else node:g}"


def make_rows(view: View, by: str = "node") -> list[tuple[str, ...]]:
    """Return the table's rows: one per process, per node without an answer, and per node that omits ranks.

    Args:
        view: The job.
        by: The column to sort by; see `ScreenState`.
    """
    found: list[tuple[tuple[str, ...], Mapping[str, float | None]]] = []
    for node, answer in view.nodes:
        gpus = {number(gpu, "index"): gpu for gpu in mappings(answer, "gpus")}
        host = words(answer, "host") or UNKNOWN
        ours = rows_of(answer)
        place = _place(node, answer)
        found += [_row(place, host, one, gpus) for one in ours]
        left_out = number(answer, "left_out")
        if left_out or not ours:
            what = f"{left_out:g} more" if left_out else words(answer, "state") or UNKNOWN
            found.append(((place, host, UNKNOWN, UNKNOWN, what, *[UNKNOWN] * 5), {}))
    found += [((str(node), UNKNOWN, UNKNOWN, UNKNOWN, why, *[UNKNOWN] * 5), {}) for node, why in view.silent]
    if by == "state":
        found.sort(key=lambda row: row[0][STATE] == "running")
    elif by != "node":
        found.sort(key=lambda row: -inf if (value := row[1].get(by)) is None else value, reverse=True)
    return [cells for cells, _ in found]


def _row(
    node: str, host: str, one: Message, gpus: Mapping[float | None, Message]
) -> tuple[tuple[str, ...], Mapping[str, float | None]]:
    """Return the cells of a process, and the numbers to sort them by."""
    rank, pid = number(one, "rank"), number(one, "pid")
    state, kernel = words(one, "state"), words(one, "kernel_state")
    cpu, memory, silence = (number(one, name) for name in ("cpu_percent", "memory_bytes", "silence_s"))
    indices = one.get("gpus")
    used = [gpus[index] for index in (indices if isinstance(indices, list) else [])
            if isinstance(index, int) and index in gpus]  # fmt: skip
    all_busy = [value for gpu in used if (value := number(gpu, "busy_percent")) is not None]
    busy = sum(all_busy) / len(all_busy) if all_busy else None
    sizes = [sum(int(number(gpu, name) or 0) for gpu in used) for name in ("used_bytes", "total_bytes")]
    cells = (
        node,
        host,
        words(one, "name") or UNKNOWN if rank is None else f"{rank:g}",
        UNKNOWN if pid is None else f"{pid:g}" if pid < 1e5 else str(int(pid)),
        f"{state} ({kernel})" if kernel in ("D", "T", "t", "Z") else state or UNKNOWN,
        UNKNOWN if cpu is None else f"{cpu:.0f} %",
        UNKNOWN if memory is None else _memory(int(memory)),
        UNKNOWN if busy is None else f"{busy:.0f} %",
        f"{gib(sizes[0])}/{gib(sizes[1])} GiB" if used else UNKNOWN,
        UNKNOWN if silence is None else f"{duration(max(0.0, silence))} ago",
    )
    return cells, {"cpu": cpu, "memory": memory, "GPU": busy, "last output": silence}


def _memory(size_bytes: int) -> str:
    """Return the memory of a rank as text; a small amount in MiB, because 0 GiB would look like a fault."""
    return f"{gib(size_bytes)} GiB" if size_bytes >= 100 << 20 else f"{size_bytes >> 20} MiB"


def make_events(view: View) -> list[str]:
    """Return the launchers' latest messages, the latest last."""
    found: list[tuple[float, str]] = []
    several = len(view.nodes) + len(view.silent) > 1
    for node, answer in view.nodes:
        for event in mappings(answer, "events"):
            ago, what = number(event, "ago_s"), words(event, "what")
            if ago is not None and what:
                where = f"node {_place(node, answer)}, " if several else ""
                found.append((ago, f"{where}{duration(max(0.0, ago))} ago: {what}"))
    latest = sorted(found, key=lambda event: event[0])[:EVENTS_SHOWN]
    return [text for _, text in reversed(latest)]


def name_slow(view: View) -> list[str]:
    """Return a line about each rank or node that differs from the others."""
    return [f"slow: {one.name} {one.what}" for one in find_stragglers(view.nodes)]


def render_text(view: View) -> str:
    """Return a view as plain lines."""
    lines = [headline(view), *align([HEAD, *make_rows(view)], RIGHT), *name_slow(view), *make_events(view)]
    return "".join(f"{line}\n" for line in [*lines, *([view.note] if view.note else [])])


def render_screen(view: View, paper: Paper, screen: ScreenState | None = None) -> ShownTable:
    """Return a view for a terminal.

    Args:
        view: The job.
        paper: The terminal.
        screen: What the keys have set, if the table fills the screen: then it has one line for each row, as
            many as there is room for, and a line that lists the keys.
    """
    by, skip = (screen.by, screen.skip) if screen is not None else ("node", 0)
    rows, events = make_rows(view, by), make_events(view)
    tail = [*name_slow(view), *events, *([view.note] if view.note else [])]
    around = FRAME_LINES + len(tail) + SCREEN_LINES
    page = len(rows) if screen is None else max(1, paper.height - around)
    shown = rows[skip : skip + page]
    table = lay_out(
        *(paper, HEAD, shown),
        folds=() if screen is not None else ("state",),
        right=RIGHT,
        marked=by if screen is not None else "",
        styles=[() if row[STATE] == "running" else (BOLD, RED) for row in shown],
    )
    left = f"rows {skip + 1} to {skip + len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    bad = sum(row[STATE] != "running" for row in rows) - sum(row[STATE] != "running" for row in shown)
    left += f", {bad} not running among the others" if left and bad else ""
    lines = [paint(paper, headline(view), BOLD)]
    if screen is not None:  # two lines, however long the command is
        lines = [
            paint(paper, cut(summarize(view), paper.width), BOLD),
            paint(paper, cut(command_of(view), paper.width), DIM),
        ]
    lines += ["", *table, "", *([paint(paper, left, YELLOW)] if left else [])]
    lines += [paint(paper, cut(line, paper.width), DIM) for line in tail]
    lines += [] if screen is None else ["", _render_keys(paper)]
    return ShownTable(tuple(lines), len(rows), page)


def _render_keys(paper: Paper) -> str:
    """Return the line that lists the keys, as many as there is room for."""
    line, room = "", paper.width
    for key, what in (*SORTS.items(), ("↑ ↓ PgUp PgDn", "scroll"), ("q", "quit")):
        room -= measure(key) + measure(what) + 5
        if room >= -2:  # nothing follows the last one
            line += f"{paint(paper, f' {key} ', REVERSE)} {what}  "
    return line.rstrip()


def render_terminal(view: View, paper: Paper) -> str:
    """Return a view with the styles of a terminal, in its width."""
    return "".join(f"{line}\n" for line in render_screen(view, paper).lines)
