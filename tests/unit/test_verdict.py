"""The verdict: the last screen of the log, and the record as JSON."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.frozen import replace
from launcher.core.ranks import name_ranks
from launcher.failure.arbiter import LEFT, STALLED, UNMET, UNPROVEN
from launcher.failure.causes import Faults, find_causes
from launcher.failure.counters import Counters
from launcher.failure.model import Cause, ProcessExit, Verdict
from launcher.failure.reason import Reason
from launcher.failure.record import render_json
from launcher.failure.report import SCREEN_LINES, render_text
from launcher.failure.verdict import describe_end, make_verdict
from launcher.machine.host import Host
from tests.unit.platforms_model import deterministic

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
OOM = Cause(
    "out-of-memory",
    "the container's memory limit of 64 GiB was reached, oom_kill went from 0 to 1 in memory.events",
    "a higher limit",
    True,
)
PEER = Cause("gloo-peer-lost", "this rank lost a peer: look elsewhere", "look at the other ranks", True, True)
PYTHON = Cause("python-exception", "ValueError: no", "see the traceback", False)
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no
"""
SECRET = "hf_" + "aB3" * 11


def dead(
    rank: int, code: int, after_s: float = 0.0, stderr: str = "", asked: int | None = None
) -> ProcessExit:
    """Return a process that ended so long after second 83.214."""
    ended = START + int((83.214 + after_s) * 1e6) * 1000
    return ProcessExit(rank, rank % 8, 4711 + rank, code, ended, stderr.encode(), None, asked)


def judge(
    first: ProcessExit,
    others: Sequence[ProcessExit] = (),
    causes: Sequence[Cause] = (),
    told: str | None = None,
    leftovers: Sequence[str] = (),
    host_name: str = "gpu-0",
    attempt: int = 0,
    told_by: str = "",
) -> Verdict:
    """Return the verdict on a node of a job of eight."""
    return make_verdict(
        first,
        others,
        host_name=host_name,
        node_rank=0,
        world_size=8,
        attempt=attempt,
        started_ns=START,
        told=told,
        causes=causes,
        told_by=told_by,
        leftovers=leftovers,
    )


KILLED = """\
launcher: rank 2 of 8 failed first: it was killed by SIGKILL
launcher:   where: local rank 2, pid 4713, host gpu-0, node 0, 83.214 s after the start
launcher:   cause: [out-of-memory] the container's memory limit of 64 GiB was reached, oom_kill went from 0 to 1 in memory.events
launcher:   fix:   a higher limit
launcher:   retry: can help
launcher:   its stderr ended with:
launcher:   | epoch 3
launcher:   then:  rank 0 exited with code 1 0.812 s later
launcher:   then:  the launcher stopped ranks 1, 3-7 (SIGTERM) 0.901 to 1.301 s later
"""  # noqa: E501
RAISED = """\
launcher: rank 0 of 8 failed first: it exited with code 1
launcher:   where: rank 0, train.py:3, local rank 0, pid 4711, host gpu-0, node 0, restart 2, 83.214 s after the start
launcher:   cause: [python-exception] ValueError: no
launcher:   fix:   see the traceback
launcher:   consequence: [gloo-peer-lost] this rank lost a peer: look elsewhere
launcher:   fix:   look at the other ranks
launcher:   retry: won't help
launcher:   traceback, from its stderr:
launcher:   | Traceback (most recent call last):
launcher:   |   File "train.py", line 3, in <module>
launcher:   |     main()
launcher:   | ValueError: no
launcher:   its stderr ended with:
launcher:   | starting
launcher:   | token=<redacted>
launcher:   then:  the launcher killed rank 1 (SIGKILL) after the grace period 30.002 s later
launcher:   left:  pid 99 (D state) holds /dev/nvidia0
"""  # noqa: E501
TOLD = """\
launcher: rank 1 of 8 ended first: it was ended by SIGTERM, forwarded by the launcher
launcher:   where: local rank 1, pid 4712, host gpu-0, node 0, 83.214 s after the start
launcher:   cause: [told-to-stop] the launcher received SIGTERM before any process had failed
launcher:   fix:   nothing, if this was intended; platforms also send it for preemption, a time limit or a canceled job
launcher:   retry: unknown
launcher:   then:  rank 0 exited with code 1 after the launcher forwarded SIGTERM 0.250 s later
"""  # noqa: E501


