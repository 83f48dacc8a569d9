"""What do RDMA ports cost to read? ``python -m benchmarks.ports``: the 9 devices of an ND H200 v5, as files.

The median of 21 readings of a folder, of its snapshot, and of 8 RoCE devices, whose tables have 256
identifiers each. The kernel's own /sys asks the firmware for some of it, which no folder shows. Then
what a launch on such a node pays in all, each in a fresh interpreter, so that modules count: a plan for two
nodes less one for one node; and with 8 GPUs and 96 CPUs, to which 8 processes are bound, less a plan
where nothing is to be read. NVML has no part in it. The promise: under 15 ms, each.
"""

from __future__ import annotations

import subprocess
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
from tests.unit.machines import ND_V5

PROMISE_MS = 15.0
ROUNDS = 21
PLAN = """
import sys, time
from launcher.host import Host
from launcher.options import read_options
from launcher.plan import plan_job
environ = {"LAUNCHER_NNODES": sys.argv[2], "LAUNCHER_NODE_RANK": "0", "LAUNCHER_MASTER_ADDR": "10.0.0.9"}
host, options = Host(sys.argv[1]), read_options({"engine": "process"}, environ)
started = time.perf_counter()
plan_job(environ, host, options, ["train.py"])
print((time.perf_counter() - started) * 1e3)
"""


def measure(read: Callable[[], object]) -> float:
    """Return the median time of a call, in ms."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        read()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def measure_plan(root: Path, node_count: int) -> float:
    """Return the median time of a plan in a fresh interpreter, in ms."""
    line = [sys.executable, "-c", PLAN, str(root), str(node_count)]
    outputs = [subprocess.run(line, check=True, capture_output=True).stdout for _ in range(ROUNDS)]
    return median(map(float, outputs))


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
        first, second, whole, bare = (Path(folder, name) for name in ("ports", "roce", "whole", "bare"))
        for root in (whole, bare):
            root.mkdir()
        ND_V5(whole)
        write_fabric(whole, read_fabric("nd96isr_h200_v5"))
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
        launch_ms = measure_plan(first, 2) - measure_plan(first, 1)
        print(f"a launch on it, two nodes less one   {launch_ms:6.2f} ms")
        whole_ms = measure_plan(whole, 2) - measure_plan(bare, 1)
        print(f"the same with 8 GPUs and binding     {whole_ms:6.2f} ms")
    is_kept = max(nine_ms, launch_ms, whole_ms) < PROMISE_MS
    print(f"promise: under {PROMISE_MS:g} ms: {'kept' if is_kept else 'BROKEN'}")
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
