"""Why a process ended: counters, signals and real words of frameworks, each to the right cause."""

# ruff: noqa: E501 - frameworks say what they say in long lines

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import say_size
from launcher.fabrics import explain_network
from launcher.failure.causes import ended_by, find_causes
from launcher.failure.counters import Counters, read_counters
from launcher.failure.model import Cause, ProcessExit
from launcher.failure.symptoms import read_symptoms
from launcher.machine.host import Host
from launcher.machine.network import Interface
from tests.unit.platforms_model import deterministic
from tests.unit.test_machine import machine
from tests.unit.wiring import Wired

ROOT = "sys/fs/cgroup"
EMPTY_HOST = Host("/nonexistent")
UNKNOWN = Counters()
QUIET = Counters(oom_kill=0, limit_hits=0, events_file="/sys/fs/cgroup/memory.events", node_oom_kill=3)
GIB = 1 << 30


class Leading(Wired):
    """A machine with one interface that leads out."""

    found = (
        Interface("lo", (("127.0.0.1", 8),), True, True, is_loopback=True),
        Interface("eth0", (("10.0.0.4", 24),), True, True),
    )


def death(
    code: int, stderr: str = "", asked: int | None = None, error_file: str | None = None
) -> ProcessExit:
    """Return a process that ended so."""
    return ProcessExit(0, 0, 1, code, 0, stderr.encode(), error_file, asked)


def raised(message: str) -> str:
    """Return the stderr of a Python program that ends with this exception."""
    frames = '  File "train.py", line 1, in <module>\n    main()'
    return f"Traceback (most recent call last):\n{frames}\n{message}\n"


def codes(found: tuple[Cause, ...]) -> list[str]:
    """Return the codes of causes."""
    return [cause.code for cause in found]


def after(**changes: object) -> Counters:
    """Return quiet counters with some that have moved."""
    return Counters(**{**QUIET.__dict__, **changes})


def limited(folder: Path, limit: str = "68719476736") -> Host:
    """Return a machine whose container has a memory limit."""
    return machine(folder, {"proc/self/cgroup": "0::/\n", f"{ROOT}/memory.max": f"{limit}\n"})


# Words of real failures: torch 2.13 on this project's test machines, and public bug reports.
MISSING_PROGRAMS = {
    "run.sh: line 1: numactl: command not found": ("numactl", "apt-get install numactl"),
    "run.sh: 1: numactl: not found": ("numactl", "the launcher's --bind numa does this"),
    "run.sh: line 2: exec: nsys: not found": ("nsys", "NVIDIA Nsight Systems"),
    "env: \u2018stdbuf\u2019: No such file or directory": ("stdbuf", "apt-get install coreutils"),
    "timeout: failed to run command \u2018ncu\u2019: No such file or directory": (
        "ncu",
        "NVIDIA Nsight Compute",
    ),
    "setsid: failed to execute gosu: No such file or directory": ("gosu", "apt-get install gosu"),
    "nice: uv: No such file or directory": ("uv", "pip install uv"),
    "[FATAL tini (7)] exec poetry failed: No such file or directory": ("poetry", "pip install poetry"),
    "zsh:1: command not found: conda": ("conda", "Miniforge"),
    "bash: ./run.sh: /usr/bin/fish: bad interpreter: No such file or directory": ("fish", "install"),
    "run.sh: line 3: my-trainer: command not found": ("my-trainer", "correct its name, or PATH"),
    "run.sh: line 3: $'true\\r': command not found": ("true\\r", "sed -i 's/\\r$//' SCRIPT"),
    "/usr/bin/env: \u2018python3\\r\u2019: No such file or directory": ("python3\\r", "sed -i 's/\\r$//'"),
    "bash: start.sh: No such file or directory": ("start.sh", "that the node has the code"),
}


@pytest.mark.parametrize("line", MISSING_PROGRAMS)
def test_a_program_that_is_missing_is_named_with_what_brings_it(line: str) -> None:
    """Nothing asks for data that was not mounted."""
    (cause,) = find_causes(death(127, f"epoch 1\n{line}\n"), UNKNOWN, EMPTY_HOST)
    name, fix = MISSING_PROGRAMS[line]
    assert (cause.code, cause.retryable) == ("command-not-found", False)
    assert cause.what.endswith(f"{name}: no such program")
    assert fix in cause.fix and "data" not in cause.fix


@pytest.mark.parametrize(
    "message",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'data-$RANK.txt'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/${LOCAL_RANK}/a'",
        "ValueError: invalid literal for int() with base 10: '$(WORLD_SIZE)'",
    ],
)
def test_a_variable_that_no_shell_has_replaced_is_named(message: str) -> None:
    """In an argument; the launcher can replace it."""
    (cause, *_) = find_causes(death(1, raised(message)), UNKNOWN, EMPTY_HOST)
    assert "--expand-args" in cause.fix and cause.retryable is False


@pytest.mark.parametrize(
    "line",
    [
        r"python: can't open file '/job/train.py\r': [Errno 2] No such file or directory",
        r"run.sh: line 2: cd: $'/data\r': No such file or directory",
        r"FileNotFoundError: [Errno 2] No such file or directory: 'data.txt\r'",
    ],
)
def test_a_name_with_a_carriage_return_comes_from_a_script_with_windows_line_ends(line: str) -> None:
    (cause, *_) = find_causes(death(1, f"{line}\n"), UNKNOWN, EMPTY_HOST)
    assert "Windows line ends: sed -i 's/\\r$//' SCRIPT" in cause.fix and cause.retryable is False


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("./run.sh: line 6: syntax error: unexpected end of file", "bash -n FILE"),
        ("run.sh: line 4: syntax error near unexpected token `fi'", "bash -n FILE"),
        (r"run.sh: line 4: syntax error near unexpected token `$'do\r''", "sed -i 's/\\r$//'"),
        ('run.sh: 3: Syntax error: end of file unexpected (expecting "fi")', "bash -n FILE"),
    ],
)
def test_a_shell_that_cannot_read_its_script_does_not_blame_the_arguments(line: str, fix: str) -> None:
    (cause, *more) = find_causes(death(2, f"{line}\n"), UNKNOWN, EMPTY_HOST)
    assert (cause.code, cause.retryable, more) == ("syntax-error", False, []) and fix in cause.fix


