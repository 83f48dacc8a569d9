"""What do RDMA ports cost to read? ``python -m benchmarks.ports``: the 9 devices of an ND H200 v5, as files.

The median of 21 readings of a folder, of its snapshot, and of 8 RoCE devices, whose tables have 256
identifiers each. The kernel's own /sys asks the firmware for some of it, which no folder shows. Then
what a launch on such a node, with its 8 GPUs, pays in total: a plan for two nodes, with a topology file that
is made for it, less one for one node, each in a fresh interpreter, so that modules count. In processor time:
nothing here waits for anything, and machines are shared. The promise: under 15 ms, both.
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
from benchmarks.tables import cell, markdown, promise
from launcher.machine.host import Host
from launcher.machine.infiniband import read_ports
from launcher.machine.network import read_interfaces
from launcher.planning.recorded import replay
from launcher.planning.snapshot import take_snapshot
from tests.golden.fabrics import Json, read_fabric, write_fabric
from tests.unit.machines import write_gpus

PROMISE_MS = 15.0
ROUNDS = 21
PLAN = """
import sys, time
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
environ = {"LAUNCHER_NNODES": sys.argv[2], "LAUNCHER_NODE_RANK": "0", "LAUNCHER_MASTER_ADDR": "10.0.0.9"}
environ["AZUREML_CR_COMPUTE_CONTEXT"] = '{"vm_size": "Standard_ND96isr_H200_v5"}'
host, options = Host(sys.argv[1]), read_options({"engine": "process"}, environ)
started = time.process_time()
job = plan_job(environ, host, options, ["train.py"])
print((time.process_time() - started) * 1e3)
assert job.network is None or job.network.files, "no topology file was made"
"""


def measure(read: Callable[[], object]) -> float:
    """Return the median time of a call, in ms."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        read()
        times.append((time.process_time() - started) * 1e3)
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
    print(f"{describe_machine()}; medians, processor time.\n")
    with tempfile.TemporaryDirectory() as folder:
        first, second = Path(folder, "nd96isr_h200_v5"), Path(folder, "roce")
        write_fabric(first, read_fabric("nd96isr_h200_v5"))
        domains = (0x1, 0x2, 0x3, 0x8, 0x9, 0xA, 0xB, 0xC)
        write_gpus(first, [(f"{domain:04x}:00:00.0", place // 4) for place, domain in enumerate(domains)])
        write_fabric(second, roce(8))
        files, tables = Host(str(first)), Host(str(second))
        snapshot = replay(take_snapshot(files, {}))
        assert len(read_ports(files)) == len(read_ports(snapshot)) == 9 and len(read_ports(tables)) == 8
        found = {
            "9 devices of an ND H200 v5, files": measure(lambda: read_ports(files)),
            "the same, from a snapshot": measure(lambda: read_ports(snapshot)),
            "8 RoCE devices, 256 identifiers each": measure(lambda: read_ports(tables)),
            "the interfaces of this machine": measure(lambda: read_interfaces(Host())),
            "a launch on the first, two nodes less one": measure_plan(first, 2) - measure_plan(first, 1),
        }
    print("\n".join(markdown(("what is read", "ms"), [(name, cell(ms)) for name, ms in found.items()])))
    first_ms, *_, launch_ms = found.values()
    worst = max(first_ms, launch_ms)
    print(f"\n{promise('ms for 9 devices, and for all of a launch', PROMISE_MS, worst)}")
    return int(worst > PROMISE_MS)


if __name__ == "__main__":
    sys.exit(main())
