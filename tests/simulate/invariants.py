"""What must be true of every run."""

from __future__ import annotations

from itertools import combinations

from launcher.failure.arbiter import RANK, REFUSED
from tests.simulate.processes import Processes
from tests.simulate.world import World

MOMENT_S = 0.15
"""A frozen node kills its processes as soon as it goes on, and for that moment they run."""


def check(world: World, *, is_done: bool) -> list[str]:
    """Return what is wrong with a run that has ended, or was given up."""
    own = world.server.own
    wrong = []
    if not is_done:
        wrong.append("it has not ended in time")
    waiting = [one.session for one in world.launchers.values() if one.is_alive]
    if waiting or world.server.is_alive:
        wrong.append(f"launchers wait for ever: {', '.join(waiting) or 'node 0'}")
    wrong += find_overlaps(world)
    if len(world.overs) > 1:
        wrong.append("the job has ended twice")
    over = world.overs[-1] if world.overs else None
    if over is not None and not over.status:
        wrong += find_unfinished(world)
    for one in world.launchers.values():
        if one.exit is None:
            continue
        _, status, heard = one.exit
        if heard is not None and not heard.leaves and heard is not over:
            wrong.append(f"{one.session} has heard another end of the job")
        if heard is not None and status != heard.status and one.state.received is None:
            wrong.append(f"{one.session} ended with {status}, the job with {heard.status}")
        has_left = one.state.goes_alone or (one.state.is_spare and one.state.received is not None)
        if heard is None and not has_left and one.state.has_begun and not one.is_disturbed:
            wrong.append(f"{one.session} could hear, and does not know how the job ended")
        if heard is None and status == 0 and not one.state.goes_alone:
            wrong.append(f"{one.session} takes the job for a success without having heard so")
    wrong += find_short_graces(world)
    wrong += find_late_firsts(world)
    attempts = {made.attempt for made in world.history}
    if len(attempts) > world.job.restarts.most + 1 and not world.job.restarts.reset_after_s:
        wrong.append("more restarts than are allowed")
    calm = not any(one.is_disturbed for one in world.launchers.values())
    told = any(one.state.received for one in world.launchers.values())
    odd = (
        len(world.launchers) > world.job.node_count + world.job.spare_count or world.job.restarts.health_argv
    )
    fine = all(made.fate.status == 0 and made.fate.killed_s < 5 for made in world.history)
    if calm and fine and not told and not odd and not world.causes and own.exit is not None and own.exit[1]:
        wrong.append(f"nothing has failed, and the job ends with {own.exit[1]}")
    return wrong


def find_overlaps(world: World) -> list[str]:
    """Return processes of two attempts, or of one rank, that ran at the same time."""
    wrong = []
    by_attempt: dict[int, list[Processes]] = {}
    for made in world.history:
        by_attempt.setdefault(made.attempt, []).append(made)
    latest = {number: max(map(last_ran, group)) for number, group in by_attempt.items()}
    for number, group in by_attempt.items():
        for later, others in by_attempt.items():
            if later > number and latest[number] > min(one.began for one in others):
                for one in group:
                    allowed = MOMENT_S if one.spans and len(one.spans) > 1 else 1e-6
                    begin = min(other.began for other in others)
                    end = max(map(last_ran, others))
                    if not one.is_orphaned and time_within(one, begin, end) > allowed:
                        wrong.append(
                            f"attempt {number} ran on {one.session} beside attempt {later}: "
                            f"{last_ran(one):.3f}, {begin:.3f}"
                        )
        for one, other in combinations(group, 2):
            first, then = sorted((one, other), key=lambda made: made.began)
            # What a launcher and its watchdog, killed together, have left can be ended on its machine only
            is_out_of_reach = first.is_orphaned and first.machine != then.machine
            has_ended = last_ran(first) <= then.began or is_out_of_reach
            if one.rank == other.rank and not (world.job.keep_going and has_ended):
                wrong.append(f"rank {one.rank} of attempt {number} ran twice")
    return wrong


def last_ran(made: Processes) -> float:
    """Return when processes ran last; under SIGKILL they run no more, whatever the kernel still holds."""
    last = made.spans[-1][1] if made.spans else made.began
    return min(last, made.killed[0]) if made.killed is not None else last


def time_within(made: Processes, begin: float, end: float) -> float:
    """Return for how long processes ran within a time."""
    stop = float("inf") if made.killed is None else made.killed[0]
    return sum(max(0.0, min(b, end, stop) - max(a, begin)) for a, b in made.spans)


def find_unfinished(world: World) -> list[str]:
    """Return ranks that have not succeeded in an attempt that is called a success."""
    last = max((made.attempt for made in world.history), default=-1)
    ends = {made.rank: made.status for made in world.history if made.attempt == last}
    bad = [rank for rank in range(world.job.node_count) if ends.get(rank) != 0]
    return [f"the job ends with 0, but ranks {bad} of attempt {last} have not"] if bad else []


def find_short_graces(world: World) -> list[str]:
    """Return processes that were killed before the end of their grace, or long after it."""
    wrong, grace_s = [], world.job.grace_s
    for made in world.history:
        one = world.launchers[made.session]
        if made.killed is None:
            continue
        at, why = made.killed
        if why == "grace" and made.termed is not None:
            lasted = at - made.termed
            if lasted < grace_s - 1e-6 or (lasted > grace_s + 1e-6 and not one.is_disturbed):
                wrong.append(f"the grace of {made.session} was {lasted:.3f} s")
        elif not one.is_disturbed and not made.is_orphaned:
            wrong.append(f"{made.session} was killed without its grace: {why}")
    return wrong


def find_late_firsts(world: World) -> list[str]:
    """Return verdicts that name a failure although one on another node was surely earlier."""
    wrong = []
    for attempt, over in world.judged:
        first = over.first
        if first is None or first.kind not in (RANK, REFUSED):
            continue
        for at, index, number in world.causes:
            link = world.links.get(index)
            own_error = 0.05 + (2 * (link.delay_s + link.jitter_s) if link is not None else 0.0)
            is_heard = not any(one.is_disturbed for one in world.launchers.values() if one.index == index)
            sooner = at + own_error < (first.at_ns - first.within_ns) / 1e9
            if number == attempt and sooner and is_heard and index != first.node:
                wrong.append(f"node {index} failed at {at:.3f}, and node {first.node} is called the first")
    return wrong
