"""Locked memory: unlimited is right, a limit matters with RDMA, and the capability lifts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.infiniband import Port
from tests.process.starting import clean_environ
from tests.unit.checks.cases import DOCKER, Machine, case, limits, looker, only

look = looker("memlock")

INFINIBAND = Port("mlx5_ib0", 1, "InfiniBand", "ACTIVE", 400.0)
ETHERNET = Port("mlx5_an0", 1, "Ethernet", "ACTIVE", 100.0)
EFA = Port("rdmap0s6", 1, "Unknown", "ACTIVE", driver="efa")
DOWN = Port("mlx5_ib0", 1, "InfiniBand", "DOWN")
STATUS = {"proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n"}
FIRST = {"proc/self/uid_map": "         0          0 4294967295\n"}
INNER = {"proc/self/uid_map": "         0     100000      65536\n"}


def test_unlimited(tmp_path: Path) -> None:
    """As it should be."""
    found = only(look(case(Machine(tmp_path, limits("unlimited", "unlimited")), ports=(INFINIBAND,))))
    assert (found.level, found.found) == (OK, "unlimited")


@pytest.mark.parametrize(
    ("ports", "level"),
    [((), OK), ((DOWN,), OK), ((ETHERNET,), WARNING), ((EFA,), PROBLEM), ((ETHERNET, INFINIBAND), PROBLEM)],
)
def test_a_limit_matters_where_there_is_rdma(tmp_path: Path, ports: tuple[Port, ...], level: str) -> None:
    """InfiniBand and EFA fail with it; a card that may do RDMA over Ethernet could."""
    found = only(look(case(Machine(tmp_path, {**limits("8388608", "8388608"), **DOCKER}), ports=ports)))
    assert found.level == level and "8 MiB" in found.found
    if level == PROBLEM:
        assert found.expected == f"unlimited, for RDMA by {', '.join(port.device for port in ports)}"
        assert found.fix == "docker run --ulimit memlock=-1 --cap-add IPC_LOCK"


def test_a_machine_can_raise_it_itself(tmp_path: Path) -> None:
    """Where the hard limit is none, nobody else is needed."""
    found = only(look(case(Machine(tmp_path, limits("65536", "unlimited")), ports=(INFINIBAND,))))
    assert found.fix == "ulimit -l unlimited, before the launcher"


@pytest.mark.parametrize(("mapping", "level"), [(FIRST, OK), (INNER, PROBLEM), ({}, PROBLEM)])
def test_the_capability_counts_in_the_first_user_namespace(
    tmp_path: Path, mapping: dict[str, str], level: str
) -> None:
    """Root of a rootless container has all capabilities, and none that the network card's driver asks for."""
    host = Machine(tmp_path, {**limits("65536", "65536"), **STATUS, **mapping})
    assert only(look(case(host, ports=(INFINIBAND,)))).level == level


@pytest.mark.skipif(which("prlimit") is None or which("setpriv") is None, reason="needs util-linux")
def test_a_real_limit(tmp_path: Path) -> None:
    """A process with 8 MiB and without the capability says so."""
    line = ["prlimit", "--memlock=8388608:8388608", "setpriv", "--bounding-set=-ipc_lock"]
    line += ["--inh-caps=-ipc_lock", sys.executable, "-m", "launcher", "check", "--format", "json"]
    done = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 1 and not done.stdout:
        pytest.skip(f"may not drop a capability: {done.stderr.strip()}")
    (found,) = [item for item in json.loads(done.stdout)["findings"] if item["check"] == "memlock"]
    assert found["found"].startswith("8 MiB") and "IPC_LOCK" not in found["found"]
