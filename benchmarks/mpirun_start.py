"""What does the launcher cost over a bare mpirun? ``python -m benchmarks.mpirun_start [--rounds 9]``

Two simulated nodes, two ranks on each, and a real sshd on the second, that of ``launcher serve``: it
listens before the clock starts, and every run has one of its own. Ranks are bare ``python -I -S`` that
print a line. Measured from the start of ``launcher run --engine mpirun`` on the head to the arrival of
the last rank's line at the reader of its stdout, and to its exit. Beside it, in turn, runs the very line
that the launcher plans (``launcher plan``), without our rank shim: the same ssh with the same
configuration, the same options and variables.

Then ranks that sleep: what our processes hold in memory on either node, and how long it takes from the
end of one rank of node 1 with status 3 to the head's exit. The end of a process is the kernel's notice
of it, through pidfds. Needs root, for the nodes.

The promise: the last line at most 300 ms later than with the bare mpirun, for every MPI.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.machine import describe_machine
from benchmarks.peers import CHECKOUT, bare_python, peers_folder
from benchmarks.rank import FIRST_LINE
from benchmarks.tables import cell, markdown, progress, promise
from launcher.host import Host
from launcher.rehearse.cluster import Cluster, Node
from launcher.ssh.client import write_client
from launcher.ssh.keys import read_keys
from tests.cluster.fleets import Fleet, make_key
from tests.mpis import FAMILIES, find_mpi

PROMISE_MS = 300.0
NODES, PER_NODE = 2, 2
COUNT = NODES * PER_NODE
SSH_PORT = 2222
LIMIT_S = 30.0
OURS, BARE = "launcher", "bare mpirun"
# An editable install, as in .venv, has each Python import 11 ms of its own.
PYTHON = os.path.join(peers_folder(), "bin", "python") if peers_folder() else sys.executable
OURS_LINE = (PYTHON, "-m", "launcher")
RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
NAMES = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "impi": "Intel MPI"}
PARTS = {
    "launcher run --engine mpirun": "head",
    "launcher serve": "serving launcher",
    "mpi/session.py": "session, and the ssh that holds it",
    "mpi/rank.py": "2 rank shims",
    "[listener]": "sshd that listens",
}
"""Words in command lines, and what such a process and its guardian are to us."""
OUR_PROGRAMS = ("python", "python3", "ssh", "sshd:")
"""mpirun's line, too, has the words of ours, and so have the shells between."""
SLACK_S = 1.0
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


class Start(NamedTuple):
    """Milliseconds from the start to the last rank's first line, and to the exit."""

    line_ms: float
    exit_ms: float


class Death(NamedTuple):
    """Milliseconds from a rank's end to the exit, and the status."""

    exit_ms: float
    status: int


class Resident(NamedTuple):
    """A process at rest: the node's index, a row of ``PARTS``, its resident memory."""

    node: int
    part: str
    mib: float


