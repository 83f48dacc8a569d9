"""Proxy variables, and what no_proxy covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.checks.proxies import is_excepted, look
from tests.unit.checks.cases import Machine, case, only

JOB: dict[str, object] = {
    "spans_nodes": True,
    "master_addr": "10.0.0.4",
    "hosts": ("10.0.0.4", "10.0.0.5"),
}
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
        ("node0", "node0", True),
        ("node0", "NODE0", True),
        ("node0", "*", True),
        ("node0.cluster.local", ".cluster.local", True),
        ("node0.cluster.local", "cluster.local", True),
        ("node0.cluster.local", "*.cluster.local", True),
        ("mynode0", "node0", False),
        ("10.0.0.4", "10.0.0.0/8", True),
        ("10.0.0.4", "10.1.0.0/16", False),
        ("fd00::4", "fd00::/64", True),
        ("[fd00::4]", "fd00::4", True),
        ("node0", "", False),
        ("node0", ".", False),
        ("node0", "10.0.0.0/8", False),
    ],
)
def test_what_no_proxy_covers(host: str, entry: str, expected: bool) -> None:
    """Names, domains, addresses, networks."""
    assert is_excepted(host, ["", entry]) == expected
