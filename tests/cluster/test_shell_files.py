"""Shell files with a launcher in them, on two nodes: a warning, and its fix makes them one job."""

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
def test_a_file_that_calls_torchrun_is_warned_about_and_the_fix_works(tmp_path: Path, like: str) -> None:
    """Each node is a job of 2; what the warning says, or the job's numbers, make one job of 4."""
    line = "torchrun --nproc_per_node=2 JOB"
    done = rehearse(like, write(tmp_path, line))
    assert "names torchrun, which may start all processes of a node, and is started once on" in done.stderr
    done = rehearse(like, write(tmp_path, line.replace("torchrun", f"torchrun {NUMBERS}")))
    assert sorted(printed(done).splitlines()) == ONE_JOB and "names torchrun" not in done.stderr
    done = rehearse(like, "torchrun", "--nproc_per_node=2", str(tmp_path / "job.py"))
    assert sorted(printed(done).splitlines()) == ONE_JOB
