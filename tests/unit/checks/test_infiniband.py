"""InfiniBand: on recorded machines of several makes, and with ports that are down, slow or hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.azure import CONTEXT
from launcher.machine.host import Host
from launcher.machine.infiniband import Port
from tests.golden.fabrics import read_fabric, write_fabric
from tests.unit.checks.cases import DOCKER, Machine, case, levels, looker, only

look = looker("infiniband")

FOUR = tuple(Port(f"mlx5_ib{n}", 1, "InfiniBand", "ACTIVE", 400.0, has_uverbs=True) for n in range(4))
RECORDED = {
    "nd96isr_h200_v5": "8 ports of 400 Gb/s active and exposed to us",
    "accelerated_networking_only": None,
    "omni_path": None,
    "roce": None,
    "efa": None,
}


def change(port: Port, **facts: object) -> Port:
    """Return a port with other facts."""
    return Port(**{**vars(port), **facts})


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines(tmp_path: Path, name: str) -> None:
    """Eight ports of an ND H200 v5 are right; where there is no InfiniBand there is nothing to look at."""
    write_fabric(tmp_path, read_fabric(name))
    found = look(case(Host(str(tmp_path))))
    expected = RECORDED[name]
    assert [item.found for item in found] == ([expected] if expected else [])


@pytest.mark.parametrize("state", ["DOWN", "INIT", "ARMED", None])
def test_a_port_that_is_down(tmp_path: Path, state: str | None) -> None:
    """Each has its own cause, and none is all right because the others are."""
    found = only(look(case(Machine(tmp_path), ports=(change(FOUR[0], state=state), *FOUR[1:]))))
    assert (found.level, found.what) == (PROBLEM, "port 1 of mlx5_ib0")
    assert ("subnet manager" in found.fix) == (state in ("INIT", "ARMED"))


def test_ports_that_are_slow_or_missing_are_named(tmp_path: Path) -> None:
    """Fewer lanes, no device file, fewer than the size of the VM has."""
    # One that came up with fewer lanes slows down all.
    found = look(case(Machine(tmp_path), ports=(*FOUR[1:], change(FOUR[0], rate_gbps=100.0))))
    assert levels(found) == [WARNING, OK] and found[0].found == "mlx5_ib0 100 Gb/s"
    # /sys shows them all; without the device files nobody can use them.
    hidden = tuple(change(port, has_uverbs=False) for port in FOUR)
    one = only(look(case(Machine(tmp_path, DOCKER), ports=hidden)))
    assert one.level == PROBLEM and one.fix.startswith("docker run --device /dev/infiniband ")
    # Also where there is none at all.
    environ = {CONTEXT: '{"vm_size": "Standard_ND96isr_H100_v5"}'}
    for ports in (FOUR, ()):
        assert PROBLEM in levels(look(case(Machine(tmp_path), environ, ports=ports)))
