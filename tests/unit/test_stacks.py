"""Stacks as text in, a few lines for people out."""

from __future__ import annotations

import json
import time

import pytest

from launcher.core.ranks import name_ranks
from launcher.hang.ask import explain_refusal
from launcher.hang.model import Answer, Frame, Thread
from launcher.hang.places import find_spot
from launcher.hang.report import TO_ARM, render_report, render_stacks
from launcher.hang.stacks import parse_faulthandler, parse_py_spy

SITE = "/opt/venv/lib/python3.12/site-packages/"
ALL_REDUCE = Frame(f"{SITE}torch/distributed/distributed_c10d.py", 2501, "all_reduce")
WRAPPER = Frame(f"{SITE}torch/distributed/c10d_logger.py", 83, "wrapper")
RECORD = Frame(f"{SITE}torch/distributed/elastic/multiprocessing/errors/__init__.py", 367, "wrapper")
SELECT = Frame("/usr/lib/python3.12/selectors.py", 415, "select")
FETCH = Frame(f"{SITE}torch/utils/data/dataloader.py", 1291, "_try_get_data")
PROCESS = Frame("/usr/lib/python3.12/multiprocessing/process.py", 108, "run")
RUN = Frame("/usr/lib/python3.12/subprocess.py", 2004, "_try_wait")
TRACKER = Frame("/usr/lib/python3.12/multiprocessing/resource_tracker.py", 239, "main")


def script(line: int, function: str = "train") -> Frame:
    """Return a frame of the user's own code."""
    return Frame("/job/train.py", line, function)


def answer(rank: int, *frames: Frame, call: str = "", pid: int = 0, why: str = "") -> Answer:
    """Return what one process has answered: a Python, with a stack if there are frames."""
    threads = (Thread("main", frames),) if frames else ()
    return Answer(
        rank, pid or 100 + rank, "python train.py", "S", call, "", "/job", True, threads, "py-spy", why
    )


DUMP = """Thread 0x00007f76146296c0 (most recent call first):
  File "/job/load.py", line 3 in fetch
  File "/usr/lib/python3.12/threading.py", line 982 in run

Current thread 0x00007f7634d14b80 [python] (most recent call first):
  File "<string>", line 12 in work "quoted"
  File "/job/train.py", line 2 in <module>
"""


@pytest.mark.parametrize("text", ["", "\n", "Fatal\n", '  File "a", line 1 in b\n', "Thread 0x1 (most"])
def test_what_is_no_dump_has_no_threads(text: str) -> None:
    """The file belongs to the process, which may have written anything."""
    assert parse_faulthandler(text) == ()


@pytest.mark.parametrize("text", ["", "null", "[1]", '[{"frames": 1}]', '{"a": 1}', '[{"frames": [{}]}]'])
def test_what_py_spy_would_not_write_is_refused(text: str) -> None:
    """Another version of it may write something else: that is a reason, no crash."""
    with pytest.raises(ValueError, match=r"unexpected|Expecting|char 0"):
        parse_py_spy(text)


def test_the_main_thread_comes_first() -> None:
    """Of a dump, of one that stops after a hundred threads, and of py-spy."""
    # faulthandler writes the oldest thread last, with a name in brackets since Python 3.14.
    main, other = parse_faulthandler(DUMP)
    assert main.frames == (Frame("<string>", 12, 'work "quoted"'), Frame("/job/train.py", 2, "<module>"))
    assert other.frames[0] == Frame("/job/load.py", 3, "fetch")
    # faulthandler stops after 100 threads, and the main one would come after them.
    head, _, tail = DUMP.partition("\n\n")
    text = f"{tail}\n{head}\n...\n"
    assert parse_faulthandler(text)[0].frames[0].function == 'work "quoted"'
    # py-spy names it.
    frame = {"filename": "/job/train.py", "line": 7, "name": "train"}
    items = [
        {"thread_name": name, "os_thread_id": 5, "frames": [frame]} for name in ("loader", None, "MainThread")
    ]
    threads = parse_py_spy(json.dumps(items))
    assert [thread.name for thread in threads] == ["MainThread (5)", "loader (5)", "thread (5)"]
    assert threads[0].frames == (Frame("/job/train.py", 7, "train"),)


