"""What `launcher topology` shows of recorded machines, and of any: nothing is lost, overlaps or fails."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.entry import main
from launcher.machine.hardware import read_hardware
from launcher.machine.host import Host
from launcher.planning.recorded import RecordedHost
from launcher.planning.snapshot import render_snapshot, take_snapshot
from launcher.views.drawing import ELLIPSIS, fit, measure
from launcher.views.nccl_xml import render_mask
from launcher.views.survey import render
from tests.golden.topologies import HERE, SUFFIX, read_topology, shown, topology_names, view_snapshot
from tests.unit.machines import ND_V4
from tests.unit.platforms_model import deterministic

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'&\x1b[31m\u202e\ud800]]>"
FORMS = ("text", "json", "svg", "nccl-xml")

Json = dict[str, Any]
Box = tuple[float, float, float, float]


@pytest.mark.parametrize("name", topology_names())
def test_recorded_machines_are_shown_as_somebody_has_read_it(name: str) -> None:
    """Text, JSON, NCCL's XML and the picture in docs/.

    To change one: ``python -m tests.golden.rewrite``, and read what it prints.
    """
    expected = {path: path.read_text() for path in shown(name)}
    assert expected == shown(name)


def test_no_document_is_left_over() -> None:
    """What belongs to no machine proves nothing."""
    belongs = {path.name for name in topology_names() for path in shown(name)}
    files = {path.name for path in HERE.iterdir() if path.suffix in (".txt", ".json", ".xml")}
    assert {name for name in files if not name.endswith(SUFFIX)} <= belongs


@pytest.mark.parametrize("name", topology_names())
def test_machines_say_where_they_come_from(name: str) -> None:
    """Published or made by hand: the notes say which fact is which."""
    assert read_topology(name)["notes"][0].startswith(("By hand: ", "From a published ", "Recorded "))


def texts(picture: str) -> list[str]:
    """Return everything that a picture says, also where a pointer rests."""
    return ["".join(element.itertext()) for element in ET.fromstring(picture).iter() if element.text]


def boxes(picture: str, tag: str, kinds: tuple[str, ...] = ()) -> Iterator[tuple[str, Box]]:
    """Yield (text or class, left, top, right, bottom) of the rectangles or texts in a picture."""
    for element in ET.fromstring(picture).iter(SVG + tag):
        kind = element.get("class", "")
        if kinds and kind not in kinds:
            continue
        x, y = float(element.get("x", "")), float(element.get("y", ""))
        if tag == "rect":
            yield kind, (x, y, x + float(element.get("width", "")), y + float(element.get("height", "")))
            continue
        size, text = float(element.get("font-size", "")), element.text or ""
        width = measure(text, size, element.get("font-weight") is not None)
        left = x - width / 2 if element.get("text-anchor") else x
        yield text, (left, y - size * 0.8, left + width, y + size * 0.25)


def overlaps(found: list[tuple[str, Box]]) -> list[tuple[str, str]]:
    """Return the pairs of which one lies over the other."""
    return [
        (a, b)
        for place, (a, one) in enumerate(found)
        for b, other in found[place + 1 :]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]


def check_picture(picture: str) -> None:
    """Assert that a picture is well-formed, that nothing lies over another thing, and nothing outside."""
    root = ET.fromstring(picture)
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "style", "rect", "path", "text")
    }
    _, _, width, height = map(float, root.get("viewBox", "").split())
    written = list(boxes(picture, "text"))
    assert overlaps(written) == []
    for kinds in (("gpu", "hidden", "port", "dead", "bus", "free"), ("group",), ("block",)):
        assert overlaps(list(boxes(picture, "rect", kinds))) == []
    everything = [*written, *boxes(picture, "rect")]
    outside = [what for what, (a, b, c, d) in everything if a < 0 or b < 0 or c > width or d > height]
    assert outside == []


@pytest.mark.parametrize("name", topology_names())
def test_every_part_is_in_the_picture_once(name: str) -> None:
    """GPUs, ports, NUMA nodes and ranks, by name, and nothing overlaps."""
    view = view_snapshot(read_topology(name))
    picture = render(view, "svg")
    check_picture(picture)
    said = texts(picture)
    hardware = view.hardware
    names = [f"GPU {gpu.index}" for gpu in hardware.gpus]
    names += [part.label for part in hardware.parts if part.port is not None]
    names += [f"NUMA node {node.number}" for node in hardware.nodes]
    assert {name: said.count(name) for name in names} == dict.fromkeys(names, 1)
    ranks = {f"rank {process.rank}" for process in view.assigned if process.gpus or process.cpus}
    assert ranks - set(said) == set()


def many_ports() -> Json:
    """Return a machine with 8 GPUs, each below a switch with 4 ports, as a p5 has them."""
    snapshot: Json = {"environ": {}, "hostname": "many-ports", "gpus": [], "sysfs": {}}
    for place in range(8):
        switch = f"pci0000:{16 * place:02x}/0000:{16 * place:02x}:01.0/0000:{16 * place + 1:02x}:00.0"
        addresses = [f"0000:{16 * place + 3 + number:02x}:00.0" for number in range(5)]
        homes = [f"{switch}/0000:{16 * place + 2:02x}:{4 * n:02x}.0/{at}" for n, at in enumerate(addresses)]
        link = {"to": "switch", "pci_bus_id": None, "count": 18}
        snapshot["gpus"].append({"pci_bus_id": addresses[0], "numa_node": place // 4, "links": [link]})
        snapshot["sysfs"][f"bus/pci/devices/{addresses[0]}"] = {"link": f"../../../devices/{homes[0]}"}
        for number, home in enumerate(homes[1:]):
            path = f"class/infiniband/rdmap{4 * place + number}s0"
            snapshot["sysfs"][path] = {"link": f"../../devices/{home}/infiniband/x"}
            snapshot["sysfs"][f"{path}/device/numa_node"] = str(place // 4)
            files = {"link_layer": "Unspecified", "state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)"}
            snapshot["sysfs"] |= {f"{path}/ports/1/{name}": text for name, text in files.items()}
    return snapshot


def test_many_ports_stand_in_rows() -> None:
    """8 GPUs and 32 ports: two columns for each GPU."""
    picture = render(view_snapshot(many_ports()), "svg")
    check_picture(picture)
    assert len(list(boxes(picture, "rect", ("port",)))) == 32
    assert float(ET.fromstring(picture).get("width", "")) < 2700


def test_ports_that_are_dead_are_red_and_named_so() -> None:
    """Down, or up without a subnet."""
    picture = render(view_snapshot(read_topology("a100_switches")), "svg")
    assert len(list(boxes(picture, "rect", ("dead",)))) == 3
    assert {"DOWN", "INIT"} <= set(texts(picture))


def test_a_gpu_that_cuda_does_not_see_is_drawn_apart() -> None:
    """It is there, but no process of ours can use it."""
    view = view_snapshot(read_topology("a100_switches"))
    assert view.visible == frozenset(range(7))
    assert len(list(boxes(render(view, "svg"), "rect", ("hidden",)))) == 2  # with its mark in the legend


@pytest.mark.parametrize("name", topology_names())
def test_names_from_a_machine_are_text_and_nothing_else(name: str) -> None:
    """Whatever a snapshot holds reaches no parser of markup and no terminal."""
    snapshot = read_topology(name)
    snapshot["hostname"] = HOSTILE
    for gpu in snapshot["gpus"] if isinstance(snapshot["gpus"], list) else []:
        gpu["name"] = gpu["uuid"] = HOSTILE
    for interface in snapshot["interfaces"]:
        interface["name"] = interface["kind"] = HOSTILE
    view = view_snapshot(snapshot)
    picture = render(view, "svg")
    check_picture(picture)
    assert "script>" in "".join(texts(picture))
    text = render(view, "text")
    assert not set("\x1b\u202e\ud800") & set(text + picture)
    assert all(line.isprintable() for line in text.splitlines())
    json.loads(render(view, "json"))


@pytest.mark.parametrize("name", topology_names())
def test_nccl_gets_each_gpu_and_each_nic_once(name: str) -> None:
    """Where /sys has them, below the bridges that it shows, in the form that its parser reads."""
    hardware = view_snapshot(read_topology(name)).hardware
    text = render(view_snapshot(read_topology(name)), "nccl-xml")
    system = ET.fromstring(text)
    assert (system.tag, system.get("version")) == ("system", "1")
    assert " />" not in text
    above = {child: parent for parent in system.iter() for child in parent}
    gpus = [above[gpu].get("busid") for gpu in system.iter("gpu")]
    assert sorted(map(str, gpus)) == sorted(str(gpu.address) for gpu in hardware.gpus)
    nets = [net.get("name") for net in system.iter("net")]
    assert sorted(map(str, nets)) == sorted({port.device for port in hardware.ports})
    addresses = [pci.get("busid") for pci in system.iter("pci")]
    assert len(addresses) == len(set(addresses))
    assert all(pci.get("class") for pci in system.iter("pci"))
    for part in hardware.parts:
        if part.port is not None:
            (net,) = [net for net in system.iter("net") if net.get("name") == part.port.device]
            chain = [net]
            while chain[-1] in above:
                chain.append(above[chain[-1]])
            path = [element.get("busid") for element in reversed(chain) if element.tag == "pci"]
            assert tuple(path) == part.path[1:]
            assert chain[-2].get("numaid") == str(part.numa_node)


def test_masks_are_as_the_kernel_writes_them() -> None:
    """As in /sys/devices/system/node/node1/cpumap."""
    assert render_mask(range(4)) == "0000000f"
    assert render_mask([0, 31, 32, 70]) == "00000040,00000001,80000001"


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
            "mig": st.one_of(st.lists(st.fixed_dictionaries({"uuid": junk}), max_size=3), junk),
            "throttle": st.one_of(st.lists(st.text(max_size=20), max_size=3), junk),
            **dict.fromkeys(("name", "uuid", "memory_bytes", "capability", "has_ecc"), junk),
            **dict.fromkeys(("remapped_rows", "retired_pages", "fabric_cluster", "vendor"), junk),
        },
    )
    device = st.tuples(st.integers(0, 9), st.sampled_from(["4: ACTIVE", "1: DOWN", "x", ""]), st.booleans())
    return st.fixed_dictionaries(
        {
            "gpus": st.one_of(st.integers(0, 10), st.lists(st.one_of(gpu, junk), max_size=9), junk),
            "sysfs": st.lists(device, max_size=9, unique_by=lambda it: it[0]).map(_sysfs),
            "cpus": st.one_of(
                junk,
                st.fixed_dictionaries(
                    {"affinity": st.just("0-31"), "cores": st.just({"0": "0-15", "1": "16-31"})}
                ),
            ),
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
        path = f"class/infiniband/mlx5_{number}"
        found[path] = {"link": f"../../devices/{root}/0000:{32 + number:02x}:00.0/infiniband/mlx5_{number}"}
        found[f"{path}/device/numa_node"] = str(number % 3 - 1)
        found[f"{path}/ports/1/state"] = state
        found[f"{path}/ports/1/link_layer"] = "InfiniBand" if number % 2 else "Ethernet"
        found[f"{path}/ports/1/rate"] = "400 Gb/sec (4X NDR)"
        for place in range(1, 12):
            at = f"{root}/0000:{place:02x}:00.0"
            found[f"bus/pci/devices/0000:{place:02x}:00.0"] = {"link": f"../../../devices/{at}"}
    return found


@pytest.mark.thorough
@deterministic(60)
@given(snapshot=machines())
def test_any_machine_is_shown_without_a_traceback(snapshot: Json) -> None:
    """Facts missing, of another type, or hostile; parts everywhere: a picture in which nothing overlaps."""
    view = view_snapshot(snapshot)
    check_picture(render(view, "svg"))
    ET.fromstring(render(view, "nccl-xml"))
    json.loads(render(view, "json"))
    assert all(line.isprintable() for line in render(view, "text").splitlines())


def test_this_machine_is_shown(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    """Whatever it has, in every form, on standard output and in a file."""
    for form in FORMS:
        assert main(["topology", "--format", form], {}) == 0
        printed = capfdbinary.readouterr().out.decode()
        assert main(["topology", "--format", form, "-o", str(tmp_path / "out")], {}) == 0
        assert (tmp_path / "out").read_text().splitlines()[:1] == printed.splitlines()[:1]
    check_picture(render(view_snapshot(take_snapshot(Host(), {})), "svg"))


def test_a_snapshot_shows_what_the_machine_shows(tmp_path: Path) -> None:
    """Also one that was taken of a replay."""
    host = ND_V4(tmp_path)
    there = RecordedHost(json.loads(render_snapshot(take_snapshot(host, {}))))
    again = RecordedHost(json.loads(render_snapshot(take_snapshot(there, {}))))
    for recorded in (there, again):
        assert read_hardware(recorded).parts == read_hardware(host).parts


def test_a_machine_is_shown_where_no_job_can_be_planned() -> None:
    """With the reason in place of the ranks."""
    snapshot = {**read_topology("cpu_node"), "environ": {"OMPI_COMM_WORLD_RANK": "x"}}
    view = view_snapshot(snapshot)
    assert view.assigned == ()
    assert [note for note in view.notes if note.startswith("no ranks are shown: OMPI_COMM_WORLD_RANK")]
    check_picture(render(view, "svg"))


def test_without_a_binding_ranks_have_the_ports_of_no_gpu() -> None:
    """On CPUs alone the nearest port is that of their NUMA node."""
    view = view_snapshot(read_topology("cpu_node"), nproc_per_node="2", bind="core")
    assert [(process.ports, process.reach) for process in view.assigned] == [
        (("mlx5_0",), "NODE"),
        (("mlx5_0",), "SYS"),
    ]


@pytest.mark.parametrize("argv", [["--format", "png"], ["--replay", "/nonexistent"], ["--nnodes", "x"]])
def test_what_is_typed_wrongly_is_a_usage_error(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Status 64, and not a picture of something else."""
    assert main(["topology", *argv], {}) == 64
    assert capfd.readouterr().out == ""


@deterministic(200)
@given(text=st.text(max_size=60), room=st.floats(0, 300), size=st.floats(8, 20))
def test_a_text_keeps_to_its_room(text: str, room: float, size: float) -> None:
    """Whole if it fits, else its beginning with dots, else nothing."""
    shown = fit(text, room, size)
    assert measure(shown, size) <= room
    assert shown == "" or not shown.endswith(ELLIPSIS) or len(shown) > 0
