"""A container's seccomp profile refuses a system call: it is named, or the launcher does without it."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.process.refused import NEEDED
from tests.process import refusing
from tests.process.starting import clean_environ

pytestmark = pytest.mark.skipif(
    platform.machine() not in refusing.ARCHITECTURES, reason="of two machines the numbers are known"
)
OF_NODES = ("socket",)
"""Needed by jobs of several nodes alone."""
OPTIONAL = (
    *("prctl", "pidfd_open", "pidfd_send_signal", "memfd_create", "inotify_init1", "inotify_add_watch"),
    *("sched_setaffinity", "sched_getaffinity", "setpriority", "setsid", "socketpair", "close_range"),
    *("io_uring_setup", "timerfd_create", "eventfd2", "dup3", "getrandom", "statfs", "prlimit64", "syslog"),
    *("clone3", "membarrier", "openat2", "splice", "fallocate", *OF_NODES),
    *("recvfrom", "recvmsg", "sendto", "sendmsg", "setsockopt", "getsockopt", "getsockname", "getpeername"),
    *("wait4", "readlink", "readlinkat", "uname", "poll", "ppoll", "select", "pselect6", "getppid", "tgkill"),
)
RANK = """
import os, sys, time
print("ran", flush=True)
time.sleep(0.7)
sys.exit(3 * int(os.environ["RANK"] == "0"))
"""
ALIKE = {"clone": ("clone3",), "dup2": ("dup3",), "epoll_wait": ("epoll_pwait",)}
"""Other calls that the C library may take instead."""
NODES = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "192.0.2.1", "--engine", "process")
ERRORS = (errno.EPERM, errno.ENOSYS)


def launch_without(calls: tuple[str, ...], error: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``launcher run WORDS`` where some calls fail."""
    if not any(refusing.number_of(call) for call in calls):
        pytest.skip("this machine has no such call")
    program = [sys.executable, refusing.__file__, str(error), ",".join(calls)]
    done = subprocess.run(
        [*program, sys.executable, "-m", "launcher", "run", *words],
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr and "internal launcher error" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", sorted(NEEDED))
def test_a_call_that_is_needed_is_named(call: str, error: int, tmp_path: Path) -> None:
    """What it is needed for, and how it is allowed; nothing was started."""
    nodes = NODES if call in OF_NODES else ()
    words = (*nodes, "--nproc-per-node", "2", "--", "touch", str(tmp_path / "x"))
    done = launch_without((call, *ALIKE.get(call, ())), error, *words)
    assert done.returncode == 69, done.stderr
    assert (
        f"[call-refused] the kernel refuses {call}, by which {NEEDED[call]}: {os.strerror(error)}"
        in done.stderr
    )
    assert f"a profile that allows {call}" in done.stderr and "seccomp" in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("error", ERRORS)
def test_a_call_that_some_jobs_need_is_named(error: int) -> None:
    """A copy of standard input for each process is in memory."""
    done = launch_without(("memfd_create",), error, "--nproc-per-node", "2", "--stdin", "all", "--", "cat")
    assert done.returncode == 69, done.stderr
    named = "[call-refused] the kernel refuses memfd_create, by which a file in memory is made"
    assert f"{named}: {os.strerror(error)}" in done.stderr


def test_all_that_are_refused_are_named_at_once() -> None:
    """Who mends a profile wants to know of all of them."""
    calls = ("signalfd4", "epoll_create1", "pipe2")
    done = launch_without(calls, errno.EPERM, "--nproc-per-node", "2", "--", "true")
    assert done.returncode == 69 and done.stderr.count("[call-refused]") == 3, done.stderr
    assert all(f"[call-refused] the kernel refuses {call}, " in done.stderr for call in calls)


@pytest.mark.parametrize("call", OPTIONAL)
def test_the_launcher_does_without_the_others(call: str, tmp_path: Path) -> None:
    """The job runs, long enough for all that looks at it, and its failure is reported as ever."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    words = ("--preload", "json", "--nproc-per-node", "2", "--no-prefix", str(script))
    done = launch_without((call,), errno.EPERM, *words)
    assert (done.returncode, done.stdout) == (3, "ran\nran\n"), done.stderr
    assert "rank 0 of 2 failed first" in done.stderr and "launcher: preload" in done.stderr, done.stderr


@pytest.mark.parametrize("error", ERRORS)
def test_without_all_of_them_a_job_still_ends_as_it_should(error: int) -> None:
    """One process fails, the other one is stopped, and the first one's status is the job's."""
    done = launch_without(OPTIONAL, error, "--nproc-per-node", "2", "--", sys.executable, "-c", RANK)
    assert done.returncode == 3 and "rank 0 of 2 failed first" in done.stderr, done.stderr


@pytest.mark.parametrize("limit", range(8, 17))
def test_no_more_descriptors_is_no_bug(limit: int) -> None:
    """``ulimit -n``: the limit is named, with 75."""
    line = f"ulimit -n {limit}; exec {sys.executable} -m launcher run --nproc-per-node 4 -- true"
    done = subprocess.run(
        ["sh", "-c", line], env=clean_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 75 and "[cannot-start]" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "ulimit -n" in done.stderr


RANK_OF_NOBODY = """
import os, resource, sys
from launcher.mpi import rank
os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
sys.exit(rank.main(["ab12", "--", "true"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit does not hold for root, which becomes another user")
def test_no_process_for_a_rank_of_mpirun_is_no_bug() -> None:
    """``ulimit -u``, or pids.max of the container."""
    done = subprocess.run(
        [sys.executable, "-c", RANK_OF_NOBODY],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75 and "[cannot-start]" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "pids.max" in done.stderr
