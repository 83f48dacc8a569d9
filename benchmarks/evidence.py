"""How long does the end of a job wait for evidence? ``python -m benchmarks.evidence``

Eight ranks wait in a lock and one fails; the others are asked for their stacks, and then get SIGTERM, which
ends them at once. So the time from the failure to their end is that of the evidence. Ranks are plain Python,
Python that has imported torch (many threads, large stacks), and a shell's sleep, which cannot answer.
Each is measured beside ``--grace 0``, where nothing is asked and the others are killed at once.

The promise: less than 1 s with 8 ranks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.tables import markdown, progress, promise
from tests.process.starting import clean_environ

PROMISE_S = 1.0
RANKS = 8
WAITS = """
import os, sys, threading, time
{load}
job, rank = sys.argv[1], os.environ["RANK"]
open(job + "/up-" + rank, "w").close()
def step():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
if rank != "1":
    step()
while len([name for name in os.listdir(job) if name.startswith("up-")]) < 8:
    time.sleep(0.01)
time.sleep(1)
sys.exit(7)
"""
SLEEPS = "test $RANK = 1 && sleep 1 && exit 7; exec sleep 1000"
KINDS = {"Python": "", "Python with torch": "import torch", "a shell": None}
WAYS: dict[str, tuple[str, ...]] = {"with evidence": (), "--grace 0": ("--grace", "0")}


def run(folder: Path, load: str | None, flags: tuple[str, ...]) -> tuple[float, int]:
    """Return the seconds from the failure to the end of the last other rank, and the number of stacks.

    Raises:
        RuntimeError: The job did not end with the status of the rank that fails.
    """
    record = folder / "failure.json"
    for old in folder.glob("up-*"):
        old.unlink()
    command: tuple[str, ...] = ("sh", "-c", SLEEPS)
    if load is not None:
        (folder / "train.py").write_text(WAITS.format(load=load))
        command = (sys.executable, str(folder / "train.py"), str(folder))
    words = ("run", "--nproc-per-node", str(RANKS), "--failure-file", str(record), *flags, "--", *command)
    done = subprocess.run(
        (sys.executable, "-m", "launcher", *words),
        env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode != 7:
        raise RuntimeError(done.stderr.decode())
    told = json.loads(record.read_text())
    stacks = sum(bool(one["stack"]) for one in told["evidence"])
    return max(one["seconds_after"] for one in told["others"]), stacks


def main() -> int:
    """Measure, and print the table; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    load, rows, worst = OtherLoad(), [], 0.0
    with tempfile.TemporaryDirectory() as name:
        for kind, imports in KINDS.items():
            taken: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, flags in WAYS.items():
                    seconds, stacks = run(Path(name), imports, flags)
                    if bool(stacks) != (imports is not None and not flags):
                        raise RuntimeError(f"{kind}, {way}: {stacks} stacks")
                    taken[way].append(1000 * seconds)
            worst = max(worst, *taken["with evidence"])
            progress(f"{kind}: {taken}")
            ends = [f"{median(one):.0f} ({min(one):.0f} to {max(one):.0f})" for one in taken.values()]
            rows.append((kind, *ends))
    print(describe_machine())
    print(f"\nFrom a failure to the end of the other {RANKS - 1} ranks, {rounds} rounds, ms: median (span)\n")
    print("\n".join(markdown(("ranks", *WAYS), rows)))
    print(f"\nEverybody else used {load.percent():.0f} % of the CPUs meanwhile.\n")
    print(promise("ms until the others have ended", 1000 * PROMISE_S, worst))
    return int(worst > 1000 * PROMISE_S)


if __name__ == "__main__":
    raise SystemExit(main())