def test_the_same_is_not_said_twice() -> None:
    """An error of a launcher that is the cause, and the traceback of two ranks."""
    # What it said before stays, and so does an error that is another one.
    error = "launcher: error: [usage] no\nlauncher:   from: command line\nlauncher:   fix:  launcher --help\n"
    cause = Cause("usage", "no", "launcher --help", False)
    screen = render_text(judge(dead(0, 64, stderr=f"before\n{error}after\n"), [], [cause]))
    assert screen.endswith("its stderr ended with:\nlauncher:   | before\nlauncher:   | after\n")
    other = render_text(judge(dead(0, 64, stderr=error), [], [Cause("usage", "yes", "x", False)]))
    assert "| launcher: error: [usage] no" in other
    # An agent of torchrun has one stderr for all its workers.
    other = TRACEBACK.replace("line 3", "line 4")
    screen = render_text(judge(dead(0, 1, stderr=f"{other}{TRACEBACK}between\n{TRACEBACK}"), [], [PYTHON]))
    assert screen.count('File "train.py", line 3') == 1 and screen.count('File "train.py", line 4') == 1
    assert screen.count("| between") == 1


def test_the_screen_says_who_why_and_what_to_do() -> None:
    """Of an OOM kill and of an exception: the traceback whole, the rest of stderr beside it."""
    # Who, where, why, what to do, what it said last, and how long after it the others fell.
    others = [dead(0, 1, 0.812), *(dead(rank, -15, 0.801 + rank / 10, asked=15) for rank in (1, 3, 4, 5))]
    others += [dead(6, -15, 0.95, asked=15), dead(7, -15, 0.96, asked=15)]
    assert render_text(judge(dead(2, -9, stderr="epoch 3\n"), others, [OOM])) == KILLED
    # The traceback whole, the rest of stderr beside it, without secrets; what is left over.
    first = dead(0, 1, stderr=f"starting\ntoken={SECRET}\n{TRACEBACK}")
    verdict = judge(
        first,
        [dead(1, -9, 30.0021, asked=9)],
        [PYTHON, PEER],
        leftovers=["pid 99 (D state) holds /dev/nvidia0"],
        attempt=2,
    )
    assert render_text(verdict) == RAISED


def test_ctrl_c_is_one_cause_and_a_line() -> None:
    """Who has typed it knows why the job ended; a signal that was passed on blames no process."""
    # That the launcher was told to stop; Python's own word for it says nothing more.
    interrupted = Cause("interrupted", "somebody pressed Ctrl-C", "no fix needed")
    told = judge(dead(0, -2, asked=2), [], [interrupted], told="SIGINT")
    assert [cause.code for cause in told.causes] == ["told-to-stop"]
    # Who has typed it knows why the job ended; another failure meanwhile is a report.
    others = [dead(1, 130, 0.25, asked=2), dead(2, 0, 0.3, asked=2)]
    line = "launcher: stopped by Ctrl-C (SIGINT), 83.214 s after the start\n"
    assert render_text(judge(dead(0, -2, asked=2), others, told="SIGINT")) == line
    failed = render_text(judge(dead(0, -2, asked=2), [dead(1, 3, 0.1, asked=2)], told="SIGINT"))
    assert failed.startswith("launcher: rank 0 of 8 ended first")
    # No process is blamed for a signal that the launcher was told to pass on.
    verdict = judge(dead(1, -15, asked=15), [dead(0, 1, 0.25, asked=15)], told="SIGTERM")
    assert render_text(verdict) == TOLD
    assert verdict.retryable is None
    by = "node 2 (gpu-7) received SIGTERM"
    told = judge(dead(1, -15, asked=15), told="SIGTERM", told_by=by)
    assert told.causes[0].what == f"{by} before any process had failed"


def test_a_job_that_the_launcher_ended_because_it_stalled() -> None:
    """Nobody told the launcher: it says that it was itself, and why."""
    first = dead(1, -15, asked=15)
    verdict = make_verdict(
        first,
        [dead(0, -9, 30, asked=9)],
        host_name="gpu-0",
        node_rank=None,
        world_size=None,
        attempt=0,
        started_ns=START,
        told=None,
        causes=(),
        reason=Reason(STALLED, "stalled: no output for 600 s"),
    )
    lines = render_text(verdict).splitlines()
    assert lines[0] == "launcher: rank 1 ended first: the launcher stopped it (SIGTERM)"
    assert lines[1] == "launcher:   where: local rank 1, pid 4712, host gpu-0, 83.214 s after the start"
    said = "the launcher ended the job (--on-stall stop): stalled: no output for 600 s"
    assert lines[2] == f"launcher:   cause: [stalled] {said}"
    assert verdict.retryable is None


