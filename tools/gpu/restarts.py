"""A rank that holds most of the card is killed: the next attempt starts once the memory is free."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from part import Done, Part, all_results

GIB = 60
FREE_GIB = 10.0


def wait(part: Part) -> None:
    """With the launcher, and with torchrun beside it."""
    ways: dict[str, Callable[[str], Done]] = {
        "launcher": lambda path: part.job(
            "launcher", ("--restarts", "1", "--timings"), *part.program("hold", str(GIB), path), limit_s=30
        ),
        "torchrun": lambda path: part.run(
            "torchrun",
            (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1",
             "--max-restarts", "1", *part.program("hold", str(GIB), path)[1:]),
            40,
        ),
    }  # fmt: skip
    for name, run in ways.items():
        with part.step(name):
            done = run(os.path.join(part.logs, f"{part.name}.{name}.died"))
            found = all_results(done.out)
            part.figure(name, (found, done.status, done.seconds, done.err[-2500:]))
            if name == "launcher":
                part.check("the second attempt trains", (0, 1), (done.status, len(found)))
                part.check("no message about memory in use", False, "GPU memory" in done.err)
                used = found[0]["used_gib"] if found else None
                free = used is not None and used < FREE_GIB
                part.check("GiB in use when it starts", f"less than {FREE_GIB}", used, right=free)
