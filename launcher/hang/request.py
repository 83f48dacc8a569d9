"""Makes this node's ranks dump their flight recorders, and reads the dumps. Never blocks.

`DumpRequest` takes steps, as `launcher.hang.ask.Inquiry` does: a byte into each rank's pipe, then a
look at each dump until it is complete, and a run of `launcher.hang.reader` for those that are.

Source: torch's monitor thread reads the pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC) and writes
the dump in a thread of its own, which needs no GPU and, for the Python lines, the GIL.
"""

from __future__ import annotations

import json
import os
import re
import stat

from launcher.core.files import open_own
from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.core.wire import Garbled, parse
from launcher.hang.model import RankRecord
from launcher.machine.pythons import own_program
from launcher.process.tool import Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from launcher.hang.variables import Places

DUMP_S = 3.0
"""Seconds in which a rank must have dumped: torch looks at its pipe once a second."""
READ_S = 10.0
"""Seconds that the reader has for all dumps."""
SETTLE_S = 0.1
"""A dump that ends as one, and has not grown for this many seconds, is complete."""
FILE_BYTES, ALL_BYTES = 64 << 20, 256 << 20
"""Largest dump that is read, and largest sum of the copies of one node."""
RANKS_MAX = 256
RUNS_MAX = 4
"""Maximum number of readers at a time."""
NO_PIPE = "available only with NCCL, after init_process_group"
OUTPUT_BYTES = 8 << 20
READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reader.py")


@frozen
class Mark:
    """State of a dump file, to distinguish a new one from an old one."""

    inode: int = 0
    size: int = -1
    modified_ns: int = 0


class _Rank:
    """One rank that was asked."""

    def __init__(self, rank: int, dump: str, pipe: str) -> None:
        self.rank, self.dump, self.pipe = rank, dump, pipe
        self.before = self.seen = look(dump)
        self.changed_at = 0.0
        self.problem = ""

    def is_complete(self, now: float) -> bool:
        """Whether a new dump is whole."""
        mark = look(self.dump)
        if mark != self.seen:
            self.seen, self.changed_at = mark, now
        is_new = mark != self.before and mark.size > 0
        return is_new and now - self.changed_at >= SETTLE_S and ends_whole(self.dump)


