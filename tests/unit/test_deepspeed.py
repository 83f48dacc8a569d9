"""DeepSpeed's own functions, with what the launcher gives a process of every recorded job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import LauncherError
from launcher.model import Plan
from launcher.plan import render_environ
from tests.golden.jobs import plan_snapshot, read_case, snapshots
from tests.golden.truth import TRUTH, Job
from tests.process.starting import clean_environ

DEADLINE_S = 300.0
PROBE = Path(__file__).parent / "deepspeed_probe.py"


def ask_deepspeed(environs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return what the real DeepSpeed makes of each of these environments."""
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(environs),
        env=clean_environ(DS_ACCELERATOR="cpu"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def processes_of_all_jobs() -> list[tuple[str, Plan, dict[str, str], dict[str, Any]]]:
    """Return, for each process of each recorded job: a name, its plan, its environment, and the truth."""
    found = []
    for name in sorted(name for name, truth in TRUTH.items() if isinstance(truth, Job)):
        case = read_case(name)
        for place, snapshot in enumerate(snapshots(case)):
            try:
                plan, environ = plan_snapshot(case, place, snapshot)
            except LauncherError:
                continue
            for process in plan.processes:
                job = plan.topology
                expected = {
                    "asked": [],
                    "rank": process.rank,
                    "local_rank": process.local_rank,
                    "world_size": job.world_size,
                    "master": f"{job.master_addr}:{job.master_port}",
                    "engine_local_rank": process.local_rank,
                    "local_size": job.local_size,
                    "machine_rank": job.node_rank if job.node_count is not None else None,
                    "num_machines": job.node_count if job.node_rank is not None else None,
                }
                found.append(
                    (f"{name} rank {process.rank}", plan, render_environ(plan, process, environ), expected)
                )
    return found


@pytest.mark.torch
def test_deepspeed_agrees_in_every_recorded_job() -> None:
    """It asks neither MPI nor Azure ML, and has the launcher's ranks; the user's network stays."""
    processes = processes_of_all_jobs()
    assert len(processes) > 200
    answers = ask_deepspeed([environ for _, _, environ, _ in processes])
    for (name, _, environ, expected), answer in zip(processes, answers, strict=True):
        assert "error" not in answer, (name, answer)
        known = {key: value for key, value in expected.items() if value is not None}
        assert known == {key: answer[key] for key in known}, name
        assert answer["NCCL_SOCKET_IFNAME"] == environ.get("NCCL_SOCKET_IFNAME"), name


@pytest.mark.torch
def test_what_deepspeed_does_without_the_launcher() -> None:
    """On Azure ML its own reading fails, or overwrites the user's interface; elsewhere it asks mpi4py."""
    azure, openmpi = (
        dict(snapshots(read_case(name))[0]["environ"]) for name in ("azureml_mpi_2x2", "openmpi_5.0.11_2x2")
    )
    without, with_network = azure, {**azure, "NCCL_SOCKET_IFNAME": "ib0"}
    lost, overwritten, asks_mpi = ask_deepspeed([without, with_network, openmpi])
    assert lost["asked"] == ["patch_aml_env_for_torch_nccl_backend"]
    assert lost["error"] == "KeyError: 'NCCL_SOCKET_IFNAME'"
    assert overwritten["NCCL_SOCKET_IFNAME"] == "^docker0,lo"
    assert asks_mpi["asked"] == ["mpi_discovery"]
