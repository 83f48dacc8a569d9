"""Reads the version of NVIDIA's kernel driver."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.machine.host import Host

FILE = "/proc/driver/nvidia/version"
_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]{2,4}(?:\.[0-9]+)+)")


def read_driver_version(host: Host) -> str | None:
    """Return the version of the loaded driver, e.g. ``"550.54.14"``; None without a driver."""
    match = _VERSION.search(host.read_text(FILE) or "")
    return match[1] if match else None
