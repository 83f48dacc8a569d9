"""NCCL log watcher: reads rank 0's NCCL debug output, and compares its network with the planned one.

The output goes to a file, not through a pipe, so NCCL never waits for us. Loaded after the start, and only
with ``--verify-fabric``.
"""

from __future__ import annotations

import os
import time

from launcher.core.files import open_own
from launcher.fabrics.spoken import Spoken, compare, hear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.core.log import Say
    from launcher.core.supervision import Proof

LOOK_S = 0.5
"""Seconds between two looks at the file."""
READ_BYTES = 1 << 16
"""Bytes that are read at a time: the loop has signals to answer."""
LINE_BYTES = 1 << 13
"""Lines are cut at this length; longer ones say nothing about the network."""
HEARD_BYTES = 1 << 24
"""If this much output does not name the network, the rest is not read."""
REST_S = 1.0
"""Seconds for the rest of the output."""
KEPT_BYTES = 1 << 20
"""Once NCCL has named its network, a larger file is truncated."""


class NcclLogWatcher:
    """What NCCL reports about its network in one attempt.

    Attributes:
        due: When to call `fire`.
    """

    def __init__(
        self, proof: Proof, path: str, say: Say, end: Callable[[str, str], None], *, keeps: bool
    ) -> None:
        """Begin to read at the next `fire`.

        Args:
            proof: The planned network, and whether the job ends if NCCL uses another one.
            path: Path of the file that NCCL writes to; it exists.
            say: Prints one line.
            end: Ends the job as a failure, for a reason and with a fix.
            keeps: Whether the user wants to keep the file; otherwise it is truncated when it grows.
        """
        self.due: float | None = 0.0
        self._proof, self._say, self._end, self._keeps = proof, say, end, keeps
        self._spoken = Spoken()
        self._at = 0
        self._rest = b""
        self._file = open_own(path, os.O_RDWR)

    def fire(self, now: float) -> None:
        """Read one piece of what is new, and the next one in the next turn of the loop."""
        self.due = now + (0.0 if self._listen() else LOOK_S)

    def close(self) -> None:
        """Read the rest of the output, after the processes have ended, and stop watching."""
        self.due, until = None, time.monotonic() + REST_S
        while self._listen() and time.monotonic() < until:
            pass
        if not self._spoken.network:
            self._say(
                "the fabric is not verified: NCCL on rank 0 did not report its network", "fabric-unverified"
            )
        os.close(self._file)

    def _listen(self) -> bool:
        """Read a piece of what is new; return whether there was one. Once done, only keep the file small."""
        if self._spoken.network or self._at >= HEARD_BYTES:
            if not self._keeps and os.fstat(self._file).st_blocks * 512 > KEPT_BYTES:
                os.ftruncate(self._file, 0)  # NCCL writes on at its offset: what is before takes no space
            return False
        if os.fstat(self._file).st_size < self._at:  # NCCL has opened it again, and so truncated it
            self._at, self._rest = 0, b""
        data = os.pread(self._file, READ_BYTES, self._at)
        self._at += len(data)
        self._hear(data)
        return bool(data)

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:LINE_BYTES]
        for line in lines:
            self._spoken = hear(self._spoken, line[:LINE_BYTES].decode("utf-8", "replace"))
            if self._spoken.network:
                self._judge()
                return

    def _judge(self) -> None:
        found = compare(self._proof.network, self._spoken)
        if found.holds:
            self._say(f"fabric {self._proof.network.fabric} verified: {found.text}", "fabric-verified")
        elif found.holds is None:
            self._say(f"the fabric is not verified: {found.text}", "fabric-unverified")
        elif self._proof.required:
            self._end(found.text, found.fix)
        else:
            self._say(f"warning: not the planned fabric: {found.text}; fix: {found.fix}", "other-fabric")
