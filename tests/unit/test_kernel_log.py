"""The kernel's log since a moment, and the Xids of the NVIDIA driver in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.host import Host
from launcher.machine.kernel_log import open_kernel_log, read_kernel_log
from launcher.machine.xids import HARDWARE, NOTICE, PROGRAM, UNKNOWN, XIDS, Xid, find_xids
from tests.unit.platforms_model import deterministic
from tests.unit.test_machine import machine

# As the driver writes them (public bug reports), in the frame that /dev/kmsg puts around them.
OLD = "4,900,100,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, an earlier job's\n"
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FAULT = (
    "NVRM: Xid (PCI:0000:86:00): 31, pid=1234, name=python3, Ch 0000003b, intr 10000000. "
    "MMU Fault: ENGINE GRAPHICS HUBCLIENT_SCC faulted @ 0x0_04687000."
)
CLEANUP = "NVRM: Xid (PCI:0000:3b:00): 45, pid=1234, name=python3, Ch 00000008"
NEW = f"4,901,200,-;usb 1-1: new device\n SUBSYSTEM=usb\n4,902,300,-;{CLEANUP}\n4,903,310,c;{LOST}\n"


def test_only_what_the_kernel_says_from_now_on(tmp_path: Path) -> None:
    """An earlier job's Xids are not ours; a second reading gives only what is newer."""
    host = machine(tmp_path, {"dev/kmsg": OLD})
    fd = open_kernel_log(host)
    assert fd is not None
    try:
        assert read_kernel_log(fd, "NVRM: Xid") == []
        with open(tmp_path / "dev/kmsg", "a") as log:
            log.write(NEW)
        assert read_kernel_log(fd, "NVRM: Xid") == [CLEANUP, LOST]
        assert read_kernel_log(fd, "NVRM: Xid") == []
    finally:
        os.close(fd)
    assert read_kernel_log(fd, "NVRM: Xid") == []


def test_what_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    """No file, a pipe, a folder: None, at once."""
    assert open_kernel_log(Host(str(tmp_path))) is None
    (tmp_path / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    assert open_kernel_log(Host(str(tmp_path))) is None


def test_the_real_log_does_not_block() -> None:
    """From this machine's own /dev/kmsg, where we may read it: what there is, and then an end."""
    fd = open_kernel_log(Host())
    if fd is None:
        pytest.skip("/dev/kmsg cannot be read here")
    try:
        assert read_kernel_log(fd, "no kernel says this word") == []
        os.lseek(fd, 0, os.SEEK_SET)
        assert isinstance(read_kernel_log(fd, ""), list)
    finally:
        os.close(fd)


def test_xids_are_named_by_gpu_and_sorted_by_fault(tmp_path: Path) -> None:
    """Hardware first, then the program, then notices; each once per GPU, old and new forms."""
    host = machine(
        tmp_path,
        {
            "proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t H100\nDevice Minor: \t 2\n",
            "proc/driver/nvidia/gpus/0000:86:00.0/information": "Device Minor: \t x\n",
        },
    )
    old_form = "NVRM: Xid (0000:03:00): 14, Channel 00000001"
    xids = find_xids([CLEANUP, FAULT, LOST, LOST, old_form, "NVRM: Xid (PCI:): 1", "NVRM: Xid"], host)
    assert [(xid.number, xid.gpu, xid.meaning.fault) for xid in xids] == [
        (79, "0000:3b:00 (/dev/nvidia2)", HARDWARE),
        (31, "0000:86:00", PROGRAM),
        (45, "0000:3b:00 (/dev/nvidia2)", NOTICE),
        (14, "0000:03:00", NOTICE),
    ]
    assert xids[0].text == "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert xids[3].meaning == UNKNOWN


def test_the_common_numbers_are_known() -> None:
    """Those that people meet in training."""
    common = {13, 31, 43, 45, 48, 63, 64, 74, 79, 92, 94, 95, 119, 120}
    assert common <= XIDS.keys()
    assert all(Xid(number, "", "").meaning.words for number in common)


@deterministic(200)
@given(lines=st.lists(st.text(max_size=80).map(lambda text: f"NVRM: Xid (PCI:0000:3b:00): {text}")))
def test_any_line_is_read(lines: list[str]) -> None:
    """The log is whatever somebody with the right to write to it has written."""
    assert len(find_xids(lines, Host("/nonexistent"))) <= len(lines)
