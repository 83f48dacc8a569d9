"""Dumps of flight recorders as NCCL's process group writes them, made again from facts.

Names of fields, states and the order of frames are those of torch's format 2.10 and of dumps in public
reports: "Flight Recorder for Debugging Stuck Jobs" (docs.pytorch.org) and torch's tests of
ProcessGroupNCCL. No dump of a GPU was recorded here: ``tests/process/test_recorder.py`` has gloo's, live.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

NOW_NS = 1_760_000_600_000_000_000
"""Time of the dumps; a collective that was called 600 s before was called at 1,760,000,000 s."""
TORCH = "/opt/conda/lib/python3.11/site-packages/torch/distributed"


def make_entry(
    number: int,
    name: str = "nccl:all_reduce",
    *,
    state: str = "completed",
    sizes: tuple[int, ...] = (10_000_000,),
    dtype: str = "Float",
    group: tuple[str, str] = ("0", "default_pg"),
    pg_id: int = 0,
    line: int = 88,
    age_s: float = 600,
    is_p2p: bool = False,
    retired: bool | None = None,
) -> dict[str, Any]:
    """Return one entry of the ring buffer."""
    created = NOW_NS - int(age_s * 1e9)
    done = state == "completed"
    function = name.rpartition(":")[2].split(" ")[0]
    return {
        "frames": [
            {"name": function, "filename": f"{TORCH}/distributed_c10d.py", "line": 2501},
            {"name": "wrapper", "filename": f"{TORCH}/c10d_logger.py", "line": 83},
            {"name": "step", "filename": "/job/train.py", "line": line},
            {"name": "<module>", "filename": "/job/train.py", "line": 120},
        ],
        "record_id": number - 1,
        "pg_id": pg_id,
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": created,
        "duration_ms": 1.5 if done else None,
        "input_sizes": [list(sizes)],
        "input_dtypes": [dtype],
        "output_sizes": [list(sizes)],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": created + 1000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + 2000 if done else None,
        "retired": done if retired is None else retired,
        "timeout_ms": 600000,
        "is_p2p": is_p2p,
    }


def make_dump(
    entries: list[dict[str, Any]], groups: dict[str, tuple[str, list[int]]] | None = None
) -> dict[str, Any]:
    """Return a dump; ``groups``: description and ranks by the name of the group."""
    groups = {"0": ("default_pg", [0, 1, 2, 3])} if groups is None else groups
    statuses: dict[str, dict[str, int]] = {}
    for entry in (one for one in entries if not one["is_p2p"]):
        status = statuses.setdefault(
            str(entry["pg_id"]),
            {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
        )
        status["last_enqueued_collective"] = entry["collective_seq_id"]
        if entry["state"] == "completed":
            status["last_completed_collective"] = entry["collective_seq_id"]
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.5",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in groups.items()
        },
        "pg_status": statuses,
        "entries": entries,
    }


def as_pickle(dump: dict[str, Any]) -> bytes:
    """Return a dump as torch writes it into a file: a pickle of protocol 2."""
    return pickle.dumps(dump, protocol=2)


def as_json(dump: dict[str, Any]) -> bytes:
    """Return a dump as torch's JSON: no frames, texts for the numbers of a status, 0 for no time."""
    entries = [{**one, "process_group": list(one["process_group"])} for one in dump["entries"]]
    statuses = {
        key: {name: str(number) for name, number in status.items()}
        for key, status in dump["pg_status"].items()
    }
    for one in entries:
        del one["frames"]
        one["time_discovered_completed_ns"] = one["time_discovered_completed_ns"] or 0
    return json.dumps({**dump, "entries": entries, "pg_status": statuses}).encode()
