"""The health of GPUs, on recorded machines: what NVML would say was filled in by hand."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.checks.case import read_case
from launcher.checks.finding import OK, PROBLEM, WARNING, Finding
from launcher.planning.recorded import replay
from tests.golden.topologies import read_topology
from tests.unit.checks.cases import looker

look = looker("health")

LINKS = [{"to": "switch", "pci_bus_id": None, "count": 18}]


def found(*gpus: dict[str, Any]) -> list[Finding]:
    """Return what is said of a machine with these GPUs."""
    fields = [{"pci_bus_id": f"0000:0{number}:00.0", **gpu} for number, gpu in enumerate(gpus)]
    return look(read_case(replay({"environ": {}, "gpus": fields}), {}, None, ()))


@pytest.mark.parametrize(
    ("gpu", "level", "words"),
    [
        ({"remapping_failed": True}, PROBLEM, "none are left"),
        ({"needs_reset": True}, WARNING, "nvidia-smi -r -i 0000:01:00.0"),
        ({"throttle": ["idle", "hot (hardware)", "power brake"]}, WARNING, "hot (hardware), power brake"),
        ({"links": [{**LINKS[0], "count": 17}]}, PROBLEM, "18 NVLinks, as others have"),
        ({"links": []}, PROBLEM, "18 NVLinks, as others have"),
        ({"has_ecc": False}, WARNING, "nvidia-smi -e 1 -i 0000:01:00.0"),
    ],
)
def test_one_that_should_not_be_so(gpu: dict[str, Any], level: str, words: str) -> None:
    """It is named, with what to do."""
    good = {"links": LINKS, "has_ecc": True, "throttle": []}
    (finding,) = found(good, {**good, **gpu})
    assert (finding.level, finding.what) == (level, "GPU1 (0000:01:00.0)")
    assert any(words in text for text in (finding.expected, finding.found, finding.fix))


def test_nothing_is_compared_that_nobody_tells() -> None:
    """Links between GPUs may differ; without NVML nothing is known; all may be well."""
    # Idle, at its power cap, with pages that were retired long ago: nothing that anybody should do.
    good = {"links": LINKS, "has_ecc": True, "throttle": ["idle", "power cap"]}
    (finding,) = found(good, good)
    assert (finding.level, finding.found) == (OK, "nothing remarkable about 2 GPUs")
    # A bridge joins two cards, and a third has none.
    bridged = [{"to": "gpu", "pci_bus_id": "0000:00:00.0", "count": 12}]
    assert [item.level for item in found({"links": bridged}, {"links": bridged}, {"links": []})] == [OK]
    # Without NVML nothing is known, and without GPUs nobody is asked.
    assert found({}, {}) == [] and found() == []


def test_a_recorded_machine_with_two_bad_gpus() -> None:
    """The same that ``launcher topology`` shows of it."""
    snapshot = read_topology("a100_switches")
    findings = look(read_case(replay(snapshot), {}, None, ()))
    assert [(item.level, item.what.partition(" ")[0]) for item in findings] == [
        (PROBLEM, "GPU5"),
        (WARNING, "GPU3"),
    ]
