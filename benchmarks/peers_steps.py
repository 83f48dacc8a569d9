"""What does the control channel cost a healthy job? ``python -m benchmarks.peers_steps``

Simulated nodes with a network of their own each, one process on each, steps of a little work and an
allreduce by gloo: with the channel, and with ``--no-peers``, in turns, so that what else happens on the
machine meets both. A run counts by the quickest tenth of its steps, which others have disturbed least, and by
its median; a round by the ratio of its two runs; all rounds by their median and how far they spread. A
control is measured in the same way, without the channel both times: what the channel adds is seen only
where it is more than that.

Then a job that only sleeps, with the channel: all bytes that a node's interface has sent and heard, headers
included, are the channel's, and so is the CPU time of the launcher, which no noise changes much: it is a
bound on what the steps can lose. Needs root, for the nodes, and torch.

The promises: no change of the step time that could be measured; less than 1 kB/s for each node.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import psutil

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.peers import CHECKOUT
from benchmarks.tables import markdown, progress, promise
from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.process.starting import clean_environ

PROMISE_BYTES_S = 1000.0
STEPS = 4000
WATCHED_S = 30.0
SETTLE_S = 4.0
LIMIT_S = 180.0
RANK = Path(CHECKOUT) / "benchmarks" / "steps.py"
WITH: tuple[str, ...] = ()
WITHOUT = ("--no-peers",)


class Run(NamedTuple):
    """The steps of one run, ms."""

    quick: float
    middle: float


def start(
    cluster: Cluster, node: SimulatedNode, flags: tuple[str, ...], command: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start the launcher of a node."""
    shape = ("--nnodes", str(len(cluster.nodes)), "--nproc-per-node", "1", "--node-rank", str(node.index))
    master = ("--master-addr", cluster.nodes[0].address, "--engine", "process", "--no-check")
    line = (sys.executable, "-m", "launcher", "run", *shape, *master, *flags, "--", *command)
    return subprocess.Popen(
        cluster.argv(node, line), env=clean_environ(), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def run_steps(cluster: Cluster, flags: tuple[str, ...], path: Path) -> Run:
    """Return the quickest tenth and the median of a run's steps, ms."""
    command = (sys.executable, str(RANK), str(path), str(STEPS))
    launchers = [start(cluster, node, flags, command) for node in cluster.nodes]
    statuses = [launcher.wait(LIMIT_S) for launcher in launchers]
    if any(statuses):
        raise RuntimeError(f"a run has ended with {statuses}")
    taken = json.loads(path.read_text())
    return Run(quantiles(taken, n=10)[0] / 1e6, median(taken) / 1e6)


def measure_ratios(
    cluster: Cluster, pair: tuple[tuple[str, ...], tuple[str, ...]], rounds: int, folder: Path, name: str
) -> list[tuple[Run, Run]]:
    """Return both kinds of run, round by round; who is first changes every round."""
    found = []
    for index in range(rounds):
        order = (0, 1) if index % 2 else (1, 0)
        runs = {place: run_steps(cluster, pair[place], folder / "steps.json") for place in order}
        found.append((runs[0], runs[1]))
        progress(f"{name}: round {index + 1} of {rounds}: {runs[0].quick:.3f} and {runs[1].quick:.3f} ms")
    return found


def count_bytes(cluster: Cluster, node: SimulatedNode) -> int:
    """Return what a node's interfaces but its loopback have sent and heard."""
    line = cluster.argv(node, ("cat", "/proc/net/dev"))
    text = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, check=True).stdout
    rows = [
        row.partition(":")[2].split() for row in text.splitlines()[2:] if row.split(":")[0].strip() != "lo"
    ]
    return sum(int(row[0]) + int(row[8]) for row in rows)


def count_cpu_s(launcher: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of a launcher, its watchdog and its sleeping process, to the nanosecond."""
    family = psutil.Process(launcher.pid).children(recursive=True)
    return sum(int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) for one in family) / 1e9


def measure_rest(cluster: Cluster) -> tuple[list[float], list[float]]:
    """Return what each node of a job that sleeps sends and hears, B/s, and its launcher's CPU, percent."""
    command = ("sleep", str(int(SETTLE_S + WATCHED_S + 10)))
    launchers = [start(cluster, node, WITH, command) for node in cluster.nodes]
    time.sleep(SETTLE_S)  # the roll call is no heartbeat
    cpu = [count_cpu_s(launcher) for launcher in launchers]
    began, before = time.monotonic(), [count_bytes(cluster, node) for node in cluster.nodes]
    time.sleep(WATCHED_S)
    after, seconds = [count_bytes(cluster, node) for node in cluster.nodes], time.monotonic() - began
    used = [count_cpu_s(launcher) - first for launcher, first in zip(launchers, cpu, strict=True)]
    if any(launcher.wait(LIMIT_S) for launcher in launchers):
        raise RuntimeError("the job that sleeps has failed")
    rates = [(last - first) / seconds for first, last in zip(before, after, strict=True)]
    return rates, [100 * one / seconds for one in used]


def describe(name: str, found: list[tuple[float, float]]) -> tuple[str, ...]:
    """Return a row of the table from pairs of steps, ms."""
    ratios = [second / first for first, second in found]
    low, _, high = quantiles(ratios, n=4)
    return (
        name,
        f"{median(one for one, _ in found):.3f}",
        f"{median(two for _, two in found):.3f}",
        f"{median(ratios):.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    )


def main() -> int:
    """Measure, and print the tables; the exit status says whether the second promise holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    load = OtherLoad()
    with tempfile.TemporaryDirectory() as name, Cluster(asked.nodes) as cluster:
        folder = Path(name)
        rows = []
        for title, pair in (
            ("without the channel, and with it", (WITHOUT, WITH)),
            ("control: without it, twice", (WITHOUT, WITHOUT)),
        ):
            found = measure_ratios(cluster, pair, asked.rounds, folder, title)
            rows.append(describe(f"{title}: quickest tenth", [(one.quick, two.quick) for one, two in found]))
            rows.append(describe(f"{title}: median", [(one.middle, two.middle) for one, two in found]))
        rates, shares = measure_rest(cluster)
    head = ("what", "first, ms", "second, ms", "ratio, median", "half of the rounds", "all rounds")
    print(describe_machine())
    print(f"\n{asked.nodes} nodes, {asked.rounds} rounds of two runs, {STEPS} steps each; medians.\n")
    print("\n".join(markdown(head, rows)))
    print(f"\nEach node sends and hears, B/s: {', '.join(f'{rate:.0f}' for rate in rates)} (node 0 first).")
    print(f"CPU of each launcher meanwhile, % of a core: {', '.join(f'{share:.3f}' for share in shares)}.")
    print(f"Everybody else used {load.percent():.0f} % of the CPUs meanwhile.\n")
    print(promise("B/s for each node", PROMISE_BYTES_S, max(rates)))
    return int(max(rates) > PROMISE_BYTES_S)


if __name__ == "__main__":
    raise SystemExit(main())
