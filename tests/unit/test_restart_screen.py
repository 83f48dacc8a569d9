"""What is said about attempts: why no other follows, the last screen, bad nodes, and the record."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from launcher.core.supervision import Restarts
from launcher.recovery.bad_nodes import find_bad, render_bad
from launcher.recovery.history import SHOWN_MAX, History
from launcher.recovery.policy import Decision, FailedAttempt, decide
from tests.saying import keep

S = 10**9


def failed(number: int = 0, *, start_s: float | None = None, lasted_s: float = 1.0, status: int = 137,
           what: str = "rank 1 on vm was killed by SIGKILL", cause: str = "killed", node: int = 1,
           host: str = "vm", machine: str = "", retryable: bool | None = None) -> FailedAttempt:  # fmt: skip
    start = 2.0 * number if start_s is None else start_s
    return FailedAttempt(
        number, int(start * S), int((start + lasted_s) * S), status, what, cause, "the long text",
        retryable, node, host, machine,
    )  # fmt: skip


def screen(*attempts: FailedAttempt, count: int, began_s: float = -1.0, end_s: float = 100.0) -> list[str]:
    history = History("", keep([]))
    for one in attempts:
        history.note(one, Decision(True, ""))
    zero = time.monotonic_ns() - time.time_ns()
    began, last, end = (zero + int(at_s * S) for at_s in (began_s, 2.0 * (count - 1), end_s))
    text = history.summarize(count, began, last, end, 0, is_alone=False)
    return text.splitlines()


# --- why no attempt follows


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Restarts(most=1), "the only restart is used (--restarts 1)"),
        (Restarts(most=2), "all 2 restarts are used (--restarts 2)"),
        (Restarts(most=9, per_cause=1), "3 attempts failed by the cause killed (--restarts-per-cause 1)"),
        (Restarts(most=9, never_status=(137,)), "status 137 is not restarted (--no-restart-status)"),
    ],
)
def test_the_reason_for_no_restart_names_the_flag_and_its_value(rule: Restarts, why: str) -> None:
    assert decide(rule, [failed(number) for number in range(3)]).why == why


@pytest.mark.parametrize("flag", ["--progress-file", "--progress-pattern"])
def test_a_stop_for_want_of_progress_names_the_flag(flag: str) -> None:
    rule = (
        Restarts(most=9, progress_file="x")
        if flag == "--progress-file"
        else Restarts(9, progress_pattern="x")
    )
    idle = [FailedAttempt(number, 0, S, 5, progressed=False) for number in range(3)]
    assert decide(rule, idle).why == f"3 attempts in a row made no progress ({flag})"


def test_restarts_that_are_given_back_are_said() -> None:
    rule = Restarts(most=1, reset_after_s=5)
    attempts = [failed(number, lasted_s=70, start_s=100 * number) for number in range(2)]
    said = [decide(rule, attempts[: count + 1]).describe() for count in range(2)]
    assert said[0] == "restart 1 of 1"
    assert said[1] == (
        "restart 1 of 1; the last attempt ran for 70 s, "
        "which gave back all restarts (--restarts-reset-after 5)"
    )


# --- the last screen


def test_attempts_are_summed_up() -> None:
    """Equal ones in a row are a line, what is not shown is counted, and times add up."""
    lines = screen(*(failed(number) for number in range(7)), count=8)
    assert lines[1] == "  attempts 0-6: 1.0 s on average, rank 1 on vm was killed by SIGKILL [killed]"
    assert lines[2].startswith("  attempt 7: ") and "long text" not in "".join(lines)
    mixed = [failed(number, status=number + 1, cause="", what=f"number {number}") for number in range(26)]
    lines = screen(*mixed, count=27)
    assert lines[1] == "  18 earlier attempts are not shown"
    assert len([line for line in lines if line.startswith("  attempt ")]) == SHOWN_MAX + 1
    (line,) = [
        one for one in screen(failed(lasted_s=0.041), count=2, began_s=-0.0123, end_s=2.1) if "time:" in one
    ]
    parts = {
        name: float(number)
        for number, name in re.findall(r"([0-9.]+) s (in total|start|in attempts|between)", line)
    }
    assert set(parts) == {"in total", "start", "in attempts", "between"}, line
    whole = parts.pop("in total")
    assert whole == pytest.approx(sum(parts.values())) and whole == pytest.approx(2.112, abs=0.002), line
    assert parts["in attempts"] == pytest.approx(0.141) and parts["start"] == pytest.approx(0.012)
    lines = screen(*(failed(number) for number in range(1500)), count=1501, end_s=3001.0)
    assert lines[0] == "1501 attempts, 1500 failed (1500 x killed); exit code 0"
    assert "1501.0 s in attempts" in lines[-2 if "bad" in lines[-1] else -1]


def test_one_attempt_has_no_summary_but_its_bad_node() -> None:
    """Also of a job that succeeds; nothing to tell is nothing."""
    (line,) = screen(failed(cause="node-lost"), count=1)
    assert line == "bad nodes: vm (1 x node-lost)"
    history = History("", keep([]))
    history.noted.append(failed(cause="unhealthy", machine="slurm:gpu-3"))
    lines = history.summarize(1, 0, 0, S, 0, is_alone=False).splitlines()
    assert lines == ["bad nodes: vm (1 x unhealthy)", "  to avoid them: sbatch --exclude=gpu-3"]
    assert History("", keep([])).summarize(1, 0, 0, S, 0, is_alone=False) == ""


# --- bad nodes


def test_nodes_are_blamed_for_what_is_theirs() -> None:
    """Repeated failures from outside, not a status without a cause; by rank where names are shared."""
    assert find_bad([failed(number, cause="", status=3) for number in range(3)], is_alone=False) == []
    (bad,) = find_bad([failed(0), failed(1, cause="", status=3), failed(2)], is_alone=False)
    assert str(bad) == "vm (2 x killed)"
    attempts = [failed(0, cause="node-lost"), failed(1, cause="gpu-xid", node=2)]
    several = find_bad(attempts, is_alone=False, shared=frozenset({"vm"}))
    assert list(render_bad(several)) == ["bad nodes: node 1 (vm) (1 x node-lost), node 2 (vm) (1 x gpu-xid)"]
    attempts = [failed(0, cause="node-lost"), failed(1, cause="gpu-xid", node=2)]
    (bad,) = find_bad(attempts, is_alone=False)
    assert str(bad) == "vm (1 x node-lost, 1 x gpu-xid)"


@pytest.mark.parametrize("cause", ["told-to-stop", "stalled", "nccl-timeout", "gloo-peer-lost", "store-lost"])
def test_no_node_is_blamed_for_what_any_of_them_sees_first(cause: str) -> None:
    """The job was told to stop or hung, or a rank misses another one: of its own node that says nothing."""
    attempts = [failed(0), failed(1, cause=cause), failed(2, cause=cause)]
    assert find_bad(attempts, is_alone=False) == []


# --- the record


def write(path: Path, run: str, *, said: list[str]) -> None:
    history = History(str(path), keep(said), run)
    history.note(failed(), Decision(True, "restart 1 of 9"))


def test_the_next_run_adds_to_the_record(tmp_path: Path) -> None:
    path, said = tmp_path / "attempts", list[str]()
    write(path, "a", said=said)
    write(path, "b", said=said)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["run"] for line in lines] == ["a", "b"] and not said


@pytest.mark.parametrize("text", ["my results\n", '{"loss": 1}\n', "[1]\n", "\udcff", "[" * 6000])
def test_a_file_that_is_no_record_is_left_alone(text: str, tmp_path: Path) -> None:
    path, said = tmp_path / "results", list[str]()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    write(path, "a", said=said)
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")
    assert said == [f"no record of attempts: {path} has other content; pass another path (--attempts-file)"]
