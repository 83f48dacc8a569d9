"""Jobs that mpirun starts on simulated nodes, one ``launcher run`` per node or one on the head alone."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.mpis import Mpi, mpis_folder
from tests.process.starting import clean_environ

DEADLINE_S = 90.0
ALLREDUCE = """
    import json, os, socket, sys
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    total = world.allreduce(world.rank + 1)
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    seen = {name: os.environ.get(name) for name in names}
    line = json.dumps({**seen, "node": socket.gethostname(), "mpi_rank": world.rank, "sum": total})
    sys.stdout.write(line + "\\n")
"""

FIND = "ls -d /dev/shm/launcher-* $TMPDIR/launcher_* 2>/dev/null"
"""Sessions and files of ranks; /tmp is the machine's own, and others use it, too."""


class Done(NamedTuple):
    """One launcher that has ended."""

    status: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """What ranks have printed as JSON; a rank's line may end after another's, under mpirun."""
        found, decode = [], json.JSONDecoder().raw_decode
        for line in self.out.splitlines():
            while line.startswith("{"):
                record, end = decode(line)
                found.append(record)
                line = line[end:]
        return found


class Fleet:
    """The nodes of one job, its MPI, and its token."""

    def __init__(self, cluster: Cluster, mpi: Mpi, folder: Path) -> None:
        self.cluster, self.mpi, self.token, self.folder = cluster, mpi, secrets.token_hex(16), folder
        self.hosts = ",".join(node.hostname for node in cluster.nodes)
        self.launchers: list[subprocess.Popen[str]] = []
        self.errors: list[Path | None] = []

    def script(self, text: str) -> str:
        """Return the path of a script."""
        path = self.folder / f"script{len(list(self.folder.iterdir()))}.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    def start(
        self,
        node: SimulatedNode,
        *words: str,
        environ: Mapping[str, str] | None = None,
        cover: Sequence[str] = (),
        command: str = "run --engine mpirun",
        errors: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Start ``launcher run --engine mpirun WORDS`` on a node.

        Args:
            node: The node.
            words: Flags and the command.
            environ: More variables.
            cover: A file, and the path of the one that it hides.
            command: The launcher's command, if not this.
            errors: Receives standard error, so that it can be read meanwhile.
        """
        line: tuple[str, ...] = (sys.executable, "-m", "launcher", *command.split(), *words)
        if cover:
            mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
            line = ("unshare", "--mount", "sh", "-c", mounted, *cover, *line)
        process = subprocess.Popen(
            self.cluster.argv(node, line),
            env=self.environ(**(environ or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors is None else errors.open("w"),
            text=True,
        )
        self.launchers.append(process)
        self.errors.append(errors)
        return process

    def environ(self, **variables: str) -> dict[str, str]:
        """Return what a launcher is started with."""
        base = clean_environ()
        python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        mpi4py = f"{mpis_folder()}/mpi4py/lib/{python}/site-packages"
        return {
            **base,
            **self.mpi.environ,
            "PYTHONPATH": f"{base['PYTHONPATH']}:{mpi4py}",
            "LAUNCHER_HOSTS": self.hosts,
            "LAUNCHER_TOKEN": self.token,
            "LAUNCHER_ROLL_CALL_TIMEOUT": "20",
            **variables,
        }

    def start_all(self, *words: str, environ: Mapping[str, str] | None = None) -> None:
        """Start the same command on every node."""
        for node in self.cluster.nodes:
            self.start(node, *words, environ=environ)

    def wait(self, timeout_s: float = DEADLINE_S) -> list[Done]:
        """Wait for all launchers, in the order in which they were started."""
        done = []
        for process, errors in zip_longest(self.launchers, self.errors):
            out, err = process.communicate(timeout=timeout_s)
            done.append(Done(process.returncode, out, err if errors is None else errors.read_text()))
        return done

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.launchers:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def processes(self, node: SimulatedNode) -> list[str]:
        """Return the command lines of what runs on a node, but its own first process and ps."""
        done = subprocess.run(
            self.cluster.argv(node, ["ps", "-e", "-o", "pid=,comm=,args="]),
            env=clean_environ(),
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split(None, 2) for line in done.stdout.splitlines()]
        return [args for pid, comm, args in lines if comm != "ps" and "node_agent" not in args and pid != "1"]

    def await_empty(self, *nodes: SimulatedNode) -> None:
        """Fail where something runs on these nodes (by default all) once their launchers have ended.

        A watchdog, a daemon of mpirun and what they leave to be reaped end after the launcher itself.
        """
        asked = nodes or self.cluster.nodes
        deadline = time.monotonic() + 15.0
        while left := [(node.name, line) for node in asked for line in self.processes(node)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)  # between two looks: there is nothing to wait on


def run_on(two: Fleet, node: SimulatedNode, command: str) -> str:
    """Run a shell command on a node, and return what it prints."""
    line = two.cluster.argv(node, ["sh", "-c", command])
    return subprocess.run(line, env=two.environ(), capture_output=True, text=True, check=False).stdout


def find_pids(two: Fleet, node: SimulatedNode, *marks: str) -> list[int]:
    """Return the processes of a node, by its own numbers, whose command line begins or ends so."""
    lines = [line.split(None, 1) for line in run_on(two, node, "ps -e -o pid=,args=").splitlines()]
    return [int(pid) for pid, args in lines if any(mark in args for mark in marks)]


def signal_on(two: Fleet, node: SimulatedNode, number: int, *marks: str) -> None:
    """Send a signal to a process of a node: a prted has a parent of its own, a wrapper its placeholder."""
    index = -1 if {"prted -", "wrapper"} & {*marks} else 0
    run_on(two, node, f"kill -{int(number)} {find_pids(two, node, *marks)[index]}")


def assert_nothing_left(two: Fleet) -> None:
    """No process and no folder of ours, on any node."""
    deadline = time.monotonic() + 10
    while True:
        processes = [line for node in two.cluster.nodes for line in two.processes(node)]
        folders = [line for node in two.cluster.nodes for line in run_on(two, node, FIND).split()]
        if not (processes or folders) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not (processes or folders), [*processes, *folders]
