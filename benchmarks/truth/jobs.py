"""Jobs of `benchmarks.truth`: one launcher a node, a victim, and what was written until all had ended."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from launcher.core.blocks import Block
from launcher.rehearse.cluster import Cluster, SimulatedNode

ROOT = Path(__file__).resolve().parents[2]
TRAIN = Path(__file__).with_name("train.py")
STALL_S, LOST_S, GRACE_S = 8, 5, 2
LEFT_S = 2.0
"""The watchdog of a launcher, which has the same command line, ends just after it."""
START_LIMIT_S, END_LIMIT_S = 120.0, 90.0
PORT = 29511
FT_LAUNCHER = "nvidia_resiliency_ext.fault_tolerance.launcher"


class World(NamedTuple):
    """Nodes, and ranks of each."""

    nodes: int
    each: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.each


class Outcome(NamedTuple):
    """What a launcher made of a fault.

    Attributes:
        struck: When the fault was there, in seconds since 1970; None if the job ended before.
        ended_s: Seconds from there until the last launcher that could end had ended; None if one ran on.
        statuses: Exit code of each node's launcher; None for one that was lost or had to be killed.
        outputs: What each node's launcher and ranks have written.
        records: Our failure record of each node; empty without one.
        left: Number of ranks that still ran then.
    """

    struck: float | None
    ended_s: float | None
    statuses: tuple[int | None, ...]
    outputs: tuple[str, ...]
    records: tuple[dict[str, Any], ...]
    left: int


def _make_flags(world: World, node: SimulatedNode, master: str) -> list[str]:
    """Return the flags that ours and torchrun have."""
    place = ["--nnodes", str(world.nodes), "--node-rank", str(node.index)]
    return [*place, "--nproc-per-node", str(world.each), "--master-addr", master, "--master-port", str(PORT)]


def start_ours(world: World, node: SimulatedNode, master: str, folder: Path) -> list[str]:
    """Return our command line on a node."""
    flags = ["--grace", str(GRACE_S), "--lost-after", str(LOST_S), "--on-stall", "stop"]
    flags += ["--stall-timeout", f"{STALL_S},first=60", "--progress-pattern", r"step (\d+)"]
    flags += ["--failure-file", str(folder / f"record-{node.index}")]
    line = [sys.executable, "-m", "launcher", "run", *_make_flags(world, node, master)]
    return [*line, *flags, "--", sys.executable]


def start_torchrun(world: World, node: SimulatedNode, master: str, folder: Path) -> list[str]:
    """Return torchrun's command line on a node."""
    return [sys.executable, "-m", "torch.distributed.run", *_make_flags(world, node, master)]


def start_ft_launcher(world: World, node: SimulatedNode, master: str, folder: Path) -> list[str]:
    """Return the command line of nvidia-resiliency-ext on a node. The nodes get their ranks by name."""
    size = ["--nnodes", str(world.nodes), "--nproc-per-node", str(world.each)]
    meet = ["--rdzv-backend", "c10d", "--rdzv-id", "truth", "--rdzv-endpoint", f"{master}:{PORT}"]
    return [sys.executable, "-m", FT_LAUNCHER, *size, *meet]


LAUNCHERS: dict[str, Callable[[World, SimulatedNode, str, Path], list[str]]] = {
    "ours": start_ours,
    "torchrun": start_torchrun,
    "ft_launcher": start_ft_launcher,
}


def list_launchers() -> list[str]:
    """Return the launchers that are installed."""
    has_ft = importlib.util.find_spec(FT_LAUNCHER.partition(".")[0]) is not None
    return [name for name in LAUNCHERS if name != "ft_launcher" or has_ft]


class Job:
    """A job on a cluster, which `close` ends."""

    def __init__(
        self, cluster: Cluster, world: World, launcher: str, fault: Block, victim: int, folder: Path
    ) -> None:
        self.cluster, self.fault, self.folder = cluster, fault, folder
        self.node = cluster.nodes[victim // world.each]
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        self.launchers = []
        for node in cluster.nodes:
            head = LAUNCHERS[launcher](world, node, cluster.nodes[0].address, folder)
            line = cluster.argv(node, [*head, str(TRAIN), fault.name, str(victim), str(folder)])
            with (folder / f"output-{node.index}").open("wb") as output:
                self.launchers.append(subprocess.Popen(line, env=environ, stdout=output, stderr=output))
        self._up = [folder / f"there-{rank}" for rank in range(world.size)]

    def run(self) -> Outcome:
        """Wait until the fault has struck, and then until all launchers have ended."""
        until = time.monotonic() + START_LIMIT_S
        lost = None
        while not all(path.exists() for path in self._up) and time.monotonic() < until:
            if all(one.poll() is not None for one in self.launchers):
                break
            time.sleep(0.02)
        struck = self._strike() if self.fault.fields["acts"] == "node" else self._read_struck()
        if self.fault.name in ("lost", "cut", "frozen", "launcher"):
            lost = self.launchers[self.node.index]
        until = time.monotonic() + END_LIMIT_S
        waited = [one for one in self.launchers if one is not lost]
        while any(one.poll() is None for one in waited) and time.monotonic() < until:
            time.sleep(0.02)
        has_ended = all(one.poll() is not None for one in waited)
        ended_s = time.time() - struck if struck and has_ended else None
        seen = [node for node in self.cluster.nodes if node is not self.node or lost is None]
        until = time.monotonic() + LEFT_S
        while (left := sum(map(self._count_ranks, seen))) and time.monotonic() < until:
            time.sleep(0.1)
        statuses = tuple(
            None if one is lost or one.poll() is None else one.returncode for one in self.launchers
        )
        texts = [
            (self.folder / f"output-{node.index}").read_text(errors="replace") for node in self.cluster.nodes
        ]
        return Outcome(
            struck, ended_s, statuses, tuple(texts), tuple(map(self._read, self.cluster.nodes)), left
        )

    def _strike(self) -> float:
        struck = time.time()
        match self.fault.name:
            case "told":
                self.cluster.kill(self.launchers[self.node.index].pid, signal.SIGTERM)
            case "launcher":
                self.cluster.kill(self.launchers[self.node.index].pid, signal.SIGKILL)
            case "lost":
                self.cluster.crash(self.node)
            case "cut":
                self.cluster.disconnect(self.node)
            case "frozen":
                launcher = psutil.Process(self.launchers[self.node.index].pid)
                for process in launcher.children(recursive=True):
                    process.suspend()
        return struck

    def _read_struck(self) -> float | None:
        path = self.folder / "struck"
        return float(path.read_text()) if path.exists() else None

    def _count_ranks(self, node: SimulatedNode) -> int:
        count = f"pgrep -c -f {TRAIN}.*{self.folder}"
        done = subprocess.run(
            self.cluster.argv(node, ["/bin/sh", "-c", count]), capture_output=True, text=True, check=False
        )
        return max(0, int(done.stdout or 0) - 1)  # the shell that asks has these words, too

    def _read(self, node: SimulatedNode) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / f"record-{node.index}").read_text())
        except (OSError, ValueError):
            return {}
        return found
