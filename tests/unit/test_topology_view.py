"""What `launcher topology` shows of recorded machines, and of any: nothing is lost or fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.entry import main
from launcher.machine.hardware import read_hardware
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from launcher.views.topology import render
from tests.golden.topologies import HERE, SUFFIX, read_topology, shown, topology_names, view_snapshot
from tests.unit.machines import ND_V4, recorded_cpus
from tests.unit.platforms_model import deterministic

HOSTILE = "</text><script>alert(1)</script>\"'&\x1b[31m\u202e\ud800]]>"
FORMS = ("text", "json")

Json = dict[str, Any]


@pytest.mark.parametrize("name", topology_names())
def test_recorded_machines_are_shown_as_somebody_has_read_it(name: str) -> None:
    """Text and JSON.

    To change one: ``python -m tests.golden.rewrite``, and read what it prints.
    """
    expected = {path: path.read_text() for path in shown(name)}
    assert expected == shown(name)


def test_no_document_is_left_over() -> None:
    """What belongs to no machine proves nothing."""
    belongs = {path.name for name in topology_names() for path in shown(name)}
    files = {path.name for path in HERE.iterdir() if path.suffix in (".txt", ".json")}
    assert {name for name in files if not name.endswith(SUFFIX)} <= belongs


@pytest.mark.parametrize("name", topology_names())
def test_machines_say_where_they_come_from(name: str) -> None:
    """Published or made by hand: the notes say which fact is which."""
    assert read_topology(name)["notes"][0].startswith(("By hand: ", "From a published ", "Recorded "))


@pytest.mark.parametrize("name", topology_names())
def test_names_from_a_machine_are_text_and_nothing_else(name: str) -> None:
    """Whatever a snapshot holds reaches no terminal."""
    snapshot = read_topology(name)
    snapshot["hostname"] = HOSTILE
    for gpu in snapshot["gpus"] if isinstance(snapshot.get("gpus"), list) else []:
        gpu["name"] = gpu["uuid"] = HOSTILE
    snapshot["addresses"] = {HOSTILE: ["10.0.0.4"], "eth0": [HOSTILE]}
    snapshot["files"] |= {"/sys/class/net/eth0/master": {"link": HOSTILE}, f"/dev/infiniband/{HOSTILE}": None}
    view = view_snapshot(snapshot)
    text = render(view, "text")
    assert not set("\x1b\u202e\ud800") & set(text)
    assert all(line.isprintable() for line in text.splitlines())
    json.loads(render(view, "json"))


def machines() -> st.SearchStrategy[Json]:
    """Return snapshots of any shape, with facts of any type in them."""
    junk = st.one_of(
        st.none(), st.booleans(), st.integers(-3, 1 << 40), st.text(max_size=30), st.just(HOSTILE)
    )
    address = st.builds("0000:{:02x}:00.0".format, st.integers(1, 12))
    link = st.fixed_dictionaries(
        {"to": st.sampled_from(["gpu", "switch", "cpu", None, 7]), "pci_bus_id": st.one_of(address, junk)},
        optional={"count": st.one_of(st.integers(1, 18), junk), "gbps": junk},
    )
    gpu = st.fixed_dictionaries(
        {},
        optional={
            "pci_bus_id": st.one_of(address, junk),
            "numa_node": st.one_of(st.integers(0, 3), junk),
            "links": st.one_of(st.lists(link, max_size=5), junk),
            "throttle": st.one_of(st.lists(st.text(max_size=20), max_size=3), junk),
            **dict.fromkeys(("name", "uuid", "memory_bytes", "has_ecc", "vendor"), junk),
        },
    )
    device = st.tuples(st.integers(0, 9), st.sampled_from(["4: ACTIVE", "1: DOWN", "x", ""]), st.booleans())
    return st.fixed_dictionaries(
        {
            "gpus": st.one_of(st.integers(0, 10), st.lists(st.one_of(gpu, junk), max_size=9), junk),
            "files": st.builds(
                lambda devices, cpus: {**_sysfs(devices), **cpus},
                st.lists(device, max_size=9, unique_by=lambda it: it[0]),
                st.sampled_from([{}, recorded_cpus("0-31", {0: "0-15", 1: "16-31"})]),
            ),
            "affinity": st.one_of(junk, st.just("0-31")),
            "environ": st.one_of(
                st.just({}),
                st.builds(
                    lambda text: {"CUDA_VISIBLE_DEVICES": text}, st.sampled_from(["0,2", "", "GPU-", "9"])
                ),
            ),
        }
    )


def _sysfs(devices: list[tuple[int, str, bool]]) -> Json:
    found: Json = {}
    for number, state, is_switched in devices:
        root = "pci0000:00/0000:00:01.0/0000:01:00.0" if is_switched else f"pci0000:{64 + number:02x}"
        path = f"/sys/class/infiniband/mlx5_{number}"
        found[path] = {"link": f"../../devices/{root}/0000:{32 + number:02x}:00.0/infiniband/mlx5_{number}"}
        found[f"{path}/device/numa_node"] = str(number % 3 - 1)
        found[f"{path}/ports/1/state"] = state
        found[f"{path}/ports/1/link_layer"] = "InfiniBand" if number % 2 else "Ethernet"
        found[f"{path}/ports/1/rate"] = "400 Gb/sec (4X NDR)"
        for place in range(1, 12):
            at = f"{root}/0000:{place:02x}:00.0"
            found[f"/sys/bus/pci/devices/0000:{place:02x}:00.0"] = {"link": f"../../../devices/{at}"}
    return found


@pytest.mark.thorough
@deterministic(60)
@given(snapshot=machines())
def test_any_machine_is_shown_without_a_traceback(snapshot: Json) -> None:
    """Facts missing, of another type, or hostile; parts everywhere."""
    view = view_snapshot(snapshot)
    json.loads(render(view, "json"))
    assert all(line.isprintable() for line in render(view, "text").splitlines())


def test_this_machine_and_its_snapshot_are_shown(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    """In every form; also where no job can be planned."""
    # Whatever it has, in every form, on standard output and in a file.
    for form in FORMS:
        assert main(["topology", "--format", form], {}) == 0
        printed = capfdbinary.readouterr().out.decode()
        assert main(["topology", "--format", form, "-o", str(tmp_path / "out")], {}) == 0
        assert (tmp_path / "out").read_text().splitlines()[:1] == printed.splitlines()[:1]
    # Also one that was taken of a replay.
    host = ND_V4(tmp_path)
    there = replay(json.loads(render_snapshot(take_snapshot(host, {}))))
    again = replay(json.loads(render_snapshot(take_snapshot(there, {}))))
    for recorded in (there, again):
        assert read_hardware(recorded).parts == read_hardware(host).parts


def test_a_machine_is_shown_where_no_job_can_be_planned() -> None:
    """With the reason in place of the ranks."""
    snapshot = {**read_topology("cpu_node"), "environ": {"OMPI_COMM_WORLD_RANK": "x"}}
    view = view_snapshot(snapshot)
    assert view.assigned == ()
    assert [note for note in view.notes if note.startswith("no ranks are shown: OMPI_COMM_WORLD_RANK")]


def test_without_a_binding_ranks_have_the_ports_of_no_gpu() -> None:
    """On CPUs alone the nearest port is that of their NUMA node."""
    view = view_snapshot(read_topology("cpu_node"), nproc_per_node="2", bind="core")
    assert [(process.ports, process.reach) for process in view.assigned] == [
        (("mlx5_0",), "NODE"),
        (("mlx5_0",), "SYS"),
    ]


@pytest.mark.parametrize("argv", [["--format", "png"], ["--replay", "/nonexistent"], ["--nnodes", "x"]])
def test_what_is_typed_wrongly_is_a_usage_error(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Status 64, and nothing is shown."""
    assert main(["topology", *argv], {}) == 64
    assert capfd.readouterr().out == ""