def test_a_program_that_a_python_was_to_start_is_one_and_a_file_is_none() -> None:
    """The same exception, from subprocess and from open()."""
    done = subprocess.run(
        [sys.executable, "-c", "import subprocess; subprocess.run(['numactl-of-nobody'])"],
        capture_output=True,
        text=True,
        check=False,
    )
    (cause,) = find_causes(death(1, done.stderr), UNKNOWN, EMPTY_HOST)
    assert (cause.code, cause.what) == ("command-not-found", "numactl-of-nobody: no such program")
    opened = raised("FileNotFoundError: [Errno 2] No such file or directory: 'numactl'")
    assert codes(find_causes(death(1, opened), UNKNOWN, EMPTY_HOST)) == ["file-missing"]
    library = (
        "trainer: error while loading shared libraries: libnuma.so.1: cannot open shared object file: No "
    )
    found = find_causes(death(127, f"{library}such file or directory\n"), UNKNOWN, EMPTY_HOST)
    assert codes(found) == ["import-error"]


@pytest.mark.parametrize(
    ("words", "code", "flag"),
    [
        ("the following arguments are required: --local_rank", "local-rank-wanted", "--local-rank-arg"),
        ("the following arguments are required: data, --local-rank", "local-rank-wanted", "--local-rank-arg"),
        ("unrecognized arguments: --local_rank=1", "local-rank-unknown", "--local-rank-arg"),
        ("the following arguments are required: --rank, --world-size", "rank-wanted", "--expand-args"),
        ("the following arguments are required: --dist-url", "rank-wanted", "--expand-args"),
        ("the following arguments are required: --data", "usage", "command line"),
    ],
)
def test_a_script_that_wants_its_rank_as_an_argument(words: str, code: str, flag: str) -> None:
    """The flag of ours that gives it is in the fix."""
    (cause,) = find_causes(death(2, f"usage: t.py [-h]\nt.py: error: {words}\n"), UNKNOWN, EMPTY_HOST)
    assert cause.code == code and flag in cause.fix


BOX = """Usage: t.py [OPTIONS] {lr}
Try 't.py --help' for help.
\u256d\u2500 Error \u2500\u2500\u2500\u2500\u2500\u256e
\u2502 lr must be positive, see the manual   \u2502
\u2502 of the trainer                        \u2502
\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f
"""
TYRO = """\u256d\u2500 Required options \u2500\u256e
\u2502 Missing from tr.py:     \u2502
\u2502     --lr FLOAT          \u2502
\u2502 \u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500 \u2502
\u2502 For full helptext, run: \u2502
\u2502     tr.py --help        \u2502
\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f
"""
HYDRA = """Could not override 'foo'.
To append to your config use +foo=1
Key 'foo' is not in struct
    full_key: foo
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
JSONARGPARSE = """usage: ja.py [--config CONFIG] [--name NAME] lr
tip: For details of accepted options run: ja.py --help
error: Parser key "lr":
  Expected a <class 'float'>. Got value: x
