"""Watches the GPUs of this node for Xids and ECC errors while the job runs, in a helper that asks NVML."""

from __future__ import annotations

from launcher.machine.nvml import wait_for_errors
from launcher.machine.xids import HARDWARE, Xid, name_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.log import Say
    from launcher.machine.host import Host
    from launcher.process.helper import Helpers

XIDS_MAX = 64
"""Number of different errors of one attempt that are kept: a GPU that is gone repeats them."""
TEXT = "an event of NVML"
"""Stands for the driver's own text, which NVML does not give."""


class GpuErrors:
    """The errors of this node's GPUs, as they come."""

    def __init__(self, host: Host, helpers: Helpers, say: Say) -> None:
        """Start the helper.

        Raises:
            OSError: No more processes or descriptors.
        """
        self._host, self._say = host, say
        self._found: dict[tuple[str, int], Xid] = {}
        self._faults: list[str] = []
        self._lines = helpers.follow(lambda: wait_for_errors(host), self._take, name="launcher-xids")

    def begin_attempt(self) -> None:
        """Forget the errors of the attempt before."""
        self._lines.read()
        self._found.clear()

    def read(self) -> tuple[Xid, ...]:
        """Return the different errors since the start of the attempt, faults of hardware first."""
        self._lines.read()
        return tuple(sorted(self._found.values(), key=lambda xid: xid.meaning.fault != HARDWARE))

    def find_faults(self) -> list[str]:
        """Return descriptions of the faults of hardware in all attempts."""
        self._lines.read()
        return self._faults

    def _take(self, line: str | None) -> None:
        if line is None:  # no NVML, no events, or the driver has failed
            return
        address, number = line.split()
        self._note(address, int(number))

    def _note(self, address: str, number: int) -> None:
        if (address, number) in self._found or len(self._found) == XIDS_MAX:
            return
        xid = self._found[address, number] = Xid(number, name_gpu(address, self._host), TEXT)
        what = f"GPU {xid.gpu}: Xid {number}, {xid.meaning.words}"
        is_fault = xid.meaning.fault == HARDWARE
        if is_fault:
            self._faults.append(what)
        self._say(f"warning: {what}" if is_fault else what, "gpu-error")
