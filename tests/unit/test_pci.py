"""How far devices are from each other, and what /sys says of them, whatever stands in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.machine.host import Host
from launcher.machine.pci import PciFunction, parse_speed, read_function, relate

SWITCH = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
DEEP = (*SWITCH, "0000:02:00.0", "0000:03:00.0")
GPU = (*SWITCH, "0000:02:00.0", "0000:05:00.0")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (GPU, (*SWITCH, "0000:02:04.0", "0000:06:00.0"), "PIX"),
        (GPU, (*SWITCH, "0000:02:00.0", "0000:05:00.1"), "PIX"),  # two functions of one card
        (GPU, GPU, "PIX"),  # two ports of one function
        (GPU, (*SWITCH, "0000:02:08.0", "0000:07:00.0", "0000:08:00.0", "0000:09:00.0"), "PXB"),
        (DEEP, ("pci0000:00", "0000:00:02.0", "0000:0a:00.0"), "PHB"),
        (("pci0000:00", "0000:00:1b.0"), ("pci0000:00", "0000:00:1c.0"), "PHB"),
    ],
)
def test_what_is_between_two_devices_below_one_root(
    a: tuple[str, ...], b: tuple[str, ...], expected: str
) -> None:
    """By the bridges that they do not share, the same from both sides, whatever their NUMA nodes."""
    assert relate(a, 0, b, 1) == relate(b, None, a, 0) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(0, 0, "NODE"), (0, 1, "SYS"), (None, 0, "?"), (None, None, "?")]
)
def test_below_two_roots_the_numa_nodes_tell(a: int | None, b: int | None, expected: str) -> None:
    """Also where no path is known."""
    assert relate(GPU, a, ("pci0001:00", "0001:00:00.0"), b) == expected
    assert relate((), a, (), b) == relate(GPU, a, (), b) == expected


def write_device(root: Path, place: str, **files: str) -> Path:
    """Write a device below /sys/devices, and its link."""
    home = root / "sys/devices" / place
    home.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (home / name).write_text(text)
    link = root / "sys/bus/pci/devices" / home.name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{place}")
    return home


def test_a_device_is_as_fast_as_the_slot_allows(tmp_path: Path) -> None:
    """Speed and width are the smaller ones of the device and the port above it."""
    port = "pci0000:00/0000:00:01.0"
    write_device(tmp_path, port, max_link_speed="16.0 GT/s PCIe\n", max_link_width="16\n")
    write_device(
        tmp_path,
        f"{port}/0000:01:00.0",
        **{"class": "0x030200\n", "vendor": "0x10de\n", "device": "x\n", "numa_node": "1\n"},
        max_link_speed="32.0 GT/s PCIe\n",
        max_link_width="8\n",
    )
    assert read_function(Host(str(tmp_path)), "0000:01:00.0") == PciFunction(
        address="0000:01:00.0",
        path=("pci0000:00", "0000:00:01.0", "0000:01:00.0"),
        numa_node=1,
        identifiers=(("class", "0x030200"), ("vendor", "0x10de")),
        speed_gtps=16.0,
        width=8,
    )


@pytest.mark.parametrize(
    "garbage",
    ["", "\n", "0x", "-1\n", "255\n", "Unknown\n", "x" * 5000, "\x1b[31m", "16 GT", "\u0664.0 GT/s"],
)
def test_garbage_is_not_known(garbage: str, tmp_path: Path) -> None:
    """Files in another form than the kernel's, and links that lead elsewhere."""
    names = ("class", "vendor", "numa_node", "max_link_speed", "max_link_width")
    write_device(tmp_path, "pci0000:00/0000:00:01.0", **dict.fromkeys(names, garbage))
    found = read_function(Host(str(tmp_path)), "0000:00:01.0")
    assert (found.identifiers, found.speed_gtps, found.width) == ((), None, None)
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0").symlink_to("../../nowhere/0000:03:00.0")
    assert read_function(Host(str(tmp_path)), "0000:02:00.0") == PciFunction("0000:02:00.0")


@pytest.mark.parametrize(
    ("text", "speed"),
    [("2.5 GT/s PCIe", 2.5), ("16 GT/s", 16.0), ("0 GT/s", None), ("x GT/s", None), ("16", None), ("", None)],
)
def test_speeds_in_words_of_old_and_new_kernels(text: str, speed: float | None) -> None:
    """With and without the word PCIe."""
    assert parse_speed(text) == speed