"""
ABSL = """FATAL Flags parsing error: Unknown command line flag 'foo'
Pass --helpshort or --helpfull to see help on flags.
"""
NCCL_AT_EXIT = (
    "[rank0]:[W1127 07:00:01.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group()"
)
MESSAGES = {
    "sys.exit": (1, "epoch 1\ndataset foo is missing\n", "program-message", "dataset foo is missing"),
    "sys.exit, NCCL": (1, f"no data\n{NCCL_AT_EXIT}\n", "program-message", "no data"),
    "sys.exit, wandb": (1, "no data\nwandb: View run at x\n", "program-message", "no data"),
    "click": (1, "Error: dataset foo is missing\n", "program-message", "Error: dataset foo is missing"),
    "logging": (3, "2026-01-01 ERROR no data here\n", "program-message", "ERROR no data here"),
    "argparse": (2, "usage: t.py [-h]\n    [--lr LR]\nt.py: error: lr must be > 0\n", "usage", "t.py: error: lr must be > 0"),
    "click usage": (2, "Usage: t.py\nTry 't.py --help' for help.\n\nError: lr must be > 0\n", "usage", "Error: lr must be > 0"),
    "typer": (2, BOX, "usage", "Error: lr must be positive, see the manual of the trainer"),
    "typer option": (2, BOX.replace("lr must be positive,", "No such option: --x"), "usage", "Error: No such option: --x see the manual of the trainer"),
    "tyro": (2, TYRO, "usage", "Required options: Missing from tr.py: --lr FLOAT"),
    "cyclopts": (2, "\u256d\u2500 Error \u2500\u256e\n\u2502 Unknown option: --foo. \u2502\n\u2570\u2500\u256f\n", "usage", "Error: Unknown option: --foo."),
    "hydra": (1, HYDRA, "usage", "Could not override 'foo'."),
    "hydra lexer": (1, HYDRA.replace("Could not override 'foo'.", "LexerNoViableAltException: a b"), "usage", "a b"),
    "jsonargparse": (2, JSONARGPARSE, "usage", "error: Parser key \"lr\": Expected a <class 'float'>. Got value: x"),
    "absl": (1, ABSL, "usage", "Unknown command line flag 'foo'"),
    "fire": (2, "ERROR: The function received no value for the required argument: lr\nUsage: f.py LR\n", "usage", "argument: lr"),
    "docopt": (1, "Usage:\n  do.py train <lr>\n", "usage", "Usage: do.py train <lr>"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_without_a_traceback_is_a_cause(name: str) -> None:
    """With its sentence; one about arguments is not retried."""
    code, stderr, kind, sentence = MESSAGES[name]
    found = find_causes(death(code, stderr), UNKNOWN, EMPTY_HOST)
    assert codes(found) == [kind] and found[0].what.endswith(sentence)
    assert found[0].retryable is (False if kind == "usage" else None)


@pytest.mark.parametrize(
    "stderr",
    [
        *("", "epoch 3\n", "100%|###| 3/3 [00:01<00:00,  2it/s]\n", "+ exit 3\n", "-----\n"),
        *("t.py:3: UserWarning: slow\n  warnings.warn(x)\n", "2026-01-01 INFO all is well\n"),
        "[x.py:3] exits with return code = 1\n",
    ],
)
def test_a_line_of_a_log_is_no_message(stderr: str) -> None:
    """A wrong cause is worse than none."""
    assert find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST) == ()


def test_a_torchrun_that_was_started_once_per_process_is_said_first() -> None:
    """Its port is taken by the next torchrun of the same node; another port would only hide it."""
    words = raised("torch.distributed.DistNetworkError: failed to listen, port: 29500, name: EADDRINUSE")
    words = words.replace('File "', 'File "/lib/torch/distributed/run.py", line 1, in main\n  File "', 1)
    found = find_causes(death(1, words), UNKNOWN, EMPTY_HOST)
    assert codes(found) == ["starter-per-process", "port-in-use"] and "--scope node" in found[0].fix


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94"
)
LOADER = "RuntimeError: DataLoader worker (pid 13) is killed by signal"
WATCHDOG = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: ...\n"
    "frame #0: c10::Error::Error + 0x96 (0x7f3b in libc10.so)\n"
)
REMOTE = (
    "remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed "
    "possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: "
    "Call to recv from 172.16.0.5<33759> failed : Connection reset by peer"
)
SPOKEN: dict[str, tuple[str, list[str]]] = {
    "refused": (raised("ConnectionRefusedError: [Errno 111] Connection refused"), ["connection-refused"]),
    "store: gone": (
        raised(
            "torch.distributed.DistNetworkError: recvValue failed on SocketImpl(fd=12): Failed to recv, got 0 bytes."
            " Connection was likely closed. Did the remote server shutdown or crash?"
        ),
        ["store-lost"],
    ),
    "CUDA: memory": (
        raised(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.15 GiB of which 1.20 GiB is free."
        ),
        ["cuda-out-of-memory"],
    ),
    "CUDA: assert": (raised("RuntimeError: CUDA error: device-side assert triggered"), ["gpu-program-fault"]),
    "DataLoader: killed": (raised(f"{LOADER}: Killed. "), ["worker-killed"]),
    "module": (raised("ModuleNotFoundError: No module named 'deepspeed'"), ["import-error"]),
    "reset": (raised("ConnectionResetError: [Errno 104] Connection reset by peer"), ["connection-lost"]),
    "gloo: closed": (
        raised(
            "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5333."
        ),
        ["gloo-peer-lost"],
    ),
    "DataLoader: no room": (
        raised(
            "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call "
            'last):\n  File "x"\nRuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: '
            "No space left on device (28)"
        ),
        ["shm-full"],
    ),
    "nccl: remote": (raised(f"{NCCL}, {REMOTE}"), ["nccl-peer-lost"]),
    "nccl: shm": (
        raised(
            f"{NCCL}, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
            "Last error:\nError while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384)"
        ),
        ["shm-full", "nccl-system-error"],
    ),
    "nccl: same GPU": (
        raised(
            f"{NCCL}, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
        ),
        ["gpu-shared-by-ranks", "nccl-misused"],
    ),
    "NCCL: no interface": (
        raised(
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3135, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
            "Bootstrap : no socket interface found"
        ),
        ["nccl-no-interface", "nccl-misused"],
    ),
    "RDMA: locked memory": (
        "node0:31:60 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
        + raised(
            f"{NCCL}, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call failed."
        ),
        ["locked-memory", "nccl-system-error"],
    ),
    "DeepSpeed: local rank": (
        raised(
            "AssertionError: LOCAL_RANK (0) != OMPI_COMM_WORLD_LOCAL_RANK (1), not sure how to proceed as we're seeing "
            "conflicting local rank info."
        ),
        ["local-ranks-differ"],
    ),
    "ssh: key": (
        "root@10.0.0.5: Permission denied (publickey,password).\r\nORTE was unable to reliably start one or more daemons.\n",
        ["mpi-daemons", "ssh-refused"],
    ),
    "breakpoint": (raised("bdb.BdbQuit"), ["input-missing"]),
    "input": (raised("EOFError: EOF when reading a line"), ["input-missing"]),
    "tty": (raised("OSError: [Errno 6] No such device or address: '/dev/tty'"), ["input-missing"]),
    "confirm": (raised("click.exceptions.Abort"), ["input-missing"]),
    "own exception": (raised("ValueError: batch size must be positive"), ["python-exception"]),
    "nothing": ("epoch 3\n", []),
}


@pytest.mark.parametrize("name", SPOKEN)
def test_the_words_of_real_failures(name: str) -> None:
    """Several causes in their order, and words that tests/corpus does not have, which knows the others."""
    stderr, expected = SPOKEN[name]
    found = find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST)
    assert codes(found) == expected
    assert all(cause.what.isprintable() and cause.fix for cause in found)


@pytest.mark.parametrize("name", ["gloo: closed", "nccl: remote", "store: gone", "reset", "refused"])
def test_a_lost_peer_is_a_consequence(name: str) -> None:
    """It sends the reader to the rank that failed before, and a retry can help."""
    (cause,) = find_causes(death(1, SPOKEN[name][0]), UNKNOWN, EMPTY_HOST)
    assert cause.consequence
    assert "look for the first failure" in cause.what
    assert cause.retryable is not False


def test_an_old_line_is_not_the_cause_of_a_later_exception() -> None:
    """What was handled an hour ago explains nothing; what aborts the process does, wherever it stands."""
    old = "wandb: Connection refused, retrying\nCUDA out of memory, batch size is now 8\n"
    assert codes(find_causes(death(1, old + raised("ValueError: no")), UNKNOWN, EMPTY_HOST)) == [
        "python-exception"
    ]
    assert "nccl-timeout" in codes(
        find_causes(death(-6, WATCHDOG + raised("ValueError: no")), UNKNOWN, EMPTY_HOST)
    )


def test_the_fix_of_an_exception_is_a_line_of_the_user() -> None:
    """The traceback itself if no line of it is."""
    stderr = raised("ValueError: no")
    (found,) = find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST)
    assert found.fix == "see train.py:1"
    stderr = stderr.replace("train.py", "/usr/lib/python3/site-packages/torch/nn/modules/module.py")
    (found,) = find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST)
    assert found.fix == "see the traceback"


def test_the_error_file_counts_where_stderr_says_nothing(tmp_path: Path) -> None:
    """@record's file may be all there is."""
    path = tmp_path / "error.json"
    path.write_text('{"message": "RuntimeError: CUDA error: out of memory"}')
    assert codes(find_causes(death(1, "", None, str(path)), UNKNOWN, EMPTY_HOST)) == ["cuda-out-of-memory"]