def test_a_reason_has_a_fix_of_its_own_or_that_of_its_kind() -> None:
    """NCCL's network names what to change there; a stall has one fix for all."""
    assert Reason(STALLED, "stalled").cause.fix != ""
    assert Reason(STALLED, "stalled", "do this").cause.fix == "do this"


def test_what_is_set_up_wrongly_is_not_tried_again() -> None:
    """A job that hangs may be."""
    kinds = {kind: Reason(kind, "x").cause.retryable for kind in (STALLED, UNPROVEN, UNMET, LEFT)}
    assert kinds == {STALLED: None, UNPROVEN: False, UNMET: False, LEFT: False}


def test_colours_change_nothing_else() -> None:
    """The same lines, once the escapes are gone."""
    verdict = judge(dead(0, 1, stderr=TRACEBACK), [], [PYTHON])
    colored = render_text(verdict, color=True)
    assert "\x1b[1;31m" in colored
    for escape in ("\x1b[1;31m", "\x1b[1m", "\x1b[0m"):
        colored = colored.replace(escape, "")
    assert colored == render_text(verdict)


def test_the_screen_is_one_screen() -> None:
    """A deep traceback, much of stderr, every rank in another way, many leftovers: under 25 lines."""
    frames = "".join(f'  File "a.py", line {n}, in f{n}\n    f{n + 1}()\n' for n in range(60))
    stderr = (
        "x\n" * 30 + f"Traceback (most recent call last):\n{frames}ValueError: " + "long " * 200 + "\n\nend\n"
    )
    others = [dead(rank, rank, 1) for rank in range(1, 200)]
    causes = [Cause(f"cause-{n}", "w", "f") for n in range(9)]
    text = render_text(judge(dead(0, 1, stderr=stderr), others, causes, leftovers=["p"] * 40))
    lines = text.splitlines()
    assert len(lines) == SCREEN_LINES < 24
    assert max(len(line) for line in lines) < 250
    assert any("lines left out" in line for line in lines)
    assert "ValueError: long" in text and "| end" in text and "and:   cause-3" in text
    assert lines[-1].endswith(" more lines, see the failure record")
    assert len(render_text(judge(dead(0, 1, stderr="x\n" * 99))).splitlines()) <= SCREEN_LINES


def test_a_finder_that_fails_is_told_and_takes_no_other_along() -> None:
    """Neither the other causes nor the verdict: the fault is a note of it, once for each finder."""

    class Broken(Host):
        def read_text(self, path: str, *rest: object) -> str | None:
            raise RuntimeError(f"no {path}")

    before, after = Counters(oom_kill=0, events_file="e"), Counters(oom_kill=1, events_file="e")
    faults = Faults()
    first = dead(0, 1, stderr="RuntimeError: gloo: Connection closed by peer")
    found = find_causes(first, before, Broken("/nonexistent"), after, faults)
    assert [cause.code for cause in found] == ["gloo-peer-lost"]
    unreadable = [replace(dead(rank, 1, 0.1), stderr=None) for rank in (1, 2)]
    verdict = make_verdict(
        first, [*unreadable, dead(3, -11, 0.2)], host_name="gpu-0", node_rank=0, world_size=4, attempt=0,
        started_ns=START, told=None, causes=found, faults=faults,
    )  # fmt: skip
    assert [cause.code for cause in verdict.causes] == ["segmentation-fault", "gloo-peer-lost"]
    words = "internal launcher error: could not examine {}: "
    memory, others = verdict.note.split("; ")
    assert memory.startswith(f"{words.format('memory')}RuntimeError: no /proc/self/cgroup")
    assert others.startswith(f"{words.format('other processes')}AttributeError")
    assert f"  note:  {memory}" in render_text(verdict)


