"""Does planning grow linearly? ``python benchmarks/planning.py``: 10 to 100,000 hosts, in one process.

Each line is the median of 7 plans for the last node of an Azure Batch task (the host list is parsed,
checked and searched for our own address) and of a Slurm task (the node list is expanded). The
promises: 10,000 hosts in under 200 ms, 100,000 in under 2 s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.machine import describe_machine
from benchmarks.tables import cell, markdown, promise
from launcher.machine.host import Host
from launcher.options.reading import Options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.sources.nodelist import MAX_RANGE

SIZES = (10, 1_000, 10_000, 100_000)
PROMISES_MS = {10_000: 200.0, 100_000: 2000.0}


def azure_batch(count: int) -> Host:
    """Return the last of ``count`` nodes of a multi-instance task."""
    hosts = [f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}" for i in range(count)]
    environ = {
        "AZ_BATCH_HOST_LIST": ",".join(hosts),
        "AZ_BATCH_MASTER_NODE": f"{hosts[0]}:6000",
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
    }
    return replay({"environ": environ, "addresses": {"eth0": [hosts[-1]]}, "gpus": 8})


def slurm(count: int) -> Host:
    """Return the last task of ``count`` nodes with one task each."""
    environ = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(count - 1),
        "SLURM_NTASKS": str(count),
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(count - 1),
        "SLURM_STEP_NUM_NODES": str(count),
        "SLURM_STEP_NODELIST": f"node[{','.join(name_ranges(count))}]",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{count})",
    }
    return replay({"environ": environ, "gpus": 8})


def name_ranges(count: int) -> list[str]:
    """Return the ranges of node numbers as Slurm writes them: none has more than 65,536."""
    firsts = range(0, count, MAX_RANGE)
    return [f"{first:06}-{min(first + MAX_RANGE, count) - 1:06}" for first in firsts]


def measure(make: Callable[[int], Host], count: int) -> float:
    """Return the median time of a plan, in ms."""
    host, times = make(count), []
    for _ in range(7):
        started = time.perf_counter()
        plan = plan_job(host.environ, host, Options(), ["train.py"])
        times.append((time.perf_counter() - started) * 1e3)
    assert plan.topology.world_size == 8 * count
    return median(times)


def main() -> int:
    """Print the table; the exit status says whether the promise holds."""
    rows, worst = [], {}
    for count in SIZES:
        batch, step = measure(azure_batch, count), measure(slurm, count)
        worst[count] = max(batch, step)
        per_host = (cell(ms / count * 1e3) for ms in (batch, step))
        rows.append((f"{count:,}", cell(batch), next(per_host), cell(step), next(per_host)))
    head = ("hosts", "Azure Batch, ms", "per host, us", "Slurm, ms", "per host, us")
    print(f"{describe_machine()}; medians of 7 plans of the last node.\n")
    print("\n".join(markdown(head, rows)) + "\n")
    for count, limit_ms in PROMISES_MS.items():
        print(promise(f"ms for {count:,} hosts", limit_ms, worst[count]))
    return int(any(worst[count] > limit_ms for count, limit_ms in PROMISES_MS.items()))


if __name__ == "__main__":
    sys.exit(main())