def test_an_oom_kill_and_another_fault_are_told_apart(tmp_path: Path) -> None:
    """A killed worker belongs to the counter; a clear fault of the program comes first."""
    # The rank exits with 1, but a process of its own was killed for lack of memory.
    lost = death(1, SPOKEN["DataLoader: killed"][0])
    found = find_causes(lost, QUIET, limited(tmp_path), after(oom_kill=1, limit_hits=1))
    assert codes(found) == ["out-of-memory", "worker-killed"]
    # A program with a clear fault of its own; the counter is mentioned, after it.
    own = death(1, SPOKEN["module"][0])
    found = find_causes(own, QUIET, limited(tmp_path), after(oom_kill=1, limit_hits=1))
    assert codes(found) == ["import-error", "out-of-memory"]
    peer = death(1, SPOKEN["gloo: closed"][0])
    found = find_causes(peer, QUIET, limited(tmp_path), after(oom_kill=1, limit_hits=1))
    assert codes(found) == ["out-of-memory", "gloo-peer-lost"]
    # The counter has not moved, so it was somebody; without a counter nobody knows.
    (cause,) = find_causes(death(-9), QUIET, EMPTY_HOST, after())
    assert cause.code == "killed" and cause.retryable is None
    assert "oom_kill stayed 0 in memory.events" in cause.what
    (blind,) = find_causes(death(-9), UNKNOWN, EMPTY_HOST, UNKNOWN)
    assert "cannot tell whether memory ran out" in blind.what


def test_an_oom_kill_with_its_numbers(tmp_path: Path) -> None:
    """SIGKILL, and the counter has moved: of our cgroup (v1 or v2), above its limit, or of the node."""
    # SIGKILL, and the counter of our own cgroup has moved with its limit: that is why.
    for before in (QUIET, after(limit_hits=None)):  # some kernels do not count that
        (cause,) = find_causes(death(-9), before, limited(tmp_path), after(oom_kill=1, limit_hits=4))
        assert cause.code == "out-of-memory"
        assert cause.what == (
            "the container's memory limit of 64 GiB was reached, oom_kill went from 0 to 1 in memory.events"
        )
        assert cause.retryable is True
    # Killed for lack of memory, but our own limit was not reached: the pod's, or the node's memory.
    for host in (limited(tmp_path), limited(tmp_path, "max")):
        (cause,) = find_causes(death(-9), QUIET, host, after(oom_kill=2))
        assert (
            cause.what == "the pod or the node ran out of memory, oom_kill went from 0 to 2 in memory.events"
        )
    # The file that was read is the file that is named.
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        f"{ROOT}/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
        f"{ROOT}/memory/memory.failcnt": "41\n",
        f"{ROOT}/memory/memory.limit_in_bytes": "67108864\n",
    }
    host = machine(tmp_path, files)
    before = Counters(oom_kill=0, limit_hits=0)
    (cause,) = find_causes(death(137), before, host)
    assert cause.what == (
        "the container's memory limit of 64 MiB was reached, oom_kill went from 0 to 1 in memory.oom_control"
    )
    # Outside of any container, or in the root of v2, /proc/vmstat tells.
    before, now = Counters(node_oom_kill=3), Counters(node_oom_kill=4)
    (cause,) = find_causes(death(-9), before, EMPTY_HOST, now)
    assert cause.code == "node-out-of-memory" and "from 3 to 4 in /proc/vmstat" in cause.what
    assert codes(find_causes(death(1, raised("ValueError: no")), before, EMPTY_HOST, now)) == [
        "python-exception"
    ]


