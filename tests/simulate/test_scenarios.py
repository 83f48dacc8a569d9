"""Faults of earlier rounds: each is one simulated job, and what must come of it."""

from __future__ import annotations

from functools import partial

from launcher.core.errors import EXIT_NOT_READY
from launcher.failure.arbiter import LOST, RANK
from tests.simulate import faults
from tests.simulate.network import DOWN, UP
from tests.simulate.processes import Fate
from tests.simulate.scenarios import both, come_back, cut, die, kill_rank, of, pause, play, vanish
from tests.simulate.world import World


def attempts(world: World) -> int:
    """Return the number of attempts."""
    return len({made.attempt for made in world.history})


def status(world: World) -> int:
    """Return the status of the job, after a run in which no invariant was broken."""
    assert world.wrong == [], "\n".join([*world.story, *world.wrong])
    return world.overs[-1].status if world.overs else EXIT_NOT_READY


def test_a_rank_that_dies_is_named_and_all_start_again() -> None:
    world = play({10.0: kill_rank(2)})
    assert (status(world), attempts(world)) == (0, 2)
    _, over = world.judged[0]
    assert over.first is not None and (over.first.kind, over.first.node) == (RANK, 2)


def test_two_attempts_never_run_at_once() -> None:
    """After a freeze longer than the lease, a cut one way that heals, a launcher that stands still."""
    # A spare node has the place when the container goes on, which kills its processes and leaves.
    world = play({10.0: pause(2, 60.0, whole=True)}, spares=1)
    assert (status(world), attempts(world)) == (0, 2)
    assert any("is killed: lease" in line for line in world.story)
    # Its watchdog kills them when the lease ends.
    world = play({10.0: pause(2, 60.0)}, spares=1)
    assert (status(world), attempts(world)) == (0, 2)
    # Node 0 does not hear the node, or the node does not hear node 0, for longer than it may be.
    for way in (UP, DOWN):
        world = play({10.0: cut(2, 40.0, (way,))}, spares=1)
        assert (status(world), attempts(world)) == (0, 2)


def test_a_connection_that_something_between_closes_ends_no_node() -> None:
    """To node 0 it looks like the end of the launcher, whose ranks go on; then no packet arrives any more."""

    def close(world: World) -> None:
        faults.reset(world, of(world, 2))
        faults.cut(world, 2, {UP: 60.0, DOWN: 60.0})

    stubborn = {(2, 0): Fate(1e6, dies_s=1e9)}
    world = play({10.0: close}, stubborn, spares=1)
    assert (status(world), attempts(world)) == (0, 2)


def test_a_spare_node_takes_the_place_of_a_killed_launcher_at_once() -> None:
    """Its watchdog calls node 0. If that was killed with it, the lease has to end before."""

    def kill(world: World, *, with_dog: bool = False) -> None:
        faults.die(world, of(world, 2), with_dog=with_dog)

    for fault, least_s, most_s in ((kill, 0.0, 3.0), (partial(kill, with_dog=True), 20.0, 60.0)):
        world = play({10.0: fault}, spares=1)
        assert (status(world), attempts(world)) == (0, 2)
        assert least_s < min(at for at, attempt in world.starts if attempt == 1) - 10.0 < most_s


def test_a_second_lost_node_has_its_own_time_to_come_back() -> None:
    """Node 1 is lost while node 2 is waited for."""
    world = play(
        {10.0: vanish(2), 60.0: vanish(1), 80.0: come_back(2, 52), 130.0: come_back(1, 51)}, rejoin_s=60.0
    )
    assert (status(world), attempts(world)) == (0, 2)


def test_a_job_that_cannot_go_on_ends() -> None:
    """A node does not come back; node 0 was paused for so long that all others have given it up."""
    world = play({10.0: vanish(2)}, rejoin_s=20.0)
    assert (status(world), attempts(world)) == (EXIT_NOT_READY, 1)
    first = world.overs[-1].first
    assert first is not None and (first.kind, first.node) == (LOST, 2)
    # All others have given it up and ended when it goes on; its own processes do not outlive the lease.
    for whole in (True, False):
        world = play({10.0: pause(0, 60.0, whole=whole)}, spares=1)
        assert (status(world), attempts(world)) == (EXIT_NOT_READY, 1)


