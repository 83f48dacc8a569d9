"""How far devices are from each other."""

from __future__ import annotations

import pytest

from launcher.machine.hardware import relate

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