def test_what_the_launcher_sent_needs_no_cause() -> None:
    """A signal that was passed on explains itself; another one does not."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1, signal.SIGBUS):
        assert find_causes(death(-number, asked=number), QUIET, EMPTY_HOST, after()) == ()
    assert codes(find_causes(death(-11, asked=15), QUIET, EMPTY_HOST, after())) == ["segmentation-fault"]


@pytest.mark.parametrize(
    ("number", "code", "retryable"),
    [
        (signal.SIGSEGV, "segmentation-fault", None),
        (signal.SIGABRT, "aborted", None),
        (signal.SIGILL, "illegal-instruction", False),
        (signal.SIGFPE, "arithmetic-error", None),
        (signal.SIGSYS, "forbidden-system-call", False),
        (signal.SIGXCPU, "cpu-time-limit", False),
        (signal.SIGXFSZ, "file-size-limit", False),
        (signal.SIGPIPE, "output-closed", None),
        (signal.SIGTERM, "ended-from-outside", None),
    ],
)
@pytest.mark.parametrize("shell", [False, True])
def test_signals_nobody_of_us_sent(
    number: signal.Signals, code: str, retryable: bool | None, shell: bool
) -> None:
    """Each has its meaning, also where a shell stands between (128+n)."""
    (cause,) = find_causes(death(128 + number if shell else -number), QUIET, EMPTY_HOST, after())
    assert (cause.code, cause.retryable) == (code, retryable)


def test_an_abort_says_what_cpp_said() -> None:
    """The exception's type and its words; after a lost peer it is no cause of its own."""
    said = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check\n"
    (cause,) = find_causes(death(-6, said), QUIET, EMPTY_HOST, after())
    assert cause.what.endswith("'std::out_of_range' what(): vector::_M_range_check")
    lost = f"[rank0]:[E1] NCCL error: {REMOTE}\nterminate called after throwing an instance of 'x'"
    assert codes(find_causes(death(-6, lost), QUIET, EMPTY_HOST, after())) == ["nccl-peer-lost"]


def test_an_abort_of_a_program_that_was_ending_says_what_it_printed() -> None:
    """A thread of gloo that has not ended aborts after ``sys.exit("no data")``: that exit code is lost."""
    still = "terminate called without an active exception\n"
    for printed, said in (("no data in /data\n", "; what it printed last: no data in /data"), ("", "")):
        (cause,) = find_causes(death(-6, f"{printed}{still}"), QUIET, EMPTY_HOST, after())
        what = "the program was ending, and C++ threads that still ran aborted the process"
        assert (cause.code, cause.what) == ("aborted", f"{what}{said}")
        assert "destroy_process_group" in cause.fix


def test_an_abort_while_an_exception_ends_python_is_the_exceptions() -> None:
    """Threads of C++ are torn down then, and may fail; what was logged long before has ended nothing."""
    said = "terminate called after throwing an instance of 'x'\n  what():  peer closed\n"
    for last in ("", said):
        (cause,) = find_causes(death(-6, raised("ValueError: no") + last), QUIET, EMPTY_HOST, after())
        assert cause.code == "python-exception" and cause.what.startswith(
            "ValueError: no; while Python ended, "
        )
    logged = raised("ValueError: no") + "\n[step 12] loss 0.3\n" + said
    assert codes(find_causes(death(-6, logged), QUIET, EMPTY_HOST, after())) == ["aborted"]
    dump = (
        'Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  File "t.py", line 1\n'
    )
    assert codes(find_causes(death(-6, dump), QUIET, EMPTY_HOST, after())) == ["aborted"]


@pytest.mark.parametrize(
    ("space", "code", "words"),
    [
        ((64 << 20, 0), "shm-full", "is full, it has 64 MiB and 0 B of it free now"),
        ((64 << 20, 60 << 20), "bus-error", "may have been full, it has 64 MiB and 60 MiB of it free now"),
        ((16 * GIB, 15 * GIB), "bus-error", "or has no disk space"),
        (None, "bus-error", "or has no disk space"),
    ],
)
def test_a_bus_error_and_the_size_of_shm(space: tuple[int, int] | None, code: str, words: str) -> None:
    """What was in /dev/shm goes with the process: a small one is suspect even if it is empty now."""
    (cause,) = find_causes(death(-7), QUIET, EMPTY_HOST, after(shm=space))
    assert cause.code == code and words in cause.what
    assert ("--shm-size" in cause.fix) == (space is not None and space[0] == 64 << 20)


def test_the_fix_of_a_full_shm_is_named_for_each_platform() -> None:
    """Docker, Kubernetes, Azure ML: what to type."""
    found = find_causes(
        death(1, SPOKEN["DataLoader: no room"][0]), QUIET, EMPTY_HOST, after(shm=(8 << 20, 8 << 20))
    )
    assert found[0].what.startswith(
        "shared memory (/dev/shm) is too small, it has 8 MiB and 8 MiB of it free now: "
    )
    for word in ("docker run --shm-size", "emptyDir with medium Memory", "shm_size: 16g"):
        assert word in found[0].fix


def test_xids_since_the_start(tmp_path: Path) -> None:
    """Hardware before what the program says about it; cleanups after everything."""
    host = machine(tmp_path, {"dev/kmsg": "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 94, an earlier job's\n"})
    before = read_counters(host)
    assert before.kernel_log is not None
    try:
        with open(tmp_path / "dev/kmsg", "a") as log:
            log.write("4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python3, Ch 00000008\n")
            log.write("4,3,3,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen \x1b[31moff the bus.\n")
        found = find_causes(death(1, SPOKEN["CUDA: assert"][0]), before, host)
        assert codes(found) == ["gpu-xid", "gpu-program-fault", "gpu-xid"]
        assert found[0].what.startswith("GPU 0000:3b:00: Xid 79, the GPU has fallen off the bus")
        assert found[0].what.isprintable()
        assert [cause.retryable for cause in found] == [True, False, None]
        assert found[2].consequence
        assert codes(find_causes(death(1), before, host)) == []  # read once
    finally:
        os.close(before.kernel_log)