def test_a_node_0_that_is_paused_right_after_its_start_blames_itself() -> None:
    """It has not looked for silent nodes yet, and their messages are unread when it goes on."""
    world = play({1.4: pause(0, 20.0)})
    assert (status(world), attempts(world)) == (EXIT_NOT_READY, 1)
    first = world.overs[-1].first
    assert first is not None and first.node == 0, first


def test_a_job_that_little_disturbs_goes_on() -> None:
    """Nothing, a short cut one way, a link that is down for seven seconds, a pause of node 0."""
    world = play({})
    assert (status(world), attempts(world)) == (0, 1)
    for way in (UP, DOWN):
        world = play({10.0: cut(2, 7.0, (way,))}, spares=1)
        assert (status(world), attempts(world)) == (0, 1)
    world = play({10.0: cut(2, 7.0)})
    assert (status(world), attempts(world)) == (0, 1)
    world = play({10.0: pause(0, 9.0)})
    assert (status(world), attempts(world)) == (0, 1)


def test_a_new_launcher_ends_what_the_one_before_has_left() -> None:
    """Launcher and watchdog were killed, and what its ranks have started goes on."""
    world = play({10.0: die(2, with_dog=True, orphans=True), 12.0: come_back(2, 2)})
    assert (status(world), attempts(world)) == (0, 2)
    assert any("is killed: a new launcher" in line for line in world.story)


def test_a_node_that_is_killed_while_the_start_is_on_its_way_is_replaced() -> None:
    """Found by a seed: it was frozen just before, so that it never read that it was let in."""
    world = play(
        {1.9: lambda world: faults.pause(world, of(world, 1), 8.0, whole=True), 4.0: die(1)}, spares=1
    )
    assert status(world) == 0


def test_of_two_failures_at_once_one_is_named_and_the_other_beside_it() -> None:
    world = play({10.0: both(kill_rank(1), kill_rank(3))}, restarts=0)
    assert status(world) == 137
    over = world.overs[-1]
    assert over.first is not None
    assert over.first.node in (1, 3) and len(over.also) == 1


def test_the_end_of_a_launcher_in_the_roll_call_only_makes_it_wait() -> None:
    world = play({0.0: lambda world: None, 1.9: die(1), 6.0: come_back(1, 1)}, nodes=2)
    assert status(world) == 0


def test_a_launcher_that_is_killed_between_two_attempts_is_replaced() -> None:
    """A rank that ignores SIGTERM makes the others wait; one of them dies meanwhile."""
    stubborn = {(3, 0): Fate(1e6, dies_s=1e9)}
    world = play({10.0: kill_rank(1), 12.01: die(2)}, stubborn, spares=1)
    assert status(world) == 0


def test_an_order_that_was_sent_while_a_connection_was_away_is_sent_again() -> None:
    """The connection of node 2 breaks for some seconds, and the job stops and restarts meanwhile."""

    def reset(world: World) -> None:
        faults.reset(world, of(world, 2))
        faults.cut(world, 2, {UP: 5.0, DOWN: 5.0})

    world = play({9.5: reset, 10.0: kill_rank(1)})
    assert (status(world), attempts(world)) == (0, 2)
    assert min(made.began for made in world.history if made.attempt) < 20.0


def test_an_answer_that_was_on_its_way_for_long_prolongs_no_lease() -> None:
    """Node 2 reads answers of node 0 late, which has not heard it since, and has given its place away."""
    stubborn = {(2, 0): Fate(1e6, dies_s=1e9)}
    happens = {10.4: cut(2, 6.0, (DOWN,)), 10.9: cut(2, 100.0, (UP,)), 20.0: cut(2, 100.0, (DOWN,))}
    world = play(happens, stubborn, spares=1, delay_s=0.3)
    assert (status(world), attempts(world)) == (0, 2)
