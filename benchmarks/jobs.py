"""Jobs under measurement: started, listened to, looked at from outside, and gone afterwards.

A `Stage` is the only way to start one. It makes this process the one that inherits orphans, so that
whatever a launcher leaves behind is found by its mark in the environment, ended and reaped.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

import psutil

from benchmarks.peers import Peer, bare_python, peers_folder
from benchmarks.rank import FIRST_LINE

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
MARK = "BENCHMARK_JOB"
PR_SET_CHILD_SUBREAPER = 36
CPUCLOCK_SCHED = 2
START_LIMIT_S = 120.0


class NotMeasured(Exception):
    """A launcher did not do what the measurement needs; the text says what it said itself."""


class Job:
    """One launcher and its processes.

    Attributes:
        started_ns: When its start was asked for, by CLOCK_MONOTONIC.
        ranks: Pids of the processes that have said so (not those that only print).
        finished: Pids of those that have said that they wrote everything.
    """

    def __init__(self, peer: Peer, argv: Sequence[str], environ: dict[str, str], folder: str) -> None:
        self.peer = peer
        self.token = environ[MARK]
        self.ranks: list[int] = []
        self.finished: set[int] = set()
        self.fifo = os.path.join(folder, "reports")
        self._errors = os.path.join(folder, "stderr")
        os.mkfifo(self.fifo)
        self._reports = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        self._unfinished = b""
        with open(self._errors, "wb") as errors:
            self.started_ns = time.monotonic_ns()
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self.process.stdout
        self.stdout = self.process.stdout.fileno()

    def see_lines(self, count: int) -> int:
        """Return when the last of ``count`` processes' first line arrived here, by CLOCK_MONOTONIC in ns."""
        seen = b""
        while seen.count(FIRST_LINE.encode()) < count:
            ready, _, _ = select.select([self.stdout], [], [], START_LIMIT_S)
            data = os.read(self.stdout, 65536) if ready else b""
            if not data:
                raise self.trouble(f"{seen.count(FIRST_LINE.encode())} of {count} lines came")
            seen += data
        return time.monotonic_ns()

    def wait_for_ranks(self, count: int) -> None:
        """Wait until so many processes have said their pid."""
        deadline = time.monotonic() + START_LIMIT_S
        while len(self.ranks) < count:
            ready, _, _ = select.select([self._reports], [], [], 0.2)
            if ready:
                self.hear()
            elif self.process.poll() is not None or time.monotonic() > deadline:
                raise self.trouble(f"{len(self.ranks)} of {count} processes started")

    def report_descriptor(self) -> int:
        """Return what `select` can watch for reports, to be read by `hear`."""
        return self._reports

    def hear(self) -> None:
        """Take in what processes have said."""
        *lines, self._unfinished = (self._unfinished + os.read(self._reports, 65536)).split(b"\n")
        for line in lines:
            pid, _, done = line.partition(b" ")
            if done:
                self.finished.add(int(pid))
            else:
                self.ranks.append(int(pid))

    def tell_ranks(self, number: signal.Signals) -> None:
        """Send a signal to each process, past the launcher."""
        for pid in self.ranks:
            os.kill(pid, number)

    def helpers(self) -> list[psutil.Process]:
        """Return all processes of the launcher that are not ranks: the one that was started comes first."""
        found = [process for process in self.processes() if process.pid not in self.ranks]
        return sorted(found, key=lambda process: (process.pid != self.process.pid, process.pid))

    def processes(self) -> list[psutil.Process]:
        """Return what runs with our mark; ended processes (zombies) are not counted."""
        return [child for child in psutil.Process().children(recursive=True) if self._is_marked(child)]

    def trouble(self, what: str) -> NotMeasured:
        """Return the error that says what is missing, with the end of what the launcher wrote."""
        with open(self._errors, encoding="utf-8", errors="replace") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
        status = self.process.poll()
        return NotMeasured(f"{what}, status {status}: {' / '.join(lines[-3:])[-300:]}")

    def end(self) -> None:
        """Kill what is left of it, and reap all of it."""
        while left := self.processes():
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.005)  # killed processes need a moment to go, and are no longer ours to wait for
        self.process.wait()
        os.close(self._reports)
        if self.process.stdout:
            self.process.stdout.close()

    def _is_marked(self, process: psutil.Process) -> bool:
        if process.pid == self.process.pid:  # its environment may still be that of our own fork
            return self.process.poll() is None
        try:
            return process.environ().get(MARK) == self.token
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            return False


class Stage:
    """Starts jobs one at a time or many at once; leaving it ends them all."""

    def __init__(self) -> None:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.folder = tempfile.mkdtemp(prefix="launcher-bench.")
        self._jobs: list[Job] = []
        self._count = 0

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for job in list(self._jobs):
            self.end(job)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, peer: Peer, count: int, mode: str, *words: str, options: Sequence[str] = ()) -> Job:
        """Start ``count`` processes in a mode of `benchmarks.rank` through a launcher."""
        folder = self._make_folder()
        rank = [bare_python(), "-I", "-S", RANK, mode, os.path.join(folder, "reports"), *words]
        return self._start(peer, count, rank, folder, options, {})

    def start_command(
        self, peer: Peer, count: int, command: Sequence[str], options: Sequence[str], environ: dict[str, str]
    ) -> Job:
        """Start a command ``count`` times through a launcher, with more variables."""
        return self._start(peer, count, command, self._make_folder(), options, environ)

    def _make_folder(self) -> str:
        self._count += 1
        folder = os.path.join(self.folder, str(self._count))
        os.mkdir(folder)
        return folder

    def _start(
        self,
        peer: Peer,
        count: int,
        command: Sequence[str],
        folder: str,
        options: Sequence[str],
        more: dict[str, str],
    ) -> Job:
        # HOME, so that no configuration of the user (accelerate's, Open MPI's) makes a difference.
        path = f"{os.path.join(peers_folder(), 'bin')}:{os.environ.get('PATH', os.defpath)}"
        environ = {"PATH": path, "HOME": self.folder, "LANG": "C.UTF-8", MARK: f"{os.getpid()}-{self._count}"}
        job = Job(peer, peer.argv(count, command, options), environ | more | peer.environ, folder)
        self._jobs.append(job)
        return job

    def end(self, job: Job) -> None:
        """End a job with all that it left behind, and forget its files."""
        job.end()
        self._jobs.remove(job)
        shutil.rmtree(os.path.dirname(job.fifo), ignore_errors=True)
        self._reap()

    def leftovers(self) -> list[str]:
        """Return the command lines of what still runs below us."""
        self._reap()
        left = psutil.Process().children(recursive=True)
        return [" ".join(one.cmdline()) for one in left if one.status() != psutil.STATUS_ZOMBIE]

    def _reap(self) -> None:
        launchers = {job.process.pid for job in self._jobs}
        for child in psutil.Process().children():
            if child.pid not in launchers:
                try:
                    os.waitpid(child.pid, os.WNOHANG)
                except ChildProcessError:
                    continue


def cpu_ns(processes: Sequence[psutil.Process]) -> int:
    """Return the CPU time that processes used so far, with all their threads and reaped children."""
    total = 0
    for process in processes:
        try:
            total += time.clock_gettime_ns((~process.pid << 3) | CPUCLOCK_SCHED)
            times = process.cpu_times()
        except (OSError, psutil.NoSuchProcess):
            continue
        total += int((times.children_user + times.children_system) * 1e9)  # to 10 ms
    return total


def status_of(code: int) -> int:
    """Return a status as a shell numbers it."""
    return code if code >= 0 else 128 - code
