"""Phases of an attempt in which a longer silence is no stall: until its first progress, and while it saves.

A rank that saves has opened a file for writing since the job was last active. Files that were open before,
such as logs and TensorBoard's events, are no checkpoint. Only /proc is read: a file on a network that hangs
must not hang us.
"""

from __future__ import annotations

import os

from launcher.core.redact import quote
from launcher.core.wire import LINE_LENGTH
from launcher.machine.process import list_folder, read_file, read_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

FIRST, SAVE = "first", "save"
ELSEWHERE = ("/dev/", "/proc/", "/sys/", "/memfd:")
"""Beginnings of paths that are no files of a program's results."""
WRITES = os.O_WRONLY | os.O_RDWR


class Phases:
    """Tells which limit of silence holds now."""

    def __init__(
        self,
        limits: Mapping[str, float],
        has_progressed: Callable[[], bool | None],
        list_pids: Callable[[], Iterable[int]],
        private: str | None,
    ) -> None:
        """Keep the sources of the phase.

        Args:
            limits: Seconds for some of the phases.
            has_progressed: Whether the attempt has made progress.
            list_pids: Returns the processes of all ranks here.
            private: Directory of our own files, which ranks write to, if there is one.
        """
        self._limits, self._has_progressed, self._list_pids = limits, has_progressed, list_pids
        self._others = (*ELSEWHERE, f"{private}/") if private else ELSEWHERE
        self._opened: dict[tuple[str, str], float] = {}

    def look(self, now: float) -> None:
        """Note which files the ranks have opened for writing, and when each was first seen."""
        if SAVE in self._limits:
            found = [one for pid in self._list_pids() for one in self._list_written(pid)]
            self._opened = {one: self._opened.get(one, now) for one in found}

    def find_limit(self, usual_s: float, active: float) -> tuple[float, str]:
        """Return the seconds of silence that make a stall, and why if the phase decides.

        Args:
            usual_s: Those of all other phases.
            active: When the job was last active (monotonic seconds).
        """
        saves = [path for (_, path), since in self._opened.items() if since > active]
        if FIRST in self._limits and not self._has_progressed():
            return self._limits[FIRST], ", before the first progress"
        if saves:
            return self._limits[SAVE], f", while a file is written: {quote(saves[0], LINE_LENGTH)}"
        return usual_s, ""

    def _list_written(self, pid: int) -> Iterator[tuple[str, str]]:
        """Yield the descriptors that a process has open for writing to a file, each with its path."""
        for number in list_folder(f"/proc/{pid}/fd"):
            path = read_link(f"/proc/{pid}/fd/{number}")
            if not path.startswith("/") or path.startswith(self._others):
                continue
            _, _, flags = read_file(f"/proc/{pid}/fdinfo/{number}", 1024).partition(b"flags:")
            if flags and int(flags.split()[0], 8) & WRITES:
                yield f"{pid}/{number}", path
