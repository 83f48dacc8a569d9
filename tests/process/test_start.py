"""The launch path is small: which modules may load before the command starts is an allow-list."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.process.starting import clean_environ
from tests.process.test_run import MPI, PER_NODE

# Without an import that the launcher could make: that one would count as there before
SPY = """
import os, sys
before = set(sys.modules)
def report(*args, **kwargs):
    os.write(1, " ".join(set(sys.modules) - before).encode())
    os._exit(0)
os.execve = os.execv = report  # in the forked process, where the launcher stays
from launcher.cli.entry import main
os._exit(main(["run", "--", "true"]))
"""
END = """
import os, sys
before = set(sys.modules)
from launcher.cli.entry import main
status = main(["run", "--", "true"])
os.write(1, " ".join(set(sys.modules) - before).encode())
os._exit(status)
"""
# What Python 3.10 to 3.13 bring along for these few, and nothing else.
ALLOWED_TEXT = """
    _ctypes select _signal
    __future__ errno gc itertools stat time
"""
ALLOWED = frozenset(ALLOWED_TEXT.split())
OF_ONE_NODE = frozenset(("_socket",))
"""What holds the port of the rendezvous: 0.5 ms."""
NEVER = (
    *("enum", "collections", "functools", "signal", "argparse", "re", "torch", "tensorflow", "numpy"),
    *("mpi4py", "psutil", "pynvml", "rich", "typing", "dataclasses", "inspect"),
)
OF_THE_NETWORK_TEXT = """
    _socket pwd struct _struct
    ipaddress functools _functools collections collections.abc _collections operator _operator keyword reprlib
    types
"""
OF_THE_NETWORK = frozenset(OF_THE_NETWORK_TEXT.split())
"""What reading interfaces and ports costs besides: C, and what the addresses' arithmetic brings along."""
PROCESS = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_num_nodes": "1",
}
NODE = {"LAUNCHER_NNODES": "1", "LAUNCHER_NPROC_PER_NODE": "1"}


@pytest.mark.parametrize("environ", [PROCESS, NODE, {}], ids=["process", "node", "plain"])
def test_only_these_modules_load_before_the_command(environ: dict[str, str]) -> None:
    """Each module costs every process of every job: a new one here needs a reason and a measurement."""
    loaded = load(environ)
    foreign = [name for name in loaded if name.partition(".")[0] != "launcher"]
    assert sorted(set(foreign) - ALLOWED - (OF_ONE_NODE if environ is not PROCESS else set())) == []
    assert [name for name in NEVER if name in loaded] == []


@pytest.mark.parametrize("environ", [MPI, PER_NODE], ids=["process", "node"])
def test_a_job_of_several_nodes_loads_what_reads_the_network(environ: dict[str, str]) -> None:
    """The interfaces come from the kernel: psutil would cost more than all the rest."""
    foreign = [name for name in load(environ) if name.partition(".")[0] != "launcher"]
    assert sorted({*foreign} - ALLOWED - OF_THE_NETWORK) == []


def test_a_launcher_that_is_the_command_needs_no_regular_expressions() -> None:
    """Nor does torchrun as an engine: only a command with torchrun's macro, ``$local_rank``, does."""
    wrapped = 'import os, sys, launcher.engines.wrapped\nos.write(1, " ".join(sys.modules).encode())'
    loaded = load({}, wrapped)
    assert "launcher.engines.torchrun" in loaded
    assert [name for name in ("re", "enum", "argparse", "json") if name in loaded] == []


def test_a_good_end_loads_nothing_that_tells_failures_apart() -> None:
    """It would take longer than all the rest: 20 ms between the last process and our own end."""
    loaded = load({}, END)
    assert [name for name in NEVER if name in loaded] == []
    assert "launcher.agent.agent" in loaded and "launcher.agent.report" not in loaded
    assert {name for name in loaded if name.startswith("launcher.failure.")} <= {"launcher.failure.counters"}


def test_the_watch_for_connections_loads_no_more() -> None:
    """It begins while the processes start, on the same CPUs."""
    loaded = load({}, END.replace('"--", "true"', '"--nproc-per-node", "2", "--", "sleep", "0.2"'))
    assert "launcher.observers.meeting" in loaded
    assert [name for name in NEVER if name in loaded] == []


def load(environ: dict[str, str], program: str = SPY) -> list[str]:
    """Return the modules that are loaded when the command is about to start, or at the end of a program."""
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", "-c"),
            f"import sys; sys.path.insert(0, {clean_environ()['PYTHONPATH']!r})\n{program}",
        ],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return sorted(done.stdout.split())
