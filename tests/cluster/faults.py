"""Faults at random moments in a job that restarts, and what must be true of every such run.

A `World` is a job of four nodes, with a spare node in some runs and two machines in reserve. Its ranks write
the time every few milliseconds, so that two attempts that run at once are seen afterwards. It also plays the
platform: it starts launchers again whose container has ended.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.rehearse.cluster import Cluster
from tests.cluster.together import Done, Job
from tests.process.looking import is_true_by

BEATS = """
import os, signal, sys, time
folder, rank, attempt = sys.argv[1], os.environ["RANK"], os.environ.get("LAUNCHER_ATTEMPT", "0")
if os.path.exists(f"{folder}/stubborn-{rank}"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = os.environ["MASTER_PORT"]
name = f"beat-{attempt}-{rank}-{os.uname().nodename}-{os.getpid()}-{port}"
with open(f"{folder}/{name}", "w", buffering=1) as file:
    while not os.path.exists(f"{folder}/go"):
        file.write(f"{time.monotonic()}\\n")
        time.sleep(0.01)
    file.write(f"{time.monotonic()} done\\n")
"""
HOLDS_PORTS = """
import socket, sys, time
kept = []
for port in map(int, sys.argv[2:]):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("", port))
    one.listen()
    kept.append(one)
open(sys.argv[1], "w").close()
time.sleep(600)
"""
COUNT, SPARE, RESERVE = 4, 4, (5, 6)
NOT_READY = 75
WITHOUT = "the job goes on without this node"
"""What node 0 tells a launcher that was lost, and whose place is taken."""
FAULTS = ("Traceback (most recent call last)", "[bug]", "a fault of the launcher", "faults of the launcher")
SETTLE_S, END_S, CLEAN_S = 60.0, 60.0, 10.0


class Life(NamedTuple):
    """One process of the job, as its heartbeats show it."""

    attempt: int
    rank: int
    node: str
    pid: int
    port: int
    first: float
    last: float
    is_done: bool


class World:
    """A job under faults.

    Attributes:
        rng: The only source of chance.
        current: The launcher of each index that the platform knows, by index.
        machine: The node on which each launcher was started, by its name.
        story: What was done, for the message of a failed test.
        touched: Ranks of nodes to which something was done, with node 0 where it can get the blame.
        dead: Launchers that were killed.
        strange: Launchers that are no part of the job: wrong flags, or a place that is taken.
        may_end: Whether the job may end with 75, because nodes were lost or cut off.
        has_shell: Whether a shell starts each rank: it alone ends with its parent.
        may_leave: Whether launchers may end with 75 while the job goes on.
    """

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster, self.folder, self.job = cluster, folder, Job(cluster, folder)
        self.current: dict[int, int] = {}
        self.machine: dict[int, int] = {}
        self.story: list[str] = []
        self.touched: set[int] = set()
        self.dead: set[int] = set()
        self.strange: set[int] = set()
        self.may_end = self.may_leave = False
        self.has_lost_node_0 = False
        self.has_shell = False
        self.down: set[int] = set()
        self.count = 0
        self.grace_s = self.rng.choice((1, 1, 2))
        self.has_spare = self.rng.random() < 0.5
        self.record = folder / "attempts.jsonl"
        self._next = 100
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._kept: list[subprocess.Popen[bytes]] = []
        self._began = time.monotonic()

    def note(self, what: str) -> None:
        """Note what is done, and when."""
        self.story.append(f"{time.monotonic() - self._began:6.2f} {what}")

    # --- time

    def pump(self) -> None:
        """Undo what is due: resume, reconnect, replace."""
        now = time.monotonic()
        for one in [one for one in self._later if one[0] <= now]:
            self._later.remove(one)
            one[1]()

    def later(self, after_s: float, act: Callable[[], None]) -> None:
        """Do something after a time, while the test goes on."""
        self._later.append((time.monotonic() + after_s, act))

    def turn(self, wait_s: float, condition: Callable[[], object] = lambda: False) -> bool:
        """Go on until a condition holds, or for these seconds; return whether it holds."""

        def look() -> object:
            self.pump()
            return condition()

        return is_true_by(look, wait_s)

    # --- launchers

    def flags(self) -> tuple[str, ...]:
        """Return the flags of every launcher of the job."""
        more = ("--spares", "1") if self.has_spare else ()
        return (
            *("--restarts", "50", "--restart-delay", "0", "--lost-after", "5", "--grace", str(self.grace_s)),
            *("--rejoin-timeout", "20", "--roll-call-timeout", "20", "--attempts-file", str(self.record)),
            *("--restart-on", "any"),  # the same rank may fail several times in a row
            *more,
        )

    def command(self) -> tuple[str, ...]:
        """Return the command of the job."""
        starter = ("sh", "-c", '"$@"; exit $?', "sh") if self.has_shell else ()
        return ("--", *starter, sys.executable, "-I", "-S", "-c", BEATS, str(self.folder))

    def launch(self, index: int, machine: int, *, name: int | None = None) -> int:
        """Start a launcher of the job; return its name."""
        name = self.take_name() if name is None else name
        self.job.start(machine, *self.flags(), *self.command(), rank=index, count=COUNT, key=name)
        self.current[index], self.machine[name] = name, machine
        return name

    def take_name(self) -> int:
        """Return a name for one more launcher."""
        self._next += 1
        return self._next

    def start(self) -> None:
        """Start the job, and wait until all ranks run."""
        for index in range(COUNT + self.has_spare):
            self.launch(index, index, name=index)
        assert self.turn(30, lambda: self.up(0) == COUNT), self.explain("the job did not start")
        if self.has_spare:
            assert self.turn(10, lambda: self.job.says(0, "as a spare node")), self.explain("no spare node")

    def is_there(self, name: int) -> bool:
        """Whether a launcher runs."""
        return self.job.launchers[name].poll() is None

    def explain(self, what: str) -> str:
        """Return a message with the story and the logs."""
        logs = [f"--- {name} on {self.machine.get(name)}\n{path.read_text()}"
                for name, path in self.job.errors.items()]  # fmt: skip
        lives = [
            f"{one.first - self._began:.2f} to {one.last - self._began:.2f}: {one}" for one in self.lives()
        ]
        return "\n".join((what, *self.story, *map(str, lives), *logs))

    # --- ranks

    def lives(self) -> list[Life]:
        """Return all processes of the job so far, the oldest first."""
        found = []
        for path in self.folder.glob("beat-*"):
            lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            if lines:
                _, attempt, rank, node, pid, port = path.name.split("-")
                first, last = float(lines[0].split()[0]), float(lines[-1].split()[0])
                is_done = lines[-1].endswith("done\n")
                found.append(Life(int(attempt), int(rank), node, int(pid), int(port), first, last, is_done))
        return sorted(found, key=lambda one: one.first)

    def latest(self) -> int:
        """Return the number of the latest attempt that has begun."""
        return max((int(path.name.split("-")[1]) for path in self.folder.glob("beat-*")), default=0)

    def up(self, attempt: int) -> int:
        """Return how many ranks of an attempt have begun: their first beat is there, not only its file."""
        return len({one.rank for one in self.lives() if one.attempt == attempt})

    def kill_rank(self, rank: int) -> bool:
        """Kill a rank of the latest attempt; return whether there was one."""
        found = [one for one in self.lives() if one.rank == rank]
        if not found:
            return False
        one = found[-1]
        self.touched.add(rank)
        self.note(f"SIGKILL to rank {rank} of attempt {one.attempt} on {one.node}")
        return self.run_on(int(one.node.removeprefix("node")), "kill", "-9", str(one.pid))

    def run_on(self, machine: int, *argv: str) -> bool:
        """Run a command on a node; return whether it succeeded."""
        with suppress(subprocess.CalledProcessError):
            self.job.on(self.cluster.nodes[machine], argv)
            return True
        return False

    def keep(self, machine: int, *argv: str) -> None:
        """Start a command on a node that runs until the end."""
        line = self.cluster.argv(self.cluster.nodes[machine], argv)
        self._kept.append(subprocess.Popen(line, stdin=subprocess.DEVNULL))

    # --- the end

    def is_over(self) -> bool:
        """Whether node 0 has ended, and with it the job."""
        return not self.is_there(0)

    def is_whole(self) -> bool:
        """Whether all ranks of the latest attempt run."""
        now, latest = time.monotonic(), self.latest()
        return (
            len({one.rank for one in self.lives() if one.attempt == latest and now - one.last < 0.5}) == COUNT
        )

    def settle(self) -> None:
        """As the platform: start ended launchers again, until all ranks run, or the job is over."""
        self.turn(SETTLE_S, lambda: not self._later)
        tried: dict[int, float] = {}

        def is_settled() -> bool:
            if self.is_over():
                return True
            for index, name in list(self.current.items()):
                if index and not self.is_there(name) and time.monotonic() > tried.get(index, 0.0):
                    tried[index] = time.monotonic() + 2.0
                    self.replace(index)
            return self.is_whole() and self.is_whole_for(0.5)

        assert self.turn(SETTLE_S, is_settled), self.explain("neither all ranks run, nor is the job over")

    def is_whole_for(self, wait_s: float) -> bool:
        """Whether all ranks go on for a while."""
        latest = self.latest()
        self.turn(wait_s)
        return self.is_whole() and self.latest() == latest

    def replace(self, index: int) -> None:
        """Start a launcher again where its machine is, or on one in reserve."""
        machine = self.machine[self.current[index]]
        if machine in self.down:
            machine = next((one for one in RESERVE if one not in self.down | set(self.machine.values())), -1)
        if machine >= 0 and not self.is_over():
            self.note(f"a new launcher for index {index} on node{machine}")
            self.launch(index, machine)

    def finish(self) -> dict[int, Done]:
        """End the job, and return how all launchers have ended."""
        (self.folder / "go").touch()
        self.note("go")
        names = list(self.job.launchers)
        assert self.turn(END_S, lambda: not any(map(self.is_there, names))), self.explain("launchers hang")
        return self.job.wait(*names)

    def close(self) -> None:
        """End what is left."""
        (self.folder / "go").touch()  # a rank that has lost its launcher holds our pipes
        for one in self._kept:
            if one.poll() is None:
                self.cluster.kill(one.pid, signal.SIGKILL)
                one.kill()
            one.wait()
        self.job.close()


# --- faults


def pick(world: World, *, zero: bool = False) -> int:
    """Return the index of a node whose launcher runs."""
    there = [index for index in range(0 if zero else 1, COUNT) if world.is_there(world.current[index])]
    return world.rng.choice(there or [0])


def kill_a_rank(world: World) -> None:
    world.kill_rank(world.rng.randrange(COUNT))


def kill_two_ranks(world: World) -> None:
    """Kill one, and another while the restart is under way: at once, after the decision, or at the start."""
    first, second = world.rng.sample(range(COUNT), 2)
    before = world.latest()
    world.kill_rank(first)
    moment = world.rng.choice(("at once", "decided", "started"))
    decided = f"restart {before + 1} of"
    if moment == "decided":
        world.turn(5, lambda: world.job.says(0, decided))
    elif moment == "started":
        world.turn(10, lambda: world.latest() > before)
    world.kill_rank(second)


def kill_a_launcher(world: World) -> None:
    index = pick(world)
    if not index:
        return
    name = world.current[index]
    world.note(f"SIGKILL to launcher {name}, node {index}")
    world.touched |= seats(world, index)
    world.dead.add(name)
    world.may_end = True
    world.job.signal(name, signal.SIGKILL)
    if world.rng.random() < 0.7:
        world.later(world.rng.uniform(0, 3), lambda: replace_if_gone(world, index, name))


def replace_if_gone(world: World, index: int, name: int) -> None:
    """Start a launcher again, if that was not done yet."""
    if world.current[index] == name and not world.is_there(name):
        world.replace(index)


def crash_a_node(world: World) -> None:
    index = pick(world)
    name = world.current[index]
    machine = world.machine[name]
    if not index or len(world.down) >= 2:
        return kill_a_rank(world)
    world.note(f"node{machine} crashes, with launcher {name} of node {index}")
    world.touched |= seats(world, index)
    world.down.add(machine)
    world.dead |= {one for one, there in world.machine.items() if there == machine and world.is_there(one)}
    world.may_end = True
    world.cluster.crash(world.cluster.nodes[machine])
    if world.rng.random() < 0.5:
        world.later(world.rng.uniform(0, 8), lambda: replace_if_gone(world, index, name))
    return None


def seats(world: World, index: int) -> set[int]:
    """Return the ranks that a node may have: its index, or that of a node whose place it has taken."""
    node = f"node{world.machine[world.current[index]]}"
    return {index, *(one.rank for one in world.lives() if one.node == node)}


def cut_a_node(world: World) -> None:
    """Cut the network of a node, for less or more than --lost-after."""
    machine, seconds = find_cut(world)
    world.note(f"node{machine} is cut off for {seconds:.1f} s")
    world.cluster.disconnect(world.cluster.nodes[machine])

    def reconnect() -> None:
        world.note(f"node{machine} is connected again")
        if machine not in world.down:
            world.cluster.reconnect(world.cluster.nodes[machine])

    world.later(seconds, reconnect)


def find_cut(world: World) -> tuple[int, float]:
    """Return a node whose network is cut, and for how long."""
    index = pick(world, zero=world.rng.random() < 0.2)
    seconds = world.rng.choice((world.rng.uniform(0.5, 3.5), world.rng.uniform(5.5, 11)))
    world.touched |= {0, *seats(world, index)}
    world.may_leave = True
    world.may_end = True
    return world.machine[world.current[index]], seconds


def cut_one_way(world: World) -> None:
    """Drop the packets between a node and node 0 in one direction."""
    machine, seconds = find_cut(world)
    if not machine:
        machine = 1
        world.touched |= seats(world, 1)
    deaf, mute = world.rng.choice(((0, machine), (machine, 0)))
    rule = ("INPUT", "-s", world.cluster.nodes[mute].address, "-j", "DROP")
    world.note(f"node{deaf} does not hear node{mute} for {seconds:.1f} s")
    world.run_on(deaf, "iptables", "-A", *rule)

    def hear() -> None:
        world.note(f"node{deaf} hears node{mute} again")
        world.run_on(deaf, "iptables", "-D", *rule)

    world.later(seconds, hear)


def pause_a_launcher(world: World) -> None:
    """Stop a launcher for 1 to 8 s; its ranks go on."""
    index = pick(world, zero=world.rng.random() < 0.25)
    name, seconds = world.current[index], world.rng.uniform(1, 8)
    if not world.is_there(name):
        return
    world.note(f"launcher {name} of node {index} stands still for {seconds:.1f} s")
    world.touched |= {0, *seats(world, index)}
    world.may_leave = True
    world.may_end = True
    world.job.signal(name, signal.SIGSTOP)

    def resume() -> None:
        world.note(f"launcher {name} goes on")
        if world.is_there(name):
            world.job.signal(name, signal.SIGCONT)

    world.later(seconds, resume)


def kill_beside_a_stubborn_rank(world: World) -> None:
    """A rank of the next attempt ignores SIGTERM."""
    stubborn, killed = world.rng.sample(range(COUNT), 2)
    before = world.latest()
    (world.folder / f"stubborn-{stubborn}").touch()
    world.note(f"rank {stubborn} of the next attempts ignores SIGTERM")
    world.kill_rank(killed)
    world.turn(15, lambda: world.up(before + 1) == COUNT)
    world.kill_rank(killed)


def take_the_next_port(world: World) -> None:
    """Another process has the MASTER_PORT that the next attempt would have, and some above it."""
    lives = world.lives()
    port = lives[-1].port if lives else 29500
    held = world.folder / f"held-{port}"
    ports = range(port + 1, port + 1 + world.rng.choice((1, 2, 5)))
    world.note(f"ports {ports} of node0 are taken")
    world.keep(0, sys.executable, "-I", "-S", "-c", HOLDS_PORTS, str(held), *map(str, ports))
    world.turn(5, held.exists)
    kill_a_rank(world)


def fill_the_disk(world: World) -> None:
    """The record of attempts cannot be written any more: its folder becomes a full file system on node 0."""
    world.record = world.folder / "none"
    world.note("the folder of the record is full")
    disk = str(world.folder / "disk")
    world.run_on(0, "sh", "-c", f"mountpoint -q {disk} && head -c 99999 /dev/zero > {disk}/all || true")
    kill_a_rank(world)


def lose_the_spare(world: World) -> None:
    """The spare node dies; perhaps just when a place becomes free."""
    name = world.current.get(SPARE)
    if name is None or not world.is_there(name):
        return kill_a_rank(world)
    world.touched |= seats(world, SPARE)
    world.dead.add(name)
    world.may_end = True
    if world.rng.random() < 0.6:
        kill_a_launcher(world)
        if world.rng.random() < 0.7:
            world.turn(8, lambda: world.job.says(0, "takes the place of"))
    world.note(f"SIGKILL to launcher {name} of the spare node")
    world.job.signal(name, signal.SIGKILL)
    return None


def start_what_does_not_fit(world: World) -> None:
    """Start launchers too early, twice, with a wrong --nnodes or another command."""
    index = pick(world)
    machine = world.rng.choice([one for one in (*range(1, COUNT), *RESERVE) if one not in world.down])
    short = ("--roll-call-timeout", "4")
    for _ in range(world.rng.choice((1, 2))):
        name = world.take_name()
        how = world.rng.choice(("too early", "another number of nodes", "another command"))
        world.note(f"launcher {name} on node{machine} as node {index}: {how}")
        world.strange.add(name)
        world.machine[name] = machine
        count = COUNT + 1 if how == "another number of nodes" else COUNT
        more = ("another",) if how == "another command" else ()
        world.job.start(
            machine, *world.flags(), *short, *world.command(), *more, rank=index, count=count, key=name
        )
    if world.rng.random() < 0.5:
        world.turn(world.rng.uniform(0, 1))
        kill_a_rank(world)


def lose_node_0(world: World) -> None:
    """The last fault of a run."""
    world.note("SIGKILL to the launcher of node 0")
    world.touched.add(0)
    world.dead.add(0)
    world.has_lost_node_0 = world.may_end = True
    world.job.signal(0, signal.SIGKILL)


FAULT_KINDS: Mapping[Callable[[World], None], int] = {
    kill_a_rank: 2,
    kill_two_ranks: 3,
    kill_a_launcher: 3,
    crash_a_node: 2,
    cut_a_node: 3,
    cut_one_way: 3,
    pause_a_launcher: 3,
    kill_beside_a_stubborn_rank: 1,
    take_the_next_port: 1,
    fill_the_disk: 1,
    lose_the_spare: 2,
    start_what_does_not_fit: 2,
}


def run(world: World) -> dict[int, Done]:
    """Run a job with three or four faults; return how all launchers have ended."""
    rng = world.rng
    if rng.random() < 0.2:
        disk = world.folder / "disk"
        disk.mkdir()
        world.run_on(0, "mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk))
        world.record = disk / "attempts.jsonl"
    world.start()
    kinds = list(FAULT_KINDS)
    for _ in range(rng.choice((3, 4))):
        if rng.random() < 0.5:  # all ranks run again; or right into what is under way
            world.turn(12, lambda: world.is_over() or world.is_whole())
        world.turn(rng.uniform(0, 1.5))
        if world.is_over():
            break
        world.count += 1
        fault = rng.choices(kinds, weights=list(FAULT_KINDS.values()))[0]
        world.note(fault.__name__)
        fault(world)
    if rng.random() < 0.1 and not world.is_over():
        world.turn(rng.uniform(0, 2))
        world.count += 1
        lose_node_0(world)
    world.settle()
    return world.finish()


# --- what must be true


def check(world: World, done: Mapping[int, Done]) -> None:
    """Check everything that must be true of every run."""
    for find in (find_overlap, find_wrong_status, find_left, find_wrong_record, find_faults):
        found = find(world, done)
        assert not found, world.explain(found)


def find_overlap(world: World, done: Mapping[int, Done]) -> str:
    """No rank of an attempt runs while one of an earlier attempt still does."""
    lives = world.lives()
    for one in lives:
        for other in lives:
            if other.attempt > one.attempt and other.first < one.last:
                return f"two attempts at once, for {one.last - other.first:.2f} s: {one} and {other}"
            if other is not one and (other.attempt, other.rank) == (one.attempt, one.rank):
                return f"a rank twice: {one} and {other}"
    return ""


def find_wrong_status(world: World, done: Mapping[int, Done]) -> str:
    """Status 0 only if all ranks of one attempt have finished, and one status for all that are there."""
    loyal = {name: one for name, one in done.items() if name not in world.dead | world.strange}
    if world.has_lost_node_0:
        for name, one in loyal.items():
            is_replaced = world.may_leave and WITHOUT in one.err  # that was before
            if one.status != NOT_READY or not ("node 0" in one.err or is_replaced):
                return f"node 0 is lost, and launcher {name} ends with {one.status}"
        return ""
    status = done[0].status
    latest = world.latest()
    finished = {one.rank for one in world.lives() if one.attempt == latest and one.is_done}
    if status == 0 and len(finished) != COUNT:
        return f"status 0, and of attempt {latest} only ranks {finished} have finished"
    if status not in (0, NOT_READY) or (status and not world.may_end):
        return f"the job ended with {status}"
    for name, one in loyal.items():
        if one.status != status and not (one.status == NOT_READY and (world.may_leave or world.may_end)):
            return f"the job ended with {status}, and launcher {name} with {one.status}"
    for name in world.strange - world.dead:
        if done[name].status not in (NOT_READY, 78, 64, status):
            return f"launcher {name} ended with {done[name].status}"
    return ""


def find_left(world: World, done: Mapping[int, Done]) -> str:
    """No process of the job is left on any node."""
    left: list[str] = []

    def is_clean() -> bool:
        left.clear()
        for node in world.cluster.nodes:
            if node.index not in world.down:
                pattern = f"launcher run.*{world.folder}|-I -S -c.*folder, rank.*{world.folder}"
                with suppress(subprocess.CalledProcessError):  # none was found
                    left.append(f"{node.name}: {world.job.on(node, ('pgrep', '-fa', pattern))}")
        return not left

    return "" if world.turn(CLEAN_S, is_clean) else f"left: {left}"


def find_wrong_record(world: World, done: Mapping[int, Done]) -> str:
    """The record has each failed attempt once, and names a node to which something was done."""
    if (
        world.has_lost_node_0
        or world.record.name == "none"
        or not world.run_on(0, "test", "-e", world.record.as_posix())
    ):
        lines = []
        count = len(re.findall(r"restart \d+ of 50", done[0].err))
    else:
        text = world.job.on(world.cluster.nodes[0], ("cat", str(world.record)))
        lines = [json.loads(line) for line in text.splitlines()]
        count = len(lines)
        if [line["number"] for line in lines] != list(range(count)):
            return f"the record has attempts {[line['number'] for line in lines]}"
    for line in lines:
        if line["node"] not in world.touched:
            return f"nothing was done to node {line['node']}: {line}"
    latest = world.latest()
    if world.has_lost_node_0:
        return ""
    if lines and done[0].status == 0 and count != latest:
        return f"{count} failed attempts, and the last one is {latest}"
    if lines and done[0].status and count not in (latest, latest + 1, latest + 2):
        return f"{count} failed attempts, and the last one is {latest}"
    return ""


def find_faults(world: World, done: Mapping[int, Done]) -> str:
    """No launcher reports a fault of its own."""
    for name, one in done.items():
        for fault in FAULTS:
            if fault in one.err or fault in one.out:
                return f"launcher {name} says: {fault}"
    return ""
