"""The log of a job, for programs and people: JSON, times, lines of several ranks, bars, rotation."""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import clean_environ, launch
from tests.process.test_engines import free_port

TWO = ("run", "--nproc-per-node", "2")
JSON = ("--log-format", "json")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def run_raw(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the launcher, and return its output as bytes."""
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        env=clean_environ(**(environ or {})),
        capture_output=True,
        timeout=60,
        check=False,
    )


def objects(data: bytes) -> list[dict[str, object]]:
    """Return the objects of a log: each line is strict JSON in UTF-8, and ends with a newline."""
    assert not data or data.endswith(b"\n")
    return [json.loads(line.decode("utf-8", "strict")) for line in data.split(b"\n")[:-1]]


def joined(found: list[dict[str, object]]) -> bytes:
    """Return the bytes that the objects of a stream stand for."""
    parts = []
    for one in found:
        text = str(one["text"]).encode()
        parts.append(base64.b64decode(str(one["base64"])) if "base64" in one else text)
        parts.append(b"" if one.get("unfinished") else b"\n")
    return b"".join(parts)


def test_each_line_is_an_object_that_says_where_it_is_from() -> None:
    """Time, node, rank, attempt and stream; standard error of the ranks keeps its descriptor."""
    script = "import os, sys\nprint('out', flush=True)\nsys.stderr.write('err\\n')"
    done = run_raw(*TWO, *JSON, "--", sys.executable, "-c", script)
    assert done.returncode == 0
    for data, stream, text in ((done.stdout, "stdout", "out"), (done.stderr, "stderr", "err")):
        found = sorted(objects(data), key=lambda one: str(one["rank"]))
        assert all(TIME.fullmatch(str(one.pop("time"))) for one in found)
        assert found == [
            {"node": 0, "rank": rank, "attempt": 0, "stream": stream, "text": text} for rank in (0, 1)
        ]


ODD = [
    *(b"plain\n", b'quotes " and \\ and \\n\n'),
    b"".join(bytes((byte,)) for byte in range(32)) + b"\x7f\n",
    *("é € 😀 \u2028 \u202e\n".encode(), b"\xff\xfe caf\xe9\nwhole\n\xed\xa0\x80\n", b"10%\r20%\r100%\r\n"),
    *(b"\n\n", b"x" * 200_000 + b"\n", "€".encode() * 50_000 + b"\n", b"\xff" * 100_000 + b"\n", b"no end"),
]


@pytest.mark.parametrize("piece", ODD, ids=range(len(ODD)))
def test_any_bytes_are_valid_objects_and_none_is_lost(piece: bytes, tmp_path: Path) -> None:
    """Invalid UTF-8, control characters, long and unfinished lines: the objects give every byte back."""
    (tmp_path / "data").write_bytes(piece)
    script = "import os, sys\nsys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    done = run_raw("run", *JSON, "--", sys.executable, "-c", script, str(tmp_path / "data"))
    found = objects(done.stdout)
    assert joined(found) == piece
    assert {one["rank"] for one in found} == {0}
    assert b"\x1b" not in done.stdout


def test_our_own_lines_are_objects_with_the_name_of_their_event() -> None:
    """A failure: what stops, the report, and nothing that is no object."""
    script = "import os, time\nif os.environ['RANK'] == '1': raise SystemExit(3)\ntime.sleep(60)"
    done = run_raw(*TWO, *JSON, "--", sys.executable, "-c", script)
    assert done.returncode == 3
    own = [one for one in objects(done.stderr) if one["stream"] == "launcher"]
    assert [one["event"] for one in own][:2] == ["stopping", "first-failure"]
    report = own[1]
    assert (report["rank"], report["failed_rank"], report["status"]) == (None, 1, 3)
    text = str(report["text"])
    assert text.startswith("rank 1 of 2 failed first: it exited with code 3\n") and "launcher:" not in text


def test_files_have_the_bytes_of_the_process(tmp_path: Path) -> None:
    """JSON, times and dedupe are for the log; a file is what was written."""
    script = "import os; os.write(1, b'a\\xff\\r\\n\\0end')"
    flags = (*JSON, "--timestamps", "--dedupe", "--tee", "1", "--log-dir", str(tmp_path))
    done = run_raw(*TWO, *flags, "--", sys.executable, "-c", script)
    assert {one.read_bytes() for one in tmp_path.rglob("stdout.log")} == {b"a\xff\r\n\0end"}
    assert len(list(tmp_path.rglob("stdout.log"))) == 2
    objects(done.stdout)
    (own,) = objects(done.stderr)
    assert own["event"] == "logs"


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (JSON, {"RANK": "x"}),
        (("--log-format=json",), {"RANK": "x"}),
        ((), {"RANK": "x", "LAUNCHER_LOG_FORMAT": "json"}),
        ((*JSON, "--grace", "soon"), {}),
        ((*JSON, "--no-such-flag"), {}),
    ],
)
def test_an_error_before_the_job_is_an_object(words: tuple[str, ...], environ: dict[str, str]) -> None:
    """With its code as the event; no command has started."""
    done = run_raw("run", *words, "--", "/no/such/program", environ=environ)
    found = objects(done.stderr)
    assert done.returncode and not done.stdout
    assert str(found[0]["event"]) in ("malformed-variable", "malformed-flag", "usage", "unknown-flag")
    assert "fix:" in str(found[0]["text"])


def test_a_log_is_a_table_that_tells_why_an_attempt_failed() -> None:
    """Loaded into SQLite: the report of the first attempt, and the restart."""
    script = (
        "import os\nif 'LAUNCHER_ATTEMPT' not in os.environ: raise ValueError('the cause')\nprint('done')"
    )
    rule = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0")
    done = run_raw("run", *JSON, *rule, "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE log (line TEXT)")
    lines = [(line.decode(),) for line in (done.stderr + done.stdout).split(b"\n") if line]
    table.executemany("INSERT INTO log VALUES (?)", lines)
    query = "SELECT line ->> 'text' FROM log WHERE line ->> 'event' = ? AND line ->> 'attempt' = ?"
    ((why,),) = table.execute(query, ("first-failure", 0))
    assert "ValueError: the cause" in why
    assert len(list(table.execute(query, ("restart", 0)))) == 1
    said = "SELECT line ->> 'text' FROM log WHERE line ->> 'rank' = 0 AND line ->> 'attempt' = 1"
    assert list(table.execute(said)) == [("done",)]


def test_timestamps_stand_before_each_line_also_ours() -> None:
    """--timestamps, and the variable; without a prefix, too."""
    script = "import os\nprint('a', flush=True)\nprint('b', flush=True)\nos._exit(os.environ['RANK'] == '0')"
    done = launch(*TWO, "--timestamps", "--", sys.executable, "-c", script)
    lines = (done.stdout + done.stderr).splitlines()
    assert lines and all(TIME.fullmatch(line.partition(" ")[0]) for line in lines)
    assert sum(line.endswith("[rank 0] a") for line in lines) == 1
    alone = launch("run", "--", sys.executable, "-c", script, environ={"LAUNCHER_TIMESTAMPS": "1"})
    assert [line.partition(" ")[2] for line in alone.stdout.splitlines()] == ["a", "b"]
    assert all(TIME.fullmatch(line.partition(" ")[0]) for line in alone.stderr.splitlines())


def test_a_line_of_several_ranks_is_shown_once() -> None:
    """With its ranks, also as an object; what one rank writes twice is shown twice; files have all."""
    # With its ranks; what one rank writes twice is shown twice; files have all.
    script = "import os\nprint('same')\nprint('same')\nprint('mine', os.environ['RANK'])\nprint('end')"
    done = launch("run", "--nproc-per-node", "3", "--dedupe", "--", sys.executable, "-c", script)
    assert sorted(done.stdout.splitlines()) == [
        *(f"[rank {rank}] mine {rank}" for rank in range(3)),
        *("[ranks 0-2] end", "[ranks 0-2] same", "[ranks 0-2] same"),
    ]
    # --dedupe with JSON: all that wrote it, the first of them as the rank.
    found = objects(run_raw(*TWO, *JSON, "--dedupe", "--", sys.executable, "-c", "print('x')").stdout)
    assert [(one["text"], one["ranks"]) for one in found] == [("x", [0, 1])]
    assert found[0]["rank"] in (0, 1)


def test_a_line_of_one_rank_waits_no_longer_than_the_window() -> None:
    """It comes while the others are still busy."""
    script = "import os, time\nif os.environ['RANK'] == '0': print('early', flush=True)\ntime.sleep(60)"
    words = [sys.executable, "-m", "launcher", *TWO, "--dedupe", "--", sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=clean_environ()) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"[rank 0] early\n"
        job.terminate()


ALL_FAIL = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1] + os.environ["RANK"], "w").close()
while not all(os.path.exists(sys.argv[1] + str(rank)) for rank in range(4)):
    time.sleep(0.01)
def load(path):
    raise FileNotFoundError(path)
load("/data/train")
"""
"""All ranks fail in the same way, and none is stopped before it has said so."""


@pytest.mark.parametrize("flags", [(), ("--dedupe",), ("--no-dedupe",)])
def test_the_same_traceback_of_several_ranks_is_printed_once(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Off a terminal, with the ranks; each rank's file has it, and the report says where it is."""
    script = tmp_path / "fails.py"
    script.write_text(ALL_FAIL)
    logs = ("--tee", "2", "--log-dir", str(tmp_path / "logs"))
    words = ("run", "--nproc-per-node", "4", *flags, *logs, "--", sys.executable, str(script))
    done = launch(*words, str(tmp_path / "up-"))
    lines = done.stderr.splitlines()
    heads = [line for line in lines if line.endswith("Traceback (most recent call last):")]
    ends = [line for line in lines if line.endswith("] FileNotFoundError: /data/train")]
    assert done.returncode == 1
    for path in (tmp_path / "logs").rglob("stderr.log"):
        assert path.read_text().count("Traceback") == path.read_text().count("FileNotFoundError: ") == 1
    if flags == ("--no-dedupe",):
        assert sorted(heads) == [f"[rank {rank}] Traceback (most recent call last):" for rank in range(4)]
        return
    if not flags:
        assert len(heads) == len(ends) == 1
        same = [line for line in lines if " same traceback as rank " in line]
        named = [*ends, *same]
        assert sorted(rank for line in named for rank in read_ranks(line)) == [0, 1, 2, 3]
        first = next(at for at, line in enumerate(lines) if line.startswith("launcher: "))
        assert lines.index(heads[0]) < lines.index(ends[0]) < first  # what the launcher says comes after it
    assert "launcher:   traceback: above, in its output" in lines


def read_ranks(line: str) -> list[int]:
    """Return the ranks in a prefix, ``[ranks 0-2, 5]``."""
    found: list[int] = []
    for part in line[1 : line.index("]")].partition(" ")[2].split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def test_lines_beside_a_traceback_wait_for_nothing() -> None:
    """Those of other ranks and of standard output; a traceback itself comes while its rank still runs."""
    script = (
        "import os, sys, time, traceback\n"
        "if os.environ['RANK'] == '0':\n"
        "    try: 1 / 0\n"
        "    except ZeroDivisionError: traceback.print_exc()\n"
        "else: print('other', file=sys.stderr, flush=True)\n"
        "time.sleep(60)"
    )
    words = [sys.executable, "-m", "launcher", *TWO, "--", sys.executable, "-c", script]
    with subprocess.Popen(words, stderr=subprocess.PIPE, env=clean_environ()) as job:
        assert job.stderr is not None
        lines = [job.stderr.readline() for _ in range(4)]
        job.terminate()
        job.stderr.read()
    assert b"[rank 1] other\n" in lines
    assert [line for line in lines if line.startswith(b"[rank 0] ")][-1].endswith(
        b"ZeroDivisionError: division by zero\n"
    )


def read_logs(folder: Path, name: str) -> list[Path]:
    """Return the files of a log, the oldest first."""
    return sorted(folder.rglob(f"{name}*"), key=lambda one: one.name, reverse=True)


def test_a_log_file_rotates_between_lines_and_loses_none(tmp_path: Path) -> None:
    """Each file holds whole lines and, but for the end of its last line, no more than its size."""
    lines = "".join(f"{number:07d} {'x' * 60}\n" for number in range(4500))
    script = f"import sys\nfor n in range(4500): sys.stdout.write(f'{{n:07d}} {'x' * 60}\\n')"
    flags = ("--tee", "1", "--log-dir", str(tmp_path), "--log-rotate", "64K")
    done = launch("run", *flags, "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    files = read_logs(tmp_path, "stdout.log")
    assert [one.name for one in files] == [
        *(f"stdout.log.{number}" for number in range(len(files) - 1, 0, -1)),
        "stdout.log",
    ]
    assert len(files) == 5
    # A line that begins in a file also ends there, even if the pipe delivers its end later.
    assert all(one.stat().st_size < 65536 + 69 and one.read_text().endswith("\n") for one in files)
    assert "".join(one.read_text() for one in files) == lines


def test_the_newest_of_a_long_log_stay(tmp_path: Path) -> None:
    """Five files beside the one that is written; a line that is longer than a file is torn late."""
    lines = "for n in range(40): os.write(1, b'%07d ' % n + b'y' * 30000 + b'\\n')"
    script = f"import os\n{lines}\nos.write(1, b'z' * 300000)"
    flags = ("--redirects", "1", "--log-dir", str(tmp_path), "--log-rotate", "64K")
    assert launch("run", *flags, "--", sys.executable, "-c", script).returncode == 0
    files = read_logs(tmp_path, "stdout.log")
    assert len(files) == 6
    whole = b"".join(one.read_bytes() for one in files)
    assert whole.endswith(b"\n" + b"z" * 300000)
    assert all(one.stat().st_size <= 2 * 65536 for one in files)


def test_the_report_has_its_last_lines_where_the_file_has_rotated(tmp_path: Path) -> None:
    """The evidence of a failure does not depend on the file."""
    lines = "for n in range(3000): print(f'{n} ' + 'e' * 60, file=sys.stderr)"
    script = f"import sys\n{lines}\nraise ValueError('late')"
    flags = ("--redirects", "2", "--log-dir", str(tmp_path), "--log-rotate", "64K")
    done = launch(*TWO, *flags, "--", sys.executable, "-c", script)
    assert done.returncode == 1
    assert "ValueError: late" in done.stderr


BAR = """
import os, sys, time
rank = os.environ["RANK"]
for step in range(0, 101, 25):
    sys.stderr.write(f"\\r{step}% of {rank}")
    sys.stderr.flush()
    time.sleep(0.3)
sys.stderr.write("\\n")
print("line of", rank, flush=True)
"""


def on_terminal(*words: str) -> bytes:
    """Run the launcher on a terminal of its own, and return what it writes there."""
    master, slave = os.openpty()
    job = subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=clean_environ(TERM="xterm"),
    )  # fmt: skip
    os.close(slave)
    parts = []
    try:
        while part := os.read(master, 1 << 16):
            parts.append(part)
    except OSError:  # EIO: the other side was closed
        pass
    os.close(master)
    assert job.wait(timeout=60) == 0
    return b"".join(parts)


def test_only_the_first_rank_has_a_progress_bar_on_a_terminal() -> None:
    """The bars of the others are held back until their last state; their lines are not."""
    shown = on_terminal(*TWO, "--", sys.executable, "-c", BAR)
    assert all(b"%d%% of 0" % step in shown for step in (0, 25, 50, 75, 100))
    assert b"100% of 1" in shown
    assert not any(b"%d%% of 1" % step in shown for step in (0, 25, 50, 75) if step)
    assert b"line of 0" in shown and b"line of 1" in shown


def test_json_on_a_terminal_has_no_escapes_and_no_status_line() -> None:
    """A reader that asked for objects gets nothing else."""
    shown = on_terminal(*TWO, *JSON, "--progress", "--", sys.executable, "-c", BAR)
    assert b"\x1b" not in shown
    assert len(objects(shown.replace(b"\r\n", b"\n"))) >= 4


def test_every_bar_is_shown_where_no_terminal_is_shared() -> None:
    """A file or pipe gets every byte."""
    done = run_raw(*TWO, "--", sys.executable, "-c", BAR)
    assert all(b"%d%% of 1" % step in done.stderr for step in (0, 25, 50, 75, 100))


RANK = "import os\nprint('I am', os.environ['RANK'], flush=True)"


def test_each_node_says_which_it_is() -> None:
    """Two launchers: the objects of both make one table; the roll call is an event."""
    port = free_port()
    common = (*JSON, "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1")
    words = [sys.executable, "-m", "launcher", "run", *common, "--master-port", port, "--node-rank"]
    jobs = [
        subprocess.Popen(
            [*words, rank, "--", sys.executable, "-c", RANK],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environ(),
        )
        for rank in "01"
    ]  # fmt: skip
    found = [job.communicate(timeout=60) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], found
    for node, (out, err) in enumerate(found):
        (line,) = objects(out)
        assert (line["node"], line["rank"], line["text"]) == (node, node, f"I am {node}")
        assert {one["node"] for one in objects(err)} <= {node}
    assert "roll-call" in {one["event"] for one in objects(found[0][1])}


def test_a_killed_launcher_leaves_an_object() -> None:
    """Its watchdog writes the last line of the log."""
    words = [sys.executable, "-m", "launcher", *TWO, *JSON, "--", "sh", "-c", "echo up; exec sleep 60"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, env=clean_environ()) as job:
        assert job.stdout is not None and job.stderr is not None
        assert objects(job.stdout.readline())[0]["text"] == "up"
        job.kill()
        (last,) = objects(job.stderr.read())
    assert (last["event"], last["node"], last["rank"]) == ("launcher-killed", 0, None)


def test_lines_of_mpiruns_ranks_are_objects_of_mpirun(tmp_path: Path) -> None:
    """mpirun writes the lines of all ranks, and the rank is in the text; what it forwards changes nothing."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environ = {"LAUNCHER_LOG_FORMAT": "json", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environ |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = run_raw("run", "--engine", "mpirun", "--nproc-per-node", "2", "--", sys.executable, str(script),
                   environ=environ)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = objects(done.stdout)
    assert sorted(str(one["text"]) for one in found) == ["[rank 0] I am 0", "[rank 1] I am 1"]
    assert {(one["rank"], one["process"]) for one in found} == {(None, "mpirun")}


def test_a_launcher_that_becomes_its_command_says_that_it_changes_no_line() -> None:
    """--log-format without a launcher that stays: a warning, which is an object itself."""
    environ = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")}
    environ |= {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    gone = run_raw("run", *JSON, "--", sys.executable, "-c", "print('x')", environ=environ)
    assert gone.stdout == b"x\n"
    (warning,) = objects(gone.stderr)
    assert warning["event"] == "warning" and "--stay" in str(warning["text"])
    stayed = run_raw("run", *JSON, "--stay", "--", sys.executable, "-c", "print('x')", environ=environ)
    assert [one["text"] for one in objects(stayed.stdout)] == ["x"]


def test_the_attempt_of_the_platform_is_in_the_log_and_the_record(tmp_path: Path) -> None:
    """As JobSet, Slurm and Google Batch count it; what is no number is left out."""
    record = tmp_path / "record.json"
    for variable, text, expected in (
        ("JOBSET_RESTART_ATTEMPT", "3", 3),
        ("SLURM_RESTART_COUNT", "0", 0),
        ("BATCH_TASK_RETRY_ATTEMPT", "x", None),
    ):
        flags = ("--log-format", "json", "--failure-file", str(record))
        done = launch("run", *flags, "--", "sh", "-c", "echo hi; exit 3", environ={variable: text})
        lines = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
        assert len(lines) > 2 and {line.get("platform_attempt") for line in lines} == {expected}
        assert json.loads(record.read_text())["platform_attempt"] == expected