class DumpRequest:
    """One request to all ranks of this node.

    Attributes:
        records: The facts of each rank, as far as they are known, by rank.
        paths: Copies in the directory for evidence.
        notes: What was left out of that directory, in sentences.
    """

    def __init__(
        self,
        ranks: Iterable[int],
        places: Sequence[Places],
        *,
        evidence: str = "",
        run: tuple[int, str] | None = None,
        dump_s: float = DUMP_S,
        file_bytes: int = FILE_BYTES,
        all_bytes: int = ALL_BYTES,
    ) -> None:
        """Prepare to ask.

        Args:
            ranks: Ranks that are expected to answer; ranks with a pipe are asked even if they are not named.
            places: Where they dump: see `launcher.hang.variables.find_places`.
            evidence: Directory of this node for copies of the dumps, created if missing; empty for none.
            run: Descriptor and path of the run's directory; None without one.
            dump_s: Seconds that a rank has to dump.
            file_bytes: Size of the largest dump that is read.
            all_bytes: Sum of the sizes of the copies.
        """
        self._expected, self._places = sorted(set(ranks)), list(dict.fromkeys(places))
        self._evidence, self._dump_s = evidence, dump_s
        is_inside = run is not None and evidence.startswith(f"{run[1]}/")
        self._run = run[0] if run and is_inside else None
        self._inside = evidence[len(run[1]) + 1 :] if run and is_inside else ""
        self._limits = {"file": file_bytes, "all": all_bytes}
        self._waiting: list[_Rank] = []
        self._ready: list[_Rank] = []
        self._deadline: float | None = None
        self._runs: list[tuple[Tool, Sequence[int]]] = []
        self._copied_bytes = 0
        self.complete = False
        self.records: dict[int, RankRecord] = {}
        self.paths: list[str] = []
        self.notes: list[str] = []

    def helpers(self) -> tuple[int, ...]:
        """Return the PIDs of the readers: they are our children, but not processes of the job."""
        return tuple(run.pid for run, _ in self._runs)

    def go_on(self, now: float) -> None:
        """Ask, look at the dumps, and take the answers."""
        if self.complete:
            return
        if self._deadline is None:
            self._deadline = now + self._dump_s
            self._ask()
        for one in [one for one in self._waiting if one.is_complete(now)]:
            self._waiting.remove(one)
            self._ready.append(one)
        if self._waiting and now > self._deadline:
            self._give_up()
        if self._ready and len(self._runs) < RUNS_MAX:
            self._start_reader(now)
        for run, ranks in [one for one in self._runs if one[0].is_over(now)]:
            self._runs.remove((run, ranks))
            self._take(run.finish(OUTPUT_BYTES)[0].splitlines(), ranks)
        self.complete = not (self._waiting or self._ready or self._runs)

    def close(self) -> None:
        """Stop asking."""
        for run, _ in self._runs:
            run.close()
        self._waiting, self._ready, self._runs, self.complete = [], [], [], True

    def _ask(self) -> None:
        for place in self._places:
            found = find_ranks(place)
            for rank in sorted(
                set(found) | {one for one in self._expected if look(f"{place.dumps}{one}").size > 0}
            ):
                one = _Rank(rank, f"{place.dumps}{rank}", found.get(rank, ""))
                one.problem = trigger(one.pipe) if one.pipe else NO_PIPE
                (self._ready if one.problem else self._waiting).append(one)
        asked = {one.rank for one in (*self._ready, *self._waiting)}
        self.records |= {
            rank: RankRecord(rank, missing=NO_PIPE) for rank in self._expected if rank not in asked
        }

    def _give_up(self) -> None:
        for one in self._waiting:
            one.problem = f"it did not dump within {self._dump_s:.2g} s"
        self._ready += self._waiting
        self._waiting = []

    def _start_reader(self, now: float) -> None:
        """Read the dumps that are there; one from before the request is better than none."""
        dumps: list[tuple[int, str]] = []
        before = self._copied_bytes
        for one in sorted(self._ready, key=lambda one: one.rank):
            if one.problem:
                self.records[one.rank] = RankRecord(one.rank, missing=quote(one.problem, 200))
            if one.seen.size > 0:
                dumps.append((one.rank, one.dump))
                self._copied_bytes += one.seen.size
        self._ready = []
        if not dumps:
            return
        task = {"dumps": dumps, "to": self._evidence, "inside": self._inside, "used": before, **self._limits}
        try:
            run = Tool(own_program(READER, json.dumps(task)), now + READ_S, self._run)
            self._runs.append((run, [rank for rank, _ in dumps]))
        except OSError as error:
            self.notes.append(f"the dumps of the flight recorders were not read: {error.strerror}")

    def _take(self, lines: Sequence[str], ranks: Sequence[int]) -> None:
        """Take the answers of a reader about these ranks; its input was hostile."""
        for line in lines:
            try:
                found = json.loads(line)
                record = parse(RankRecord, found["record"])
            except (ValueError, KeyError, TypeError, Garbled, RecursionError):
                continue
            if record.rank not in ranks:
                continue
            self.records[record.rank] = record
            if isinstance(found.get("path"), str):
                self.paths.append(found["path"])
            if isinstance(found.get("left"), str):
                self.notes.append(f"the dump of rank {record.rank} was left out: {quote(found['left'], 200)}")
        for rank in ranks:
            self.records.setdefault(rank, RankRecord(rank, missing="its dump could not be read"))


def find_ranks(place: Places) -> dict[int, str]:
    """Return the pipes of a node's ranks, by rank."""
    folder, _, stem = place.pipes.rpartition("/")
    if not place.pipes:
        return {}
    pattern = re.compile(re.escape(stem) + r"(\d{1,8})\.pipe")
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return {}
    found = {int(match[1]): f"{folder or '.'}/{name}" for name in names if (match := pattern.fullmatch(name))}
    return dict(sorted(found.items())[:RANKS_MAX])


def trigger(path: str) -> str:
    """Write a byte into a pipe; return why it failed, empty on success."""
    try:
        fd = open_own(path, os.O_WRONLY, kind=stat.S_IFIFO)
    except OSError as error:
        return f"its pipe: {error.strerror}"
    try:
        os.write(fd, b"1")
    except BlockingIOError:
        return ""  # it is full of requests
    except OSError as error:
        return f"its pipe: {error.strerror}"
    finally:
        os.close(fd)
    return ""


def look(path: str) -> Mark:
    """Return the state of a dump; of size -1 if there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return Mark()
    return Mark(found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else -1, found.st_mtime_ns)


def ends_whole(path: str) -> bool:
    """Whether a file ends as a pickle or a JSON object does."""
    try:
        fd = open_own(path)
    except OSError:
        return False
    try:
        return os.pread(fd, 1, max(0, os.fstat(fd).st_size - 1)) in (b".", b"}")
    except OSError:
        return False
    finally:
        os.close(fd)
