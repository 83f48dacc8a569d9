"""Whether a launcher on this machine has just been started, and cannot be asked yet.

It opens its door some tenths of a second after its start; on a busy machine later. Its folder is no sign:
where logs are kept elsewhere there is none before the door.

Source: proc(5), /proc/PID/stat field 22, /proc/PID/cmdline.
"""

from __future__ import annotations

import os
import time

from launcher.control.processes import TICKS
from launcher.stacks.look import read_file

YOUNG_S = 10.0
"""Whoever has no door after that will have none."""
WAIT_S = 2.0
"""How long a question waits for the door of a young launcher."""
STEP_S = 0.02
_STARTED = 19
"""Field 22 of /proc/PID/stat, counted from the state on: ticks since the machine's start."""
_WORDS_BEFORE = 6
"""An interpreter and its options stand before the program."""


def is_coming() -> bool:
    """Whether a launcher of ours runs that is younger than `YOUNG_S`."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    own = os.geteuid()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or not is_run(read_file(f"/proc/{name}/cmdline")):
            continue
        started = parse_start(read_file(f"/proc/{name}/stat"))
        if started is not None and now - started < YOUNG_S and own in (0, _owner(name)):
            return True
    return False


def is_run(line: bytes) -> bool:
    """Return whether a command line, as the kernel has it, is one of ``launcher run``."""
    words = line.split(b"\0")
    for place, word in enumerate(words[:_WORDS_BEFORE]):
        if os.path.basename(word) == b"launcher":
            return words[place + 1 : place + 2] == [b"run"]
    return False


def parse_start(stat: bytes) -> float | None:
    """Return when a process was started, seconds since the machine's start; None for one that is gone."""
    words = stat.rpartition(b")")[2].split()
    return int(words[_STARTED]) / TICKS if len(words) > _STARTED else None


def _owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1
