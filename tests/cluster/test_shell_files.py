"""Shell files with a launcher in them, on two nodes: one job, or a refusal whose fix makes it one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cluster.frameworks import printed, rehearse

pytestmark = [pytest.mark.root, pytest.mark.torch]

JOB = r"""
    import os, sys
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(1)
    dist.all_reduce(total)
    os.write(1, f"{dist.get_rank()} of {dist.get_world_size()}: {int(total)}\n".encode())
    dist.destroy_process_group()
"""
ONE_JOB = [f"{rank} of 4: 4" for rank in range(4)]
NUMBERS = (
    "--nnodes $GROUP_WORLD_SIZE --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
STYLES = [pytest.param("openmpi", marks=pytest.mark.mpi), "slurm", "azureml-pytorch", "plain"]


def write(folder: Path, lines: str) -> str:
    """Write a shell file whose ``JOB`` is a script that adds up over all processes."""
    script, path = folder / "job.py", folder / "go.sh"
    script.write_text(textwrap.dedent(JOB))
    path.write_text(f"#!/bin/bash\n{lines.replace('JOB', str(script))}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.thorough
@pytest.mark.parametrize("like", STYLES)
def test_a_file_that_is_torchrun_is_one_job(tmp_path: Path, like: str) -> None:
    """As if it were typed."""
    done = rehearse(like, write(tmp_path, "torchrun --nproc_per_node=2 JOB"))
    assert sorted(printed(done).splitlines()) == ONE_JOB


@pytest.mark.thorough
@pytest.mark.parametrize("like", STYLES)
def test_a_file_that_does_more_is_refused_and_the_fix_works(tmp_path: Path, like: str) -> None:
    """Each node would have been a job of 2; the variables that the message names make one job of 4."""
    done = rehearse(like, write(tmp_path, "export A=1\ntorchrun --nproc_per_node=2 JOB"))
    assert done.returncode == 78 and "[contradiction]" in done.stderr and NUMBERS in done.stderr
    done = rehearse(like, write(tmp_path, f"export A=1\ntorchrun {NUMBERS} --nproc_per_node=2 JOB"))
    assert sorted(printed(done).splitlines()) == ONE_JOB


@pytest.mark.thorough
@pytest.mark.parametrize("like", STYLES)
def test_a_file_that_is_started_for_each_process_is_refused(tmp_path: Path, like: str) -> None:
    """It would start torchrun twice on each node, by the platform's hand or by ours."""
    done = rehearse(like, write(tmp_path, "export A=1\ntorchrun --nproc_per_node=2 JOB"), processes=2)
    assert done.returncode == 64 and "[launcher-per-process]" in done.stderr
    assert "--scope" not in done.stderr
