"""For `benchmarks.restarts`: jobs on simulated nodes whose last rank is killed, and what restarts them."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

from benchmarks.jobs import NotMeasured
from benchmarks.machine import OtherLoad
from benchmarks.peers import CHECKOUT, MPI_ENVIRON, OURS, SHELL_LOOP, bare_python, peers_folder
from launcher import __version__
from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.mpis import mpis_folder

RANK = os.path.join(CHECKOUT, "benchmarks", "restart_rank.py")
RESTARTS = 5
"""Failures of one job, each with a restart; peers have the same limit."""
START_LIMIT_S, RESTART_LIMIT_S = 180.0, 60.0
CALM_SHARE, CALM_S, CALM_LIMIT_S = 0.1, 0.25, 10.0
"""A job is calm when it has used less than this share of a CPU for so long: its start is over then."""
RDZV_PORT = 29400
AGAIN = 'until "$@"; do :; done'
TORCHRUN = f"torchrun --max-restarts {RESTARTS}, c10d"
HOROVOD, LOOP = "Horovod elastic, survivors only", "shell loop around mpirun"


class Recovery(NamedTuple):
    """Milliseconds from the death of a rank to the first and the last report of the next attempt.

    Attributes:
        first_ms, last_ms: Until the code of the first and of the last rank began.
        step_ms: Until the last rank had taken its first step; None without steps.
        others_percent: Share of all CPUs that everybody else used just before the death.
    """

    first_ms: float
    last_ms: float
    step_ms: float | None
    others_percent: float


class Scene(NamedTuple):
    """Where a job runs, and what its ranks are.

    Attributes:
        cluster: The simulated nodes.
        per_node: Ranks of each.
        folder: Files of the job; every node sees it.
        command: The command of a rank.
    """

    cluster: Cluster
    per_node: int
    folder: Path
    command: Sequence[str]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.cluster.nodes) * self.per_node


class Contender(NamedTuple):
    """One way to have a job started again.

    Attributes:
        name: As it stands in the tables.
        version: What it says it is.
        lines: The scene -> what is started on which node.
        environ: What it needs beside PATH and HOME.
        survivors_only: Whether the node of the failure is given up, and the others go on.
    """

    name: str
    version: str
    lines: Callable[[Scene], list[tuple[SimulatedNode, list[str]]]]
    environ: Mapping[str, str] = MappingProxyType({})
    survivors_only: bool = False


def python() -> str:
    """Return the interpreter with torch: of the peers' environment, or our own."""
    folder = peers_folder()
    return os.path.join(folder, "bin", "python") if folder else sys.executable


def start_ours(scene: Scene) -> list[tuple[SimulatedNode, list[str]]]:
    """Return a launcher for each node; without the wait before the second and third restart, as the peers."""
    nodes = scene.cluster.nodes
    flags = ["--nnodes", str(len(nodes)), "--nproc-per-node", str(scene.per_node)]
    flags += ["--master-addr", nodes[0].address, "--restarts", str(RESTARTS), "--restart-delay", "0"]
    flags += ["--restart-on", "any"]  # the same rank each time
    program = [python(), os.path.join(CHECKOUT, "bin", "launcher"), "run", *flags]
    return [(node, [*program, "--node-rank", str(node.index), "--", *scene.command]) for node in nodes]


def start_torchrun(scene: Scene) -> list[tuple[SimulatedNode, list[str]]]:
    """Return an agent for each node."""
    nodes = scene.cluster.nodes
    flags = ["--nnodes", str(len(nodes)), "--nproc-per-node", str(scene.per_node)]
    flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{nodes[0].address}:{RDZV_PORT}"]
    flags += ["--rdzv-id", "restarts", "--max-restarts", str(RESTARTS), "--no-python"]
    program = [python(), "-m", "torch.distributed.run", *flags]
    return [(node, [*program, *scene.command]) for node in nodes]


def start_mpirun(scene: Scene) -> list[tuple[SimulatedNode, list[str]]]:
    """Return a shell on node 0 that starts mpirun until it succeeds."""
    nodes = scene.cluster.nodes
    hosts = ",".join(f"{node.hostname}:{scene.per_node}" for node in nodes)
    line = [_mpirun(), "--prtemca", "plm_ssh_agent", scene.cluster.agent, "--host", hosts]
    line += ["-n", str(scene.world_size), *scene.command]
    return [(nodes[0], ["/bin/sh", "-c", AGAIN, "loop", *line])]