SHARED_CARD = (
    "NVRM: Xid (PCI:0000:00:06): 43, pid=1472, name=python3, channel 0x0000001d",
    "NVRM: Xid (PCI:0000:00:06): 31, pid=1725, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    "NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
    "NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0x501000f 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174",
    "NVRM: Xid (PCI:0000:00:06): 13, pid=2009, name=python3, Graphics Exception: channel 0x00000013, Class 0000cbc0, Offset 00000000, Data 00000000",
)
"""Of a neighbor, rank 1 and rank 0 on one H200, driver 580.159.04."""
CARD_LOST = "NVRM: Xid (PCI:0000:00:06): 79, pid=1472, name=python3, GPU has fallen off the bus."
FAULT, OOM, BUG = (
    raised(f"torch.AcceleratorError: CUDA error: {what}") if what else raised("ValueError: no")
    for what in ("misaligned address", "out of memory", "")
)
LOST_PEER = raised("torch.distributed.DistBackendError: NCCL error: ncclRemoteError: remote process exited")


@pytest.mark.parametrize(
    ("namespace", "stderr", "logged", "expected"),
    [
        ("initial", FAULT, SHARED_CARD, ["gpu-program-fault", "13", "31"]),
        ("initial", "", SHARED_CARD, ["13", "31"]),
        ("initial", OOM, SHARED_CARD, ["13", "cuda-out-of-memory", "31?"]),
        ("initial", LOST_PEER, SHARED_CARD[:2], ["31", "nccl-peer-lost?", "43?"]),
        ("initial", OOM, SHARED_CARD[:1], ["cuda-out-of-memory"]),
        ("initial", BUG, SHARED_CARD[:1], ["python-exception"]),
        ("initial", FAULT, SHARED_CARD[:1], ["gpu-program-fault", "43?"]),
        ("initial", "", SHARED_CARD[:1], ["43?"]),
        ("initial", OOM, [CARD_LOST], ["79", "cuda-out-of-memory"]),
        ("initial", BUG, SHARED_CARD[2:4], ["python-exception"]),  # of an unknown process
        ("initial", "", SHARED_CARD[2:4], ["13"]),
        # A container's PIDs are not the kernel's: 2009 is some other process.
        ("own", BUG, SHARED_CARD, ["python-exception"]),
        ("own", OOM, [*SHARED_CARD, CARD_LOST], ["79", "cuda-out-of-memory"]),
        ("own", FAULT, SHARED_CARD[:1], ["gpu-program-fault", "43"]),
        ("own", "", SHARED_CARD[:1], ["43"]),
    ],
)
def test_whose_xid_it_is(
    tmp_path: Path, namespace: str, stderr: str, logged: list[str], expected: list[str]
) -> None:
    """A neighbor's fault on a shared GPU is not blamed on the program; "?" marks what is no first cause."""
    host = machine(tmp_path, {"dev/kmsg": ""})
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(
        f"pid:[{4026531836 if namespace == 'initial' else 4026532100}]"
    )
    before = read_counters(host)
    assert before.kernel_log is not None
    try:
        (tmp_path / "dev/kmsg").write_text("".join(f"4,2,2,-;{line}\n" for line in logged))
        first, other = (
            ProcessExit(rank, rank, one, 1, 0, stderr.encode()) for rank, one in enumerate((2009, 1725))
        )
        found = find_causes(first, before, host, others=[other])
    finally:
        os.close(before.kernel_log)
    seen = [
        (cause.what.partition("Xid ")[2].partition(",")[0] if cause.code == "gpu-xid" else cause.code)
        + "?" * cause.consequence
        for cause in found
    ]
    assert seen == expected
    for cause in found:
        is_neighbor = namespace == "initial" and "Xid 43" in cause.what
        assert ("process 1472, which may belong to another job" in cause.what) == is_neighbor


@pytest.mark.parametrize(
    ("code", "number"),
    [(0, None), (3, None), (128, None), (129, 1), (137, 9), (255, None), (-9, 9), (-64, 64)],
)
def test_which_signal_a_status_tells_of(code: int, number: int | None) -> None:
    """The kernel's word, and the shell's 128+n; 255 is what exit(-1) gives."""
    assert ended_by(code) == number


@pytest.mark.parametrize(
    ("code", "cause"), [(126, ["command-not-executable"]), (127, ["command-not-found"]), (2, []), (3, [])]
)
def test_a_shells_own_statuses(code: int, cause: list[str]) -> None:
    """126 and 127 have a meaning where nothing better is known."""
    assert codes(find_causes(death(code), UNKNOWN, EMPTY_HOST)) == cause


def test_counters_read_on_this_machine() -> None:
    """A number or None, and the descriptor closes when something is executed."""
    counters = read_counters(Host())
    assert counters.oom_kill is None or counters.oom_kill >= 0
    if counters.kernel_log is not None:
        assert not os.get_inheritable(counters.kernel_log)
        assert read_counters(Host(), counters).kernel_log == counters.kernel_log
        os.close(counters.kernel_log)
    assert read_counters(EMPTY_HOST) == Counters()


def test_the_line_itself_is_quoted_without_secrets() -> None:
    """Numbers that the framework states are worth more than ours; a line of code is no such error."""
    # Numbers that the framework states are worth more than ours.
    (cause,) = find_causes(death(1, SPOKEN["CUDA: memory"][0]), UNKNOWN, EMPTY_HOST)
    assert "79.15 GiB of which 1.20 GiB is free" in cause.what
    assert cause.retryable is False
    # A line of the program that names an error is no such error.
    stderr = raised("ValueError: no").replace("main()", "raise ModuleNotFoundError: No space left on device")
    assert codes(find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST)) == ["python-exception"]
    # A cause quotes what a process wrote.
    found = find_causes(death(1, raised("ValueError: bad password='hunter2hunter2'")), UNKNOWN, EMPTY_HOST)
    assert "hunter2" not in found[0].what and "<redacted>" in found[0].what


