"""The hook inside of real processes: it answers the launcher, and leaves no other trace."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.failure.stderr import read_last_output
from launcher.inprocess.site.sitecustomize import STACK_SIGNAL
from tests.process.starting import ROOT, clean_environ
from tests.pythons import find_python

ARM = "import launcher; launcher.arm()\n"
FAILING = "def step(loss):\n    raise ValueError(f'loss is {loss}')\nstep('n\\x1ban')\n"
RECORDED = """
import sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise RuntimeError("from the script")
main()
"""
DISTRIBUTED = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
raise RuntimeError("after torch has put its own excepthook in front")
"""
HOOK = Path(ROOT) / "launcher" / "hook"


def interpreters() -> list[str]:
    """Return one interpreter for each version from 3.8 on that this machine has, ours first."""
    found = {sys.version_info[1]: sys.executable}
    for minor in range(8, 16):
        python = find_python(minor)
        if python:
            found.setdefault(minor, python)
    return list(found.values())


def run(
    script: str, folder: Path, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, with an error file in the folder unless the variables say otherwise."""
    variables = {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json"), **variables}
    return subprocess.run(
        [python, "-c", script],
        env=clean_environ(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read_error(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the message and the extra information in the error file."""
    document = json.loads((folder / "error.json").read_text())
    (message,) = document.values()
    return message["message"], message["extraInfo"]


@pytest.mark.parametrize("python", interpreters())
def test_an_exception_is_written_as_torch_writes_it(python: str, tmp_path: Path) -> None:
    """The message, the traceback and the time under torch's names; what the user sees stays the same."""
    before = time.time()
    armed = run(ARM + FAILING, tmp_path, python)
    plain = run("\n" + FAILING, tmp_path, python, TORCHELASTIC_ERROR_FILE="")
    assert (armed.returncode, armed.stdout, armed.stderr) == (1, "", plain.stderr)
    message, extra = read_error(tmp_path)
    assert message == "ValueError: loss is n\x1ban"
    assert extra["py_callstack"].startswith("Traceback (most recent call last)")
    assert "in step" in extra["py_callstack"]
    assert int(before) <= int(extra["timestamp"]) <= time.time()
    assert os.listdir(tmp_path) == ["error.json"]


def test_torch_reads_the_file_as_its_own(tmp_path: Path) -> None:
    """torchrun's report of a failure holds the message of a script without @record."""
    pytest.importorskip("torch")
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    run(ARM + FAILING, tmp_path)
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(tmp_path / "error.json"))
    message: Any = failure.message
    assert message["message"] == "ValueError: loss is n\x1ban"
    assert abs(failure.timestamp - time.time()) < 60


@pytest.mark.torch
def test_what_record_has_written_stays(tmp_path: Path) -> None:
    """A script with torch's @record has torch's own file, byte for byte."""
    pytest.importorskip("torch")
    done = run(ARM + RECORDED, tmp_path)
    assert (done.returncode, "from the script" in done.stderr) == (1, True)
    message, extra = read_error(tmp_path)
    assert message == "RuntimeError: from the script"
    assert sorted(extra) == ["py_callstack", "timestamp"]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("raise KeyboardInterrupt", 130),
        ("import os\nif os.fork() == 0: raise ValueError('of a child')\nos.wait()", 0),
        ("import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()", 0),
    ],
    ids=["exit", "exit with words", "Ctrl-C", "forked child", "thread"],
)
def test_what_is_no_failure_of_the_process_is_not_written(script: str, status: int, tmp_path: Path) -> None:
    """Ends that were asked for, and those of others, must not be blamed for a later failure."""
    done = run(ARM + script, tmp_path)
    assert done.returncode in (status, -signal.SIGINT)
    assert os.listdir(tmp_path) == []


def test_the_last_of_several_processes_stays_in_the_file(tmp_path: Path) -> None:
    """A helper that fails early must not hide why the process itself fails; neither is torch's taken away."""
    helper = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ARM + FAILING!r}])\n"
    run(ARM + helper + "raise KeyError('last')", tmp_path)
    assert read_error(tmp_path)[0] == "KeyError: 'last'"


