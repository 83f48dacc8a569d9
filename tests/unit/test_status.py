"""What nodes say of themselves: shown, cut to a size, asked over the channel; and who means ill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.channel.frames import FRAME_LIMIT_BYTES
from launcher.cli.status import render_launchers
from launcher.cluster.messages import Ask, Passed, Reply
from launcher.cluster.questions import PACES, ROUNDS_OF_ONE, STEP_S, Questions, Rounds
from launcher.cluster.settings import Shape
from launcher.control import client, responder
from launcher.control.node import RANKS_MAX, limit_ranks
from launcher.control.render import render_text as render_stacks
from launcher.control.table import (
    ScreenState,
    make_rows,
    make_view,
    render_json,
    render_screen,
    render_terminal,
    render_text,
    with_cpu,
)
from launcher.control.watch import press, split_keys
from launcher.core.wire import pack as pack_message
from launcher.hang.limits import STACKS_BYTES
from launcher.hang.model import Answer, Frame, Thread
from launcher.hang.packing import pack, unpack
from launcher.machine import process
from launcher.machine.process import Stat, parse_stat
from launcher.options.reading import read_options
from launcher.output.tables import Paper, measure
from launcher.process.families import Processes

Message = dict[str, Any]
T = TypeVar("T")
GIB = 1 << 30
RANK: Message = {
    "name": "rank 0", "rank": 0, "local_rank": 0, "pid": 812, "state": "running", "kernel_state": "S",
    "cpu_s": 10.0, "memory_bytes": 3 * GIB, "process_count": 5, "silence_s": 130.0, "gpus": [0],
}  # fmt: skip
NODE: Message = {
    "host": "gpu-0", "world_size": 2, "command": "python train.py", "state": "running", "at_s": 100.0,
    "elapsed_s": 754.0, "attempt": 0, "restarts": 0,
    "gpus": [{"index": 0, "busy_percent": 97, "used_bytes": 60 * GIB, "total_bytes": 80 * GIB}],
    "ranks": [RANK], "events": [{"ago_s": 5.0, "what": "all 2 nodes are here"}],
}  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*NODE, *RANK]), inner),
    max_leaves=12,
)


# --- the table


RANKS: list[Message] = [
    {**RANK, "rank": 0, "cpu_percent": 20.0, "memory_bytes": 900 << 20, "silence_s": 1.0},
    {**RANK, "rank": 1, "cpu_percent": 100.0, "memory_bytes": 2 * GIB, "silence_s": 90.0, "state": "stopped"},
    {**RANK, "rank": 2, "cpu_percent": 5.0, "memory_bytes": None, "silence_s": None},
]


@pytest.mark.parametrize(
    ("by", "ranks"),
    [
        *(("node", "012"), ("cpu", "102"), ("memory", "102"), ("last output", "102"), ("state", "102")),
        ("GPU", "012"),
    ],
)
def test_rows_are_sorted_by_a_column(by: str, ranks: str) -> None:
    """By the numbers, not by their text: 900 MiB is less than 2 GiB; what is unknown comes last."""
    rows = make_rows(make_view([{"node": 0, "answer": {**NODE, "ranks": RANKS}}]), by)
    assert "".join(row[2] for row in rows) == ranks


def test_what_a_screen_cannot_hold_is_scrolled_to() -> None:
    """The page is what fits, and what is beyond is counted, with what does not run there."""
    many = [{**RANKS[1 if rank == 39 else 0], "rank": rank} for rank in range(40)]
    view = make_view([{"node": 0, "answer": {**NODE, "ranks": many}}])
    shown = render_screen(view, Paper(120, 20), ScreenState())
    lines = shown.lines
    assert len(lines) <= 20 and shown.rows == 40
    assert f"rows 1 to {shown.page} of 40, 1 not running among the others" in lines[-4]
    assert "q  quit" in lines[-1]


def test_no_line_of_a_screen_is_wider_than_it() -> None:
    """The terminal would wrap it, and the screen would scroll; the longest state, command and event."""
    long: Message = {**NODE, "command": "python " + "x" * 400, "events": [{"ago_s": 1.0, "what": "y" * 400}]}
    long["ranks"] = [{**RANK, "state": "waits " * 40, "rank": rank} for rank in range(40)]
    for width, height in ((80, 24), (40, 10), (200, 30)):
        shown = render_screen(make_view([{"node": 0, "answer": long}]), Paper(width, height), ScreenState())
        assert max(map(measure, shown.lines)) <= max(width, 70), width
        assert height < 20 or len(shown.lines) <= height


def test_a_rank_that_does_not_run_is_red() -> None:
    """Bold stays without colours (NO_COLOR), and the state is not cut where the table may be long."""
    states = {**NODE, "ranks": [{**RANK, "state": "stopped by a debugger that was attached by hand"}]}
    view = make_view([{"node": 0, "answer": states}])
    for has_colours, code in ((True, "\x1b[1;31m"), (False, "\x1b[1m")):
        row = render_terminal(view, Paper(90, 24, True, has_colours)).splitlines()[4:-2]
        assert all(line.startswith(code) for line in row[:2]), row
        assert "debugger" in " ".join(row)


def test_keys_scroll_sort_and_leave() -> None:
    """No key leads out of the table."""
    screen = ScreenState()
    for key in split_keys("\x1b[6~\x1b[Bj\x1b[A"):
        screen = press(screen, key, rows=40, page=10)
    assert screen == ScreenState(skip=11)
    assert press(screen, "G", 40, 10).skip == 30
    assert press(screen, "\x1b[5~", 40, 10).skip == 1
    assert press(screen, "\x1b[6~", 12, 10).skip == 2
    assert press(screen, "c", 40, 10) == ScreenState("cpu")
    assert press(screen, "x", 40, 10) == screen
    assert press(screen, "q", 40, 10).has_quit


def test_a_row_and_a_headline_have_all_that_is_known() -> None:
    """CPU of the time between two views; nodes that wait for a restart are one state."""
    # CPU use is of the time between two views.
    later = {**NODE, "at_s": 102.0, "ranks": [{**RANK, "cpu_s": 13.0}]}
    lost: Message = {"node": 1, "why": "it is lost"}
    before, after = (make_view([{"node": 0, "answer": answer}, lost]) for answer in (NODE, later))
    head, _, row, silent, event = render_text(with_cpu(before, after)).splitlines()
    assert head == "python train.py · 2 nodes · 1 of 2 ranks run · 12:34"
    cells = [cell for cell in row.split("  ") if cell]
    assert [cell.strip() for cell in cells] == [
        *("0", "gpu-0", "0", "812", "running"),
        *("150 %", "3 GiB", "97 %", "60/80 GiB", "2 min ago"),
    ]
    assert [cell.strip() for cell in silent.split("  ") if cell][:5] == ["1", "-", "-", "-", "it is lost"]
    assert event == "node 0, 5 s ago: all 2 nodes are here"
    # Only node 0 knows for how long.
    states = ("waits 9.9 s for restart 2", "waits for restart 2")
    answers = [
        {"node": node, "answer": {**NODE, "state": state, "attempt": 1, "restarts": 5, "ranks": []}}
        for node, state in enumerate(states)
    ]
    head = render_text(make_view(answers)).splitlines()[0]
    assert head.endswith("0 of 2 ranks run · 12:34 · waits 9.9 s for restart 2")
    # A small rank takes MiB: 0 GiB would look as if nobody had measured.
    small = {**NODE, "ranks": [{**RANK, "memory_bytes": 9 << 20}]}
    assert "  9 MiB  " in render_text(make_view([{"node": 0, "answer": small}]))
    # Nobody has to guess what a question mark stands for.
    waiting = {**NODE, "command": "", "ranks": [], "state": "waits for the other nodes"}
    head = render_text(make_view([{"node": 0, "answer": waiting}])).splitlines()[0]
    assert head == "1 node · 0 of 2 ranks run · 12:34 · waits for the other nodes"


@settings(deadline=None)
@given(ANYTHING, ANYTHING)
def test_whatever_a_node_says_is_shown_or_left_out(answer: object, rank: object) -> None:
    """No exception, no control character, no line that it has not a right to."""
    view = make_view([{"node": 0, "answer": answer}, {"node": 1, "answer": {**NODE, "ranks": [rank]}}])
    text = render_text(with_cpu(view, view))
    assert all(line.isprintable() for line in text.splitlines() if line)
    json.loads(render_json(view))


@settings(deadline=None)
@given(ANYTHING, ANYTHING)
def test_whatever_a_node_says_of_its_stacks_is_shown_or_left_out(processes: object, stacks: object) -> None:
    """The same."""
    view = make_view(
        [{"node": 0, "answer": {"processes": [processes], "stacks": [stacks], "words": ["\x1b"]}}]
    )
    assert all(line.isprintable() for line in render_stacks(view, threads=True).splitlines() if line)


def test_control_characters_and_secrets_of_a_node_reach_no_terminal() -> None:
    """In each text that it sends."""
    ill = "\x1b[2J\u202e"
    node = {**NODE, "host": ill, "command": ill, "state": ill, "events": [{"ago_s": 1, "what": ill}],
            "ranks": [{**RANK, "state": ill, "kernel_state": ill, "name": ill, "rank": None}]}  # fmt: skip
    text = render_text(make_view([{"node": 0, "answer": node}, {"node": 1, "why": ill}, {"note": ill}]))
    assert "\x1b" not in text and "\u202e" not in text and text.count("\\x1b[2J") >= 5


# --- sizes


def test_a_node_of_many_ranks_says_how_many_it_leaves_out() -> None:
    """An answer goes into one frame of the channel, whatever a node runs."""
    short = limit_ranks({**NODE, "ranks": [RANK] * 4096})
    assert len(json.dumps(short)) <= FRAME_LIMIT_BYTES - 1000
    ranks = short["ranks"]
    assert isinstance(ranks, list) and short["left_out"] == 4096 - RANKS_MAX == 4096 - len(ranks)
    assert "more" in render_text(make_view([{"node": 0, "answer": short}]))
    assert limit_ranks(NODE) == NODE


def make_answer(rank: int, *, threads: int = 1, depth: int = 3, width: int = 10) -> Answer:
    """Return a rank whose stacks are its own."""
    frames = tuple(Frame(f"/job/{'x' * width}{rank}-{i}.py", i, f"f{rank}_{i}") for i in range(depth))
    named = tuple(Thread(f"t{i}", frames[i:]) for i in range(threads))
    return Answer(rank, 100 + rank, command="python train.py", state="S", is_python=True, threads=named)


@pytest.mark.parametrize(("count", "threads", "depth"), [(1, 20, 80), (16, 20, 80), (256, 2, 10)])
@pytest.mark.parametrize("width", [10, pytest.param(5000, marks=pytest.mark.thorough)])
def test_stacks_are_never_too_long(count: int, threads: int, depth: int, width: int) -> None:
    """However many, however deep; the innermost frame is kept."""
    answers = [make_answer(rank, threads=threads, depth=depth, width=width) for rank in range(count)]
    packed = pack(answers, threads=True)
    assert len(json.dumps(packed)) <= STACKS_BYTES
    assert all(answer.frames for answer in unpack(packed)) and unpack(packed)


def test_stacks_come_back_as_they_were_and_once() -> None:
    """Of all threads, or of the main ones; 192 ranks in one collective are no more than one."""
    # Of all threads, if that was asked for; of the main ones else.
    answers = [make_answer(rank, threads=2) for rank in range(4)]
    whole = pack(answers, threads=True)
    assert unpack(json.loads(json.dumps(whole))) == answers and whole["cut"] is False
    assert [len(one.threads) for one in unpack(pack(answers, threads=False))] == [1] * 4
    # 192 ranks in one collective are no more than one, but for a line each.
    same = [Answer(**{**vars(make_answer(0, depth=90)), "rank": rank}) for rank in range(192)]
    packed = pack(same, threads=True)
    assert packed["cut"] is False and isinstance(packed["stacks"], list) and len(packed["stacks"]) == 1


# --- processes


def test_a_process_whose_name_holds_a_parenthesis() -> None:
    """And one that is gone."""
    rest = "S 7 1 1 0 -1 0 0 0 0 0 150 50 20 30 20 0 1 0 5 1000 256 0"
    seen = parse_stat(f"9 (a) b) {rest}".encode())
    assert seen is not None and (seen.parent, seen.state) == (7, "S")
    assert seen.cpu_s > 0 and seen.memory_bytes >= 256 * 4096
    assert parse_stat(b"") is None


def test_a_family_is_counted_once() -> None:
    """Though pids can make a circle while they are read one after the other."""
    table = Processes(
        {
            1: Stat(3, "S", cpu_s=1.0, memory_bytes=10),
            2: Stat(1, "R", cpu_s=2.0, memory_bytes=20),
            3: Stat(2, "R", cpu_s=4.0, memory_bytes=40),
        }
    )
    family = table.family(1)
    assert (family.count, family.cpu_s, family.memory_bytes) == (3, 7.0, 70)
    assert table.family(1, but=[3]).count == 2
    assert table.family(99).count == 0


# --- over the channel


class FakeHub:
    """What `Rounds` needs of a hub: no socket, no clock."""

    def __init__(self, count: int) -> None:
        self.subscribers: dict[type, Callable[[int, Any], None]] = {}
        self.sent: list[tuple[int, object]] = []
        self.gone: dict[int, str] = {}
        self.behind = False
        self.shape = Shape(0, count, count, "one", ())
        self.rounds = Rounds(self, self.tell, self.subscribers)  # type: ignore[arg-type]

    def tell(self, rank: int, message: object) -> bool:
        """Remember it; one that is too long is refused as by a frame."""
        if len(json.dumps(pack_message(message))) > 60_000:
            raise ValueError
        self.sent.append((rank, message))
        return True

    def why_silent(self, rank: int) -> str:
        """Return why a node is not there."""
        return self.gone.get(rank, "")

    def is_gone(self, rank: int) -> bool:
        """Whether it cannot answer any more."""
        return rank in self.gone

    def is_there(self, rank: int) -> bool:
        """Whether it is."""
        return rank not in self.gone

    def is_behind(self, rank: int) -> bool:
        """Whether it takes nothing now."""
        return self.behind

    def ask(self, asker: int, number: int, what: str = "status") -> None:
        """Have a node ask."""
        self.subscribers[Ask](asker, Ask(number, what))
        self.fire()

    def fire(self, ahead_s: float = 0.0) -> None:
        """Let time pass."""
        self.rounds.fire(time.monotonic() + ahead_s)

    def take(self, kind: type[T]) -> list[tuple[int, T]]:
        """Return, and forget, what was sent of a kind."""
        found = [(rank, sent) for rank, sent in self.sent if isinstance(sent, kind)]
        self.sent = [one for one in self.sent if not isinstance(one[1], kind)]
        return found

    def answer_all(self, answer: object = None) -> int:
        """Have all answer that were asked; return how many."""
        asked = self.take(Ask)
        for rank, ask in asked:
            self.subscribers[Reply](rank, Reply(ask.number, answer))
        self.fire()
        return len(asked)


def test_all_nodes_are_asked_so_many_at_a_time() -> None:
    """Each answer goes to who has asked, and then that it is over."""
    hub = FakeHub(1000)
    hub.ask(7, 3)
    asked = []
    while count := hub.answer_all({"state": "running"}):
        asked.append(count)
    assert max(asked) == PACES["status"].at_a_time and sum(asked) == 1000
    answers = hub.take(Passed)
    assert {rank for rank, _ in answers} == {7}
    assert sorted(passed.node or 0 for _, passed in answers[:-1]) == list(range(1000))
    assert answers[-1][1] == Passed(3, over=True)
    assert hub.rounds.due is None


def test_who_does_not_take_the_answers_holds_up_nobody_else() -> None:
    """No more nodes are asked for it than there is room for; when it has gone, it is forgotten."""
    hub = FakeHub(1000)
    hub.behind = True
    hub.ask(7, 1)
    assert hub.answer_all() == PACES["status"].at_a_time and hub.answer_all() == 0
    assert hub.rounds.due is not None and hub.rounds.due <= time.monotonic() + STEP_S
    hub.gone[7] = "it is lost"
    hub.fire()
    assert hub.rounds.due is None


def test_the_silent_and_the_missing_are_named() -> None:
    """One after its time, the others at once: one that was asked before it was lost, too."""
    hub = FakeHub(4)
    hub.gone[1] = "it has not joined yet"
    hub.ask(0, 1)
    assert [passed for _, passed in hub.take(Passed)] == [Passed(1, 1, why="it has not joined yet")]
    hub.gone[3] = "it is lost"
    hub.fire()
    assert [passed for _, passed in hub.take(Passed)] == [Passed(1, 3, why="it is lost")]
    hub.fire(PACES["status"].wait_s + 1)
    answers = [passed for _, passed in hub.take(Passed)]
    assert [passed.why for passed in answers] == ["no answer within 5 s"] * 2 + [""]
    assert answers[-1].over


def test_only_the_named_nodes_are_asked_and_given_their_time() -> None:
    """Once each; one that the job does not have is left to the client."""
    hub = FakeHub(4)
    hub.subscribers[Ask](0, Ask(1, "exec", argv=("true",), limit_s=30.0, nodes=(3, 1, 3, 9)))
    hub.fire()
    asked = hub.take(Ask)
    assert [(rank, ask.argv, ask.limit_s) for rank, ask in asked] == [
        (1, ("true",), 30.0),
        (3, ("true",), 30.0),
    ]
    hub.fire(31)
    assert hub.take(Passed) == []
    hub.fire(PACES["exec"].wait_s + 31)
    answers = [passed for _, passed in hub.take(Passed)]
    assert [passed.node for passed in answers] == [1, 3, None] and answers[-1].over


def test_answers_that_nobody_asked_for_are_not_heard() -> None:
    """Of the wrong round, twice, too long."""
    hub = FakeHub(2)
    hub.ask(0, 1)
    (_, first), _ = hub.take(Ask)
    hub.subscribers[Reply](1, Reply(first.number + 1, {}))
    hub.subscribers[Ask](1, Ask(1, "x"))
    for _ in range(2):
        hub.subscribers[Reply](1, Reply(first.number, "x" * 70_000))
    hub.fire()
    assert [passed for _, passed in hub.take(Passed)] == [Passed(1, 1, why="its answer is too long")]


def test_questions_of_a_node_are_limited_by_kind() -> None:
    """Two at a time; programs that take long keep nobody from asking for the status."""
    # Two questions at a time; others can ask meanwhile.
    hub = FakeHub(4)
    for number in range(50):
        hub.ask(1, number)
    assert len(hub.take(Ask)) == 4 * ROUNDS_OF_ONE
    assert len(hub.take(Passed)) == 50 - ROUNDS_OF_ONE
    hub.ask(2, 1)
    assert len(hub.take(Ask)) == 4
    # Each kind of question is counted on its own.
    hub = FakeHub(4)
    for number in range(50):
        hub.ask(1, number, "exec")
    hub.take(Ask)
    hub.ask(1, 50)
    assert len(hub.take(Ask)) == 4


# --- planning


def test_metrics_without_prometheus_client_are_an_error_of_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, with its name and the fix."""
    from launcher.core.errors import Unavailable
    from launcher.machine.host import Host
    from launcher.planning.plan import plan_job

    monkeypatch.setattr("launcher.planning.supervision._has_module", lambda host, name: False)
    environ: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LAUNCHER_METRICS_PORT": "9400"}
    with pytest.raises(Unavailable, match="no-prometheus-client") as caught:
        plan_job(environ, Host(), read_options({}, environ), ["true"])
    assert caught.value.exit_status == 69