def test_c_functions_are_named_with_their_library() -> None:
    """Without those that have only an address; they do not count for the place."""
    script_frame = {"filename": "/job/train.py", "module": None, "line": 7, "name": "train"}
    library = {"filename": "x.cc", "module": "/usr/lib/libtorch_cpu.so", "line": 12}
    names = ("0x7f781cca3f16", "c10d::Work::wait", "f<" * 100)
    frames = [*({**library, "name": name} for name in names), script_frame]
    (thread,) = parse_py_spy(json.dumps([{"thread_name": "MainThread", "os_thread_id": 5, "frames": frames}]))
    assert [frame.render() for frame in thread.frames] == [
        "c10d::Work::wait (libtorch_cpu.so)",
        f"{'f<' * 50}... (libtorch_cpu.so)",
        'File "/job/train.py", line 7, in train',
    ]
    spot = find_spot(Answer(0, 1, threads=(thread,)))
    assert spot is not None and spot.inner == Frame("/job/train.py", 7, "train")


@pytest.mark.parametrize(
    ("frames", "call", "expected"),
    [
        (
            (ALL_REDUCE, WRAPPER, script(47)),
            "futex",
            "in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:47",
        ),
        ((script(40),), "clock_nanosleep", "in sleep (train.py:40 in train)"),
        ((script(40, "<module>"),), "futex", "for a lock or a thread (train.py:40)"),
        ((script(40),), "system call 999", "in system call 999 (train.py:40 in train)"),
        ((script(40),), "", "in train (train.py:40)"),
        (
            (SELECT, FETCH, script(9)),
            "poll",
            "in select (selectors.py:415) <- _try_get_data (torch/utils/data/dataloader.py:1291) "
            "<- train.py:9",
        ),
        ((SELECT, PROCESS, script(9)), "poll", "in select (selectors.py:415)"),
        ((Frame("<frozen runpy>", 88, "_run_code"),), "", "in _run_code (runpy:88)"),
        ((Frame("/elsewhere/a.py", 1, "f"),), "", "in f (/elsewhere/a.py:1)"),
        ((Frame("<string>", 1, "f"),), "", "in f (<string>:1)"),
    ],
)
def test_a_place_is_the_few_frames_that_one_looks_for(
    frames: tuple[Frame, ...], call: str, expected: str
) -> None:
    """What was called last, the package it belongs to, the user's line; below a fork nothing counts."""
    spot = find_spot(answer(0, *frames))
    assert spot is not None
    assert spot.render(call) == expected


@pytest.mark.parametrize(
    ("lines_of_ranks", "world_size", "expected"),
    [
        ((47, 52), 2, "they wait in different collective calls for each other"),
        ((47, 47), 2, "a GPU does not answer, or it waits for more processes than the 2 of this job"),
        ((47, 47), 4, "all ranks of this node have reached this call"),
        ((47, 47), None, "all ranks of this node have reached this call"),
    ],
)
def test_where_all_wait_for_others_it_is_said_what_follows(
    lines_of_ranks: tuple[int, int], world_size: int | None, expected: str
) -> None:
    """Different calls, a lost network, or another node: three things to look at."""
    answers = [answer(rank, ALL_REDUCE, script(line)) for rank, line in enumerate(lines_of_ranks)]
    assert expected in render_report(answers, world_size)[-1]


