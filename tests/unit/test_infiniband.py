"""RDMA ports: what is usable InfiniBand on machines of all makes, and nothing in /sys makes it fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.machine.host import Host
from launcher.machine.infiniband import Port, is_usable, read_ports
from launcher.machine.numa import parse_pci_path
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from tests.golden.fabrics import describe, fabric_names, read_fabric, write_fabric
from tests.unit.platforms_model import deterministic

PORT = "sys/devices/pci0000:00/0000:00:05.0/infiniband/mlx5_0/ports/1"
ONE = {
    "devices": {
        "mlx5_0": {
            "at": "pci0000:00/0000:00:05.0",
            "driver": "mlx5_core",
            "numa_node": "1",
            "uverbs": "uverbs0",
            "net": {"ib0": "0"},
            "ports": {
                "1": {
                    "link_layer": "InfiniBand",
                    "state": "4: ACTIVE",
                    "rate": "400 Gb/sec (4X NDR)",
                }
            },
        }
    },
    "exposed": ["uverbs0"],
}
GARBAGE = (
    *(b"", b"\n"),
    b"\0" * 64,
    b"4" * 4096,
    b"InfiniBand ACTIVE 400 Gb/sec " * 200,
    b"\xff\xfe\x80",
    "\u0664: ACTIVE".encode(),
    *(b"4: ACTIVE\n4: ACTIVE\n", b"-1", b"nan Gb/sec", b"inf Gb/sec (4X NDR)", b"1e9 Gb/sec", b"0x"),
    b"999999999999999999999",
)


@pytest.mark.parametrize("name", fabric_names())
def test_every_port_of_a_machine_is_found_and_judged(name: str, tmp_path: Path) -> None:
    """The whole list, every fact of every port, in natural order."""
    fabric = read_fabric(name)
    write_fabric(tmp_path, fabric)
    expected = fabric["ports"]
    assert expected == [describe(port) for port in read_ports(Host(str(tmp_path)))]


@pytest.mark.parametrize("name", fabric_names())
def test_a_snapshot_replays_the_ports(name: str, tmp_path: Path) -> None:
    """What was read was recorded: the same ports, on any machine, also from a snapshot of the replay."""
    write_fabric(tmp_path, read_fabric(name))
    here = Host(str(tmp_path))
    there = replay(json.loads(render_snapshot(take_snapshot(here, {}))))
    again = replay(json.loads(render_snapshot(take_snapshot(there, {}))))
    assert read_ports(here) == read_ports(there) == read_ports(again)


@pytest.mark.parametrize("name", fabric_names())
def test_fabrics_say_where_they_come_from(name: str) -> None:
    """Published, from documentation or source, or made by hand: the notes say which fact is which."""
    origins = ("From documentation: ", "From source: ", "From a published ", "By hand")
    assert read_fabric(name)["notes"][0].startswith(origins)


def test_a_snapshot_without_those_fields_still_replays() -> None:
    """An older one has the ports' files of its time; what it cannot know is None."""
    files = {
        "/sys/class/infiniband/mlx5_0": {"link": "../../devices/pci0001:00/0001:00:00.0/infiniband/mlx5_0"},
        "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    }
    host = replay({"environ": {}, "files": files})
    expected = Port(
        "mlx5_0", 1, link_layer="InfiniBand", state="ACTIVE", pci_path=("pci0001:00", "0001:00:00.0")
    )
    assert (expected,) == read_ports(host)
    assert is_usable(expected)
    assert read_ports(replay({"environ": {}})) == ()


def test_no_device_is_no_port(tmp_path: Path) -> None:
    """Without a /sys, with an empty one, and with a file in the folder's place."""
    assert read_ports(Host(str(tmp_path))) == ()
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").write_text("")
    assert read_ports(Host(str(tmp_path))) == ()


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("fact", ["link_layer", "state", "rate"])
def test_a_fact_in_another_form_is_none_and_the_others_stay(
    fact: str, garbage: bytes, tmp_path: Path
) -> None:
    """A port is never believed to be what its files do not say in the kernel's form."""
    write_fabric(tmp_path, ONE)
    (tmp_path / PORT / fact).write_bytes(garbage)
    (port,) = read_ports(Host(str(tmp_path)))
    facts = {"link_layer": port.link_layer, "state": port.state, "rate": port.rate_gbps}
    whole = {"link_layer": "InfiniBand", "state": "ACTIVE", "rate": 400.0}
    assert facts == {**whole, fact: None}
    assert is_usable(port) == (fact == "rate")


@pytest.mark.parametrize("garbage", [*GARBAGE, b"ib\x1b[31m", "ib\u00b2".encode()])
def test_facts_around_a_port_are_none_in_another_form(garbage: bytes, tmp_path: Path) -> None:
    """Its NUMA node, its interface; nothing unprintable comes out."""
    write_fabric(tmp_path, ONE)
    place = tmp_path / PORT
    for path in (place.parents[3] / "numa_node", place / "gid_attrs/ndevs/0"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(garbage)
    (port,) = read_ports(Host(str(tmp_path)))
    assert port.numa_node is None
    assert port.interface in ("ib0", "-1", "0x")


def test_a_port_is_left_out_if_nothing_of_it_can_be_read_or_its_name_is_no_number(tmp_path: Path) -> None:
    """A folder that went away while we looked, and one that is no port."""
    write_fabric(tmp_path, ONE)
    ports = (tmp_path / PORT).parent
    (ports / "2").mkdir()
    (ports / "x/state").parent.mkdir()
    (ports / "x/state").write_text("4: ACTIVE\n")
    (ports / "3").symlink_to("nowhere")
    assert [port.number for port in read_ports(Host(str(tmp_path)))] == [1]


def test_files_that_disappear_or_are_folders_or_links_in_a_circle(tmp_path: Path) -> None:
    """The device is going while it is read: what is left stands."""
    write_fabric(tmp_path, ONE)
    place = tmp_path / PORT
    (place / "rate").unlink()
    (place / "rate").mkdir()
    (place / "state").unlink()
    (place / "state").symlink_to("state")
    home = place.parents[3]
    (home / "numa_node").unlink()
    (home / "driver").unlink()
    (home / "net/ib0/dev_port").unlink()
    (port,) = read_ports(Host(str(tmp_path)))
    assert (port.link_layer, port.state, port.rate_gbps) == ("InfiniBand", None, None)
    assert (port.numa_node, port.driver, port.interface) == (None, None, "ib0")


REFUSED = """
import os, sys
from launcher.machine.host import Host
from launcher.machine.infiniband import read_ports
from launcher.machine.infiniband import read_ports
os.setgroups([])
os.setuid(65534)
print(read_ports(Host(sys.argv[1])))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who is refused")
def test_what_a_user_may_not_read_is_none() -> None:
    """Permission denied on one file."""
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to others, above where it begins
        root = Path(folder)
        root.chmod(0o755)
        write_fabric(root, ONE)
        (expected,) = read_ports(Host(folder))
        (root / PORT / "state").chmod(0)
        line = [sys.executable, "-c", REFUSED, folder]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=30)
    assert expected.state == "ACTIVE"
    fields = {**vars(expected), "state": None}
    assert f"({Port(**fields)!r},)\n" == done.stdout


@deterministic(150)
@given(
    st.dictionaries(
        st.sampled_from(["link_layer", "state", "rate", "gid_attrs/ndevs/0"]),
        st.text(max_size=40) | st.sampled_from([text.decode("utf-8", "surrogateescape") for text in GARBAGE]),
    ),
    st.text(alphabet="m5_0\u00b2\u0665", min_size=1, max_size=8),
    st.text(max_size=30),
)
def test_any_text_anywhere_is_survived(files: dict[str, str], device: str, target: str) -> None:
    """Recorded machines may hold anything: nothing raises, and only the kernel's words come out."""
    folder = f"/sys/class/infiniband/{device}"
    recorded: dict[str, object] = {f"{folder}/ports/1/{name}": text for name, text in files.items()}
    recorded[folder] = {"link": target}
    recorded |= {f"{folder}/device/numa_node": target, f"/dev/infiniband/{target}": None}
    for port in read_ports(replay({"environ": {}, "files": recorded})):
        assert not is_usable(port) or files["state"].strip() == "4: ACTIVE"
        assert port.rate_gbps is None or 0 < port.rate_gbps < 1e6


def test_a_path_begins_at_the_root() -> None:
    """And ends at the device."""
    # Bridges in between stay, what is no PCI goes: two devices share as much as their paths do.
    path = "../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/infiniband/mlx5_0"
    assert parse_pci_path(path) == ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0")
    assert parse_pci_path("../../devices/virtual/infiniband/rxe0") == ()


OVERLAY = """\
set -e
mount -t overlay overlay -o "lowerdir=$1/machine/sys:/sys" /sys
exec "$2" -c 'from launcher.machine.host import Host
from launcher.machine.infiniband import read_ports
for port in read_ports(Host()): print(port.device, port.state, port.link_layer, port.pci_path[-1])'
"""


@pytest.mark.root
def test_the_real_root_is_read(tmp_path: Path) -> None:
    """No stand-in: the default `Host`, with made-up adapters laid over /sys in a mount namespace."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("needs root and mount namespaces")
    write_fabric(tmp_path / "machine", read_fabric("nd96isr_h200_v5"))
    line = ["unshare", "--mount", "sh", "-c", OVERLAY, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
    assert done.stderr == ""
    expected = ["mlx5_an0 ACTIVE Ethernet 0005:00:00.0"]
    expected += [f"mlx5_ib{i} ACTIVE InfiniBand {0x101 + i:04x}:00:00.0" for i in range(8)]
    assert expected == done.stdout.splitlines()
