"""The README's lines for two nodes, typed on both as they stand, with no sshd and no keys."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.mpis import find_mpi
from tests.process.starting import ROOT, clean_environ

from .conftest import need_namespaces

README = Path(ROOT, "README.md").read_text(encoding="utf-8")
LINES = re.findall(r"`((?:LAUNCHER_TOKEN=\S+ )?launcher run [^`]*--hosts node0,node1[^`]*)`", README)
SCRIPT = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"


@pytest.mark.mpi
@pytest.mark.parametrize("line", [line for line in LINES if "--ssh" not in line])
def test_a_line_of_two_nodes_works_as_it_stands(line: str, tmp_path: Path) -> None:
    """Each node starts one process: it has no GPU."""
    need_namespaces()
    (tmp_path / "train.py").write_text(SCRIPT)
    own = find_mpi("openmpi5").environ
    environ = clean_environ(**own, CUDA_VISIBLE_DEVICES="")
    environ["PATH"] = f"{ROOT}/bin:{Path(sys.executable).parent}:{own.get('PATH', '')}:{environ['PATH']}"
    with Cluster(2) as cluster:
        started = [
            subprocess.Popen(
                cluster.argv(node, ["sh", "-c", line], cwd=str(tmp_path)),
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in cluster.nodes
        ]
        done = [(*one.communicate(timeout=90), one.returncode) for one in started]
    assert [status for _, _, status in done] == [0, 0], done
    said = sorted(re.findall(r"rank \d of \d", "".join(out for out, _, _ in done)))
    assert said == ["rank 0 of 2", "rank 1 of 2"], done


def test_both_lines_are_there() -> None:
    assert len(LINES) == 3, "with --hosts, without a mpirun, and by ssh"
