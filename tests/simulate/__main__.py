"""Simulates jobs: ``python -m tests.simulate --runs 20000 --seed 1``. Prints each seed that fails."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.simulate.draw import simulate


def main(argv: list[str]) -> int:
    """Simulate, and print what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; the others follow it")
    parser.add_argument("--story", action="store_true", help="print what happens in the run")
    parser.add_argument("--stop-after", type=int, default=3, help="number of failed runs after which to stop")
    asked = parser.parse_args(argv)
    first = random.SystemRandom().randrange(10**9) if asked.seed is None else asked.seed
    began, failed, steps = time.monotonic(), list[int](), 0
    counts: Counter[str] = Counter()
    for seed in range(first, first + asked.runs):
        world = simulate(seed)
        steps += world.steps
        over = world.overs[-1] if world.overs else None
        counts["lost node 0" if over is None else "success" if not over.status else "failed"] += 1
        counts["restarted"] += len({made.attempt for made in world.history}) > 1
        if world.wrong or asked.story:
            print(f"seed {seed}: {world.job}")
            print(
                "\n".join(f"  {line}" for line in [*world.story, *(f"WRONG: {one}" for one in world.wrong)])
            )
            failed += [seed] * bool(world.wrong)
            if len(failed) >= asked.stop_after:
                break
    took = time.monotonic() - began
    done = sum(counts.values()) - counts["restarted"]
    rate = done / took * 60
    print(
        f"{done} runs from seed {first}, {rate:.0f} a minute, {steps / done:.0f} steps each: {dict(counts)}"
    )
    print(f"failed: {failed}" if failed else "no invariant was broken")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
