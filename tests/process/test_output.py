"""What processes write: prefixes, files, filters, floods, full disks and readers that have gone."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.starting import clean_environ, launch, open_launcher

SPEAK = """
import os
rank = os.environb[b"RANK"]
os.write(1, b"out %s\\n" % rank)
os.write(2, b"err %s\\n" % rank)
"""
OUT0, OUT1, ERR0, ERR1 = "[rank 0] out 0", "[rank 1] out 1", "[rank 0] err 0", "[rank 1] err 1"
FILES = {"0/stdout": "out 0\n", "0/stderr": "err 0\n", "1/stdout": "out 1\n", "1/stderr": "err 1\n"}
TWO = ("run", "--nproc-per-node", "2")


def lines(text: str) -> list[str]:
    """Return the lines of a text, sorted, without the launcher's own."""
    return sorted(line for line in text.splitlines() if not line.startswith("launcher: "))


def test_lines_begin_with_their_rank_where_there_are_several() -> None:
    """On both streams, without colors where there is no terminal; --no-prefix keeps lines whole."""
    # [rank 1] in front, on both streams; no colours where there is no terminal.
    done = launch(*TWO, "--", sys.executable, "-c", SPEAK)
    assert lines(done.stdout) == ["[rank 0] out 0", "[rank 1] out 1"]
    assert lines(done.stderr) == ["[rank 0] err 0", "[rank 1] err 1"]
    # One process has no prefix, unless it is asked for.
    assert launch("run", "--", sys.executable, "-c", SPEAK).stdout == "out 0\n"
    done = launch("run", "--prefix", "--", sys.executable, "-c", SPEAK)
    assert (done.stdout, done.stderr) == ("[rank 0] out 0\n", "[rank 0] err 0\n")
    # --no-prefix: the lines as they are, still not mixed.
    done = launch(*TWO, "--no-prefix", "--", sys.executable, "-c", SPEAK)
    assert lines(done.stdout) == ["out 0", "out 1"]


def test_the_order_within_one_process_is_kept_where_both_streams_are_one() -> None:
    """docker logs 2>&1: what a single process wrote first stands first."""
    script = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "run", "--", sys.executable, "-c", script],
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [b"%d" % i for i in range(2000)]


def logs(folder: Path) -> dict[str, str]:
    """Return what stands in the files below a folder of logs: ``attempt_0/1/stdout.log`` to text."""
    (run,) = folder.iterdir()
    assert re.fullmatch(r"node0_[0-9a-f]{8}", run.name)
    return {str(path.relative_to(run)): path.read_text() for path in sorted(run.rglob("*.log"))}


@pytest.mark.parametrize(
    ("flags", "shown", "files"),
    [
        (("-r", "3"), [], [*FILES]),
        (("-r", "1"), [ERR0, ERR1], ["0/stdout", "1/stdout"]),
        (("--redirects", "0:1,1:2"), [ERR0, OUT1], ["0/stdout", "1/stderr"]),
        (("-t", "2"), [ERR0, OUT0, ERR1, OUT1], ["0/stderr", "1/stderr"]),
        (("--tee", "1:3", "--local_ranks_filter", "1"), [ERR1, OUT1], ["1/stdout", "1/stderr"]),
        (("-t", "3", "--local-ranks-filter", "0"), [ERR0, OUT0], [*FILES]),
    ],
)
def test_files_and_filters_mean_what_torchrun_means(
    tmp_path: Path, flags: tuple[str, ...], shown: list[str], files: list[str]
) -> None:
    """-r: to files instead; -t: to files as well; the filter hides ranks from us, not from files."""
    done = launch(*TWO, *flags, "--log-dir", str(tmp_path / "logs"), "--", sys.executable, "-c", SPEAK)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout + done.stderr) == shown
    assert logs(tmp_path / "logs") == {f"attempt_0/{name}.log": FILES[name] for name in files}


def test_lines_begin_as_torchruns_template_says(tmp_path: Path) -> None:
    """${role_name}, ${rank} and ${local_rank} in it; in the files lines are as they were written."""
    environ = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}/$local_rank\x1b>: "}
    words = (*TWO, "--role", "trainer", "-r", "3", "-t", "3", "--log-dir", str(tmp_path / "logs"))
    done = launch(*words, "--", sys.executable, "-c", SPEAK, environ=environ)
    assert lines(done.stdout + done.stderr) == [
        f"<trainer/{rank}\\x1b>: {text} {rank}" for rank in (0, 1) for text in ("err", "out")
    ]
    assert logs(tmp_path / "logs") == {f"attempt_0/{name}.log": text for name, text in FILES.items()}


def test_logs_without_a_folder_are_kept_and_named(tmp_path: Path) -> None:
    """-r 3 alone: the logs lie in a temporary directory, and the launcher says where."""
    done = launch(*TWO, "-r", "3", "--", sys.executable, "-c", SPEAK, environ={"TMPDIR": str(tmp_path)})
    (folder,) = tmp_path.iterdir()
    assert str(folder) in done.stderr
    assert (folder / "attempt_0" / "1" / "stdout.log").read_text() == "out 1\n"


