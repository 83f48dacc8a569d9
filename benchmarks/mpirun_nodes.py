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

from launcher.ssh.client import write_client
from launcher.ssh.keys import read_keys

from benchmarks.peers import CHECKOUT, bare_python, peers_folder
from launcher.machine.host import Host
from launcher.rehearse.cluster import Cluster, Node
from tests.cluster.fleets import Fleet, make_key
from tests.mpis import find_mpi

NODES, PER_NODE = 2, 2
COUNT = NODES * PER_NODE
SSH_PORT = 2222
LIMIT_S = 30.0
OURS, BARE = "launcher", "bare mpirun"
# An editable install, as in .venv, has each Python import 11 ms of its own.
PYTHON = os.path.join(peers_folder(), "bin", "python") if peers_folder() else sys.executable
OURS_LINE = (PYTHON, "-m", "launcher")
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
LISTENS = """
import socket, sys, time
deadline = time.monotonic() + 20
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).close()
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.01)
"""


class Jobs:
    """Jobs of one MPI on two nodes, one after the other."""

    def __init__(self, cluster: Cluster, family: str, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.key = make_key(folder)
        self.fleet = Fleet(cluster, find_mpi(family), self.key, folder)
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
        """Return the line that the launcher would start, without a command, and its environment."""
        words = [*OURS_LINE, "plan", "--format", "json", "--engine", "mpirun"]
        line = self.cluster.argv(self.head, words)
        said = subprocess.run(line, env=self.environ, check=True, capture_output=True, text=True).stdout
        agent, folder = json.loads(said)["agent"], str(self.folder)
        hosts = [node.hostname for node in self.cluster.nodes]
        write_client(folder, read_keys(self.key, host=Host()), hosts, SSH_PORT)
        for path, text in agent["files"].items():
            Path(path.format(folder=folder)).write_text(text, encoding="utf-8")
        kept = {name: value for name, value in self.environ.items() if name not in agent["unset"]}
        told = {item["name"]: item["value"].replace("{folder}", folder) for item in agent["settings"]}
        return [word.replace("{folder}", folder) for word in agent["argv"]], kept | told

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
        """Have an sshd listen on node 1."""
        words = [*OURS_LINE, "serve", "--local-addr", self.other.address]
        server = self._open(self.other, words, self.environ, subprocess.DEVNULL)
        try:
            look = [bare_python(), "-I", "-S", "-c", LISTENS, self.other.address, str(SSH_PORT)]
            subprocess.run(self.cluster.argv(self.head, look), check=True, env=self.environ)
            yield server
        finally:
            if server.poll() is None:
                self.cluster.kill(server.pid, signal.SIGKILL)
            server.communicate()

    def _open(
        self, node: Node, words: Sequence[str], environ: dict[str, str], errors: int
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