def start_horovod(scene: Scene) -> list[tuple[SimulatedNode, list[str]]]:
    """Return horovodrun on node 0, with a script that names the nodes."""
    nodes = scene.cluster.nodes
    hosts = scene.folder / "hosts"
    lines = "\n".join(f"echo {node.hostname}:{scene.per_node}" for node in nodes)
    _write_program(hosts, f"#!/bin/sh\n{lines}\n")
    _write_program(scene.folder / "ssh", f'#!/bin/sh\nexec {scene.cluster.agent} "$@"\n')
    least = str(scene.world_size - scene.per_node)
    flags = ["--gloo", "-np", str(scene.world_size), "--min-np", least, "--max-np", str(scene.world_size)]
    flags += ["--host-discovery-script", str(hosts), "--network-interfaces", "eth0"]
    program = "from horovod.runner.launch import run_commandline; run_commandline()"
    return [(nodes[0], [python(), "-c", program, *flags, *scene.command])]


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _mpirun() -> str:
    return os.path.join(mpis_folder(), "openmpi5", "bin", "mpirun")


def _version(package: str) -> str:
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python(), "-c", ask], capture_output=True, text=True, check=False)
    return f"{package} {done.stdout.strip()}" if not done.returncode else f"no {package}"


def find_contenders() -> list[Contender]:
    """Return what restarts the ranks of any job, ours first."""
    mpi = os.path.join(mpis_folder(), "openmpi5")
    environ = {**MPI_ENVIRON, "LD_LIBRARY_PATH": f"{mpi}/lib", "PATH": f"{mpi}/bin:{os.environ['PATH']}"}
    return [
        _ours(),
        Contender(TORCHRUN, _version("torch"), start_torchrun),
        Contender(LOOP, "Open MPI 5", start_mpirun, environ),
    ]


def find_trainers() -> list[Contender]:
    """Return what restarts training with PyTorch, ours first."""
    torch = _version("torch")
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        _ours(),
        Contender(f"{TORCHRUN}, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", torch, start_torchrun, own_store),
        Contender(TORCHRUN, torch, start_torchrun),
    ]


def find_horovod() -> Contender:
    """Return Horovod elastic, which gives up the node of the failure and goes on with the others."""
    return Contender(HOROVOD, _version("horovod"), start_horovod, survivors_only=True)


