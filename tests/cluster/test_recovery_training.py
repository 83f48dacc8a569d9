"""Training that is disturbed ends with the weights of an undisturbed run, and each disturbance is named.

A rank is killed, or a node is lost, as soon as the checkpoint has advanced: 23 times for PyTorch, 5 times for
each other framework; in the default suite once or twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import need_namespaces
from tests.cluster.together import Job, own_environ
from tests.cluster.training.run import EVERY
from tests.process.looking import wait_for
from tests.process.starting import ROOT

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.xdist_group("recovery_training")]

DEADLINE_S = 180.0
PAUSE_S = 0.05
SEED = 7
STEPS, STEPS_EACH = 20, 14
"""Steps in all, and more for each disturbance: up to three checkpoints, and what passes until it happens."""
GOOD = 0.75
"""Every run guesses this share of the digits at least; chance would be 0.1."""
RESTARTS = ("--restarts", "99", "--lost-after", "8", "--grace", "2")
ENVIRON = {
    "HOROVOD_FUSION_THRESHOLD": "0",  # which gradients are added up together would be a matter of chance
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
}
KILL, LOSE, CRASH = "kill", "lose", "crash"
"""Disturbances: SIGKILL to a rank, SIGKILL to a launcher, and the end of a whole machine."""


class Training:
    """A training job, with a spare node if it has one machine more than nodes.

    Attributes:
        folder: Where the ranks write their process ids, the checkpoint and the result.
        attempt: The attempt that runs.
    """

    def __init__(self, job: Job, program: str, nodes: int, per_node: int) -> None:
        """Prepare a job of ``nodes`` nodes; nothing runs yet."""
        self.job, self.folder, self.attempt = job, job.folder, 0
        self._path = os.path.join(ROOT, "tests", "cluster", "training", program)
        self._nodes, self._per_node = nodes, per_node
        self._places = list(range(nodes))
        """The machine of each node."""
        self._indices = list(range(nodes + 1))
        """The index of each machine among all nodes of the job."""
        self._spare = nodes
        self._keys: dict[int, int] = {}
        self._chance = random.Random(SEED)
        self._words: tuple[str, ...] = ()

    def start(self, machines: int, steps: int, *flags: str, pause_s: float = 0.0) -> None:
        """Start a launcher on each of the first machines."""
        command = (sys.executable, self._path, str(self.folder), str(steps), str(pause_s))
        self._words = (*flags, "--", *command)
        for machine in range(machines):
            self._start(machine)

    def _start(self, machine: int) -> None:
        self._keys[machine] = key = 100 * self.attempt + machine
        self.job.start(
            machine,
            *self._words,
            rank=self._indices[machine],
            environ=own_environ(**ENVIRON),
            count=self._nodes,
            per_node=self._per_node,
            key=key,
        )

    def _say(self, text: str) -> bool:
        return self.job.says(self._keys[0], text)

    def wait_for_progress(self) -> None:
        """Wait until all ranks of the attempt run, and have written one to three checkpoints."""
        pids, count = f"pid-*-{self.attempt}", self._nodes * self._per_node
        wait, attempt = self.job.wait_until, f"attempt {self.attempt}"
        wait(lambda: len(list(self.folder.glob(pids))) == count, f"{attempt} runs", DEADLINE_S)
        least = self._read_step() + EVERY * self._chance.randint(1, 3)
        wait(lambda: self._read_step() >= least, f"{attempt} makes progress", DEADLINE_S)

    def _read_step(self) -> int:
        path = self.folder / "step"
        return int(path.read_text()) if path.exists() else 0

    def disturb(self, how: str) -> dict[str, object]:
        """Disturb the attempt once it has made progress; return what the record has to say of it."""
        self.wait_for_progress()
        done = self._kill() if how == KILL else self._lose(is_crash=how == CRASH)
        self.attempt += 1
        return {"number": self.attempt - 1, **done, "progressed": True, "restarts": True}

    def _kill(self) -> dict[str, object]:
        rank = self._chance.randrange(self._nodes * self._per_node)
        node = rank // self._per_node
        machine = self.job.cluster.nodes[self._places[node]]
        self.job.on(machine, ("kill", "-9", (self.folder / f"pid-{rank}-{self.attempt}").read_text()))
        what = f"rank {rank} on {machine.hostname} was killed by SIGKILL"
        return {"status": 137, "cause": "killed", "what": what, "node": node, "host": machine.hostname}

    def _lose(self, *, is_crash: bool) -> dict[str, object]:
        """Lose a node; its launcher is started again, on another machine after a crash, as a spare node."""
        node = self._chance.randrange(1, self._nodes)
        lost = self._places[node]
        wait_for(lambda: self._say(f"(node{self._spare}) is here as a spare node"), "there is a spare node")
        if is_crash:
            self.job.cluster.crash(self.job.cluster.nodes[lost])
        else:
            self.job.signal(self._keys[lost], signal.SIGKILL)
        self.job.launchers.pop(self._keys[lost]).communicate()
        self._places[node], self._spare = self._spare, lost
        if is_crash:
            self._spare = len(self._indices)
            self._indices.append(self._indices[lost])
        self._start(self._spare)
        host = self.job.cluster.nodes[lost].hostname
        what = f"node {node} on {host} is lost"
        return {"status": 75, "cause": "node-lost", "what": what, "node": node, "host": host}

    def finish(self) -> dict[str, Any]:
        """Wait until the job has ended well, and return its result."""
        done = self.job.wait()
        said = {name: one.err[-3000:] for name, one in done.items() if one.status}
        assert not said, said
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result


def save_digits(folder: Path) -> None:
    """Write the images for the ranks."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    np.savez(folder / "digits.npz", pixels=(images / 16).astype(np.float32), labels=labels.astype(np.int64))


