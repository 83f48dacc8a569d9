"""Variables of PyTorch's flight recorder, by the version of torch, and where a rank's pipe and dump are.

| torch | buffer, its default | file | pipe |
|---|---|---|---|
| 2.2 | TORCH_NCCL_TRACE_BUFFER_SIZE, 0 | TORCH_NCCL_DEBUG_INFO_TEMP_FILE | none |
| 2.3 to 2.7 | the same | the same | TORCH_NCCL_DEBUG_INFO_PIPE_FILE |
| 2.8 to 2.10 | TORCH_FR_BUFFER_SIZE, 0 | TORCH_FR_DUMP_TEMP_FILE | only with TORCH_NCCL_TRACE_BUFFER_SIZE |
| 2.11 and later | TORCH_FR_BUFFER_SIZE, 2000 | TORCH_FR_DUMP_TEMP_FILE | TORCH_NCCL_DEBUG_INFO_PIPE_FILE |

Since 2.8 the older names are read, too, with a warning of torch on stderr. From 2.8 to 2.10 the pipe is made
only with the older name of the buffer, so that this one warning is the price of the pipe there.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, FlightRecorder.hpp and TraceUtils.h of these
versions. Only NCCL's process group makes a pipe, and polls it once a second.
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen
from launcher.machine.whole import read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BUFFER, OLD_BUFFER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
FILE, OLD_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
ENTRIES = "2000"
"""Collectives in the buffer of a process: recommended by torch's documentation, its default since 2.11."""
FIRST, PIPES, RENAMED, DEFAULT_ON = (2, 2), (2, 3), (2, 8), (2, 11)
"""Versions of torch: the first with a recorder, with pipes, with new names, with a buffer by default."""
STEM = "recorder_"
"""Begin of the names of dumps and pipes: torch adds the rank, and ``.pipe``."""
VERSION_LIMIT_BYTES = 4096


@frozen
class Places:
    """Where the ranks of a node dump.

    Attributes:
        dumps: Begin of the path of a dump; the rank follows.
        pipes: Begin of the path of a pipe; the rank and ``.pipe`` follow. Empty if there is none.
    """

    dumps: str
    pipes: str = ""


def plan_variables(
    version: tuple[int, int], environ: Mapping[str, str], folder: str, attempt: int
) -> dict[str, str]:
    """Return the variables that switch on the recorder of a process; what the user has set stays.

    Args:
        version: Version of torch.
        environ: The environment of the process.
        folder: Private local directory of this run: pipes do not work on every network file system.
        attempt: Number of the attempt.
    """
    if version < FIRST or is_off(environ):
        return {}
    stem = f"{folder}/{attempt}_{STEM}"
    renamed = version >= RENAMED
    found = {ON_TIMEOUT: "1"}
    size = environ.get(BUFFER) or environ.get(OLD_BUFFER) or ENTRIES
    if version < DEFAULT_ON:
        found[OLD_BUFFER] = size
    if not environ.get(FILE) and not environ.get(OLD_FILE):
        found[FILE if renamed else OLD_FILE] = stem
    if version >= PIPES:
        found[PIPE] = stem
    return {name: value for name, value in found.items() if not environ.get(name)}


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the recorder off: a buffer of 0 entries."""
    return (environ.get(BUFFER) or environ.get(OLD_BUFFER) or ENTRIES).strip() in ("0", "-1")


def find_places(environ: Mapping[str, str]) -> Places | None:
    """Return where a process with this environment dumps; None without a known recorder."""
    dumps = environ.get(FILE) or environ.get(OLD_FILE)
    return Places(dumps, environ.get(PIPE, "")) if dumps and not is_off(environ) else None


def find_torch(folders: list[str] | None) -> tuple[int, int] | None:
    """Return the version of torch in the first of these directories that has it; None without one.

    Reads ``torch/version.py``: importing torch takes seconds, and its metadata are in one of hundreds of
    directories.
    """
    for folder in folders or ():
        try:
            data = read_whole(os.path.join(folder or ".", "torch", "version.py"), VERSION_LIMIT_BYTES)
        except OSError:
            continue
        text = data.decode("utf-8", "replace")
        return _parse_version(text.partition("__version__ = ")[2][1:].partition("\n")[0])
    return None


def _parse_version(text: str) -> tuple[int, int] | None:
    numbers = text.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() and len(number) < 4 for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1])