def test_times_and_pids_are_right_or_left_out() -> None:
    """No negative times, no pid of a node that was lost, and nothing known is said so."""
    # A group of ranks that ended in the same way, some before the one that failed.
    screen = render_text(judge(dead(2, 5), [dead(0, 0, -0.597), dead(1, 0, 0.128)]))
    assert "ranks 0-1 exited with code 0 from 0.597 s earlier to 0.128 s later" in screen
    # A clock that was set meanwhile, or another node's, may tell of an end before the start.
    verdict = judge(ProcessExit(0, 0, 1, 3, START - SECOND // 100))
    assert ", 0.000 s after the start\n" in render_text(verdict)
    assert json.loads(render_json(verdict))["seconds"] == 0
    first = dead(0, 1, 1.0, stderr="RuntimeError: gloo: Connection closed by peer")
    verdict = judge(first, [dead(1, -11, 0.99)], [PEER])
    assert verdict.causes[0].what.startswith("rank 1 on this node, which ended 0.010 s earlier, failed for")
    # A status and nothing else.
    verdict = judge(dead(0, 3))
    assert "cause: unknown" in render_text(verdict)
    assert verdict.summary == "rank 0 on gpu-0 exited with code 3"
    assert verdict.retryable is None
    # Zero would send people to look for a process.
    lost = ProcessExit(0, 0, 0, 75, START + SECOND, b"", None, None, "node 1")
    assert "  where: host gpu-0, node 0, 1.000 s after the start\n" in render_text(judge(lost))


def test_a_rank_that_took_longer_to_end_is_named() -> None:
    """Whoever loses a peer may be gone before the one that raised: its connections close first."""
    first = dead(0, 1, stderr="RuntimeError: gloo: Connection closed by peer")
    raised = dead(1, -15, 0.412, stderr=TRACEBACK, asked=15)
    verdict = judge(first, [dead(2, -15, 0.3, asked=15), raised], [PEER])
    assert [cause.code for cause in verdict.causes] == ["python-exception", "gloo-peer-lost"]
    said = "rank 1 on this node, which ended 0.412 s later, failed for another reason: ValueError: no"
    assert verdict.causes[0].what == said and verdict.retryable is False
    assert judge(first, [dead(1, -11, 0.1)], [PEER]).causes[0].code == "segmentation-fault"
    memory = "torch.OutOfMemoryError: CUDA out of memory."
    assert judge(first, [dead(1, 1, 0.1, memory)], [PEER]).causes[0].code == "cuda-out-of-memory"


@pytest.mark.parametrize(
    "stderr",
    [
        "",
        TRACEBACK.replace("ValueError: no", "KeyboardInterrupt"),
        TRACEBACK.replace("ValueError: no", "SignalException: Process got signal: 15"),
        TRACEBACK.replace("ValueError: no", "RuntimeError: gloo: Connection closed by peer"),
    ],
)
def test_a_rank_that_was_only_stopped_is_not_blamed(stderr: str) -> None:
    """What it says is an answer to our own signal, or the same consequence."""
    first = dead(0, 1, stderr="RuntimeError: gloo: Connection closed by peer")
    assert judge(first, [dead(1, 1, 0.4, stderr=stderr, asked=15)], [PEER]).causes == (PEER,)
    assert judge(first, [dead(1, 1, 0.4, TRACEBACK)], [PYTHON]).causes == (PYTHON,)


def test_hostile_names_and_words_cannot_reach_a_terminal() -> None:
    """Host names, leftovers and notes come from outside, too."""
    first = ProcessExit(0, 0, 1, 1, START, b"\x1b]0;pwned\x07\x1b[2Jhi\xff\x00", "/dev\x1b[2J")
    verdict = judge(first, leftovers=["\x1b[2J"], host_name="a\x1b[2Jb")
    for text in (render_text(verdict), render_json(verdict)):
        assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize(
    ("code", "asked", "told", "heard", "words"),
    [
        (0, None, None, False, "exited with code 0"),
        (3, None, None, True, "exited with code 3"),
        (
            *(137, None, None, True),
            "exited with code 137 (as a shell does when SIGKILL has ended its command)",
        ),
        (255, None, None, True, "exited with code 255"),
        (-9, None, None, True, "was killed by SIGKILL"),
        (-11, None, None, True, "was ended by SIGSEGV (segmentation fault)"),
        (-7, None, None, True, "was ended by SIGBUS (bus error)"),
        (-35, None, None, True, "was ended by SIGRTMIN+1"),
        (-15, 15, "SIGTERM", True, "was ended by SIGTERM, forwarded by the launcher"),
        (-10, 10, None, True, "was ended by SIGUSR1, forwarded by the launcher"),
        (-10, 10, "SIGTERM", True, "was stopped by the launcher (SIGUSR1) after it received SIGTERM"),
        (-15, 15, None, False, "was stopped by the launcher (SIGTERM)"),
        (-9, 9, None, False, "was killed by the launcher (SIGKILL) after the grace period"),
        (-11, 15, None, False, "was ended by SIGSEGV (segmentation fault)"),
        (1, 15, None, False, "exited with code 1 after the launcher sent SIGTERM"),
        (1, 10, None, True, "exited with code 1"),
        (
            *(1, 10, "SIGTERM", False),
            "exited with code 1 after the launcher sent SIGUSR1 because it received SIGTERM",
        ),
        (
            *(143, 15, None, False),
            "exited with code 143 (as a shell does when SIGTERM has ended its command) after the launcher "
            "sent SIGTERM",
        ),
    ],
)
def test_a_status_in_words(code: int, asked: int | None, told: str | None, heard: bool, words: str) -> None:
    """What the kernel said, what a shell says, and whose signal it was."""
    assert describe_end(code, asked, told, heard=heard) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([7, 0, 2, 3, 4, 6], "ranks 0, 2-4, 6-7"), (list(range(4096)), "ranks 0-4095")],
)
def test_ranks_in_few_words(ranks: list[int], words: str) -> None:
    """Ranges, in order."""
    assert name_ranks(ranks) == words