def open_training(cluster: Cluster, folder: Path, program: str, nodes: int, per_node: int) -> Training:
    """Return a job in a new folder."""
    folder.mkdir()
    save_digits(folder)
    return Training(Job(cluster, folder), program, nodes, per_node)


def assert_recovers(
    tmp_path: Path, program: str, nodes: int, per_node: int, ways: Sequence[str], *flags: str
) -> None:
    """A job that is disturbed in these ways ends like one that is left alone, and each verdict is right."""
    need_namespaces()
    spares, steps = int(ways != [KILL] * len(ways)), STEPS + STEPS_EACH * len(ways)
    with Cluster(nodes + spares + ways.count(CRASH)) as cluster:
        alone = open_training(cluster, tmp_path / "alone", program, nodes, per_node)
        disturbed = open_training(cluster, tmp_path / "disturbed", program, nodes, per_node)
        record, checkpoint = disturbed.folder / "attempts.jsonl", disturbed.folder / "checkpoint.npz"
        restarts = (*RESTARTS, "--attempts-file", str(record), "--progress-file", str(checkpoint))
        try:
            alone.start(nodes, steps, *flags)
            expected = alone.finish()
            disturbed.start(
                nodes + spares, steps, *flags, *restarts, "--spares", str(spares), pause_s=PAUSE_S
            )
            disturbances = [disturbed.disturb(way) for way in ways]
            result = disturbed.finish()
        finally:
            alone.job.close()
            disturbed.job.close()
    assert result == expected and result["accuracy"] > GOOD
    assert [read_attempt(line) for line in record.read_text().splitlines()] == disturbances


def read_attempt(line: str) -> dict[str, object]:
    """Return what a line of the record says, and may be known before."""
    found = json.loads(line)
    names = ("number", "status", "cause", "what", "node", "host", "progressed", "restarts")
    return {**{name: found[name] for name in names}, "what": found["what"].partition(":")[0]}


def choose_ways(kills: int, losses: Sequence[str] = ()) -> list[str]:
    """Return the disturbances, losses evenly among kills."""
    ways = [KILL] * kills
    for number, loss in enumerate(losses, 1):
        ways.insert(number * len(ways) // (len(losses) + 1), loss)
    return ways


@pytest.mark.parametrize(
    ("nodes", "per_node", "kills", "losses"), [(2, 1, 1, [LOSE]), (4, 2, 20, [LOSE, CRASH, LOSE])]
)
def test_pytorch_loses_ranks_and_nodes(
    tmp_path: Path, nodes: int, per_node: int, kills: int, losses: list[str]
) -> None:
    """A spare node takes the place of each lost one."""
    assert_recovers(tmp_path, "ddp.py", nodes, per_node, choose_ways(kills, losses))


@pytest.mark.thorough
@pytest.mark.horovod
@pytest.mark.parametrize("kills", [1, 5])
def test_horovod_loses_ranks(tmp_path: Path, kills: int) -> None:
    """2 nodes x 2 ranks, by gloo: each attempt has a rendezvous of its own."""
    assert_recovers(tmp_path, "horovod_torch.py", 2, 2, choose_ways(kills), "--framework", "horovod")


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [1, 5])
def test_jax_loses_ranks(tmp_path: Path, kills: int) -> None:
    """2 nodes x 2 ranks; rank 0 has the coordination service."""
    assert_recovers(tmp_path, "jax_steps.py", 2, 2, choose_ways(kills), "--framework", "jax")


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [1, 5])
def test_tensorflow_loses_ranks(tmp_path: Path, kills: int) -> None:
    """2 nodes x 1 worker; the nodes have told each other their addresses before the first attempt."""
    flags = ("--framework", "tensorflow")
    assert_recovers(tmp_path, "tensorflow_steps.py", 2, 1, choose_ways(kills), *flags)


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [1, 5])
def test_pytorch_by_mpirun_loses_ranks(tmp_path: Path, kills: int) -> None:
    """2 nodes x 2 ranks; the head starts mpirun again."""
    (tmp_path / "token").write_text("a token of these tests")
    flags = ("--engine", "mpirun", "--hosts", "node0,node1", "--token-file", str(tmp_path / "token"))
    assert_recovers(tmp_path, "ddp.py", 2, 2, choose_ways(kills), *flags)
