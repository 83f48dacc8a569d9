"""Standard input of several ranks: rank 0 reads it, as with mpirun; a program from it reaches all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import DEADLINE_S, ROOT, clean_environ

SHOW = "import os; os.write(1, (os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE'] + chr(10)).encode())\n"
READ = (
    "import os, sys; lines = [int(line) for line in sys.stdin]; "
    "os.write(1, f\"{os.environ['RANK']}: {len(lines)} {sum(lines)}\\n\".encode())"
)
NUMBERS = "".join(f"{number}\n" for number in range(1, 20_000))
ALL = f"19999 {sum(range(20_000))}"


def run(given: str, *words: str) -> list[str]:
    """Run three ranks with this standard input; return their sorted lines."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "run", "--nproc-per-node", "3", "--no-prefix", *words],
        input=given,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.rows(6)
@pytest.mark.parametrize(
    "words",
    [
        *((sys.executable, "-"), (sys.executable,)),
        (sys.executable, "-u", "/dev/stdin"),
        *(("nice", sys.executable, "-"), ("sh", "-s"), ("sh",)),
    ],
)
def test_a_program_from_standard_input_reaches_every_rank(words: tuple[str, ...]) -> None:
    program = SHOW if words[0] not in ("sh",) else 'echo "$RANK of $WORLD_SIZE"\n'
    assert run(program, "--", *words) == ["0 of 3", "1 of 3", "2 of 3"]


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("flags", "readers"),
    [
        ((), {0}),
        (("--stdin", "0"), {0}),
        (("--stdin", "2"), {2}),
        (("--stdin", "all"), {0, 1, 2}),
        (("--stdin", "none"), set()),
    ],
)
def test_the_data_reach_whom_they_are_for(flags: tuple[str, ...], readers: set[int]) -> None:
    """Whole: no byte goes to a rank at random."""
    told = run(NUMBERS, *flags, "--", sys.executable, "-c", READ)
    assert told == [f"{rank}: {ALL if rank in readers else '0 0'}" for rank in range(3)]


def test_copies_are_each_ranks_own() -> None:
    """There is one in memory; a single process keeps standard input; after a restart it is there again."""
    # Each has a copy as far as it can tell, though there is one in memory.
    write = "echo changed 2>/dev/null >/proc/self/fd/0; sleep 0.3; cat"
    assert run("as it was\n", "--stdin", "all", "--", "sh", "-c", write) == ["as it was"] * 3
    line = [sys.executable, "-m", "launcher", "run", "--nproc-per-node", "1", "--", sys.executable, "-"]
    done = subprocess.run(line, input=SHOW, env=clean_environ(), capture_output=True, text=True, check=False)
    assert done.stdout == "0 of 1\n"
    fails = SHOW + "import sys; sys.exit(os.environ.get('LAUNCHER_ATTEMPT', '0') == '0')\n"
    told = run(
        fails, "--restarts", "1", "--restart-on", "any", "--restart-delay", "0", "--", sys.executable, "-"
    )
    assert {"0 of 3", "1 of 3", "2 of 3"} <= set(told) and len(told) >= 4


def test_a_signal_is_heard_while_the_program_has_not_ended(tmp_path: Path) -> None:
    """The copy would wait for the end of a pipe whose writer stays. Half a program does not run."""
    reading, writing = os.pipe()
    line = [sys.executable, "-m", "launcher", "run", "--nproc-per-node", "2", "--", sys.executable, "-"]
    with subprocess.Popen(
        line, cwd=tmp_path, stdin=reading, env=clean_environ(PYTHONPATH=ROOT), stderr=subprocess.DEVNULL
    ) as job:
        os.write(writing, b"open('half', 'w')\n")
        job.terminate()
        assert job.wait(DEADLINE_S) != 0
    os.close(reading)
    os.close(writing)
    assert not (tmp_path / "half").exists()


def test_a_shells_file_does_not_wait_for_standard_input(tmp_path: Path) -> None:
    """Whatever its flags: only a program that comes from there is read to the end."""
    (tmp_path / "run.sh").write_text("echo hi\n")
    reading, writing = os.pipe()
    line = [sys.executable, "-m", "launcher", "run", "--nproc-per-node", "2", "--no-prefix", "--"]
    done = subprocess.run(
        [*line, "bash", "-e", "-o", "pipefail", str(tmp_path / "run.sh")],
        stdin=reading, capture_output=True, text=True, env=clean_environ(), timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    os.close(reading)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, "hi\nhi\n")


def try_out(given: bytes, *words: str, pass_fds: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the launcher's command with this standard input."""
    line = [sys.executable, "-m", "launcher", *words]
    reading, writing = os.pipe()
    os.write(writing, given)
    os.close(writing)
    try:
        return subprocess.run(
            line,
            stdin=reading,
            env=clean_environ(),
            capture_output=True,
            text=True,
            check=False,
            pass_fds=pass_fds,
        )
    finally:
        os.close(reading)


@pytest.mark.parametrize("word", ["-", "/dev/stdin"])
def test_standard_input_as_the_script_is_a_python_program(word: str) -> None:
    """As ``torchrun -`` takes it: a script's name without a program."""
    assert run(SHOW, word) == ["0 of 3", "1 of 3", "2 of 3"]


def test_a_pipe_that_only_one_rank_can_read_is_named() -> None:
    """``python <(generate)`` and ``torchrun -``: one process gets the program, and the others end with 0."""
    reading, writing = os.pipe()
    os.write(writing, SHOW.encode())
    os.close(writing)
    path = f"/dev/fd/{reading}"
    line = ("run", "--nproc-per-node", "2", "--", sys.executable, path)
    done = try_out(b"", *line, pass_fds=(reading,))
    os.close(reading)
    assert f"warning: {path}" in done.stderr and "save it as a file" in done.stderr
    told = try_out(b"", "plan", "--nproc-per-node", "2", "--", "torchrun", "-").stdout
    assert "save it as a file" in told
    alone = try_out(b"", "plan", "--nproc-per-node", "1", "--", "torchrun", "-").stdout
    assert "save it as a file" not in alone


def test_a_rank_that_the_job_does_not_have_reads_nothing() -> None:
    done = try_out(b"abc", "run", "--nproc-per-node", "2", "--stdin", "2", "--", "cat")
    assert done.stdout == "" and "--stdin 2: no effect, the job has 2 ranks" in done.stderr


@pytest.mark.parametrize("like", ["plain", "slurm"])
def test_a_rehearsal_gives_a_program_to_every_rank(like: str) -> None:
    """On each node, whether it starts a launcher or one for each process."""
    words = ("rehearse", "--loopback", "--like", like, "--nodes", "2", "--processes", "2")
    done = try_out(SHOW.encode(), *words, "--", "python", "-")
    assert sorted(line[-6:] for line in done.stdout.splitlines()) == [f"{rank} of 4" for rank in range(4)]