def _ours() -> Contender:
    git = ["git", "-C", CHECKOUT, "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    version = f"{__version__}, commit {commit}" if commit else __version__
    return Contender(OURS, version, start_ours, {"PYTHONPATH": CHECKOUT})


class Job:
    """A job that runs, and the reports of its ranks."""

    def __init__(self, contender: Contender, scene: Scene, until: float) -> None:
        self.contender, self.scene, self._until = contender, scene, until
        self._reports = os.open(scene.folder / "reports", os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""
        self.seen: dict[str, list[int]] = {"up": [], "step": [], "death": []}
        self._errors = scene.folder / "stderr"
        self.started_ns = time.monotonic_ns()
        with self._errors.open("wb") as errors:
            self.processes = [
                subprocess.Popen(
                    scene.cluster.argv(node, line),
                    env=_environ(scene.folder) | dict(contender.environ),
                    cwd=scene.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                )
                for node, line in contender.lines(scene)
            ]

    def wait_for(self, what: str, count: int, limit_s: float) -> list[int]:
        """Return the times of so many reports, once they have come."""
        deadline = min(time.monotonic() + limit_s, self._until)
        while len(self.seen[what]) < count:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._has_ended():
                spent = ", time is up" if time.monotonic() >= self._until else ""
                raise self.trouble(f"{len(self.seen[what])} of {count} ranks said {what!r}{spent}")
            if select.select([self._reports], [], [], min(left_s, 0.2))[0]:
                self._read()
        return self.seen[what]

    def _has_ended(self) -> bool:
        return all(one.poll() is not None for one in self.processes)

    def _read(self) -> None:
        *lines, self._unread = (self._unread + os.read(self._reports, 65536)).split(b"\n")
        for line in lines:
            what, _, at_ns = line.decode().partition(" ")
            self.seen[what].append(int(at_ns))

    def wait_until_calm(self) -> float:
        """Wait until the job rests: what it does right after its start is no part of a restart.

        Returns:
            The share of all CPUs that everybody else used in the last moment, in percent.
        """
        deadline = time.monotonic() + CALM_LIMIT_S
        before = self._cpu_s()
        while True:
            began, load = time.monotonic(), OtherLoad()
            select.select([], [], [], CALM_S)
            after, percent = self._cpu_s(), load.percent()
            is_calm = after - before < CALM_SHARE * (time.monotonic() - began)
            if is_calm or time.monotonic() > deadline:
                return percent
            before = after

    def _cpu_s(self) -> float:
        """Return the CPU time of everything below us that runs."""
        total = 0.0
        for process in psutil.Process().children(recursive=True):
            try:
                with open(f"/proc/{process.pid}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0]) / 1e9
            except OSError:
                continue
        return total

    def fail(self, limit_s: float = RESTART_LIMIT_S) -> Recovery:
        """Have the last rank die, and wait until the job runs again."""
        has_steps = bool(self.seen["step"])
        others_percent = self.wait_until_calm()
        for times in self.seen.values():
            times.clear()
        self._tell()
        (death_ns,) = self.wait_for("death", 1, limit_s)
        if self.contender.survivors_only:
            count = self.scene.world_size - self.scene.per_node
            times = self.wait_for("step", count, limit_s)
        else:
            times = self.wait_for("up", self.scene.world_size, limit_s)
        first_ms, last_ms = ((at_ns - death_ns) / 1e6 for at_ns in (min(times), max(times)))
        if not has_steps:
            return Recovery(first_ms, last_ms, None, others_percent)
        steps = self.wait_for("step", len(times), limit_s)
        return Recovery(first_ms, last_ms, (max(steps) - death_ns) / 1e6, others_percent)

    def _tell(self) -> None:
        """Give the last rank the order to die; it may not yet have come to wait for it."""
        deadline = min(time.monotonic() + RESTART_LIMIT_S, self._until)
        while True:
            try:
                go = os.open(self.scene.folder / "go", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                if time.monotonic() > deadline or self._has_ended():
                    raise self.trouble("the last rank does not wait for its end") from None
                time.sleep(0.005)  # between two looks: there is nothing to wait on
        os.write(go, b"x")
        os.close(go)

    def trouble(self, what: str) -> NotMeasured:
        """Return the error that says what is missing, with the end of what was said."""
        lines = [line for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        ended = f", all launchers have ended ({self.processes[0].returncode})" if self._has_ended() else ""
        return NotMeasured(f"{what}{ended}: {' / '.join(lines[-3:])[-300:]}")

    def close(self) -> None:
        """Forget the job; its cluster ends the processes."""
        for process in self.processes:
            process.kill()
            process.wait()
        os.close(self._reports)


def run_job(
    contender: Contender,
    shape: tuple[int, int],
    mode: str,
    failures: int,
    until: float,
    limit_s: float = RESTART_LIMIT_S,
) -> Iterator[Recovery]:
    """Start a job on nodes of its own, and give each recovery from a failure.

    Args:
        contender: What starts it, and starts it again.
        shape: Number of nodes, and of ranks on each.
        mode: Mode of `benchmarks.restart_rank`.
        failures: Number of deaths, one after the other.
        until: When the time for all is up, monotonic seconds.
        limit_s: Seconds for a recovery.

    Raises:
        NotMeasured: It did not start, or not again.
    """
    folder = Path(tempfile.mkdtemp(prefix="launcher-restarts."))
    (nodes, per_node), is_bare = shape, mode == "bare"
    interpreter = [bare_python(), "-I", "-S"] if is_bare else [python()]
    command = [*interpreter, RANK, mode, str(folder), str(nodes * per_node)]
    for name in ("reports", "go"):
        os.mkfifo(folder / name)
    try:
        with Cluster(nodes) as cluster:
            if not cluster.isolated:
                raise NotMeasured(cluster.fallback_reason)
            job = Job(contender, Scene(cluster, per_node, folder, command), until)
            try:
                job.wait_for("up" if is_bare else "step", nodes * per_node, START_LIMIT_S)
                for _ in range(failures):
                    yield job.fail(limit_s)
            finally:
                cluster.close()
                job.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_floor_ms(count: int) -> float:
    """Return how long a shell on this machine takes to start so many ranks, to the last one's first line."""
    folder = Path(tempfile.mkdtemp(prefix="launcher-restarts."))
    os.mkfifo(folder / "reports")
    reports = os.open(folder / "reports", os.O_RDWR)
    command = [bare_python(), "-I", "-S", RANK, "floor", str(folder), str(count)]
    try:
        began_ns = time.monotonic_ns()
        subprocess.run(["/bin/sh", "-c", SHELL_LOOP, str(count), *command], check=True, timeout=START_LIMIT_S)
        said = os.read(reports, 65536).decode().split("\n")[:-1]
    finally:
        os.close(reports)
        shutil.rmtree(folder, ignore_errors=True)
    return (max(int(line.split()[1]) for line in said) - began_ns) / 1e6


def _environ(folder: Path) -> dict[str, str]:
    """Return the variables of a job; HOME, so that no configuration of the user makes a difference."""
    path = f"{folder}:{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
