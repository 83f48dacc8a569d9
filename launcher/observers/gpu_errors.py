"""Watches the GPUs of this node for Xids and ECC errors while the job runs, in a helper that asks NVML."""

from __future__ import annotations

import os
from functools import partial

from launcher.machine.nvml import wait_for_errors
from launcher.machine.xids import HARDWARE, Xid, name_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.machine.host import Host
    from launcher.process.helper import Helpers
    from launcher.process.loop import Loop

READ_BYTES = 1 << 14
XIDS_MAX = 64
"""Number of different errors of one attempt that are kept: a GPU that is gone repeats them."""
TEXT = "an event of NVML"
"""Stands for the driver's own text, which NVML does not give."""


class GpuErrors:
    """The errors of this node's GPUs, as they come; the launcher's loop only reads a pipe.

    Attributes:
        faults: Descriptions of the faults of hardware in all attempts.
    """

    def __init__(self, host: Host, helpers: Helpers, loop: Loop, say: Say) -> None:
        """Start the helper.

        Raises:
            OSError: No more processes or descriptors.
        """
        self._host, self._loop, self._say = host, loop, say
        self._found: dict[tuple[str, int], Xid] = {}
        self._rest = b""
        self.faults: list[str] = []
        reading, writing = os.pipe()
        helpers.serve(partial(_write_errors, host, writing), reading, writing, name="launcher-xids")
        self._fd: int | None = reading
        loop.add(reading, self._hear)

    def begin_attempt(self) -> None:
        """Forget the errors of the attempt before."""
        self._hear()
        self._found.clear()

    def read(self) -> tuple[Xid, ...]:
        """Return the different errors since the start of the attempt, faults of hardware first."""
        self._hear()
        return tuple(sorted(self._found.values(), key=lambda xid: xid.meaning.fault != HARDWARE))

    def close(self) -> None:
        """Stop reading; the helper ends with the launcher's other helpers."""
        if self._fd is not None:
            self._loop.remove(self._fd)
            os.close(self._fd)
            self._fd = None

    def _hear(self) -> None:
        while self._fd is not None:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:  # no NVML, no events, or the driver has failed
                self.close()
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                address, number = line.decode("ascii").split()
                self._note(address, int(number))

    def _note(self, address: str, number: int) -> None:
        if (address, number) in self._found or len(self._found) == XIDS_MAX:
            return
        xid = self._found[address, number] = Xid(number, name_gpu(address, self._host), TEXT)
        what = f"GPU {xid.gpu}: Xid {number}, {xid.meaning.words}"
        is_fault = xid.meaning.fault == HARDWARE
        if is_fault:
            self.faults.append(what)
        self._say(f"warning: {what}" if is_fault else what, "gpu-error")


def _write_errors(host: Host, fd: int) -> None:
    for line in wait_for_errors(host):
        os.write(fd, f"{line}\n".encode("ascii"))
