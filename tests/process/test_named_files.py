"""Files that the user or the environment names: read in whole, in bounded time and memory, or not at all."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.process.starting import clean_environ

NODES = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "192.0.2.1", "--nproc-per-node", "1")
REFUSED = {
    "plan --replay": ("plan", "--replay", "FILE", "--", "true"),
    "--hostfile": ("plan", "--node-rank", "0", "--hostfile", "FILE", "--", "true"),
    "--token-file": ("run", *NODES, "--token-file", "FILE", "--", "true"),
    "serve --token-file": ("serve", "--master-addr", "127.0.0.1", "--token-file", "FILE"),
}
"""Command lines that cannot go on without the file."""
PASSED_OVER = {
    "python": ("plan", "--", "python", "FILE"),
    "sh": ("plan", "--", "sh", "FILE"),
    "deepspeed": ("plan", "--", "deepspeed", "--deepspeed_config", "FILE", "train.py"),
    "accelerate": ("plan", "--", "accelerate", "launch", "--config_file", "FILE", "train.py"),
    "NCCL_CONF_FILE": ("plan", "--", "true"),
    "PBS_NODEFILE": ("plan", "--nnodes", "1", "--", "true"),
    "PE_HOSTFILE": ("plan", "--nnodes", "1", "--", "true"),
}
"""Those that look into the file by the way, which the command or a library reads."""
MEMORY_BYTES = 1 << 30
WITHIN_S = 120.0
"""A machine that does other things needs twenty times as long as an idle one."""


def limit() -> None:
    """Give the launcher less memory than a file without an end would take."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run(words: tuple[str, ...], name: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with the file in its place, and in a variable where the name is one."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *(word.replace("FILE", path) for word in words)],
        env=clean_environ(**({name: path} if name.isupper() else {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        preexec_fn=limit,
    )
    assert "Traceback" not in done.stderr and "MemoryError" not in done.stderr, done.stderr
    return done


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return what has no end: zeros for ever, a file of 4 GiB, a pipe that is not written to."""
    if request.param == "device":
        yield "/dev/zero"
        return
    place = tmp_path / "named"
    if request.param == "huge":
        with place.open("wb") as file:
            file.truncate(1 << 32)
        yield str(place)
        return
    os.mkfifo(place)
    fd = os.open(place, os.O_RDWR)
    yield str(place)
    os.close(fd)


ENDLESS = ("device", "huge")


@pytest.mark.parametrize(
    ("name", "path"),
    [*product(REFUSED, ENDLESS), ("plan --replay", "pipe"), ("--token-file", "pipe")],
    indirect=["path"],
)
def test_what_is_needed_is_refused(name: str, path: str) -> None:
    """By name, as a mistake of the command line; a pipe that was typed has five seconds."""
    done = run(REFUSED[name], name, path)
    assert done.returncode == 64, (done.returncode, done.stderr)
    assert path in done.stderr


@pytest.mark.parametrize("path", [*ENDLESS, "pipe"], indirect=True)
@pytest.mark.parametrize("name", PASSED_OVER)
def test_what_is_read_by_the_way_is_passed_over(name: str, path: str) -> None:
    """It is the command's own, and what is wrong with it, the command says."""
    run(PASSED_OVER[name], name, path)


@pytest.mark.parametrize("name", ["python", "sh", "deepspeed", "NCCL_CONF_FILE"])
def test_nothing_is_taken_out_of_a_pipe_that_the_command_reads(name: str, tmp_path: Path) -> None:
    """As of ``python <(generate)``: what the launcher had read, the command would miss."""
    place = tmp_path / "pipe"
    os.mkfifo(place)
    fd = os.open(place, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(fd, b"print('all of it')\n")
        run(PASSED_OVER[name], name, str(place))
        assert os.read(fd, 100) == b"print('all of it')\n"
    finally:
        os.close(fd)