def test_a_helper_that_failed_is_not_why_its_parent_was_ended(tmp_path: Path) -> None:
    """The file and stderr hold the exception of another process: a note, no traceback of this one."""
    helper = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {ARM + FAILING!r}])\n"
    done = run(ARM + helper + "print(os.getpid(), flush=True); os.kill(os.getpid(), 11)", tmp_path)
    written, pid = str(tmp_path / "error.json"), int(done.stdout)
    words = read_last_output(done.stderr.encode(), written, pid, done.returncode)
    assert (done.returncode, words.exception, words.traceback) == (-signal.SIGSEGV, "", ())
    assert "written by its child process" in words.note and ": ValueError: loss is n" in words.note
    assert read_last_output(done.stderr.encode(), written, pid, 1).exception.startswith("ValueError")


@pytest.mark.torch
def test_other_hooks_of_exceptions_get_their_turn(tmp_path: Path) -> None:
    """torch's own behind ours, and the one before ours."""
    # init_process_group replaces sys.excepthook; ours still hears of the exception.
    pytest.importorskip("torch")
    run(ARM + DISTRIBUTED, tmp_path)
    assert read_error(tmp_path)[0].startswith("RuntimeError: after torch")
    # Other tools hook exceptions too: each gets its turn.
    first = "import sys\nsys.excepthook = lambda kind, value, trace: print('mine', value)\n"
    done = run(first + ARM + FAILING, tmp_path)
    assert (done.stdout, done.stderr) == ("mine loss is n\x1ban\n", "")
    assert read_error(tmp_path)[0].startswith("ValueError")


@pytest.mark.parametrize(
    "script",
    [
        FAILING,
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad",
        "raise ValueError('\\udcff' + 'x' * 10_000_000)",
    ],
    ids=["plain", "unprintable", "enormous"],
)
def test_trouble_with_the_file_changes_nothing_for_the_script(script: str, tmp_path: Path) -> None:
    """No folder, no permission, an exception that cannot be shown: the traceback appears as ever."""
    done = run(ARM + script, tmp_path, TORCHELASTIC_ERROR_FILE=str(tmp_path / "no" / "such" / "folder"))
    plain = run("\n" + script, tmp_path, TORCHELASTIC_ERROR_FILE="")
    assert (done.returncode, done.stderr) == (1, plain.stderr)
    run(ARM + script, tmp_path)
    written = tmp_path / "error.json"
    assert not written.exists() or written.stat().st_size < 1 << 20


def test_arming_is_free_where_no_launcher_is() -> None:
    """Without its variables the hook loads no module but itself and changes nothing."""
    script = (
        f"import os, sys; sys.path.insert(0, {ROOT!r}); before = set(sys.modules), sys.excepthook\n{ARM}"
        "print(sorted(set(sys.modules) - before[0]), sys.excepthook is before[1])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script],
        env=clean_environ(TORCHELASTIC_ERROR_FILE=""),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['launcher', 'launcher.inprocess'] True\n", "")


def test_the_handler_of_somebody_else_stays(tmp_path: Path) -> None:
    """A profiler that has taken the signal keeps it, and the launcher sees that nobody answers."""
    script = (
        f"import signal\nsignal.signal({STACK_SIGNAL}, print)\n{ARM}print(signal.getsignal({STACK_SIGNAL}))"
    )
    done = run(script, tmp_path, LAUNCHER_STACKS_FILE=str(tmp_path / "stacks.txt"))
    assert done.stdout == "<built-in function print>\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("python", interpreters())
def test_stacks_are_written_by_every_python(python: str, tmp_path: Path) -> None:
    """The signal leads to all threads' stacks in the file, on every Python, and the process goes on."""
    script = ARM + f"import os\ndef here():\n    os.kill(os.getpid(), {STACK_SIGNAL})\nhere()\nprint('on')"
    done = run(script, tmp_path, python, LAUNCHER_STACKS_FILE=str(tmp_path / "stacks.txt"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
    text = (tmp_path / "stacks.txt").read_text()
    assert "line 4 in here" in text and "line 5 in <module>" in text
    assert (tmp_path / "stacks.txt").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", [*sorted(HOOK.glob("*.py")), HOOK.parent / "__init__.py"], ids=str)
def test_the_hook_is_python_3_8(path: Path) -> None:
    """It runs inside of whatever Python an image has."""
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
