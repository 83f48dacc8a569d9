"""The restart policy: each row of the table in docs/restarts.md, and that no rule is passed over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.core.frozen import replace
from launcher.core.supervision import Restarts
from launcher.failure.model import OWN_LIMIT
from launcher.recovery.policy import ALIKE_MAX, IDLE_MAX, QUICK_S, FailedAttempt, decide, find_wait_s


def failed(
    number: int = 0,
    *,
    status: int = 1,
    cause: str = "",
    retryable: bool | None = None,
    lasted_s: float = 1.0,
    progressed: bool | None = None,
    what: str = "",
    detail: str = "",
) -> FailedAttempt:
    return FailedAttempt(
        number=number,
        started_ns=0,
        ended_ns=int(lasted_s * 1e9),
        status=status,
        cause=cause,
        retryable=retryable,
        progressed=progressed,
        what=what,
        detail=detail,
    )


def out_of_memory(
    rank: int, detail: str = f"{OWN_LIMIT} of 64 GiB was reached", **other: bool
) -> FailedAttempt:
    what = f"rank {rank} on gpu-0 was killed by SIGKILL"
    return failed(status=137, cause="out-of-memory", retryable=True, what=what, detail=detail, **other)


def test_memory_that_ran_out_twice_at_the_containers_limit_runs_out_again() -> None:
    """On the same rank; not where others filled the node, another rank grew, or the job progressed."""
    rule = Restarts(most=9)
    assert decide(rule, [out_of_memory(3)]).restarts
    found = decide(rule, [out_of_memory(3), out_of_memory(3)])
    assert not found.restarts and "rank 3" in found.why and "--restart-on any" in found.why
    assert not decide(rule, [out_of_memory(3), failed(), out_of_memory(3)]).restarts
    assert decide(rule, [out_of_memory(3), out_of_memory(1)]).restarts
    assert decide(rule, [out_of_memory(3, "the pod or the node ran out")] * 2).restarts
    assert decide(rule, [out_of_memory(3, progressed=True)] * 2).restarts
    assert decide(Restarts(most=9, on_any=True), [out_of_memory(3)] * 2).restarts


def test_the_third_time_that_a_rank_fails_alike_without_progress_is_the_last() -> None:
    """Whatever the budget; not another rank, cause or host, nor where something shows progress."""
    rule, what = Restarts(most=20), "rank 3 on gpu-0 was killed by SIGKILL"
    same = failed(cause="killed", retryable=True, what=what)
    assert decide(rule, [same] * (ALIKE_MAX - 1)).restarts
    found = decide(rule, [failed(), *[same] * ALIKE_MAX])
    assert not found.restarts and "rank 3 failed 3 times in a row with killed" in found.why
    for other in (
        failed(cause="killed", what="rank 4 on gpu-0 was killed by SIGKILL"),
        failed(cause="host-oom", what=what),
        failed(cause="killed", what=what, lasted_s=QUICK_S),
        failed(cause="killed", what=what, progressed=True),
        replace(same, host="gpu-9"),
    ):
        assert decide(rule, [same, other, same]).restarts
    starter = failed(cause="mpirun-line", what="mpirun on gpu-0 exited with code 1")
    assert decide(rule, [starter] * ALIKE_MAX).why.startswith("mpirun failed 3 times")
    idle = failed(cause="killed", what=what, progressed=False, lasted_s=1e4)
    assert not decide(rule, [idle] * ALIKE_MAX).restarts
    assert decide(Restarts(most=20, on_any=True), [same] * ALIKE_MAX).restarts


def test_what_a_cause_and_the_user_say_decides() -> None:
    """Without restarts the job ends; an unknown cause, or one that can be helped, is restarted."""
    assert not decide(Restarts(), [failed()]).restarts
    found = decide(Restarts(most=2), [failed()])
    assert (found.restarts, found.why, found.wait_s) == (True, "restart 1 of 2", 0.0)
    assert decide(Restarts(most=1), [failed(cause="node-lost", retryable=True)]).restarts
    found = decide(Restarts(most=9), [failed(cause="missing-module", retryable=False)])
    assert not found.restarts
    assert "missing-module" in found.why and "--restart-on any" in found.why
    rule = Restarts(most=1, on_any=True)
    assert decide(rule, [failed(cause="missing-module", retryable=False)]).restarts
    rule = Restarts(most=9, on_any=True, never_status=(93,))
    assert not decide(rule, [failed(status=93, retryable=True)]).restarts
    assert decide(rule, [failed(status=92, retryable=True)]).restarts


def test_budgets_end_and_begin_anew() -> None:
    """That of the job, of each cause, by status where it is not known; anew after a time without failures."""
    rule = Restarts(most=2)
    assert [decide(rule, [failed()] * count).restarts for count in (1, 2, 3)] == [True, True, False]
    rule = Restarts(most=20, per_cause=1)
    oom, lost = failed(cause="host-oom"), failed(cause="node-lost")
    assert decide(rule, [oom, lost]).restarts
    assert not decide(rule, [oom, lost, oom]).restarts
    rule = Restarts(most=20, per_cause=1)
    assert decide(rule, [failed(status=3), failed(status=4)]).restarts
    assert not decide(rule, [failed(status=3), failed(status=3)]).restarts
    rule = Restarts(most=2, per_cause=2, reset_after_s=3600)
    quick, long = failed(), failed(lasted_s=3600)
    assert not decide(rule, [quick, quick, quick]).restarts
    assert decide(rule, [quick, quick, long]).restarts
    assert decide(rule, [quick, quick, long, quick]).restarts
    assert not decide(rule, [quick, quick, long, quick, quick]).restarts


def test_three_attempts_without_progress_are_enough() -> None:
    rule = Restarts(most=20)
    idle, moved = failed(progressed=False, lasted_s=100), failed(progressed=True, lasted_s=100)
    assert decide(rule, [idle] * (IDLE_MAX - 1)).restarts
    assert not decide(rule, [idle] * IDLE_MAX).restarts
    assert decide(rule, [idle, moved, idle]).restarts
    assert decide(rule, [failed()] * IDLE_MAX).restarts, "progress that is not watched does not count"


def test_the_first_quick_failure_waits_for_nothing_and_the_others_double() -> None:
    rule = Restarts(most=20, delay_s=1, delay_max_s=5)
    assert [find_wait_s(rule, [failed()] * count) for count in range(1, 7)] == [0, 1, 2, 4, 5, 5]


def test_an_attempt_that_ran_or_progressed_resets_the_wait() -> None:
    rule = Restarts(most=20, delay_s=1)
    quick = failed()
    assert find_wait_s(rule, [quick, quick, failed(lasted_s=QUICK_S)]) == 0
    assert find_wait_s(rule, [quick, quick, failed(progressed=True)]) == 0
    assert find_wait_s(rule, [quick, quick, failed(lasted_s=QUICK_S), quick]) == 0


def test_no_delay_is_no_delay() -> None:
    assert find_wait_s(Restarts(most=99, delay_s=0), [failed()] * 50) == 0


@given(st.integers(1, 2000), st.floats(0, 1), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_wait_is_between_half_and_all_of_its_length(
    count: int, chance: float, delay_s: float, most_s: float
) -> None:
    rule = Restarts(most=9999, delay_s=delay_s, delay_max_s=most_s)
    longest = find_wait_s(rule, [failed()] * count)
    assert longest / 2 <= find_wait_s(rule, [failed()] * count, chance) <= longest <= most_s


attempts = st.lists(
    st.builds(
        failed,
        status=st.integers(1, 5),
        cause=st.sampled_from(["", "a", "b"]),
        retryable=st.sampled_from([None, True, False]),
        lasted_s=st.sampled_from([0.0, 1.0, 1e5]),
        progressed=st.sampled_from([None, True, False]),
    ),
    min_size=1,
    max_size=12,
)


@given(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 3)), st.booleans(), attempts)
def test_no_rule_is_passed_over(
    most: int, per_cause: int | None, on_any: bool, tried: list[FailedAttempt]
) -> None:
    rule = Restarts(most=most, per_cause=per_cause, on_any=on_any, never_status=(5,))
    if decide(rule, tried).restarts:
        last = tried[-1]
        assert last.status != 5 and (on_any or last.retryable is not False)
        assert len(tried) <= most
        assert per_cause is None or sum(one.kind == last.kind for one in tried) <= per_cause
