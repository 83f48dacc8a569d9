"""Finds and explains Xids: the NVIDIA driver's messages in the kernel log about failed GPUs and programs.

Source: NVIDIA, "XID Errors", the Xid catalog (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re

from launcher.core.blocks import read_rows
from launcher.core.frozen import frozen
from launcher.machine.numa import DRIVER_GPUS, read_information

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.host import Host

WORD = "NVRM: Xid"
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]{1,32})\): (?P<number>\d{1,5})\b,? ?(?P<text>.*)"
)

PID = re.compile(r"\bpid='?(\d{1,10})\b")
INITIAL_PIDS = "pid:[4026531836]"
"""Name of the initial PID namespace (PROC_PID_INIT_INO): only there are our PIDs those of the kernel log."""

PROGRAM, HARDWARE, NOTICE = "program", "hardware", "notice"


@frozen
class Meaning:
    """The meaning of an Xid number: its description, and what is at fault; see ``xids.txt``."""

    words: str
    fault: str


XIDS = {int(number): Meaning(words, fault) for number, fault, words in read_rows("machine/xids.txt")}
UNKNOWN = Meaning("not in the launcher's table: see NVIDIA's Xid catalog", NOTICE)


@frozen
class Xid:
    """One message of the driver: its number, its GPU, the driver's own text, and the process it names."""

    number: int
    gpu: str
    text: str
    pid: int | None = None

    def is_same(self, other: Xid) -> bool:
        """Whether both are the same error of the same GPU."""
        return (self.number, self.gpu) == (other.number, other.gpu)

    @property
    def meaning(self) -> Meaning:
        """Meaning of the number."""
        return XIDS.get(self.number, UNKNOWN)


def find_xids(lines: Sequence[str], host: Host) -> tuple[Xid, ...]:
    """Return the Xids in lines of the kernel log, each number once per GPU and process, hardware first.

    ``gpu`` is the PCI address, with the device file if the driver reports it: ``0000:3b:00 (/dev/nvidia2)``.
    ``pid`` is None in a PID namespace of our own, where the process has another number. Xid 13 has several
    lines, of which only the last one names the process: the first, which describes the fault, gets its PID.
    """
    comparable = host.read_link("/proc/self/ns/pid") == INITIAL_PIDS
    found: dict[tuple[int, str, str], Xid] = {}
    for line in lines:
        match = XID.search(line)
        if match is not None:
            number, pci, text = int(match["number"]), match["pci"], match["text"]
            named = PID.search(text)
            pid = named[1] if named else ""
            started = found.pop((number, pci, ""), None) if pid else None
            xid = Xid(
                number,
                name_gpu(pci, host),
                f"{started.text} (pid={pid})" if started else text,
                int(pid) if pid and comparable else None,
            )
            found.setdefault((number, pci, pid), xid)
    order = (HARDWARE, PROGRAM, NOTICE)
    return tuple(sorted(found.values(), key=lambda xid: order.index(xid.meaning.fault)))


def name_gpu(pci: str, host: Host) -> str:
    """Return a PCI address with the GPU's device file, if the driver reports it."""
    for name in host.list_folder(DRIVER_GPUS):
        if name.lower().startswith(pci.lower()):
            minor = read_information(host, name).get("Device Minor", "")
            return f"{pci} (/dev/nvidia{minor})" if minor.isdecimal() else pci
    return pci