def test_the_rank_that_differs_is_named() -> None:
    """It is not in the collective; several are all named; without one the minority is pointed at."""
    # Ranks in one place are one line; whoever is elsewhere is what they wait for.
    waiting = [answer(rank, ALL_REDUCE, WRAPPER, script(47), call="futex") for rank in (0, 2, 3)]
    lines = render_report([*waiting, answer(1, script(40), RECORD, call="clock_nanosleep")])
    assert lines == [
        "ranks 0, 2-3 wait in all_reduce (torch/distributed/distributed_c10d.py:2501) <- train.py:47",
        "rank 1 waits in sleep (train.py:40 in train): probably the one that the others wait for",
    ]
    # Also one that gives no stack.
    lines = render_report(
        [
            answer(0, ALL_REDUCE, script(47)),
            answer(1, script(40), call="running"),
            answer(2, why="it is stopped"),
        ]
    )
    assert lines[1:] == [
        "rank 1 runs in train (train.py:40): probably those that the others wait for",
        "rank 2: no Python stack (pid 102, python, state S): it is stopped: "
        "probably those that the others wait for",
        f"for Python stacks {TO_ARM}",
    ]
    # On a GPU the wait shows in the script's own line; two ranks in two places prove nothing.
    lines = render_report([answer(0, script(60)), answer(1, script(60)), answer(2, script(40))])
    assert lines[-1] == "rank 2 waits in train (train.py:40): not where the others are"
    lines = render_report([answer(0, script(60)), answer(1, script(40))])
    assert lines == ["rank 0 waits in train (train.py:60)", "rank 1 waits in train (train.py:40)"]
    # Two ranks that are slow to import torch.distributed are in two places, which proves nothing.
    body = Frame(ALL_REDUCE.file, 1, "<module>")
    lines = render_report([answer(0, SELECT, body, script(1)), answer(1, body, script(1))], 2)
    assert len(lines) == 2 and not any("they wait" in line for line in lines)


def test_the_python_below_a_shell_or_another_python_speaks_for_its_rank() -> None:
    """Wrappers wait for what they have started; that is where the job is."""
    shell = Answer(0, 1, "bash run.sh", "S", "wait4", "do_wait")
    wrapper = answer(0, RUN, script(3, "wrap"), pid=2)
    lines = render_report([shell, wrapper, answer(0, ALL_REDUCE, script(47), pid=3)], world_size=1)
    assert lines[0].startswith("rank 0 waits in all_reduce")
    assert render_report([shell, wrapper])[0].startswith("rank 0 waits in _try_wait (subprocess.py:2004)")
    assert render_report([shell])[0] == (
        "rank 0: no Python stack (pid 1, bash, state S, in wait4, waits in do_wait)"
    )


BACKWARD = (
    Frame(f"{SITE}torch/autograd/graph.py", 979, "_engine_run_backward"),
    Frame(f"{SITE}torch/autograd/__init__.py", 395, "backward"),
    Frame(f"{SITE}torch/_tensor.py", 623, "backward"),
)
"""Of a rank that waits for the gradients of others, as recorded with DistributedDataParallel, torch 2.13."""


def test_inside_of_one_call_ranks_may_wait_in_different_places() -> None:
    """Rank 0 has the store to which the others connect: recorded with torch 2.13, one rank of four absent."""
    rendezvous, c10d = f"{SITE}torch/distributed/rendezvous.py", ALL_REDUCE.file
    init = Frame(c10d, 1899, "init_process_group")
    first = (Frame(rendezvous, 199, "_create_c10d_store"), Frame(rendezvous, 277, "_env"))
    other = Frame(c10d, 2169, "_new_process_group_helper")
    lines = render_report(
        [
            answer(0, *first, Frame(c10d, 1880, "init_process_group"), WRAPPER, script(5)),
            *(answer(rank, other, init, WRAPPER, script(5)) for rank in (1, 2)),
            answer(3, script(2), call="clock_nanosleep"),
        ]
    )
    assert lines == [
        "ranks 0-2 wait in init_process_group (torch/distributed/distributed_c10d.py:1880) <- train.py:5",
        "rank 3 waits in sleep (train.py:2 in train): probably the one that the others wait for",
    ]