def test_codes_are_unique_and_sizes_are_as_people_read_them() -> None:
    """A tool may match on codes; binary units have four digits at most."""
    # A tool may match on them.
    names = list(read_symptoms())
    assert len(names) == len(set(names))
    # Binary units, four digits at most.
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1024: "1 KiB",
        64 << 20: "64 MiB",
        1610612736: "1.5 GiB",
        1 << 41: "2 TiB",
    }
    assert {size: say_size(size) for size in sizes} == sizes


NUMBERS = st.one_of(st.none(), st.integers(min_value=0, max_value=1 << 70))
COUNTERS = st.builds(
    Counters,
    oom_kill=NUMBERS,
    limit_hits=NUMBERS,
    events_file=st.sampled_from(["", "/sys/fs/cgroup/memory.events"]),
    node_oom_kill=NUMBERS,
    shm=st.one_of(st.none(), st.tuples(st.integers(0, 1 << 70), st.integers(0, 1 << 70))),
    kernel_log=st.one_of(st.none(), st.just(-1)),
)


@deterministic(300)
@given(
    code=st.integers(-200, 300),
    asked=st.one_of(st.none(), st.integers(1, 64)),
    stderr=st.binary(max_size=300),
    before=COUNTERS,
    now=COUNTERS,
)
def test_whatever_is_known_nothing_raises(
    code: int, asked: int | None, stderr: bytes, before: Counters, now: Counters
) -> None:
    """Any status, any words, any counters: causes that can be shown, consequences last."""
    found = find_causes(ProcessExit(0, 0, 1, code, 0, stderr, "/dev/null", asked), before, EMPTY_HOST, now)
    assert [cause.consequence for cause in found] == sorted(cause.consequence for cause in found)
    assert all(cause.what.isprintable() for cause in found)


MISSING = (
    "launcher: error: [horovod-missing] /usr/bin/python3 has no horovod\n"
    "launcher:   from: Horovod's rendezvous server\n"
    "launcher:   fix:  pip install horovod\n"
)


@pytest.mark.parametrize(
    ("code", "stderr", "expected"),
    [
        (69, MISSING, [("horovod-missing", "/usr/bin/python3 has no horovod", "pip install horovod", None)]),
        (75, MISSING, [("horovod-missing", "/usr/bin/python3 has no horovod", "pip install horovod", True)]),
        (
            64,
            MISSING + MISSING.replace("horovod", "other"),
            [("horovod-missing", "", "pip install horovod", False)],
        ),
        (
            70,
            "launcher: error: [bug] the launcher itself failed\n",
            [("bug", "", "see docs/errors.md", None)],
        ),
        (1, raised("ValueError: no") + MISSING, [("python-exception", "ValueError: no", "", False)]),
        (0, MISSING, []),
        (1, "launcher: error: [ half a line\n", []),
    ],
)
def test_an_error_of_our_own_is_the_cause(
    code: int, stderr: str, expected: list[tuple[str, str, str, bool | None]]
) -> None:
    """A process that is a launcher, or a program of it, has said what is wrong and what mends it."""
    found = find_causes(death(code, stderr), QUIET, EMPTY_HOST, QUIET)
    assert [(cause.code, cause.retryable) for cause in found] == [(e[0], e[3]) for e in expected]
    for cause, (_, what, fix, _) in zip(found, expected, strict=True):
        assert what in cause.what and fix in cause.fix


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (-signal.SIGSEGV, ["segmentation-fault"]),
        (-signal.SIGTERM, ["ended-from-outside"]),
        (1, ["file-missing"]),  # of a shell it is its last command's
    ],
)
def test_the_exception_of_a_process_that_it_had_started(
    code: int, expected: list[str], tmp_path: Path
) -> None:
    """A signal is no end by an exception: a helper that failed before, and was put up with, is not why."""
    stack = raised("FileNotFoundError: [Errno 2] No such file or directory: 'x'")
    told = {"py_callstack": stack, "writer": "launcher", "pid": "2"}
    text = json.dumps({"message": {"message": stack.splitlines()[-1], "extraInfo": told}})
    (tmp_path / "error.json").write_text(text)
    ended = death(code, stack + "main goes on\n", error_file=str(tmp_path / "error.json"))
    assert codes(find_causes(ended, QUIET, EMPTY_HOST, QUIET)) == expected
    own = text.replace('"pid": "2"', f'"pid": "{ended.pid}"')
    (tmp_path / "error.json").write_text(own)  # torch's teardown after an exception may crash
    assert codes(find_causes(ended, QUIET, EMPTY_HOST, QUIET))[0] == "file-missing"


DUMP = """Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  <no Python frame>

Current thread 0x2 (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce
  File "/job/train.py", line 7 in <module>
"""
GLOO = "[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes."
ABORTS = {
    f"{GLOO} 8 vs 4. Received data size doesn't match expected size.": "collective-mismatch",
    "Received data size doesn't match expected size. Is there a distributed collective mismatch?": "collective-mismatch",
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:1": "gloo-peer-lost",
    "CUDA error: device-side assert triggered": "gpu-program-fault",
    "std::bad_alloc": "host-memory-refused",
}


@pytest.mark.parametrize("what", ABORTS)
def test_what_cpp_reports_before_it_aborts_is_the_cause(what: str) -> None:
    """Also with the stacks that Python writes below it: they are no exception."""
    text = f"terminate called after throwing an instance of 'x'\n  what():  {what}\n"
    for stderr in (text, text + DUMP):
        assert codes(find_causes(death(-signal.SIGABRT, stderr), UNKNOWN, EMPTY_HOST))[:1] == [ABORTS[what]]


MODULES = {
    "flash_attn": "flash_attn",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "apex": "git+https://github.com/NVIDIA/apex",
    "pkg_resources": "'setuptools<81'",
}


