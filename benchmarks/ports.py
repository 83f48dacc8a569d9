"""What do RDMA ports cost to read? ``python -m benchmarks.ports``: the 9 devices of an ND H200 v5, as files.

The median of 21 readings of a folder, of its snapshot, and of 8 RoCE devices, whose tables have 256
identifiers each. The kernel's own /sys asks the firmware for some of it, which no folder shows. The
promise: 9 devices in under 15 ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.machine import describe_machine
from launcher.host import Host
from launcher.snapshot import RecordedHost, take_snapshot
from tests.golden.fabrics import Json, read_fabric, write_fabric

PROMISE_MS = 15.0
ROUNDS = 21


def measure(read: Callable[[], object]) -> float:
    """Return the median time of a call, in ms."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        read()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def roce(count: int) -> Json:
    """Return a machine with so many RoCE devices, with the tables of a ConnectX in Ethernet mode."""
    fabric = read_fabric("roce")
    port = fabric["devices"]["mlx5_bond_0"]
    devices = {f"mlx5_{i}": {**port, "at": f"pci0000:{i:02x}/0000:{i:02x}:00.0"} for i in range(count)}
    return {"devices": devices, "tables": {"gids": 256, "pkeys": 1}}


def main() -> int:
    """Print the times; the exit status says whether the promise holds."""
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "nd96isr_h200_v5"), Path(folder, "roce")
        write_fabric(first, read_fabric("nd96isr_h200_v5"))
        write_fabric(second, roce(8))
        files, tables = Host(str(first)), Host(str(second))
        snapshot = RecordedHost(take_snapshot(files, {}))
        assert len(files.hca_ports()) == len(snapshot.hca_ports()) == 9 and len(tables.hca_ports()) == 8
        nine_ms = measure(files.hca_ports)
        print(f"9 devices of an ND H200 v5, files    {nine_ms:6.2f} ms")
        print(f"9 devices of an ND H200 v5, snapshot {measure(snapshot.hca_ports):6.2f} ms")
        print(f"8 RoCE devices, 256 identifiers each {measure(tables.hca_ports):6.2f} ms")
        print(f"interfaces of this machine           {measure(Host().interfaces):6.2f} ms")
    kept = "kept" if nine_ms < PROMISE_MS else "BROKEN"
    print(f"promise: 9 devices under {PROMISE_MS:g} ms: {kept} ({nine_ms:.1f} ms)")
    return int(nine_ms >= PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
