"""NCCL's flight recorder: its dump is written, read and concluded from; its names in this torch."""

from __future__ import annotations

import glob
import os
import sys
from typing import Any

from part import Part, find_result

from launcher.hang.conclude import conclude
from launcher.hang.dumps import load, read_rank
from launcher.hang.recorder import find_torch

NAMES = "import os, torch; print(torch.__path__[0] + '/lib', os.path.dirname(torch.__path__[0]))"


def hang(part: Part) -> None:
    """One rank hangs in a collective; a second one that never called it is made up."""
    marker, evidence = (os.path.join(part.logs, f"{part.name}.{name}") for name in ("marker", "evidence"))
    flags = (
        "--init",
        "--stall-timeout",
        "12",
        "--on-stall",
        "stop",
        "--evidence-dir",
        evidence,
        "--grace",
        "3",
    )
    with part.step("hang"):
        job = part.start_job("hang", flags, *part.program("hang", marker))
        part.check("it hangs", True, job.wait_for(marker, 40))
        done = job.wait(45)
        rank = find_result(done.out)
        part.figure("rank", rank)
        part.figure("stderr", done.err[-5000:])
        pipe = os.path.basename(rank.get("variables", {}).get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", ""))
        part.check(
            "the pipe's name", f"{pipe}0.pipe", rank.get("folder"), right=f"{pipe}0.pipe" in rank["folder"]
        )
        part.holds("dumps are named", "dumps of the flight recorders: ", done.err)
        part.check("no warning of torch", False, "deprecat" in done.err.lower())
    with part.step("dump"):
        paths = glob.glob(os.path.join(evidence, "node*", "recorder_rank_0*"))
        part.check("the dump is there", 1, len(paths))
        with open(paths[0], "rb") as file:
            data = file.read()
        loaded = load(data)
        entries: Any = loaded["entries"]
        part.figure("dump", {key: value for key, value in loaded.items() if key != "entries"})
        part.figure("last entry", entries[-1])
        part.figure("states", [entry.get("state") for entry in entries])
        record = read_rank(0, data)
        part.figure("record", record)
        part.check("backend", "nccl", record.backend)
        group = record.groups[0]
        part.check("called and completed", (4, 3), (group.enqueued, group.completed))
        part.check(
            "line of the script", "rank.py", group.recent[-1].where, right="rank.py" in group.recent[-1].where
        )
        found = conclude_with_absent(loaded)
        part.check("conclusion", "rank 1 never joined all_reduce number 4", found[:1], right=bool(found) and
                   found[0].startswith("rank 1 never joined all_reduce number 4"))  # fmt: skip
    with part.step("names"):
        lib, site = part.run("where", (sys.executable, "-c", NAMES), 40).out.split()
        part.check("torch's version is found", False, find_torch([site]) is None)
        line = f"grep -aohE 'TORCH_(FR|NCCL)_[A-Z_]+' {lib}/libtorch_c*.so | sort -u"
        part.figure("variables of this torch", part.run("names", ("sh", "-c", line), 40).out.split())


def conclude_with_absent(loaded: dict[str, Any]) -> list[str]:
    """Return what follows from a dump and from a second rank's without the last collective."""
    import pickle

    configs = {name: {**one, "ranks": "[0, 1]"} for name, one in dict(loaded["pg_config"]).items()}
    here, entries = {**loaded, "pg_config": configs}, loaded["entries"]
    status = {
        name: {**one, "last_enqueued_collective": len(entries) - 1}
        for name, one in loaded["pg_status"].items()
    }
    there = {**here, "entries": entries[:-1], "pg_status": status}
    records = [read_rank(rank, pickle.dumps(dump)) for rank, dump in enumerate((here, there))]
    return [one.text for one in conclude(records, 2)]
