"""Finds and explains Xids: the NVIDIA driver's messages in the kernel log about failed GPUs and programs.

Source: NVIDIA, "XID Errors", the Xid catalog (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import re

from launcher.core.frozen import frozen

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
    """The meaning of an Xid number: its description, and what is at fault.

    ``PROGRAM``: the program on the GPU, so the failure will repeat. ``HARDWARE``: the GPU, its links or its
    firmware, so another node can help. ``NOTICE``: not a failure, or the consequence of another one.
    """

    words: str
    fault: str


XIDS = {
    13: Meaning("the program made the GPU execute something illegal (graphics engine exception)", PROGRAM),
    31: Meaning("the program accessed an invalid address (GPU memory page fault)", PROGRAM),
    32: Meaning("the GPU was sent a corrupted command stream, often over a bad PCIe link", HARDWARE),
    43: Meaning("the program caused a fault and was ended by the driver; the GPU is healthy", PROGRAM),
    45: Meaning("the driver cleaned up after a program that was ended, or after another Xid", NOTICE),
    46: Meaning("the GPU stopped processing", HARDWARE),
    48: Meaning("an uncorrectable memory error (double bit ECC)", HARDWARE),
    62: Meaning("the GPU's internal micro-controller halted", HARDWARE),
    63: Meaning("a bad memory row or page was marked for replacement at the next GPU reset", NOTICE),
    64: Meaning("a bad memory row or page could not be replaced", HARDWARE),
    74: Meaning("an NVLink failed, or the GPU or switch at its other end", HARDWARE),
    79: Meaning("the GPU has fallen off the bus: it no longer answers over PCIe", HARDWARE),
    92: Meaning("many memory errors that were corrected (single bit ECC)", NOTICE),
    94: Meaning("an uncorrectable memory error that was contained: only this program is lost", HARDWARE),
    95: Meaning("an uncorrectable memory error that was not contained: the GPU must be reset", HARDWARE),
    109: Meaning("the GPU did not switch between programs in time", HARDWARE),
    119: Meaning("the GPU's system processor (GSP) did not answer the driver in time", HARDWARE),
    120: Meaning("the GPU's system processor (GSP) failed", HARDWARE),
    136: Meaning("an NVLink could not be trained", HARDWARE),
    140: Meaning("an uncorrectable memory error that the driver could not recover from", HARDWARE),
    143: Meaning("the GPU could not be initialized", HARDWARE),
    154: Meaning("the driver recommends a recovery action for another Xid: see its text", NOTICE),
    158: Meaning("the GPU no longer answers (fatal timeout)", HARDWARE),
}
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
    folder = "/proc/driver/nvidia/gpus"
    for name in host.list_folder(folder):
        if name.lower().startswith(pci.lower()):
            for line in (host.read_text(f"{folder}/{name}/information") or "").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "Device Minor" and value.strip().isdecimal():
                    return f"{pci} (/dev/nvidia{value.strip()})"
    return pci
