"""Draws a whole run from a seed: the job, its network, its processes, and what goes wrong."""

from __future__ import annotations

import random
from functools import partial

from launcher.core.frozen import replace
from launcher.core.supervision import Restarts
from launcher.job.state import Job
from tests.simulate import faults
from tests.simulate.invariants import check
from tests.simulate.network import DOWN, UP, Link
from tests.simulate.processes import Fate
from tests.simulate.world import Launcher, World

SIZES = (1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 6, 8)
LIMIT_S = 2_000.0
"""Virtual seconds after which a run waits for ever."""


def draw_job(rng: random.Random) -> Job:
    """Return a job."""
    count = rng.choice(SIZES) if rng.random() > 0.01 else rng.randint(9, 64)
    restarts = Restarts(
        most=rng.choice((0, 1, 2, 3, 5)),
        per_cause=rng.choice((None, None, None, 1)),
        delay_s=rng.choice((0.0, 1.0)),
        delay_max_s=4.0,
        reset_after_s=rng.choice((0.0, 0.0, 10.0)),
        rejoin_timeout_s=rng.choice((0.0, 10.0, 20.0)),
        health_argv=("check",) if rng.random() < 0.1 else (),
    )
    return Job(
        count,
        spare_count=rng.choice((0, 0, 1, 2)) if count > 1 else 0,
        grace_s=rng.choice((0.5, 1.0, 3.0)),
        lost_after_s=rng.choice((3.0, 5.0, 10.0)),
        roll_call_s=30.0,
        restarts=restarts,
        seed=str(rng.random()),
    )


def draw_fate(rng: random.Random, job: Job, index: int, attempt: int) -> Fate:
    """Return what the processes of a node do."""
    runs_s = 0.01 + 20.0 * rng.random()
    status = rng.choice((1, 3, 139)) if rng.random() < 0.5 / job.node_count else 0
    dies_s = rng.choice((0.0, 0.05, 0.3, 2.0, 1e9))
    killed_s = 0.01 if rng.random() < 0.98 else rng.choice((1.0, 7.0, 12.0, 40.0))
    refused = rng.random() < 0.01
    return Fate(runs_s, status, rng.random() < 0.1, dies_s, killed_s, refused)


def draw_link(rng: random.Random) -> Link:
    """Return the way from a machine to node 0."""
    return Link(rng.choice((0.0001, 0.001, 0.05, 0.4)), rng.choice((0.0, 0.001, 0.2, 1.0)), 0.0)


class Plan:
    """The faults of one run."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.machines = 100
        count = rng.choice((0, 0, 1, 1, 1, 2, 2, 3, 4))
        self.at_moments = rng.randint(0, count)
        for _ in range(count - self.at_moments):
            world.at(rng.random() * 35.0, self.strike)
        world.on_moment = self.strike_soon

    def strike_soon(self) -> None:
        """Let something go wrong right after a start or a stop."""
        if self.at_moments and self.rng.random() < 0.4:
            self.at_moments -= 1
            self.world.at(self.world.now + self.rng.choice((0.0, 0.001, 0.1, 1.0, 4.0)), self.strike)

    def pick(self) -> Launcher:
        """Return a launcher, rarely that of node 0."""
        alive = [one for one in self.world.launchers.values() if one.is_alive] or [self.world.server.own]
        return self.rng.choice(alive)

    def strike(self) -> None:
        """Let something go wrong."""
        rng, world, one = self.rng, self.world, self.pick()
        for_s = self.draw_length_s()
        kind = rng.random()
        if kind < 0.16:
            faults.pause(world, one, for_s, whole=False)
        elif kind < 0.3:
            faults.pause(world, one, for_s, whole=True)
        elif kind < 0.52:
            ways = rng.choice(((UP,), (DOWN,), (UP, DOWN)))
            is_even = rng.random() < 0.5
            faults.cut(world, one.machine, {way: for_s if is_even else self.draw_length_s() for way in ways})
        elif kind < 0.6:
            faults.reset(world, one)
            if rng.random() < 0.5:
                faults.cut(world, one.machine, {UP: for_s, DOWN: for_s})
        elif kind < 0.72:
            faults.die(world, one, with_dog=rng.random() < 0.3, orphans=rng.random() < 0.5)
            self.replace(one)
        elif kind < 0.82:
            faults.vanish(world, one)
            self.replace(one)
        elif kind < 0.92:
            faults.receive(world, one, rng.choice((2, 15)))
        elif kind < 0.96:
            world.launch(
                one.index, self.new_machine(), problem="another command" if rng.random() < 0.5 else ""
            )
        else:
            one.link.drop = 0.2
            world.disturb(one)

    def draw_length_s(self) -> float:
        """Return how long a fault lasts."""
        return self.rng.choice((0.5, 3.0, 7.0, 12.0, 16.0, 20.0, 30.0, 60.0)) * (
            0.8 + 0.4 * self.rng.random()
        )

    def new_machine(self) -> int:
        self.machines += 1
        return self.machines

    def replace(self, one: Launcher) -> None:
        """Let the platform start a launcher again, on this machine or on another."""
        if one.index and not one.is_alive and self.rng.random() < 0.8:
            machine = one.machine if self.rng.random() < 0.5 else self.new_machine()
            after = self.world.now + 12.0 * self.rng.random()
            self.world.at(after, lambda: self.world.launch(one.index, machine))


def simulate(seed: int | str) -> World:
    """Run the job of a seed to its end."""
    rng = random.Random(seed)
    job = draw_job(rng)
    if random.Random(f"{seed} keeps going").random() < 0.05:
        job = replace(job, keep_going=True, restarts=Restarts(), spare_count=0)
    world = World(job, rng, partial(draw_fate, rng, job), partial(draw_link, rng))
    Plan(world, rng)
    is_done = world.run(LIMIT_S)
    world.wrong = check(world, is_done=is_done)
    return world