class Obliging:
    """A server that runs everything."""

    def answer(
        self, what: str, more: Mapping[str, object], take: Callable[[dict[str, object]], None]
    ) -> None:
        take({"status": 0})


def ask_for(
    nodes: tuple[int, ...], **shape: Any
) -> tuple[list[object], list[dict[str, object]], Callable[[Ask], None]]:
    """Ask to run a program from node 1 of two, which is connected; return what node 0 and the client hear."""
    told: list[object] = []
    taken: list[dict[str, object]] = []
    channel: Any = None
    server: Any = Obliging()
    own = Shape(1, 2, 2, "one", (), index=1, **shape)
    questions = Questions(channel, lambda: own, told.append, lambda: server)
    questions.ask("exec", {"argv": ("true",), "limit_s": 1.0, "nodes": nodes}, taken.append)
    return told, taken, questions.handlers[Ask]


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), float("nan"), float("inf"), True, "x", None, [1], {}],
    ids=["huge", "tiny", "nan", "inf", "true", "text", "null", "list", "object"],
)
def test_what_a_launcher_of_another_user_says_of_itself_hides_no_job(
    value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root asks all users' launchers: whatever one answers, the others are listed, and ours first."""
    own = client.Launcher("/ours", {"pid": 9, "run": "a1", "elapsed_s": 2.0}, os.geteuid())
    names = ("pid", "run", "elapsed_s", "node_rank", "host", "command")
    other = client.Launcher("/theirs", dict.fromkeys(names, value), os.geteuid() + 1)
    monkeypatch.setattr(client, "_identify", lambda paths: ([other, own], 0))
    launchers, others = client.find_launchers({})
    assert launchers == [own, other]
    assert client.choose(launchers, others, "9") is own
    assert "a1" in render_launchers(launchers)


def test_a_folder_above_many_sockets_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 sockets of another user, 31 folders deep, took 21 seconds."""
    deep = tmp_path.joinpath(*"abcdefghij")
    for number in range(50):
        (deep / f"launcher_{number:016x}").mkdir(parents=True)
        (deep / f"launcher_{number:016x}" / "status").touch()
    opened, open_real = list[str](), os.open

    def note(path: str, flags: int, **more: Any) -> int:
        opened.append(path)
        return open_real(path, flags, **more)

    monkeypatch.setattr(os, "open", note)
    paths = sorted(str(path) for path in deep.glob("*/status"))
    assert client._choose_paths(paths) == (paths, 0)
    assert len(opened) == 50 + len(deep.parts)


def test_silent_sockets_are_waited_for_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user has some, and a launcher that is always young: each search takes 5 seconds.

    In the first one a launcher that is really young may begin to listen.
    """
    now, searches = [0.0], list[float]()

    def search(environ: object) -> tuple[list[client.Launcher], int]:
        searches.append(now[0])
        now[0] += client.FIND_S
        return [], 300

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(client, "is_coming", lambda: True)
    monkeypatch.setattr(client, "find_launchers", search)
    assert (client.await_launchers({}, ""), searches) == (([], 300), [0.0, client.FIND_S])


def test_only_the_words_of_young_processes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 processes of another user, each with five million empty words, took 13 seconds."""
    read = list[tuple[str, int]]()

    def read_zeros(path: str, limit: int) -> bytes:
        read.append((path, limit))
        return b"\0" * limit

    monkeypatch.setattr(client, "list_pids", lambda: [11, 12])
    monkeypatch.setattr(client, "read_users", lambda pid: {os.geteuid()})
    age_s = {11: client.YOUNG_S + 1, 12: 1.0}
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(client, "read_stat", lambda pid: Stat(1, "S", started_s=now - age_s[pid]))
    monkeypatch.setattr(process, "read_file", read_zeros)
    assert client.is_coming() is False
    assert read == [(f"{process.PROC}/12/cmdline", client.WORDS_BYTES)]


@pytest.mark.parametrize("nodes", [(), (0,), (0, 1)])
def test_without_a_token_no_program_of_a_person_runs_over_the_channel(nodes: tuple[int, ...]) -> None:
    """Neither does a node ask for one, nor does it run one: who asks could be anybody."""
    told, taken, hear = ask_for(nodes)
    assert (told, taken) == ([], [{"error": "no-token"}, {"over": True}])
    hear(Ask(7, "exec", argv=("true",), limit_s=1.0, nodes=nodes))
    assert told == [Reply(7, {"error": "no-token"})]


def test_a_program_runs_with_a_token_or_at_its_own_user() -> None:
    """Both ways with one; without one only on the node that was asked."""
    # Its socket is private; a spare node has no rank by which it could be meant.
    assert ask_for((1,))[:2] == ([], [{"node": 1, "answer": {"status": 0}}, {"over": True}])
    assert ask_for((1,), is_spare=True)[1] == [{"error": "no-token"}, {"over": True}]
    # Both ways.
    told, taken, hear = ask_for((0, 1), has_token=True)
    assert (told, taken) == ([Ask(1, "exec", argv=("true",), limit_s=1.0, nodes=(0, 1))], [])
    hear(Ask(7, "exec", argv=("true",), limit_s=1.0))
    assert told[1:] == [Reply(7, {"status": 0})]


class Reading:
    """A node whose status takes a while to read, and what it takes: searches, and readings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, took_s: float, slow_below: float | None) -> None:
        self.now, self.readings, self.took_s = 100.0, 0, took_s
        self.searches: list[Callable[[object], None]] = []
        self.answers: list[Message] = []
        monkeypatch.setattr(responder, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(responder, "ask_progress", lambda _, take: self.searches.append(take))
        runtime: Any = SimpleNamespace(watch=SimpleNamespace(slow_below=slow_below))
        alone: Any = SimpleNamespace(find_questions=lambda: None)
        self.responder = responder.Responder(runtime, alone, self.read)

    def read(self, numbers: object) -> Message:
        """Read."""
        self.now += self.took_s
        self.readings += 1
        return {}

    def ask(self, after_s: float = 0.0) -> int:
        """Ask; return how often the node was read until then."""
        self.now += after_s
        self.responder.answer("status", {}, self.answers.append)
        return self.readings


def test_whoever_asks_all_the_time_costs_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger can have the server of metrics ask; a node with many processes takes long to read."""
    node = Reading(monkeypatch, 0.01, None)
    assert [node.ask(), node.ask(0.19), node.ask(0.02)] == [1, 1, 2]
    node = Reading(monkeypatch, 0.5, None)
    assert [node.ask(), node.ask(1.9), node.ask(0.2)] == [1, 1, 2]
    assert len(node.answers) == 3


def test_all_who_ask_during_a_search_get_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is a process (``--slow-below``): one at a time."""
    node = Reading(monkeypatch, 0.01, 300.0)
    assert [node.ask() for _ in range(9)] == [0] * 9 and len(node.searches) == 1
    node.searches.pop()(())
    assert (node.readings, len(node.answers)) == (1, 9)
    node.ask(0.3)
    assert len(node.searches) == 1


class Verbose:
    """A server that has more to say than a frame of the channel holds."""

    def answer(
        self, what: str, more: Mapping[str, object], take: Callable[[dict[str, object]], None]
    ) -> None:
        take({"stacks": "x" * FRAME_LIMIT_BYTES})


def test_an_answer_that_no_frame_holds_is_said_to_be_one() -> None:
    """Whoever has asked does not wait until the time is up."""
    told: list[object] = []

    def tell(message: object) -> None:
        if len(json.dumps(pack_message(message))) > FRAME_LIMIT_BYTES:
            raise ValueError
        told.append(message)

    channel: Any = None
    server: Any = Verbose()
    questions = Questions(channel, lambda: Shape(0, 2, 2, "one", ()), tell, lambda: server)
    questions.handlers[Ask](Ask(7, "stacks"))
    assert told == [Reply(7, {"error": "its answer is too long"})]
