"""Proxy variables, and what no_proxy covers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.checks.case import read_case
from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.checks.network import read_exceptions
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from tests.unit.checks.cases import Machine, case, looker, only

look = looker("proxies")

JOB: dict[str, object] = {"spans_nodes": True, "master_addr": "10.0.0.4", "hosts": ("10.0.0.4", "10.0.0.5")}
SECRET = "hunter2"
PROXY = {"HTTPS_PROXY": f"http://user:{SECRET}@proxy:3128"}


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, OK),
        (PROXY, WARNING),
        ({**PROXY, "TF_CONFIG": "{}"}, PROBLEM),
        ({**PROXY, "no_proxy": "10.0.0.4,10.0.0.5"}, OK),
        ({**PROXY, "NO_PROXY": "10.0.0.0/24"}, OK),
        ({**PROXY, "no_proxy": "localhost,127.0.0.1"}, WARNING),
        ({"https_proxy": ""}, OK),
    ],
)
def test_nodes_behind_a_proxy(tmp_path: Path, environ: dict[str, str], level: str) -> None:
    """A warning for torch, whose own traffic takes no notice; a problem for what talks by gRPC."""
    found = only(look(case(Machine(tmp_path), environ, **JOB)))
    assert found.level == level and SECRET not in str(found)


def test_the_fix_can_be_typed(tmp_path: Path) -> None:
    """With those that are caught, and no others."""
    found = only(look(case(Machine(tmp_path), {**PROXY, "no_proxy": "10.0.0.4"}, **JOB)))
    assert found.fix == 'export no_proxy="$no_proxy,10.0.0.5" NO_PROXY="$no_proxy"'


def test_one_node_has_nobody_to_reach(tmp_path: Path) -> None:
    """A proxy for downloads is nobody's problem."""
    assert only(look(case(Machine(tmp_path), PROXY))).level == OK


@pytest.mark.parametrize(
    ("host", "entry", "expected"),
    [
        *(("node0", "node0", True), ("node0", "NODE0", True), ("node0", "*", True)),
        ("node0.cluster.local", ".cluster.local", True),
        ("node0.cluster.local", "cluster.local", True),
        ("node0.cluster.local", "*.cluster.local", True),
        *(("mynode0", "node0", False), ("10.0.0.4", "10.0.0.0/8", True)),
        ("10.0.0.4", "10.1.0.0/16", False),
        *(("fd00::4", "fd00::/64", True), ("[fd00::4]", "fd00::4", True), ("node0", "", False)),
        *(("node0", ".", False), ("node0", "10.0.0.0/8", False)),
    ],
)
def test_what_no_proxy_covers(host: str, entry: str, expected: bool) -> None:
    """Names, domains, addresses, networks."""
    assert read_exceptions(["", entry])(host) == expected


def test_a_thousand_nodes_are_compared_at_once(tmp_path: Path) -> None:
    """With a thousand entries, and said in a line that can be read: each entry is looked at once."""
    hosts = tuple(f"10.0.{index >> 8}.{index & 255}" for index in range(1000))
    others = [f"10.{index & 1}.{index >> 8}.{index & 255}/{25 + index % 8}" for index in range(5000, 6000)]
    environ = {**PROXY, "no_proxy": ",".join([*others, *hosts[1:3]])}
    began = time.process_time()
    found = only(look(case(Machine(tmp_path), environ, spans_nodes=True, hosts=hosts)))
    assert time.process_time() - began < 1.0
    assert f"without {hosts[0]}, {hosts[3]}, {hosts[4]}, {hosts[5]} and 994 more" in found.found
    assert found.fix is not None and len(found.fix) < 300
    assert "all 998 nodes" in found.fix and "env -u HTTPS_PROXY launcher" in found.fix


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ({"framework": "tensorflow"}, PROBLEM),
        ({"worker_count": "2", "parameter_server_count": "1"}, PROBLEM),
        ({"framework": "jax"}, PROBLEM),
        ({"framework": "torch"}, WARNING),
        ({}, WARNING),
    ],
)
def test_what_the_plan_makes_the_job_counts(tmp_path: Path, flags: dict[str, str], level: str) -> None:
    """As what the platform had set: its tasks talk by gRPC."""
    host = Machine(tmp_path)
    given: dict[str, str | bool] = {**flags, "hosts": "10.0.0.4,10.0.0.5", "node_rank": "0"}
    job = plan_job(PROXY, host, read_options(given, PROXY), ("./train",))
    assert only(look(read_case(host, PROXY, job, ()))).level == level