def test_the_record() -> None:
    """The same as JSON: whole, in the documented keys, with the moment to the microsecond."""
    verdict = judge(
        dead(2, -9, stderr=f"x\n{TRACEBACK}"), [dead(0, 143, 0.5, asked=15)], [OOM, PEER], leftovers=["pid 9"]
    )
    record = json.loads(render_json(verdict))
    launcher_version = record.pop("launcher")
    assert launcher_version
    assert record == {
        "schema": 1,
        "verdict": f"rank 2 on gpu-0 was killed by SIGKILL: {OOM.what}",
        "retryable": True,
        "causes": [
            {"code": c.code, "what": c.what, "fix": c.fix, "retryable": True, "consequence": c is PEER}
            for c in (OOM, PEER)
        ],
        "called": None,
        "rank": 2,
        "local_rank": 2,
        "pid": 4713,
        "exit_status": 137,
        "signal": "SIGKILL",
        "status": "was killed by SIGKILL",
        "host": "gpu-0",
        "node_rank": 0,
        "world_size": 8,
        "attempt": 0,
        "started": "2026-09-21T14:13:20.000000Z",
        "ended": "2026-09-21T14:14:43.214000Z",
        "ended_ns": START + 83_214_000_000,
        "seconds": 83.214,
        "told": None,
        "platform_attempt": None,
        "exception": "ValueError: no",
        "traceback": TRACEBACK.rstrip(),
        "traceback_from": "stderr",
        "stderr": "x",
        "note": None,
        "others": [
            {
                "called": None,
                "rank": 0,
                "local_rank": 0,
                "pid": 4711,
                "exit_status": 143,
                "signal": None,
                "status": "exited with code 143 (as a shell does when SIGTERM has ended its command) after "
                "the launcher sent SIGTERM",
                "seconds_after": 0.5,
            }
        ],
        "leftovers": ["pid 9"],
        "also": [],
        "evidence": [],
        "timings": None,
        "shortened": False,
    }


def test_retryable_is_that_of_the_first_cause() -> None:
    """What is certain decides; a consequence only where there is nothing else."""
    assert judge(dead(0, 1), [], [PYTHON, PEER]).retryable is False
    assert judge(dead(0, 1), [], [PEER]).retryable is True
    assert judge(dead(0, 1), [], [OOM], told="SIGTERM").retryable is None


@deterministic(200)
@given(
    deaths=st.lists(
        st.builds(
            ProcessExit,
            rank=st.integers(-1, 1 << 40),
            local_rank=st.integers(-1, 4096),
            pid=st.integers(-1, 1 << 22),
            code=st.integers(-70, 256),
            ended_ns=st.integers(-(1 << 80), 1 << 80),
            stderr=st.binary(max_size=200),
            error_file=st.one_of(st.none(), st.text(max_size=20)),
            asked=st.one_of(st.none(), st.integers(1, 64)),
        ),
        min_size=1,
        max_size=8,
    ),
    told=st.one_of(st.none(), st.sampled_from([signal.SIGTERM.name, "SIGUSR1"])),
    name=st.text(max_size=20),
)
def test_whatever_happened_it_can_be_shown(deaths: list[ProcessExit], told: str | None, name: str) -> None:
    """Clocks that jump, ranks that cannot be, words that are none: a screen and a record, always."""
    verdict = judge(deaths[0], deaths[1:], [PYTHON], told, [name], name)
    assert all(line.isprintable() for line in render_text(verdict).splitlines())
    assert json.loads(render_json(verdict))["rank"] == deaths[0].rank
