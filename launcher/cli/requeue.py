"""``launcher requeue``: queue the Slurm job of this script again, without the bad nodes in its log."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from launcher.core.environ import Malformed, parse_int
from launcher.core.errors import make_error
from launcher.core.log import say
from launcher.core.redact import printable, redact
from launcher.machine.files import open_file
from launcher.options.parser import make_parser

LIMIT, LIMIT_MOST = 10, 1000
UPDATE_S = 1.0
"""Of a job that has lost a node, Slurm takes the exclusion only once the batch script has ended."""
JOB, RUNS = "SLURM_JOB_ID", "SLURM_RESTART_COUNT"
OURS = re.compile(rb'^(?:[0-9TZ:.-]{1,40} )?launcher: |"stream": ?"launcher"')
"""The launcher's own line, as text or JSON; a line of a rank begins otherwise."""
BAD = re.compile(rb"to avoid them: sbatch --exclude=([\w.,\[\]-]+)")
LINE_BYTES = 1 << 20
"""The rest of a longer line is left out; no line of ours is so long."""
NODES = re.compile(r"\bExcNodeList=([\w.,\[\]-]+)$", re.MULTILINE)
LOG = re.compile(r"^ *StdErr=(.+)$", re.MULTILINE)
CANCELLED = re.compile(r"^ *JobState=CANCELLED", re.MULTILINE)


def requeue(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher requeue``; return 0 if the job is queued again, 1 if it must not be.

    Raises:
        UsageError: This is not the script of a Slurm job.
        Unavailable: There is no scontrol.
        NotReady: Slurm does not queue the job again.
    """
    parser = make_parser("requeue", "[--limit N]", description)
    parser.add_argument("--limit", default=str(LIMIT), metavar="N", help=f"at most N times ({LIMIT})")
    words, job = parser.parse_args(argv), environ.get(JOB, "")
    try:
        limit, runs = parse_int(words.limit, 0, LIMIT_MOST), parse_int(environ.get(RUNS) or "0")
        parse_int(job)
    except Malformed as error:
        typed, before = words.limit, environ.get(RUNS)
        raise make_error("not-a-slurm-script", limit=typed, job=job, runs=before, expected=error) from error
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm ends the script as soon as the job is queued
    shown = _scontrol("show", "job", job)
    if CANCELLED.search(shown) or runs >= limit:
        say(
            f"not queued again: {'the job was canceled' if runs < limit else f'{runs} times before'}",
            "requeue",
        )
        return 1
    bad = sorted({*NODES.findall(shown), *_find_bad(shown)})
    _scontrol("requeue", job)
    if bad:
        update = [_program(), "update", f"JobId={job}", f"ExcNodeList={','.join(bad)}"]
        asked = subprocess.Popen(update, stdin=subprocess.DEVNULL, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on when we have ended
            asked.wait(UPDATE_S)
    say(f"job {job} is queued again{f', without {chr(44).join(bad)}' if bad else ''}", "requeue")
    return 0


def _find_bad(shown: str) -> list[str]:
    """Return the lists of bad nodes in the job's log, which has all of its runs."""
    found = LOG.search(shown)
    try:
        with open(open_file(found[1] if found else ""), "rb") as log:
            ours = [(line, mark) for line in _read_lines(log) if (mark := OURS.search(line))]
            return [nodes.decode() for line, mark in ours for nodes in BAD.findall(line, mark.end())]
    except OSError:
        return []


def _read_lines(log: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a log, of each at most `LINE_BYTES`."""
    is_whole, size = True, os.fstat(log.fileno()).st_size  # a rank may write on
    while log.tell() < size and (line := log.readline(LINE_BYTES)):
        if is_whole:
            yield line
        is_whole = line.endswith(b"\n")


def _program() -> str:
    path = shutil.which("scontrol")
    if path is None:
        raise make_error("no-scontrol")
    return path


def _scontrol(*words: str) -> str:
    line = [_program(), *words]
    done = subprocess.run(line, capture_output=True, text=True, errors="surrogateescape", check=False)
    if done.returncode:
        reason = printable(redact(done.stderr.strip()))
        raise make_error("not-requeued", words=" ".join(words), reason=reason)
    return done.stdout