@pytest.mark.parametrize("module", MODULES)
def test_a_missing_package_is_named_as_pip_knows_it(module: str) -> None:
    """And nothing else stands in the fix."""
    for text in (
        raised(f"ModuleNotFoundError: No module named '{module}'"),
        f"/opt/env/bin/python3: No module named {module}\n",
    ):
        (cause,) = find_causes(death(1, text), UNKNOWN, EMPTY_HOST)
        assert (cause.code, cause.fix) == ("import-error", f"`pip install {MODULES[module]}`")


@pytest.mark.parametrize(
    "module", ["utils", "src", "_ctypes", "tkinter", "transformers.models.llama9", "torch._six"]
)
def test_what_pip_does_not_have_is_not_installed(module: str) -> None:
    """A package of the user's own, a part of Python, or a part that another version of a package has."""
    (cause,) = find_causes(
        death(1, raised(f"ModuleNotFoundError: No module named '{module}'")), UNKNOWN, EMPTY_HOST
    )
    assert cause.code == "import-error" and f"`pip install {module}" not in cause.fix


def test_a_module_in_this_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `python scripts/train.py`, where Python looks in scripts/."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (cause,) = find_causes(
        death(1, raised("ModuleNotFoundError: No module named 'mine'")), UNKNOWN, EMPTY_HOST
    )
    assert "PYTHONPATH=$PWD" in cause.fix


@pytest.mark.parametrize(
    "stderr",
    [
        raised("EOFError: EOF when reading a line"),
        raised("bdb.BdbQuit"),
        raised("termios.error: (25, 'Inappropriate ioctl for device')"),
        raised("EOFError: EOF when reading a line").replace("main()", "getpass.getpass()"),
        "Do you want to continue? [y/N]: Aborted!\n",
        "Aborted.\n",
    ],
)
def test_a_program_that_wants_input_is_told_how_it_gets_some(stderr: str) -> None:
    """input(), a debugger, a prompt of click or typer, a menu."""
    (cause,) = find_causes(death(1, stderr), UNKNOWN, EMPTY_HOST)
    assert cause.code == "input-missing" and "--stdin" in cause.fix and cause.retryable is False


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("torch/multiprocessing/spawn.py", "torch.multiprocessing.spawn"),
        ("detectron2/engine/launch.py", "detectron2"),
        ("ignite/distributed/comp_models/native.py", "ignite"),
        ("trl/scripts/vllm_serve.py", "trl"),
        ("accelerate/launchers.py", "accelerate"),
        ("multiprocessing/process.py", "multiprocessing"),
    ],
)
def test_a_script_that_starts_its_own_processes_is_named(part: str, name: str) -> None:
    """Another port does not help: each rank starts all of them again."""
    text = raised("torch.distributed.DistNetworkError: failed to listen, port: 29500, name: EADDRINUSE")
    inner = f'  File "/opt/env/lib/python3.11/site-packages/{part}", line 1, in f\n    x()\n  File "train.py"'
    found = find_causes(death(1, text.replace('  File "train.py"', inner, 1)), UNKNOWN, EMPTY_HOST)
    assert codes(found) == ["script-spawns"]
    assert name in found[0].what and "--nproc-per-node 1" in found[0].fix and found[0].retryable is False
    other = find_causes(
        death(
            1,
            text.replace('  File "train.py"', inner.replace("train.py", "tools/net.py"), 1).replace(
                "train.py", "tools/net.py"
            ),
        ),
        UNKNOWN,
        EMPTY_HOST,
    )
    assert other[0].fix.startswith(
        "`launcher run --nproc-per-node 1 -- python tools/net.py`; on several nodes"
    )
    assert codes(find_causes(death(1, text), UNKNOWN, EMPTY_HOST)) == ["port-in-use"]


@pytest.mark.parametrize(
    ("text", "environ", "code", "parts"),
    [
        (
            raised(
                "RuntimeError: [enforce fail at third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
                "Unable to find address for: eth9"
            ),
            {"GLOO_SOCKET_IFNAME": "eth9"},
            "gloo-no-interface",
            ("GLOO_SOCKET_IFNAME='eth9': no interface of this node is called eth9: eth0 (10.0.0.4), lo",),
        ),
        (
            raised("torch.distributed.DistBackendError: Bootstrap : no socket interface found"),
            {"NCCL_SOCKET_IFNAME": "eth9"},
            "nccl-no-interface",
            ("NCCL_SOCKET_IFNAME='eth9': no interface of this node is called eth9...: eth0 (10.0.0.4), lo",),
        ),
        (
            raised("torch.distributed.DistBackendError: Bootstrap : no socket interface found"),
            {},
            "nccl-no-interface",
            ("this node has eth0 (10.0.0.4), lo",),
        ),
        (
            raised("RuntimeError: Gloo connectFullMesh failed with [gloo/pair.cc:144] no error"),
            {"GLOO_SOCKET_IFNAME": "lo"},
            "gloo-no-interface",
            ("GLOO_SOCKET_IFNAME='lo': lo leads to this node alone",),
        ),
    ],
)
def test_the_variable_and_the_interfaces_are_named(
    text: str, environ: dict[str, str], code: str, parts: tuple[str, ...]
) -> None:
    """gloo's and NCCL's own messages name at most a value."""
    environ = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.9", **environ}
    explain = functools.partial(explain_network, Leading(), environ)
    found = find_causes(death(1, text), UNKNOWN, EMPTY_HOST, network=explain)
    assert found[0].code == code and not found[0].consequence
    assert all(part in found[0].what for part in parts)
    if environ.get("GLOO_SOCKET_IFNAME"):
        assert found[0].fix.startswith("GLOO_SOCKET_IFNAME=eth0")
