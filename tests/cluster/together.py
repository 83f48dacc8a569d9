"""Jobs on simulated nodes with a launcher on each, which talk to each other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.process.looking import is_true_by, read_pid, wait_for
from tests.process.starting import clean_environ

DEADLINE_S = 120.0
LOG_LENGTH = 4000
"""Characters of the end of a log in the message of a failed test."""
FIRST = re.compile(r"^launcher: (\S.* (?:failed|ended) first: .*)$", re.MULTILINE)
WAITER = """
    trap 'echo $(date +%s.%N) >> {folder}/told-$RANK; exit 143' TERM
    echo $$ > {folder}/pid-$RANK.new; mv {folder}/pid-$RANK.new {folder}/pid-$RANK
    while :; do sleep 0.05; done
"""


class Done(NamedTuple):
    """One launcher that has ended."""

    status: int
    out: str
    err: str

    @property
    def first(self) -> list[str]:
        """Who failed first, as it says; one verdict at most."""
        return FIRST.findall(self.err)


class Job:
    """A job of all nodes of a cluster, or of some of them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.launchers: dict[int, subprocess.Popen[str]] = {}
        self.errors: dict[int, Path] = {}

    def start(
        self,
        index: int,
        *words: str,
        rank: int | None = None,
        environ: Mapping[str, str] | None = None,
        count: int | None = None,
        key: int | None = None,
        per_node: int | None = 1,
        master: str | None = None,
        cwd: str | None = None,
    ) -> None:
        """Start a launcher on a node.

        Args:
            index: Which node.
            words: Flags and the command.
            rank: Its node rank, if not its index.
            environ: More variables.
            count: Nodes of the job, if not all of the cluster.
            key: What the launcher is called here, if not the index of its node.
            per_node: Processes; None where roles say how many.
            master: What node 0 is called, if not by its address.
            cwd: Where it runs; a launcher that is there is the one that is started.
        """
        shape: tuple[str, ...] = ("--nnodes", str(count or len(self.cluster.nodes)))
        if per_node is not None:
            shape = (*shape, "--nproc-per-node", str(per_node))
        place = ("--node-rank", str(index if rank is None else rank))
        first = ("--master-addr", master or self.cluster.nodes[0].address)
        words = (*shape, *place, *first, *words)
        self.start_as(index, index if key is None else key, *words, environ=environ, cwd=cwd)

    def start_as(
        self,
        index: int,
        name: int,
        *words: str,
        environ: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        """Start a launcher on a node, with these flags and no others.

        Args:
            index: Which node.
            name: What the launcher is called here.
            words: Flags and the command.
            environ: More variables.
            cwd: Where it runs; a launcher that is there is the one that is started.
        """
        self.errors[name] = self.folder / f"launcher{name}-{len(self.launchers)}.err"
        line = (sys.executable, "-m", "launcher", "run", *words)
        with self.errors[name].open("w") as errors:
            self.launchers[name] = subprocess.Popen(
                self.cluster.argv(self.cluster.nodes[index], line, cwd=cwd),
                env=clean_environ(**{"LAUNCHER_ENGINE": "process", "NO_COLOR": "1", **(environ or {})}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start_all(self, *words: str, environ: Mapping[str, str] | None = None, per_node: int = 1) -> None:
        """Start the same on every node."""
        for node in self.cluster.nodes:
            self.start(node.index, *words, environ=environ, per_node=per_node)

    def start_waiting(self, *flags: str, per_node: int = 1) -> None:
        """Start processes that wait until somebody ends them, and wait until all have begun."""
        self.start_all(*flags, "--", "sh", "-c", WAITER.format(folder=self.folder), per_node=per_node)
        count = len(self.cluster.nodes) * per_node
        wait_for(lambda: len(list(self.folder.glob("pid-*[0-9]"))) == count, "all processes have begun")

    def kill_rank(self, rank: int, number: int = signal.SIGKILL) -> float:
        """Send a signal to a process of the job, alone on its node; return when, seconds since 1970."""
        node = self.cluster.nodes[rank]
        pid = read_pid(self.folder / f"pid-{rank}")
        before = time.time()
        self.on(node, ("kill", f"-{number}", str(pid)))
        return before

    def on(self, node: SimulatedNode, argv: Sequence[str]) -> str:
        """Run a command on a node, and return what it says."""
        done = subprocess.run(
            self.cluster.argv(node, argv), env=clean_environ(), capture_output=True, text=True, check=True
        )
        return done.stdout

    def listens(self, index: int, port: int) -> str:
        """Return where something listens on a node, as ss shows it; empty for nowhere."""
        lines = self.on(self.cluster.nodes[index], ("ss", "-Hltn", f"sport = :{port}")).splitlines()
        return ",".join(sorted(line.split()[3] for line in lines))

    def count_joined(self) -> int:
        """Return how many nodes node 0 has let in, itself included."""
        line = self.cluster.argv(
            self.cluster.nodes[0], (sys.executable, "-m", "launcher", "status", "--json")
        )
        done = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, check=False)
        nodes = json.loads(done.stdout)["nodes"] if done.stdout else []
        return int(nodes[0]["nodes"]["heard"]) if nodes else 0

    def told_at(self, rank: int) -> float:
        """Return when a waiting process heard SIGTERM, seconds since 1970."""
        return float((self.folder / f"told-{rank}").read_text().split()[0])

    def says(self, name: int, text: str) -> bool:
        """Whether a launcher has said something."""
        return text in self.errors[name].read_text()

    def signal(self, name: int, number: int) -> None:
        """Send a signal to a launcher."""
        self.cluster.kill(self.launchers[name].pid, number)
        if number == signal.SIGCONT:  # nsenter has stopped, too
            self.launchers[name].send_signal(number)

    def wait(self, *names: int) -> dict[int, Done]:
        """Wait for some launchers, or for all."""
        done = {}
        deadline = time.monotonic() + DEADLINE_S
        for name in names or tuple(self.launchers):
            try:
                out, _ = self.launchers[name].communicate(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"launcher {name} still runs\n{self.describe()}") from None
            done[name] = Done(self.launchers[name].returncode, out, self.errors[name].read_text())
        return done

    def wait_until(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        """Poll until something is true; fail with the logs at the deadline, or once a launcher has ended."""

        def has_end() -> bool:
            return any(one.poll() is not None for one in self.launchers.values())

        is_true_by(lambda: condition() or has_end(), deadline_s)
        assert condition(), f"not within {deadline_s:g} s, or before the job ended: {what}\n{self.describe()}"

    def describe(self) -> str:
        """Return the status of each launcher, None while it runs, and the end of its log."""
        return "\n".join(
            f"--- launcher {name}, status {self.launchers[name].poll()}\n{path.read_text()[-LOG_LENGTH:]}"
            for name, path in self.errors.items()
            if name in self.launchers
        )

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.launchers.values():
            if process.poll() is None:
                self.cluster.kill(process.pid, signal.SIGKILL)  # not only what has entered the node for it
                process.kill()
            process.communicate()


def assert_one_truth(done: Mapping[int, Done], status: int, verdict: str) -> None:
    """All have the same status and the same verdict, and it is this one."""
    assert {one.status for one in done.values()} == {status}, [one.err for one in done.values()]
    said = {tuple(one.first) for one in done.values()}
    assert len(said) == 1, said
    (first,) = said
    assert len(first) == 1 and verdict in first[0], first


def own_environ(**variables: str) -> dict[str, str]:
    """Return variables for training on a busy machine."""
    return {"OMP_NUM_THREADS": "1", **{name: os.environ[name] for name in ("HOME",)}, **variables}