class Bench:
    """One MPI on two nodes."""

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

    def start_once(self, who: str) -> Start:
        """Start a job of ranks that print, and wait for its end."""
        with self.job(who, "print") as (head, started_ns):
            line_ns = self._see_lines(head)
            status = head.wait(LIMIT_S)
            ended_ns = time.monotonic_ns()
        if status:
            raise SystemExit(f"{who}: status {status}: {self._words()}")
        return Start((line_ns - started_ns) / 1e6, (ended_ns - started_ns) / 1e6)

    def _see_lines(self, head: subprocess.Popen[bytes]) -> int:
        assert head.stdout is not None
        seen = b""
        while seen.count(FIRST_LINE.encode()) < COUNT:
            ready, _, _ = select.select([head.stdout], [], [], LIMIT_S)
            data = os.read(head.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise SystemExit(f"{seen.count(FIRST_LINE.encode())} of {COUNT} lines came: {self._words()}")
            seen += data
        return time.monotonic_ns()

    def die_once(self, who: str, *, look: bool) -> tuple[Death, list[Resident]]:
        """End one rank of node 1; before that, look at all processes if asked to."""
        reports = self.folder / "reports"
        reports.unlink(missing_ok=True)
        os.mkfifo(reports)
        descriptor = os.open(reports, os.O_RDWR | os.O_NONBLOCK)
        try:
            with self.job(who, "wait", str(reports)) as (head, _):
                self._await_ranks(descriptor)
                found = self._look() if look else []
                return self._kill_one(head, str(reports)), found
        finally:
            os.close(descriptor)

    def _await_ranks(self, reports: int) -> None:
        seen = b""
        while seen.count(b"\n") < COUNT:
            ready, _, _ = select.select([reports], [], [], LIMIT_S)
            if not ready:
                raise SystemExit(f"{seen.count(bytes([10]))} of {COUNT} ranks started: {self._words()}")
            seen += os.read(reports, 4096)
        time.sleep(SLACK_S)  # a launcher may still be busy with the start

    def _kill_one(self, head: subprocess.Popen[bytes], reports: str) -> Death:
        """Make a rank of node 1 exit; wait for the launcher's end."""
        rank = next(process for process in psutil.process_iter() if self._is_rank_of_node_1(process, reports))
        poll, seen = select.poll(), {}
        watched = {os.pidfd_open(pid): name for pid, name in ((rank.pid, "rank"), (head.pid, "head"))}
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        os.kill(rank.pid, signal.SIGUSR1)
        while len(seen) < len(watched):
            events = poll.poll(LIMIT_S * 1e3)
            now = time.monotonic_ns()
            if not events:
                raise SystemExit(f"{self._words()}: it does not end after {LIMIT_S:g} s")
            for descriptor, _ in events:
                seen[watched[descriptor]] = now
                poll.unregister(descriptor)
        for descriptor in watched:
            os.close(descriptor)
        return Death((seen["head"] - seen["rank"]) / 1e6, head.wait())

    def _is_rank_of_node_1(self, process: psutil.Process, reports: str) -> bool:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words[3:6] == [RANK, "wait", reports]:
                environ = process.environ()
                names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
                return next(environ[name] for name in names if name in environ) == str(COUNT - 1)
        return False

    def _look(self) -> list[Resident]:
        found = []
        for node in self.cluster.nodes:
            line = self.cluster.argv(node, ["ps", "-e", "-o", "rss=,args="])
            said = subprocess.run(line, check=True, capture_output=True, text=True, env=self.environ).stdout
            for rss, words in (row.split(None, 1) for row in said.splitlines()):
                part = name_part(words)
                if part is not None:
                    found.append(Resident(node.index, part, int(rss) / 1024))
        return found

    def _words(self) -> str:
        lines = (self.folder / "stderr").read_text(errors="replace").split("\n")
        return " / ".join(line for line in lines if line.strip())[-600:]


def name_part(words: str) -> str | None:
    """Return which of ``PARTS`` a command line is of."""
    if os.path.basename(words.split()[0]) not in OUR_PROGRAMS:
        return None
    return next((part for mark, part in PARTS.items() if mark in words), None)


class Result(NamedTuple):
    """What was measured with one MPI: by who started it, and what ours hold in memory."""

    starts: dict[str, list[Start]]
    deaths: dict[str, list[Death]]
    memory: list[Resident]


def measure(family: str, rounds: int) -> Result:
    """Start and end jobs of one MPI, ours and bare ones in turn; what comes first warms caches."""
    result = Result({OURS: [], BARE: []}, {OURS: [], BARE: []}, [])
    with tempfile.TemporaryDirectory() as folder, Cluster(NODES) as cluster:
        bench = Bench(cluster, family, Path(folder))
        for number in range(rounds + 1):
            progress(f"{NAMES[family]}: start {number} of {rounds}")
            for who in (OURS, BARE)[:: 1 if number % 2 else -1]:
                start = bench.start_once(who)
                if number:
                    result.starts[who].append(start)
        for number in range(max(1, rounds // 3)):
            progress(f"{NAMES[family]}: death {number + 1} of {max(1, rounds // 3)}")
            for who in (OURS, BARE):
                death, memory = bench.die_once(who, look=who == OURS and not number)
                result.deaths[who].append(death)
                result.memory.extend(memory)
    return result


def report(results: Mapping[str, Result]) -> list[str]:
    """Return the three tables."""
    lines = ["Milliseconds to the last rank's first line / to the exit:", ""]
    rows = []
    for family, result in results.items():
        pairs = [
            (
                median(start.line_ms for start in result.starts[who]),
                median(s.exit_ms for s in result.starts[who]),
            )
            for who in (OURS, BARE)
        ]
        over = f"{cell(pairs[0][0] - pairs[1][0])} / {cell(pairs[0][1] - pairs[1][1])}"
        rows.append([NAMES[family], *(f"{cell(line)} / {cell(end)}" for line, end in pairs), over])
    lines += markdown(["MPI", OURS, BARE, "more"], rows)
    lines += [
        "",
        "From the end of a rank of node 1, with status 3, to the exit of the head, and its status:",
        "",
    ]
    lines += markdown(
        ["MPI", f"{OURS}, ms", "status", f"{BARE}, ms", "status"],
        [
            [NAMES[family], *_deaths(result, OURS), *_deaths(result, BARE)]
            for family, result in results.items()
        ],
    )
    lines += ["", "Memory at rest, MiB (a page that processes share is counted for each of them):", ""]
    return lines + markdown(["what", "head's node", "other node"], _memory(results))


def _deaths(result: Result, who: str) -> list[str]:
    deaths = result.deaths[who]
    return [
        cell(median(death.exit_ms for death in deaths)),
        " or ".join(sorted({str(death.status) for death in deaths})),
    ]


def _memory(results: Mapping[str, Result]) -> list[list[str]]:
    """Return the rows: medians over the MPIs of what each part has on each node."""
    rows = []
    for part in dict.fromkeys(PARTS.values()):
        cells = []
        for node in range(NODES):
            sums = [
                sum(one.mib for one in result.memory if (one.node, one.part) == (node, part))
                for result in results.values()
            ]
            cells.append(cell(median(sums)) if any(sums) else "")
        rows.append([part, *cells])
    return rows


def main() -> int:
    """Print the tables; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="starts of each kind (9)")
    parser.add_argument("--only", choices=FAMILIES, nargs="+", default=list(FAMILIES), help="only these MPIs")
    asked = parser.parse_args()
    print(f"{describe_machine()}; load {os.getloadavg()[0]:.1f} at the start; {asked.rounds} starts each\n")
    results = {family: measure(family, asked.rounds) for family in asked.only}
    over = {
        NAMES[family]: median(start.line_ms for start in result.starts[OURS])
        - median(start.line_ms for start in result.starts[BARE])
        for family, result in results.items()
    }
    print("\n".join(report(results)))
    print()
    worst = max(over, key=lambda name: over[name])
    print(promise(f"ms more than bare mpirun, {worst}", PROMISE_MS, over[worst]))
    return int(over[worst] > PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
