"""Machines with RDMA devices, and every port that should be found on them.

``<name>.json``::

    {"notes": ["where it comes from"],
     "devices": {"mlx5_ib0": {"at": "pci0101:00/0101:00:00.0", "driver": "mlx5_core", "numa_node": "0",
                              "uverbs": "uverbs0", "net": {"ib0": "0"},
                              "ports": {"1": {"link_layer": "InfiniBand", "gids/0": "fe80:...", ...}}}},
     "tables": {"gids": 8, "pkeys": 128},
     "exposed": ["uverbs0"],
     "ports": ["mlx5_ib0:1 usable InfiniBand ACTIVE ..."]}

``at`` is the place under /sys/devices, ``tables`` how long each port's are (what is not named is zero),
``exposed`` the device files in /dev/infiniband, ``ports`` the truth, written by hand from the sources
in the notes, one line per port in the words of `describe`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.machine.infiniband import Port, is_usable

Json = dict[str, Any]
HERE = Path(__file__).parent
ZEROS = {"gids": ":".join(["0000"] * 8), "pkeys": "0x0000"}


def fabric_names() -> list[str]:
    """Return the names of all machines, sorted."""
    return sorted(path.stem for path in HERE.glob("*.json"))


def read_fabric(name: str) -> Json:
    """Return one machine as written."""
    fabric: Json = json.loads((HERE / f"{name}.json").read_text())
    return fabric


def write_fabric(root: Path, fabric: Json) -> None:
    """Write the files and links of /sys, and of /dev, that such a machine has, below a folder."""
    _write(root / "dev/null", "")
    for name, device in fabric["devices"].items():
        write_device(root, name, device, fabric.get("tables", {}))
    for name in fabric.get("exposed", ()):
        _write(root / "dev/infiniband" / name, "")


def write_device(root: Path, name: str, device: Json, tables: Mapping[str, int]) -> None:
    """Write one device as the kernel lays it out."""
    home = root / "sys/devices" / device["at"]
    folder = home / "infiniband" / name
    folder.mkdir(parents=True)
    _link(root / "sys/class/infiniband" / name, folder)
    _link(folder / "device", home)
    if "driver" in device:
        _link(home / "driver", root / "sys/bus/pci/drivers" / device["driver"])
    if "numa_node" in device:
        _write(home / "numa_node", device["numa_node"] + "\n")
    if "uverbs" in device:
        _write(root / "sys/class/infiniband_verbs" / device["uverbs"] / "ibdev", name + "\n")
    for interface, place in device.get("net", {}).items():
        _write(home / "net" / interface / "dev_port", place + "\n")
    for number, files in device.get("ports", {}).items():
        zeros = {f"{table}/{i}": ZEROS[table] for table, count in tables.items() for i in range(count)}
        for path, text in {**zeros, **files}.items():
            _write(folder / "ports" / number / path, text + "\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def describe(port: Port) -> str:
    """Return everything that is known of a port in one line."""
    facts = [
        "usable" if is_usable(port) else "not usable",
        f"{port.link_layer} {port.state} {port.rate_gbps} Gb/s",
        *(f"driver {port.driver}", f"pci {'/'.join(port.pci_path)}", f"numa {port.numa_node}"),
        *(f"interface {port.interface}", f"uverbs {port.has_uverbs}"),
    ]
    return f"{port.device}:{port.number} {', '.join(facts)}"
