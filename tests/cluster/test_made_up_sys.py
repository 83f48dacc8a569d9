"""The whole program against the default root, on a node whose /sys and /dev are those of another machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from launcher.rehearse.cluster import Cluster
from tests.cluster.conftest import Run
from tests.golden.fabrics import read_fabric, write_fabric
from tests.process.starting import clean_environ

pytestmark = pytest.mark.root

DRESS = """
    set -e
    for name in null zero full random urandom; do
        : > "$0/dev/$name"
        mount --bind /dev/$name "$0/dev/$name"
    done
    mkdir -p "$0/dev/shm"
    mount --bind "$0/sys" /sys
    mount --rbind "$0/dev" /dev
    exec "$@"
"""
"""In the node's own mount namespace: what is mounted ends with the node."""
FLAGS = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "10.77.0.10")


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Return the /sys and /dev of an ND H200 v5."""
    write_fabric(tmp_path, read_fabric("nd96isr_h200_v5"))
    return tmp_path


def test_the_eight_ports_are_chosen_through_the_real_sys(cluster: Cluster, on: Run, made_up: Path) -> None:
    """What a process gets, and what the plan says of it; the address comes from the real network."""
    launcher = [sys.executable, "-m", "launcher"]
    line = ["sh", "-c", DRESS, str(made_up), *launcher, "env", "--format", "json", *FLAGS]
    done = on(cluster, cluster.nodes[0], line, env=clean_environ())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ports = ",".join(f"mlx5_ib{number}:1" for number in range(8))
    assert found["NCCL_IB_HCA"] == f"={ports}"
    assert found["UCX_NET_DEVICES"] == ports
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"


@pytest.mark.parametrize("garbage", [b"", b"\n", b"9" * 4096, b"x" * 4096, b"\xff\xfe\0" * 9, None])
def test_files_that_say_nothing_sensible_are_no_traceback(
    cluster: Cluster, on: Run, made_up: Path, garbage: bytes | None
) -> None:
    """All of /sys, through every command that reads it; None: folders in their place."""
    for file in [path for path in (made_up / "sys").rglob("*") if path.is_file() and not path.is_symlink()]:
        file.unlink()
        file.mkdir() if garbage is None else file.write_bytes(garbage)
    launcher = f"{sys.executable} -m launcher"
    flags = " ".join(FLAGS)
    lines = [f"{launcher} {name} {flags}" for name in ("check", "topology", "plan")]
    lines += [f"{launcher} run --check --no-peers {flags} -- true", f"{launcher} snapshot"]
    script = "; ".join(f"{line} >/dev/null || echo {number}: status $?" for number, line in enumerate(lines))
    done = on(
        cluster,
        cluster.nodes[0],
        ["sh", "-c", DRESS, str(made_up), "sh", "-c", script],
        env=clean_environ(),
        timeout=120,
    )
    said = [line for line in done.stderr.splitlines() if "check: [infiniband]" not in line]
    assert (done.stdout, said) == ("", [])


def test_what_is_required_and_missing_is_status_69(cluster: Cluster, on: Run, made_up: Path) -> None:
    """The same node without its device files."""
    for file in (made_up / "dev/infiniband").iterdir():
        file.unlink()
    launcher = [sys.executable, "-m", "launcher", "run", "--require-fabric", "ib", *FLAGS, "--", "true"]
    done = on(cluster, cluster.nodes[1], ["sh", "-c", DRESS, str(made_up), *launcher], env=clean_environ())
    assert done.returncode == 69
    assert "[no-fabric] --require-fabric ib, but no InfiniBand can be used: 8 active" in done.stderr
    assert "--device /dev/infiniband" in done.stderr