def test_who_waits_is_known_by_its_frames() -> None:
    """A rank in its backward pass waits for others; an agent of torch for its processes."""
    # The engine reduces gradients in C++: nothing of torch.distributed is on the stack.
    lines = render_report([answer(0, *BACKWARD, script(9), call="futex"), answer(1, script(4), call="poll")])
    assert lines[1] == "rank 1 waits in poll (train.py:4 in train): probably the one that the others wait for"
    hook = script(30, "on_gradient")  # the user's own code, called by the engine
    lines = render_report([answer(0, *BACKWARD, script(9)), answer(1, hook, *BACKWARD, script(9))])
    assert lines[1].startswith("rank 1 waits in on_gradient (train.py:30): probably")
    # A question in an endless loop is no collective: it waits for no other rank.
    asks = (Frame(ALL_REDUCE.file, 1200, "_rank_not_in_group"), Frame(ALL_REDUCE.file, 3208, "get_rank"))
    loops = answer(1, *asks, script(10), call="running")
    lines = render_report([answer(0, ALL_REDUCE, script(47), call="futex"), loops], 2)
    assert (
        lines[1].startswith("rank 1 runs in _rank_not_in_group")
        and "the one that the others wait for" in lines[1]
    )
    # Its frames are in torch.distributed, too.
    agent = Frame(f"{SITE}torch/distributed/elastic/agent/server/api.py", 923, "_invoke_run")
    lines = render_report([answer(0, agent, pid=1), answer(0, ALL_REDUCE, script(47), pid=2)], 1)
    assert lines[0].startswith("rank 0 waits in all_reduce")
    assert len(render_report([answer(0, agent), answer(1, agent)], 2)) == 1


def test_workers_are_told_with_their_rank_and_trackers_not_at_all() -> None:
    """A DataLoader that waits is explained by the worker that does."""
    worker = Frame("/job/data.py", 6, "__getitem__")
    lines = render_report(
        [
            answer(0, SELECT, FETCH, script(9)),
            answer(0, worker, FETCH, PROCESS, call="read", pid=7),
            answer(0, TRACKER, pid=8),
        ]
    )
    assert lines[1:] == ["with rank 0: pid 7 waits in read (data.py:6 in __getitem__)"]


def test_without_any_stack_it_is_said_how_to_get_them() -> None:
    """The next run can do better."""
    assert "launcher.setup()" in render_report([answer(0, why="py-spy is not installed")])[-1]
    assert render_report([]) == []


def test_the_file_shows_all_threads_and_obeys_no_escape() -> None:
    """Everything that is known, and what a process calls its threads reaches no terminal raw."""
    threads = (Thread("main", (script(1),)), Thread("evil\x1b[31m", ()))
    text = render_stacks("stalled", [Answer(3, 9, "python", "S", threads=threads, means="py-spy")])
    assert 'File "/job/train.py", line 1, in train' in text
    assert "evil\\x1b[31m, innermost first (py-spy):\n    no Python frame" in text


@pytest.mark.parametrize(
    ("ranks", "expected"), [([3], "rank 3"), ([0, 1], "ranks 0-1"), ([0, 1, 2, 5, 6, 9], "ranks 0-2, 5-6, 9")]
)
def test_ranks_are_short(ranks: list[int], expected: str) -> None:
    """A thousand ranks fit on a line."""
    assert name_ranks(ranks) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("", "it wrote nothing"),
        ("Permission Denied: Try running again with sudo", "--cap-add SYS_PTRACE"),
        ("Error: x\n\nCaused by:\n 0: Operation not permitted (os error 1)", "--cap-add SYS_PTRACE"),
        (
            "\nError: Failed to find python version from target process\n",
            "Error: Failed to find python version",
        ),
    ],
)
def test_why_py_spy_refused_is_one_line(error: str, expected: str) -> None:
    """With what to do where that is known."""
    assert expected in explain_refusal(error)


@pytest.mark.parametrize(
    "text",
    [
        "Thread 0x" + "a" * (1 << 20),
        "Thread 0x1 (most recent call first):\n" + '  File "", line 1 in x\n' * 45_000,
        "Thread 0x1 (most recent call first):\n" * 28_000,
        '  File "' + '", line 1' * 110_000,
    ],
    ids=["digits", "frames", "threads", "quotes"],
)
def test_what_a_rank_itself_has_written_takes_no_time(text: str) -> None:
    """A file for stacks has at most 1 MiB of anything."""
    began = time.thread_time()
    threads = parse_faulthandler(text)
    assert time.thread_time() - began < 1
    assert len(threads) <= 101
    assert all(len(thread.frames) <= 101 for thread in threads)


def test_a_name_longer_than_faulthandler_writes_is_no_frame() -> None:
    name = "x" * (1 << 19)
    (thread,) = parse_faulthandler(f'Thread 0x1 (most recent call first):\n  File "{name}", line 1 in f\n')
    assert thread.frames == ()
