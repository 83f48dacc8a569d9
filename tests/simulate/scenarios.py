"""Named runs: faults of earlier rounds, and what is found by seeds, each as one job in which it happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from launcher.core.supervision import Restarts
from launcher.job.state import Job
from tests.simulate import faults
from tests.simulate.invariants import check
from tests.simulate.network import DOWN, UP, Link
from tests.simulate.processes import Fate
from tests.simulate.world import Launcher, World

GOES_ON, NICE = Fate(1e6), Fate(30.0)
"""Processes that run until they are stopped, and those that succeed after half a minute."""
Faults = Callable[[World], object]
Fates = Mapping[tuple[int, int], Fate]


def play(
    happens: Mapping[float, Faults],
    fates: Fates | None = None,
    *,
    nodes: int = 4,
    spares: int = 0,
    restarts: int = 5,
    grace_s: float = 2.0,
    delay_s: float = 0.001,
    rejoin_s: float = 60.0,
) -> World:
    """Run a job to its end and return it.

    Args:
        happens: What happens, by its time.
        fates: What the processes of a node do in an attempt, by index and attempt; 30 s of success otherwise.
        nodes: Number of nodes.
        spares: Number of spare nodes.
        restarts: How often the job may restart.
        grace_s: The grace.
        delay_s: Time that a packet takes.
        rejoin_s: How long a lost node is waited for.
    """
    job = Job(
        nodes,
        spares,
        grace_s=grace_s,
        roll_call_s=60.0,
        restarts=Restarts(most=restarts, rejoin_timeout_s=rejoin_s, delay_s=0.0),
    )
    known = fates or {}
    draw = lambda index, attempt: known.get((index, attempt), NICE)  # noqa: E731
    world = World(job, random.Random(7), draw, lambda: Link(delay_s, 0.0, 0.0))
    for time, act in happens.items():
        world.at(time, lambda act=act: act(world))  # type: ignore[misc]
    is_done = world.run(3_000.0)
    world.wrong = check(world, is_done=is_done)
    return world


def of(world: World, index: int) -> Launcher:
    """Return the latest launcher with an index."""
    return [one for one in world.launchers.values() if one.index == index][-1]


def kill_rank(index: int) -> Faults:
    """Let the processes of a node fail now."""

    def act(world: World) -> None:
        one = of(world, index)
        if one.processes is not None:
            one.processes.fate = one.processes.fate._replace(status=137)
            world.end_alone(one, one.processes)

    return act


def cut(machine: int, for_s: float, ways: tuple[int, ...] = (UP, DOWN)) -> Faults:
    """Cut a link."""
    return lambda world: faults.cut(world, machine, dict.fromkeys(ways, for_s))


def pause(index: int, for_s: float, *, whole: bool = False) -> Faults:
    """Stop a launcher, or freeze all of its container."""
    return lambda world: faults.pause(world, of(world, index), for_s, whole=whole)


def come_back(index: int, machine: int) -> Faults:
    """Start a launcher again."""
    return lambda world: world.launch(index, machine)


def die(index: int, *, with_dog: bool = False, orphans: bool = False) -> Faults:
    """Kill a launcher."""
    return lambda world: faults.die(world, of(world, index), with_dog=with_dog, orphans=orphans)


def vanish(index: int) -> Faults:
    """Switch a machine off."""
    return lambda world: faults.vanish(world, of(world, index))


def both(*acts: Faults) -> Faults:
    """Do several things at the same moment."""

    def act(world: World) -> None:
        for one in acts:
            one(world)

    return act
