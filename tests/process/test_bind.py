"""Real processes run on the CPUs that were planned for them, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from launcher.machine.host import Host
from launcher.machine.numa import read_layout
from tests.mpis import find_mpi
from tests.process.starting import clean_environ, launch
from tests.process.test_run import MPI

MASK = sorted(os.sched_getaffinity(0))
SHOW = (
    sys.executable,
    "-c",
    "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])",
)
THREADS = """
import os, threading
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
pid = os.fork()
if not pid:
    os._exit(0 if os.sched_getaffinity(0) == seen[0] else 1)
print(sorted(seen[0]), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
WORKER = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
several = pytest.mark.skipif(len(read_layout(Host()).cores) < 2, reason="needs two cores")


def masks(stdout: str) -> list[set[int]]:
    """Return the CPUs that each line of SHOW names."""
    lists = [line.partition("[")[2].partition("]")[0] for line in stdout.splitlines()]
    return [{int(cpu) for cpu in text.split(",")} for text in lists]


@several
def test_processes_that_the_launcher_starts_are_apart() -> None:
    """--bind core at NODE scope: two processes, no CPU in common, none unused."""
    done = launch("run", "--nproc-per-node", "2", "--bind", "core", "--no-prefix", "--", *SHOW)
    assert done.returncode == 0, done.stderr
    first, second = masks(done.stdout)
    assert first and second and not first & second
    assert first | second == set(MASK)


@several
def test_a_process_that_mpirun_started_binds_itself() -> None:
    """--bind core at PROCESS scope: the two of this node, each a launcher, agree without a word."""
    shares = []
    for local_rank in ("0", "1"):
        environ = {**MPI, "OMPI_COMM_WORLD_LOCAL_RANK": local_rank, "LAUNCHER_BIND": "core"}
        environ |= {"OMPI_COMM_WORLD_RANK": str(2 + int(local_rank))}
        done = launch("run", "--", *SHOW, environ=environ)
        assert done.returncode == 0, done.stderr
        shares += masks(done.stdout)
    assert all(shares) and not shares[0] & shares[1]


@several
@pytest.mark.mpi
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5"])
@pytest.mark.parametrize("per_node", [True, False], ids=["once-per-node", "once-per-process"])
def test_under_a_real_mpirun_two_processes_are_apart(family: str, per_node: bool) -> None:
    """Once per node mpirun leaves the launcher one core of all; once per process it binds nothing here."""
    mpi = find_mpi(family)
    start = (
        ["-n", "1", "--bind-to", "core"] if per_node else ["-n", "2", "--bind-to", "none", "--oversubscribe"]
    )
    several_here = ["--nproc-per-node", "2", "--no-prefix"] if per_node else []
    launcher = [sys.executable, "-m", "launcher", "run", "--bind", "core", *several_here, "--", *SHOW]
    done = subprocess.run(
        [mpi.mpirun, *start, *launcher],
        env={**clean_environ(), **mpi.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = masks(done.stdout)
    assert first and second and not first & second


@several
def test_threads_and_children_inherit_the_cpus() -> None:
    """What a process starts stays where it is: data loaders, pools of threads."""
    done = launch("run", "--bind", "core", "--", sys.executable, "-c", THREADS, environ=WORKER)
    assert done.returncode == 0, done.stderr
    assert masks(done.stdout)[0] < set(MASK)
    assert done.stdout.endswith("] 0\n")


@several
def test_a_worker_of_torchrun_divides_the_mask_of_its_agent() -> None:
    """An agent under taskset: its two workers share what it has, be it one CPU."""
    narrow = f"import os, sys; os.sched_setaffinity(0, [{MASK[-1]}]); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", narrow, sys.executable, "-m", "launcher", "run", "--bind", "core", "--"]
    done = subprocess.run(
        [*command, *SHOW], env=clean_environ(**WORKER), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"[{MASK[-1]}] 1\n"


def test_nobody_is_bound_without_being_asked() -> None:
    """A machine without GPUs, and one process per rank: the mask stays; LAUNCHER_BIND is ours."""
    done = launch("run", "--", *SHOW, environ={**WORKER, "OMP_NUM_THREADS": "7"})
    assert done.stdout == f"{MASK} 7\n"
    assert "LAUNCHER_BIND" not in launch("run", "--bind", "core", "--", "env", environ=WORKER).stdout


@several
def test_setup_binds_the_interpreter_if_it_was_asked() -> None:
    """launcher.setup() with LAUNCHER_BIND=core does what launcher run does before exec."""
    code = "import launcher, os; launcher.setup(); print(sorted(os.sched_getaffinity(0)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environ(**WORKER, LAUNCHER_BIND="core"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert masks(done.stdout)[0] < set(MASK)


def test_modules_of_binding_are_loaded_only_where_something_is_bound() -> None:
    """The price of a start without GPUs stays what it was."""
    code = (
        "import os, sys\n"
        "def report(*words):\n"
        "    print(*(name for name in sys.modules if name.startswith('launcher')), flush=True)\n"
        "    os._exit(0)\n"
        "os.execve = report\n"
        "from launcher.cli.entry import main\n"
        "main(sys.argv[1:])\n"
    )
    for words, expected in ((["--bind", "core"], True), ([], False)):
        done = subprocess.run(
            [sys.executable, "-c", code, "run", *words, "--", "true"],
            env=clean_environ(**WORKER),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ("launcher.planning.binding" in done.stdout) is expected, done.stderr
        assert ("launcher.machine.numa" in done.stdout) is expected
