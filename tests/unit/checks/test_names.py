"""Names: what this node and the master resolve to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from tests.unit.checks.cases import Machine, case, levels, looker

look = looker("names")

SEVERAL: dict[str, object] = {"spans_nodes": True, "master_addr": "master", "node_rank": 1}
GOOD = {"node0": {"10.0.0.4"}, "master": {"10.0.0.9"}}


@pytest.mark.parametrize(
    ("known", "environ", "facts", "expected"),
    [
        (GOOD, {}, SEVERAL, [OK, OK]),
        ({}, {}, {}, [OK]),
        ({"node0": {"127.0.1.1"}}, {}, {}, [OK]),
        ({**GOOD, "node0": {"127.0.1.1"}}, {}, SEVERAL, [PROBLEM, OK]),
        ({**GOOD, "node0": {"10.9.9.9"}}, {}, SEVERAL, [PROBLEM, OK]),
        ({"master": {"10.0.0.9"}}, {}, SEVERAL, [PROBLEM, OK]),
        ({"master": {"10.0.0.9"}}, {"GLOO_SOCKET_IFNAME": "eth0"}, SEVERAL, [WARNING, OK]),
        ({"master": {"10.0.0.9"}}, {}, {**SEVERAL, "gloo_interface": "eth0"}, [OK, OK]),
        ({"node0": {"10.0.0.4"}}, {}, SEVERAL, [OK, PROBLEM]),
        ({**GOOD, "master": {"127.0.0.1"}}, {}, SEVERAL, [OK, PROBLEM]),
        ({**GOOD, "master": {"10.0.0.4"}}, {}, SEVERAL, [OK, PROBLEM]),
        ({**GOOD, "master": {"10.0.0.4"}}, {}, {**SEVERAL, "is_master": True, "node_rank": 0}, [OK, OK]),
        (GOOD, {}, {**SEVERAL, "is_master": True, "node_rank": 0}, [OK, WARNING]),
        (
            {**GOOD, "master": {"127.0.1.1"}},
            {},
            {**SEVERAL, "is_master": True, "node_rank": 0},
            [OK, WARNING],
        ),
    ],
)
def test_answers(
    tmp_path: Path,
    known: Mapping[str, set[str]],
    environ: dict[str, str],
    facts: dict[str, object],
    expected: list[str],
) -> None:
    """Own name first, then the master's: only jobs of several nodes need them."""
    assert levels(look(case(Machine(tmp_path, names=known), environ, **facts))) == expected


def test_a_resolver_that_does_not_answer(tmp_path: Path) -> None:
    """It is waited for some seconds, and then it is a finding."""

    class Silent(Machine):
        def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
            return {}

    found = look(case(Silent(tmp_path), **SEVERAL))
    assert levels(found) == [PROBLEM, PROBLEM] and found[1].found == "no answer in time"
