"""For `benchmarks.mpirun_start`: jobs on two simulated nodes, by the launcher and by a bare mpirun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers import CHECKOUT, bare_python, peers_folder
from launcher.engines.mpirun import plan_rsh
from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.cluster.fleets import Fleet
from tests.mpis import find_mpi

NODES, PER_NODE = 2, 2
COUNT = NODES * PER_NODE
LIMIT_S = 30.0
OURS, BARE = "launcher", "bare mpirun"
# An editable install, as in .venv, has each Python import 11 ms of its own.
PYTHON = os.path.join(peers_folder(), "bin", "python") if peers_folder() else sys.executable
OURS_LINE = (PYTHON, "-m", "launcher")
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")


class Jobs:
    """Jobs of one MPI on two nodes, one after the other."""

    def __init__(self, cluster: Cluster, family: str, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.fleet = Fleet(cluster, find_mpi(family), folder)
        self.head, self.other = cluster.nodes
        self.environ = self.fleet.environ(LAUNCHER_NPROC_PER_NODE=str(PER_NODE), PYTHONPATH=CHECKOUT)
        self._bare: tuple[list[str], dict[str, str]] | None = None

    def line(self, who: str, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return how the head starts a command in all ranks, and with which environment."""
        if who == OURS:
            return [*OURS_LINE, "run", "--engine", "mpirun", "--", *command], self.environ
        self._bare = self._bare or self._plan_bare()
        return [*self._bare[0], *command], self._bare[1]

    def _plan_bare(self) -> tuple[list[str], dict[str, str]]:
        """Return the line that the launcher would start, without a command, and its environment.

        Its remote shell is the cluster's own, which costs next to nothing.
        """
        words = [*OURS_LINE, "plan", "--format", "json", "--engine", "mpirun"]
        line = self.cluster.argv(self.head, words)
        said = subprocess.run(line, env=self.environ, check=True, capture_output=True, text=True).stdout
        agent, folder = json.loads(said)["agent"], str(self.folder)
        for path, text in agent["files"].items():
            Path(path.format(folder=folder)).write_text(text, encoding="utf-8")
        kept = {name: value for name, value in self.environ.items() if name not in agent["unset"]}
        shell = {" ".join(plan_rsh()): self.cluster.agent, plan_rsh()[0]: self.cluster.agent}
        shell[" ".join(plan_rsh()[1:])] = ""
        told = {item["name"]: shell.get(item["value"], item["value"]) for item in agent["settings"]}
        line = [shell.get(word, word).replace("{folder}", folder) for word in agent["argv"]]
        return line, kept | {name: value.replace("{folder}", folder) for name, value in told.items()}

    @contextlib.contextmanager
    def job(self, who: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """Start rank.py in all ranks; gives the head's process, and when its start was asked for, in ns."""
        command = [bare_python(), "-I", "-S", RANK, *words]
        line, environ = self.line(who, command)
        with open(self.folder / "stderr", "wb") as errors, self._serve() as server:
            started_ns = time.monotonic_ns()
            head = self._open(self.head, line, environ, errors.fileno())
            try:
                yield head, started_ns
                head.wait(LIMIT_S)
                if who == BARE:
                    self.cluster.kill(server.pid, signal.SIGTERM)
                server.wait(LIMIT_S)
            finally:
                if head.poll() is None:
                    self.cluster.kill(head.pid, signal.SIGKILL)
                head.communicate()

    @contextlib.contextmanager
    def _serve(self) -> Iterator[subprocess.Popen[bytes]]:
        """Have a launcher wait for the head on node 1."""
        words = [*OURS_LINE, "serve", "--master-addr", self.head.address]
        server = self._open(self.other, words, self.environ, subprocess.DEVNULL)
        try:
            yield server
        finally:
            if server.poll() is None:
                self.cluster.kill(server.pid, signal.SIGKILL)
            server.communicate()

    def _open(
        self, node: SimulatedNode, words: Sequence[str], environ: dict[str, str], errors: int
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.cluster.argv(node, words),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

    def last_words(self) -> str:
        """Return what the job has said last on standard error, in one line."""
        lines = (self.folder / "stderr").read_text(errors="replace").split("\n")
        return " / ".join(line for line in lines if line.strip())[-600:]