def test_logs_that_cannot_be_written_stop_the_start(tmp_path: Path) -> None:
    """75 and the path, before anything runs."""
    (tmp_path / "file").write_text("")
    witness = tmp_path / "started"
    done = launch(*TWO, "-r", "3", "--log-dir", str(tmp_path / "file"), "--", "touch", str(witness))
    assert (done.returncode, "cannot-write" in done.stderr, witness.exists()) == (75, True, False)


def test_no_temporary_folder_at_all_is_no_obstacle(tmp_path: Path) -> None:
    """Where nothing can be written the job runs, without error files."""
    readonly = "mount --bind $d $d && mount -o remount,ro,bind $d || exit"
    hide = f'for d in /tmp /dev/shm; do {readonly}; done; exec "$@"'
    words = ("unshare", "-m", "sh", "-c", hide, "sh")
    show = (sys.executable, "-c", "import os; print('TORCHELASTIC_ERROR_FILE' in os.environ)")
    done = subprocess.run(
        [*words, sys.executable, "-m", "launcher", "run", "--", *show],
        env={**clean_environ(), "TMPDIR": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


FLOOD = "import os\nblock = b'x' * 79 + b'\\n'\nblock *= 4096\nfor _ in range({count}): os.write(1, block)"


def test_a_gibibyte_of_output_needs_little_memory() -> None:
    """1 GiB through a prefixed pipe: every byte arrives, the launcher stays below 32 MiB.

    25 MiB of that is the launcher as it starts; after some seconds it loads what watches a job.
    """
    count = 2 * (1 << 30) // (80 * 4096) // 2
    command = (sys.executable, "-c", FLOOD.format(count=count // 2))
    with subprocess.Popen(
        [sys.executable, "-m", "launcher", *TWO, "--", *command], env=clean_environ(), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        total = peak = 0
        while data := os.read(process.stdout.fileno(), 1 << 20):
            total += len(data)
            if total % 7 == 0:
                peak = max(peak, resident_kib(process.pid))
    assert process.returncode == 0
    # On a busy machine half a line that waits too long for its end is shown, and goes on in a line of its own
    parted, rest = divmod(total - 2 * (count // 2) * 4096 * (80 + len("[rank 0] ")), len("\n[rank 0] "))
    assert 0 <= parted < 100 and not rest
    assert 0 < peak < 32 * 1024


def resident_kib(pid: int) -> int:
    """Return the highest resident memory of a process so far; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


@pytest.mark.parametrize(
    "target", [">/dev/full", ">&-", "| head -c 100 >/dev/null"], ids=["full", "closed", "gone"]
)
@pytest.mark.parametrize("flags", [TWO, ("run", "--prefix")], ids=["two", "one"])
def test_output_that_cannot_be_written_ends_no_job(
    tmp_path: Path, target: str, flags: tuple[str, ...]
) -> None:
    """A full disk, a closed stdout, a reader that has gone: said once, counted, and the job goes on."""
    script = f"import os; os.write(1, b'line\\n' * 50000); open('{tmp_path}/' + os.environ['RANK'], 'w')"
    shell = ("bash", "-c", f'"$@" {target}; exit ${{PIPESTATUS[0]}}', "bash")
    done = subprocess.run(
        [*shell, sys.executable, "-m", "launcher", *flags, "--", sys.executable, "-c", script],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ranks = [str(rank) for rank in range(2 if flags is TWO else 1)]
    assert (done.returncode, sorted(path.name for path in tmp_path.iterdir())) == (0, ranks), done.stderr
    if "&-" not in target:  # a closed one became /dev/null at our start, like everybody's
        assert done.stderr.count("output for it is dropped and counted") == 1, done.stderr
        assert re.search(r"[1-9][0-9]* bytes of output were lost", done.stderr), done.stderr


def test_a_reader_that_sleeps_slows_the_processes_but_not_the_signals() -> None:
    """Nobody reads: memory stays bounded, and SIGTERM still ends the job in time."""
    command = (sys.executable, "-c", FLOOD.format(count=10**6))
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher", *TWO, "--grace", "5", "--", *command],
        env=clean_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert os.read(process.stdout.fileno(), 10)
    deadline = time.monotonic() + 20
    while not is_waiting(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # until all queues are full: nothing tells
    assert resident_kib(process.pid) < 25 * 1024
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    assert (process.returncode, time.monotonic() - started < 15) == (143, True)
    process.communicate()


def is_waiting(pid: int) -> bool:
    """Whether a process sleeps, twice in a row."""
    states = []
    for _ in range(2):
        states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        time.sleep(0.1)  # the state is to last
    return states == ["S", "S"]


def test_a_prompt_appears_without_its_line_end() -> None:
    """input('name? '): shown after a moment, though the line has not ended."""
    script = "import os, time; os.write(1, b'name? '); time.sleep(30)"
    with open_launcher("run", "--prefix", "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"[rank 0] name? "
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def test_processes_see_their_lines_appear_at_once() -> None:
    """Python buffers what goes to a pipe; where the launcher made the pipe, it turns that off."""
    script = "import time; print('here'); time.sleep(300)"
    with open_launcher(*TWO, "--", sys.executable, "-c", script) as process:
        assert process.stdout is not None
        seen = b""
        while seen.count(b"here") < 2:
            assert select.select([process.stdout], [], [], 20)[0], "what was printed has not appeared"
            seen += os.read(process.stdout.fileno(), 1000)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
