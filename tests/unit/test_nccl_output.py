"""Reading NCCL's debug output as it is written: real files, a real loop, lines as in real logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from launcher.core.supervision import Network, Proof
from launcher.observers.nccl_log import KEPT_BYTES, LINE_BYTES, NcclLogWatcher
from launcher.process.loop import Loop
from tests.saying import keep

SOCKETS = (
    "h:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.4<0>\nh:1:1 [0] NCCL INFO Using network Socket\n"
)
HOLDS = "fabric tcp verified: NCCL uses NET/Socket (eth0), as planned"
SILENT = "the fabric is not verified: NCCL on rank 0 did not report its network"


class Listening:
    """A witness of one file, and what it has said."""

    def __init__(self, path: Path, fabric: str = "tcp", required: str = "", *, keeps: bool = False) -> None:
        path.touch()
        self.said: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.loop = Loop(keep(self.said))
        proof = Proof(Network(fabric, "", 8 if fabric == "ib" else None), (), required)
        self.witness = NcclLogWatcher(
            proof, str(path), keep(self.said), lambda *why: self.ended.append(why), keeps=keeps
        )
        self.loop.timers.append(self.witness)
        self.file: IO[str] = path.open("w", buffering=1)  # as NCCL opens it

    def write(self, text: str) -> None:
        self.file.write(text)
        self.turn()

    def turn(self) -> None:
        """Look now."""
        self.witness.due = 0.0
        self.loop.turn(wait=False)

    def end(self) -> None:
        self.witness.close()
        self.file.close()
        self.loop.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Return where NCCL writes; whatever was opened is closed afterwards."""
    before = len(os.listdir("/proc/self/fd"))
    yield tmp_path / "nccl.log"
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_line_is_heard_when_it_is_written(path: Path) -> None:
    """Half a line is none yet, and one word is enough."""
    heard = Listening(path)
    heard.write(SOCKETS[:-5])
    assert heard.said == []
    heard.write(SOCKETS[-5:])
    assert heard.said == [HOLDS]
    heard.write(SOCKETS)
    heard.end()
    assert heard.said == [HOLDS]


def test_what_is_written_before_we_look_is_read_at_the_end(path: Path) -> None:
    """A job may end before the next look."""
    heard = Listening(path)
    heard.file.write(SOCKETS)
    assert heard.said == []
    heard.end()
    assert heard.said == [HOLDS]


def test_a_file_that_is_opened_anew_is_read_anew(path: Path) -> None:
    """NCCL empties it when it opens it, and a process may be started again."""
    heard = Listening(path)
    heard.write("x" * 200 + "\n")
    path.write_text(SOCKETS)
    heard.turn()
    assert heard.said == [HOLDS]
    heard.end()


def test_what_does_not_hold_ends_the_job_only_where_it_is_required(path: Path) -> None:
    """A warning with the fix, or the reason and the fix."""
    heard = Listening(path, "ib")
    heard.write(SOCKETS)
    (line,) = heard.said
    assert line.startswith("warning: not the planned fabric: expected 8 InfiniBand ports, NCCL uses ")
    assert "; fix: " in line
    heard.end()
    strict = Listening(path, "ib", "--require-fabric ib")
    strict.write(SOCKETS)
    assert strict.said == []
    ((why, fix),) = strict.ended
    assert why == "expected 8 InfiniBand ports, NCCL uses NET/Socket (eth0)" and fix
    strict.end()


def test_silence_is_said_once(path: Path) -> None:
    """At the end."""
    heard = Listening(path)
    heard.write("h:1:1 [0] NCCL INFO cudaDriverVersion 12080\n")
    heard.end()
    assert heard.said == [SILENT]


def test_a_flood_takes_neither_memory_nor_disk(path: Path) -> None:
    """A line without an end before, and megabytes after the word: where NCCL writes on nothing piles up."""
    heard = Listening(path)
    heard.write("x" * 40 * LINE_BYTES)
    assert len(heard.witness._rest) <= LINE_BYTES
    heard.write("\n" + SOCKETS)
    for _ in range(8):  # each turn of the loop reads a piece
        heard.loop.turn(wait=False)
    assert heard.said == [HOLDS]
    for _ in range(8):
        heard.write("h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via NET/Socket/1\n" * 8192)
        assert path.stat().st_blocks * 512 <= 2 * KEPT_BYTES
    heard.end()


def test_a_file_that_the_user_wants_stays_whole(path: Path) -> None:
    """With --log-dir it is a log."""
    heard = Listening(path, keeps=True)
    flood = "h:1:1 [0] NCCL INFO x\n" * 100_000
    heard.write(SOCKETS + flood)
    heard.end()
    assert path.read_text() == SOCKETS + flood
