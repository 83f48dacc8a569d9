"""Which fabric a node has, and what its processes are told: recorded and made-up machines of all makes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.core.errors import HardwareMissing
from launcher.core.model import Policy
from launcher.core.supervision import Network
from launcher.fabrics import FABRICS, Fabric, plan_fabric
from launcher.fabrics.facts import Facts, choose_interface, parse_bus_ids, parse_conf, read_facts
from launcher.fabrics.topology_file import WORD
from launcher.machine.azure import ASSET_TAG, CONTEXT, FAMILY
from launcher.machine.host import Host
from launcher.machine.libraries import CACHE, find_libraries
from launcher.machine.network import Interface
from launcher.options.given import Given
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.snapshot import render_snapshot, take_snapshot
from tests.golden.fabrics import read_fabric, write_fabric
from tests.unit.machines import write, write_gpus
from tests.unit.public_machines import MACHINES, build
from tests.unit.wiring import Wired

TAG_FILE = "sys/class/dmi/id/chassis_asset_tag"
ETH0 = Interface("eth0", (("10.0.0.4", 24),), True, True, kind="ethernet")
ETH1 = Interface("eth1", (("192.168.7.4", 24),), True, True, kind="ethernet")
DEAD = Interface("eth2", (("10.9.0.4", 24),), True, False, kind="ethernet")
DOCKER = Interface("docker0", (("172.17.0.1", 16),), True, True, kind="bridge")
LO = Interface("lo", (("127.0.0.1", 8),), True, True, is_loopback=True, kind="loopback")
V5_GPUS = [(f"{domain}:00:00.0", 0) for domain in ("0001", "0002", "0003", "0008")]


class Machine(Wired):
    """A machine in a folder whose network is made up; its home directory is in it too."""

    found: tuple[Interface, ...] = (LO, ETH0)

    def home(self) -> str:
        return "/root"


def machine(folder: Path, fabric: str | Mapping[str, Any], files: Mapping[str, str] | None = None) -> Machine:
    """Return a machine with the RDMA devices of tests/golden/fabrics, and some files besides."""
    write_fabric(folder, read_fabric(fabric) if isinstance(fabric, str) else dict(fabric))
    write(folder, files or {})
    return Machine(str(folder))


def choose(
    host: Host,
    environ: Mapping[str, str] | None = None,
    wish: Given | None = None,
    required: Given | None = None,
) -> Fabric:
    return plan_fabric(read_facts(host, environ or {}, peers=("10.0.0.9",)), wish, required)


def values(fabric: Fabric) -> dict[str, str]:
    return {setting.name: setting.value for setting in fabric.settings}


def vm(size: str) -> dict[str, str]:
    return {CONTEXT: json.dumps({"vm_size": size})}


def device(number: int, link_layer: str = "InfiniBand", state: str = "4: ACTIVE") -> dict[str, Any]:
    """Return a device of 200 Gb/s in its own PCI slot."""
    return {
        "at": f"pci0000:00/0000:{number:02x}:00.0",
        "driver": "mlx5_core",
        "uverbs": f"uverbs{number}",
        "ports": {"1": {"link_layer": link_layer, "state": state, "rate": "200 Gb/sec (4X HDR)"}},
    }


def devices(named: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a machine with these devices, all exposed."""
    return {"devices": dict(named), "exposed": [item["uverbs"] for item in named.values()]}


SOCKETS = {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}


def test_nd_h200_v5_uses_its_eight_ports_and_not_the_ninth(tmp_path: Path) -> None:
    """mlx5_an0 is accelerated networking, whatever ibv_devinfo calls it; the list is exact."""
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5"), vm("Standard_ND96isr_H200_v5"))
    ports = ",".join(f"mlx5_ib{number}:1" for number in range(8))
    assert values(fabric) == {
        **SOCKETS,
        "NCCL_IB_HCA": f"={ports}",
        "UCX_NET_DEVICES": ports,
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    assert (fabric.network.fabric, fabric.network.why, fabric.network.port_count) == (
        "ib",
        "8 active InfiniBand ports of 400 Gb/s",
        8,
    )
    assert all(setting.policy is Policy.IF_UNSET and setting.origin for setting in fabric.settings)
    assert fabric.notes == ("not RoCE: mlx5_an0 is Azure's accelerated networking: no RDMA between VMs",)


@pytest.mark.parametrize("sign", ["tag", "size", "batch"])
def test_accelerated_networking_alone_is_no_infiniband(sign: str, tmp_path: Path) -> None:
    """NCCL would take mlx5_an0 for RoCE and hang; that nothing answers there is certain on Azure."""
    host = machine(tmp_path, "accelerated_networking_only", {TAG_FILE: ASSET_TAG} if sign == "tag" else {})
    environ = {"size": vm("Standard_ND96is_H100_v5"), "batch": {"AZ_BATCH_NODE_ID": "tvm-1"}}.get(sign, {})
    fabric = choose(host, environ)
    assert fabric.network.fabric == "tcp"
    assert fabric.network.port_count is None
    assert values(fabric)["NCCL_IB_DISABLE"] == "1"
    assert values(fabric)["UCX_NET_DEVICES"] == "eth0"
    assert "NCCL_IB_HCA" not in values(fabric)


def test_accelerated_networking_is_known_by_the_interface_above_it(tmp_path: Path) -> None:
    """Its interface belongs to one with an address that is no bond: a hypervisor's, Azure or not."""
    host = machine(tmp_path, "accelerated_networking_only")
    # Nothing tells the two apart here, and NCCL would take it too
    assert choose(host).network.fabric == "roce"
    below = Interface("enP1s1", (), True, True, kind="ethernet", master="eth0")
    host.found = (LO, ETH0, below)
    assert values(choose(host))["NCCL_IB_DISABLE"] == "1"
    bond = Interface("eth0", ETH0.addresses, True, True, kind="bond")
    host.found = (LO, bond, below)
    assert choose(host).network.fabric == "roce"


@pytest.mark.parametrize(
    ("size", "count", "rate"),
    [
        ("Standard_ND96asr_v4", 8, 200),
        ("Standard_ND40rs_v2", 1, 200),
        ("Standard_HB120rs_v3", 1, 200),
        ("Standard_HC44rs", 1, 200),
    ],
)
def test_other_sizes_of_azure(size: str, count: int, rate: int, tmp_path: Path) -> None:
    """NDv4, NDv2, HB and HC: as many ports as there are; stock images call them mlx5_N, all alike."""
    named = {f"mlx5_{number}": device(number) for number in range(count)}
    named |= {f"mlx5_{count}": device(count, "Ethernet")}
    fabric = choose(machine(tmp_path, devices(named)), vm(size))
    expected = ",".join(f"mlx5_{number}:1" for number in range(count))
    assert (fabric.network.fabric, fabric.network.port_count) == ("ib", count)
    assert values(fabric)["NCCL_IB_HCA"] == f"={expected}"
    assert values(fabric)["UCX_NET_DEVICES"] == expected
    assert f"{rate:g} Gb/s" in fabric.network.why


def test_the_familys_settings_are_azures_own(tmp_path: Path) -> None:
    """What its images have in /etc/nccl.conf, by family; a family that is unknown has none."""
    host = machine(tmp_path, devices({"mlx5_0": device(0)}))
    only = {
        size: set(values(choose(host, vm(size)))) - {*SOCKETS, "NCCL_IB_HCA", "UCX_NET_DEVICES"}
        for size in (
            "Standard_ND96asr_v4",
            "Standard_ND40rs_v2",
            "Standard_HC44rs",
            "Standard_ND128isr_NDR_GB200_v6",
            "Standard_Z1",
        )
    }
    affinity, ordering = "NCCL_IGNORE_CPU_AFFINITY", "NCCL_IB_PCI_RELAXED_ORDERING"
    v4 = {affinity, ordering, "UCX_IB_PCI_RELAXED_ORDERING"}
    blackwell = {"NCCL_IB_SL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_C2C", "NCCL_NVLS_ENABLE"}
    assert [*only.values()] == [v4, {affinity}, set(), {*blackwell, "NCCL_MNNVL_ENABLE"}, set()]


@pytest.mark.parametrize("size", ["Standard_ND128isr_NDR_GB200_v6", "Standard_ND128isr_GB300_v6"])
@pytest.mark.parametrize(("channels", "enabled"), [({"channel0": ""}, "1"), ({}, "0")])
def test_nvlink_between_vms_takes_a_channel(
    size: str, channels: Mapping[str, str], enabled: str, tmp_path: Path
) -> None:
    """Without one NCCL ends the job, and says to switch it off; the reason names the folder."""
    files = {f"dev/nvidia-caps-imex-channels/{name}": text for name, text in channels.items()}
    host = machine(tmp_path, devices({f"mlx5_{number}": device(number) for number in range(4)}), files)
    fabric = choose(host, vm(size))
    assert values(fabric)["NCCL_MNNVL_ENABLE"] == enabled
    assert "NCCL_TOPO_FILE" not in values(fabric)
    (why,) = [item.origin for item in fabric.settings if item.name == "NCCL_MNNVL_ENABLE"]
    assert "/dev/nvidia-caps-imex-channels" in why


BRIDGED = (LO, ETH0, Interface("docker0", (("172.17.0.1", 16),), True, False, kind="bridge"))


@pytest.mark.parametrize(
    ("environ", "found", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0"}, BRIDGED, {"OMPI_MCA_btl_tcp_if_include": "eth0"}),
        ({"OMPI_COMM_WORLD_RANK": "0"}, (LO, ETH0), {}),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_btl_tcp_if_exclude": "lo"}, BRIDGED, {}),
        ({"PMI_RANK": "0"}, BRIDGED, {"FI_TCP_IFACE": "eth0"}),
        ({}, BRIDGED, {}),
    ],
)
def test_a_rank_of_mpi_keeps_to_the_interface(
    environ: Mapping[str, str],
    found: tuple[Interface, ...],
    expected: Mapping[str, str],
    tmp_path: Path,
) -> None:
    """docker0 has the same address on every node; who chose which to leave out has chosen."""
    host = Machine(str(tmp_path))
    host.found = found
    assert values(choose(host, environ)) == {**SOCKETS, **expected}


@pytest.mark.parametrize(
    "path",
    ["etc/openmpi/openmpi-mca-params.conf", "o/etc/openmpi-mca-params.conf", "root/.openmpi/mca-params.conf"],
)
def test_a_file_of_open_mpis_is_the_users_word(path: str, tmp_path: Path) -> None:
    """What to take beside what to leave out would end the rank; a snapshot knows the file."""
    write(tmp_path, {path: "# x\n btl_tcp_if_exclude = docker0,lo\n"})
    host = Machine(str(tmp_path))
    host.found = BRIDGED
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OPAL_PREFIX": "/o"}
    assert values(choose(host, environ)) == SOCKETS
    replayed = replay(json.loads(render_snapshot(take_snapshot(host, environ))))
    assert "OMPI_MCA_btl_tcp_if_include" not in values(choose(replayed, environ))


def test_nc24rs_v3_has_one_port_of_two(tmp_path: Path) -> None:
    """A ConnectX-3: the second port of the device is down, and the other device is Ethernet."""
    fabric = choose(machine(tmp_path, "nc24rs_v3_mlx4"), vm("Standard_NC24rs_v3"))
    assert values(fabric)["NCCL_IB_HCA"] == "=mlx4_0:1"
    assert fabric.network.port_count == 1
    assert fabric.notes[-1] == "InfiniBand ports that are not used: mlx4_0:2 DOWN"


def test_nc24r_has_rdma_that_nccl_cannot_use(tmp_path: Path) -> None:
    """No SR-IOV: whatever device shows up, NCCL must not try."""
    fabric = choose(machine(tmp_path, "accelerated_networking_only"), vm("Standard_NC24r"))
    assert (fabric.network.fabric, values(fabric)["NCCL_IB_DISABLE"]) == ("tcp", "1")
    with pytest.raises(HardwareMissing, match="Standard_NC24r has RDMA without SR-IOV"):
        choose(
            Host(str(tmp_path / "none")),
            vm("Standard_NC24r"),
            required=Given("ib", "--require-fabric ib"),
        )


def test_roce_lists_the_active_hardware_ports(tmp_path: Path) -> None:
    """Not the one that is down, nor the one in software, whose device file we have not either."""
    fabric = choose(machine(tmp_path, "roce"))
    assert (fabric.network.fabric, fabric.network.port_count) == ("roce", 1)
    assert values(fabric) == {
        **SOCKETS,
        "NCCL_IB_HCA": "=mlx5_bond_0:1",
        "UCX_NET_DEVICES": "mlx5_bond_0:1",
    }


OFI = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("library", "environ", "expected"),
    [
        ("libnccl-net.so", {"LD_LIBRARY_PATH": f"/x:{OFI}"}, {"FI_PROVIDER": "efa"}),
        ("libnccl-net-ofi.so", {"LD_LIBRARY_PATH": OFI}, {"FI_PROVIDER": "efa", "NCCL_NET_PLUGIN": "ofi"}),
        (
            "libnccl-net-aws-ofi.so",
            {"LD_LIBRARY_PATH": OFI, "NCCL_NET_PLUGIN": "aws-ofi"},
            {"FI_PROVIDER": "efa"},
        ),
    ],
)
def test_efa_with_the_plugin(
    library: str, environ: dict[str, str], expected: dict[str, str], tmp_path: Path
) -> None:
    """A p5: only libfabric's provider is named, and the plugin where NCCL would not try its name."""
    host = machine(tmp_path, "efa", {f"{OFI[1:]}/{library}": ""})
    fabric = choose(host, environ)
    assert (fabric.network.fabric, fabric.network.port_count) == ("efa", 2)
    assert values(fabric) == {**SOCKETS, **expected}
    assert f"{OFI}/{library}" in fabric.network.why


@pytest.mark.parametrize(
    ("files", "environ", "reason"),
    [
        (
            {},
            {},
            "2 active EFA ports of 100 Gb/s, but aws-ofi-nccl is not installed: NCCL would use sockets",
        ),
        (
            {f"{OFI[1:]}/libnccl-net.so": ""},
            {},
            f"aws-ofi-nccl is in {OFI}, which the loader does not search: NCCL would use sockets",
        ),
        ({}, {"NCCL_NET_PLUGIN": "none"}, "NCCL_NET_PLUGIN=none is set"),
    ],
)
def test_efa_without_the_plugin_is_tcp_and_says_so(
    files: dict[str, str], environ: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """The silent way to a tenth of the speed."""
    host = machine(tmp_path, "efa", files)
    fabric = choose(host, environ)
    assert (fabric.network.fabric, values(fabric)) == ("tcp", SOCKETS)
    assert f"not EFA: {reason}" in fabric.notes
    with pytest.raises(HardwareMissing) as caught:
        choose(host, environ, required=Given("efa", "--require-fabric efa"))
    assert caught.value.exit_status == 69
    assert reason in str(caught.value)


def test_omni_path_says_infiniband_and_is_none(tmp_path: Path) -> None:
    """Neither chosen nor switched off: with its own plugin NCCL may use it."""
    fabric = choose(
        machine(tmp_path, {**read_fabric("omni_path"), "exposed": ["uverbs0", "uverbs1", "uverbs2"]})
    )
    assert (fabric.network.fabric, values(fabric)) == ("tcp", SOCKETS)
    assert fabric.notes == ("not InfiniBand: it is Omni-Path, for which NCCL needs a plugin (OFI, PSM2)",)


def test_a_dgx_uses_all_that_is_active(tmp_path: Path) -> None:
    """8 adapters for GPUs and 2 in Ethernet mode for storage, numbered in one row."""
    named = {f"mlx5_{n}": device(n, "Ethernet" if n in (5, 10) else "InfiniBand") for n in range(12)}
    fabric = choose(machine(tmp_path, devices(named)))
    expected = [f"mlx5_{n}:1" for n in range(12) if n not in (5, 10)]
    assert values(fabric)["NCCL_IB_HCA"] == "=" + ",".join(expected)


def test_mlx5_1_does_not_mean_mlx5_10(tmp_path: Path) -> None:
    """As a prefix it would; INIT, DOWN, ARMED and deferred ports are no use, and are named."""
    fabric = choose(machine(tmp_path, "bare_metal_mixed_states"))
    assert values(fabric)["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_10:1"
    assert fabric.network.why == "2 active InfiniBand ports of 200 and 400 Gb/s"
    (note,) = [note for note in fabric.notes if "not used" in note]
    assert all(text in note for text in ("mlx5_0:1 INIT", "mlx5_2:1 DOWN", "mlx5_3:1 ARMED"))
    one = choose(
        machine(tmp_path / "one", devices({"mlx5_1": device(1), "mlx5_10": device(10, state="1: DOWN")}))
    )
    assert values(one)["NCCL_IB_HCA"] == "=mlx5_1:1"


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_ports_that_are_not_active_are_tcp_and_nothing_is_switched_off(state: str, tmp_path: Path) -> None:
    """They may be active by the time that NCCL looks; who requires them is told the state."""
    named = {"mlx5_0": device(0, state=state), "mlx5_an0": device(1, "Ethernet")}
    host = machine(tmp_path, devices(named), {TAG_FILE: ASSET_TAG})
    fabric = choose(host)
    assert (fabric.network.fabric, values(fabric)) == ("tcp", SOCKETS)
    with pytest.raises(HardwareMissing, match=f"no port is ACTIVE .mlx5_0:1 {state[3:]}"):
        choose(host, required=Given("ib", "--require-fabric ib"))


def test_ports_that_the_container_does_not_have_are_named_with_the_fix(tmp_path: Path) -> None:
    """/sys shows the whole machine, /dev only what was granted."""
    host = machine(tmp_path, {**read_fabric("nd96isr_h200_v5"), "exposed": []})
    fabric = choose(host)
    assert fabric.network.fabric == "tcp"
    assert "NCCL_IB_DISABLE" not in values(fabric)
    with pytest.raises(HardwareMissing) as caught:
        choose(host, required=Given("ib", "LAUNCHER_REQUIRE_FABRIC='ib'"))
    (problem,) = caught.value.problems
    assert problem.what.startswith("LAUNCHER_REQUIRE_FABRIC='ib', but no InfiniBand can be used: 8 active")
    assert "--device /dev/infiniband" in problem.fix


def test_a_vm_with_ports_missing_is_worth_a_word(tmp_path: Path) -> None:
    """The size says 8, two are here."""
    host = machine(tmp_path, devices({"mlx5_0": device(0), "mlx5_1": device(1)}))
    fabric = choose(host, vm("Standard_ND96isr_H100_v5"))
    assert "Standard_ND96isr_H100_v5 has 8 InfiniBand ports, 2 can be used here" in fabric.notes


def test_a_file_of_nccls_is_the_users_word(tmp_path: Path) -> None:
    """What one of the three files sets is not set by us, since a variable would beat the file."""
    files = {
        "etc/nccl.conf": "# system\nNCCL_IB_HCA=mlx5\nNCCL_SOCKET_IFNAME==eth0\nno value\n",
        "root/.nccl.conf": "UCX_NET_DEVICES=mlx5_ib0:1\n",
        "job/nccl.conf": "NCCL_IB_PCI_RELAXED_ORDERING=0",
    }
    environ = {**vm("Standard_ND96isr_H200_v5"), "NCCL_CONF_FILE": "/job/nccl.conf"}
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5", files), environ)
    assert set(values(fabric)) == {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IGNORE_CPU_AFFINITY"}
    stays = [note for note in fabric.notes if ": keeping " in note]
    assert len(stays) == 3
    assert stays[0].startswith("NCCL_IB_HCA: keeping 'mlx5' from /etc/nccl.conf (otherwise '=mlx5_ib0:1,")


def test_files_are_read_as_nccl_reads_them() -> None:
    """src/misc/param.cc: no spaces are stripped, a line without = is none, # only in front."""
    text = "#NCCL_A=1\nNCCL_B=2 \n\nNCCL_C\nNCCL_D=a=b\n NCCL_E=1\nNCCL_F="
    assert parse_conf(text) == [("NCCL_B", "2 "), ("NCCL_D", "a=b"), ("NCCL_F", "")]


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1 is set"),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket is set"),
        ({"NCCL_NET": "socket"}, "NCCL_NET=socket is set"),  # NCCL does not look at case
        ({"NCCL_NET": "AWS Libfabric"}, "NCCL_NET=AWS Libfabric is set"),
        ({"NCCL_IB_HCA": "=nonexist:1"}, "NCCL_IB_HCA==?=nonexist:1 excludes all of mlx5_"),
        ({"NCCL_IB_HCA": "^mlx5"}, "excludes all of mlx5_"),
    ],
)
def test_a_variable_that_rules_the_fabric_out_is_named(
    environ: dict[str, str], what: str, tmp_path: Path
) -> None:
    """The user wins, but not against himself in silence."""
    host = machine(tmp_path, "nd96isr_h200_v5")
    found = choose(host, environ)
    assert found.network.fabric == "ib" and re.search(
        what + ".*: NCCL will not use InfiniBand", " ".join(found.notes)
    )
    with pytest.raises(HardwareMissing, match=what):
        choose(host, environ, required=Given("ib", "--require-fabric ib"))


def test_forcing_tcp_leaves_no_way_to_rdma(tmp_path: Path) -> None:
    """For NCCL, for UCX, and for libfabric."""
    wish = Given("tcp", "--fabric tcp")
    fabric = choose(machine(tmp_path, "nd96isr_h200_v5"), wish=wish)
    forced = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "UCX_NET_DEVICES": "eth0"}
    assert values(fabric) == {**SOCKETS, **forced, "FI_PROVIDER": "tcp"}
    with pytest.raises(HardwareMissing, match="can be used: the fabric is tcp: --fabric tcp"):
        choose(
            Machine(str(tmp_path)),
            wish=Given("tcp", "--fabric tcp"),
            required=Given("ib", "--require-fabric ib"),
        )


def test_forcing_against_a_variable_is_refused(tmp_path: Path) -> None:
    """NCCL would follow the variable, not the flag."""
    with pytest.raises(HardwareMissing, match="--fabric tcp, but no TCP can be used: NCCL_NET=IB is set"):
        choose(Machine(str(tmp_path)), {"NCCL_NET": "IB"}, Given("tcp", "--fabric tcp"))


@pytest.mark.parametrize(
    "environ", [{"NCCL_NET": "ib"}, {"NCCL_NET": "IBext_v8"}, {"NCCL_IB_HCA": "=mlx5_ib1:1"}]
)
def test_a_variable_that_leaves_the_fabric_is_none_against_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """Networks of NVIDIA's plugin use the same ports, and one port is one."""
    host = machine(tmp_path, "nd96isr_h200_v5")
    fabric = choose(host, environ, required=Given("ib", "--require-fabric ib"))
    assert fabric.network.fabric == "ib" and not [note for note in fabric.notes if "will not use" in note]


def test_tcp_is_what_a_variable_may_ask_for(tmp_path: Path) -> None:
    """In any case of letters."""
    wish = Given("tcp", "--fabric tcp")
    assert choose(Machine(str(tmp_path)), {"NCCL_NET": "socket"}, wish).network.fabric == "tcp"


def test_forcing_infiniband_leaves_no_silent_way_back(tmp_path: Path) -> None:
    """NCCL_NET=IB makes NCCL fail instead; with a plugin, whose name is another, it would fail always."""
    wish = Given("ib", "--fabric ib")
    host = machine(tmp_path, "nd96isr_h200_v5")
    assert values(choose(host, wish=wish))["NCCL_NET"] == "IB"
    write(tmp_path, {"opt/sharp/libnccl-net.so": ""})
    assert "NCCL_NET" not in values(choose(host, {"LD_LIBRARY_PATH": "/opt/sharp"}, wish))
    with pytest.raises(
        HardwareMissing, match="--fabric ib, but no InfiniBand can be used: this node shows no RDMA"
    ):
        choose(Host(str(tmp_path / "none")), wish=wish)


@pytest.mark.parametrize("folder", ["/var/lib/tcpxo/lib64", "/usr/local/fastrak/lib64"])
def test_gpudirect_tcpx_keeps_its_own_settings(folder: str, tmp_path: Path) -> None:
    """Its checker refuses variables that differ from its file, so NCCL is told nothing."""
    host = machine(tmp_path, {"devices": {}}, {f"{folder[1:]}/libnccl-net.so": ""})
    fabric = choose(host, {"LD_LIBRARY_PATH": folder})
    assert (fabric.network.fabric, set(values(fabric))) == ("gcp", {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
    assert f"source {folder}/nccl-env-profile.sh" in fabric.notes[0]
    assert choose(host, {"LD_LIBRARY_PATH": folder, "NCCL_FASTRAK_CTRL_DEV": "eth0"}).notes == (
        f"NCCL would load the net plugin {folder}/libnccl-net.so",
    )


TOPOLOGY = "<system>{}</system>"


def topology(addresses: Sequence[str]) -> str:
    return TOPOLOGY.format("".join(f'<pci busid="{address}" class="0x030200"/>' for address in addresses))


IB_ADDRESSES = [f"01{number:02}:00:00.0" for number in range(1, 9)]
WHOLE = topology([address for address, _ in V5_GPUS] + IB_ADDRESSES)


@pytest.mark.parametrize(
    "path", ["opt/microsoft/ndv5-topo.xml", "opt/microsoft/ndv5/topo.xml", "etc/topology/ndv5-topo.xml"]
)
def test_a_topology_file_is_named_where_it_fits(path: str, tmp_path: Path) -> None:
    """It is there, for the family of this VM, and every GPU and port of the node is in it."""
    write_gpus(tmp_path, V5_GPUS)
    host = machine(tmp_path, "nd96isr_h200_v5", {path: WHOLE})
    fabric = choose(host, vm("Standard_ND96isr_H200_v5"))
    assert values(fabric)["NCCL_TOPO_FILE"] == f"/{path}"
    assert values(choose(host, {FAMILY: "ndv5"}))["NCCL_TOPO_FILE"] == f"/{path}"
    assert "NCCL_TOPO_FILE" not in values(choose(host, vm("Standard_ND96asr_v4")))
    assert "NCCL_TOPO_FILE" not in values(choose(host))


@pytest.mark.parametrize(
    "text", [None, "", topology(IB_ADDRESSES), topology([a for a, _ in V5_GPUS]), "\0garbage"]
)
def test_a_topology_file_that_is_missing_or_of_another_machine_is_not_named(
    text: str | None, tmp_path: Path
) -> None:
    """NCCL ignores a missing one in silence, and plans wrong rings by a wrong one."""
    write_gpus(tmp_path, V5_GPUS)
    files = {} if text is None else {"opt/microsoft/ndv5-topo.xml": text}
    host = machine(tmp_path, "nd96isr_h200_v5", files)
    made = None if text else WORD  # where there is none, one is made
    assert values(choose(host, vm("Standard_ND96isr_H200_v5"))).get("NCCL_TOPO_FILE") == made


def test_the_graph_file_goes_with_its_topology_file(tmp_path: Path) -> None:
    """NC96ads A100 v4, which has no InfiniBand; nc24ads and nc48ads have neither."""
    write_gpus(tmp_path, V5_GPUS)
    files = {"opt/microsoft/ncv4/topo.xml": WHOLE, "opt/microsoft/ncv4/graph.xml": "<graphs/>"}
    host = machine(tmp_path, {"devices": {}}, files)
    found = values(choose(host, vm("Standard_NC96ads_A100_v4")))
    assert (found["NCCL_TOPO_FILE"], found["NCCL_GRAPH_FILE"]) == (
        "/opt/microsoft/ncv4/topo.xml",
        "/opt/microsoft/ncv4/graph.xml",
    )
    assert values(choose(host, vm("Standard_NC24ads_A100_v4"))) == SOCKETS


def test_bus_ids_are_compared_in_lower_case() -> None:
    """Files of Azure have ``000B:00:00.0`` and ``000b:00:00.0``."""
    assert parse_bus_ids('<pci busid="000B:00:00.0"><pci busid="x"') == {"000b:00:00.0", "x"}


def test_libraries_are_found_in_the_loaders_order(tmp_path: Path) -> None:
    """LD_LIBRARY_PATH, then the cache (NULs around whole paths), then the default folders; first wins."""
    write(
        tmp_path,
        {
            "a/libnccl-net.so": "",
            "b/libnccl-net.so": "",
            "b/libnccl-net-x.so": "",
            "b/libnccl-net.so.0": "",
            "usr/lib/x86_64-linux-gnu/libsharp_coll.so": "",
            "usr/lib/x86_64-linux-gnu/libmsccl-scheduler.so": "",
            CACHE[
                1:
            ]: "glibc-ld.so.cache1.1\1\2\0libsharp_coll.so\0/opt/sharp/libsharp_coll.so\0/x/libc.so\0",
        },
    )
    (tmp_path / "lib").symlink_to("usr/lib")
    found = find_libraries(
        Host(str(tmp_path)), {"LD_LIBRARY_PATH": "/a::b;/b"}, ("libnccl-net", "libsharp", "libmsccl")
    )
    assert found == (
        "/a/libnccl-net.so",
        "/b/libnccl-net-x.so",
        "/opt/sharp/libsharp_coll.so",
        "/usr/lib/x86_64-linux-gnu/libmsccl-scheduler.so",
    )


def test_plugins_are_named(tmp_path: Path) -> None:
    """The net plugin that NCCL would load, and what lies beside it."""
    host = machine(tmp_path, {"devices": {}}, {"p/libnccl-net.so": "", "p/libsharp_coll.so": ""})
    assert choose(host, {"LD_LIBRARY_PATH": "/p"}).notes == (
        "NCCL would load the net plugin /p/libnccl-net.so",
        "found beside NCCL: /p/libsharp_coll.so",
    )


class Routed(Machine):
    """A machine whose routes are known."""

    def ask_source(self, target: str) -> str | None:
        return {"10.0.0.9": "10.0.0.4", "192.168.7.9": "192.168.7.4", "head": "192.168.7.4"}.get(target)


@pytest.mark.parametrize(
    ("interfaces", "hosts", "master", "expected"),
    [
        ((LO, ETH0), (), "x", ("eth0", "the only interface that leads to other nodes")),
        ((LO, DOCKER, ETH0, DEAD), (), "x", ("eth0", "the only interface that leads to other nodes")),
        (
            (LO, ETH0, ETH1),
            ("10.0.0.4", "10.0.0.9"),
            "y",
            ("eth0", "it has 10.0.0.4, this node in the list of hosts"),
        ),
        ((LO, ETH0, ETH1), (), "192.168.7.9", ("eth1", "it leads to 192.168.7.9")),
        ((LO, ETH0, ETH1), (), "head", ("eth1", "it leads to head")),
        ((LO, ETH0, ETH1), (), "lost", (None, "unknown which of eth0, eth1 leads to the other nodes")),
        ((LO, DOCKER, DEAD), (), "x", (None, "no interface with an address leads out of this machine")),
        ((LO, ETH0), (), "127.0.0.1", (None, "the job meets at 127.0.0.1, on this machine")),
        ((LO, ETH0), (), "localhost", (None, "the job meets at localhost, on this machine")),
    ],
)
def test_the_interface_leads_to_the_other_nodes(
    interfaces: tuple[Interface, ...],
    hosts: Sequence[str],
    master: str,
    expected: tuple[str | None, str],
    tmp_path: Path,
) -> None:
    """By our address among the hosts, else by the route; names are looked up only where there is a choice."""
    host = Routed(str(tmp_path))
    assert (
        choose_interface(host, interfaces, *((hosts[0], (master, *hosts[1:])) if hosts else ("", (master,))))
        == expected
    )


def test_a_link_local_address_is_no_network() -> None:
    """An interface that found nobody to give it an address is not the one."""
    left = Interface("eth1", (("fe80::1", 64), ("169.254.7.7", 16)), True, True)
    assert choose_interface(Host("/nonexistent"), (LO, ETH0, left), peers=("10.0.0.9",))[0] == "eth0"


def test_azures_service_is_asked_only_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Azure for certain, with InfiniBand, once per node, and not in Kubernetes."""
    asked: list[Host] = []
    monkeypatch.setattr("launcher.fabrics.facts.ask_vm", asked.append)
    write_fabric(tmp_path, read_fabric("nd96isr_h200_v5"))
    host, azure = Machine(str(tmp_path)), {"AZ_BATCH_NODE_ID": "tvm-1"}
    read_facts(host, {}, ask=True)
    read_facts(host, azure)
    read_facts(host, {**azure, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, ask=True)
    read_facts(host, {**azure, **vm("Standard_D2_v3")}, ask=True)
    read_facts(Machine(str(tmp_path / "none")), azure, ask=True)
    assert asked == []
    read_facts(host, azure, ask=True)
    assert asked == [host]


@pytest.mark.parametrize("name", ["nd96isr_h200_v5", "efa", "roce"])
def test_a_snapshot_replays_the_fabric(name: str, tmp_path: Path) -> None:
    """The same settings and notes, whatever machine it is read on."""
    write_gpus(tmp_path, V5_GPUS)
    files = {
        "opt/microsoft/ndv5-topo.xml": WHOLE,
        "root/.nccl.conf": "NCCL_IB_QPS_PER_CONNECTION=4\n",
        "p/libnccl-net.so": "",
        TAG_FILE: ASSET_TAG if name.startswith("nd") else "x",
    }
    host = machine(tmp_path, name, files)
    environ = {"LD_LIBRARY_PATH": "/p", **(vm("Standard_ND96isr_H200_v5") if name.startswith("nd") else {})}
    replayed = replay(json.loads(render_snapshot(take_snapshot(host, environ))))
    expected = choose(host, environ)
    assert expected == choose(replayed, environ)
    assert [*read_facts(replayed, environ).configured] == ["NCCL_IB_QPS_PER_CONNECTION"]


TWO_NODES = {"LAUNCHER_NNODES": "2", "LAUNCHER_NODE_RANK": "1", "LAUNCHER_MASTER_ADDR": "10.0.0.9"}


def settings(host: Host, environ: Mapping[str, str], *flags: str) -> dict[str, str]:
    typed = dict(zip(flags[::2], flags[1::2], strict=True))
    job = plan_job(environ, host, read_options(typed, environ), ["train.py"])
    return {setting.name: setting.value for setting in job.settings}


def test_a_job_of_several_nodes_gets_the_settings(tmp_path: Path) -> None:
    """In the plan, for all processes alike; what the user set stays."""
    host = machine(tmp_path, "nd96isr_h200_v5")
    found = settings(host, TWO_NODES)
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found["NCCL_IB_HCA"].startswith("=mlx5_ib0:1,")
    job = plan_job({**TWO_NODES, "NCCL_IB_HCA": "mine"}, host, read_options({}, TWO_NODES), ["train.py"])
    (mine,) = [setting for setting in job.settings if setting.name == "NCCL_IB_HCA"]
    assert mine.policy is Policy.IF_UNSET
    assert "fabric ib: 8 active InfiniBand ports of 400 Gb/s" in job.notes


def test_a_job_on_one_node_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the order of several GPUs is fixed; a process of this launcher has everything already."""
    for module in ("fabrics.facts", "fabrics"):
        monkeypatch.delattr(f"launcher.{module}.read_ports")
    write_gpus(tmp_path, V5_GPUS)
    found = settings(Machine(str(tmp_path)), {"LAUNCHER_NNODES": "1"})
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert not set(found) & {*SOCKETS, "NCCL_IB_HCA"}
    inside = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "LAUNCHER_LAUNCHED": "0",
    }
    settings(Machine(str(tmp_path)), {**inside, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "6105"})


def test_what_is_required_holds_on_one_node_too(tmp_path: Path) -> None:
    """Who asks gets an answer: a test of the image on one node, say."""
    host = machine(tmp_path, "accelerated_networking_only", {TAG_FILE: ASSET_TAG})
    with pytest.raises(HardwareMissing, match="--require-fabric ib, but no InfiniBand can be used"):
        settings(host, {}, "require_fabric", "ib")
    assert settings(host, {}, "fabric", "tcp")["NCCL_NET"] == "Socket"


def test_nothing_is_known_of_nothing() -> None:
    """No facts at all: TCP, and not one setting."""
    assert plan_fabric(Facts()) == Fabric(Network("tcp", "TCP"))
    assert list(FABRICS) == ["ib", "efa", "gcp", "roce", "tcp"]


@pytest.mark.parametrize("name", MACHINES)
def test_public_machines(name: str, tmp_path: Path) -> None:
    """The fabric, the interface and the exact list of the ports for GPUs, without front end and storage."""
    made = MACHINES[name]
    fabric = choose(build(tmp_path, made), made.environ)
    found = values(fabric)
    ports = ",".join(f"{device}:1" for device in made.hca)
    assert (fabric.network.fabric, found.get("GLOO_SOCKET_IFNAME")) == (made.fabric, made.interface)
    assert found.get("NCCL_IB_HCA", "").removeprefix("=") == ports
    assert found.get("UCX_NET_DEVICES", "") == ports


def test_why_a_port_is_left_out(tmp_path: Path) -> None:
    """The plan has each reason."""
    (note,) = [
        note for note in choose(build(tmp_path, MACHINES["oci_bm_gpu_h100_8"])).notes if "for GPUs" in note
    ]
    why = "(bond0 has the default route; 100 Gb/s, most others 200; no GPU at its PCI switch)"
    assert note == f"not for GPUs: mlx5_16:1 {why}, mlx5_17:1 {why}"


def test_what_cannot_be_decided_is_said(tmp_path: Path) -> None:
    """No list, and a note that says which ports and why; what NCCL then uses is not compared either."""
    fabric = choose(build(tmp_path, MACHINES["two_equal_ports_and_no_gpu"]))
    assert fabric.notes == (
        "no list of ports is set: undecided whether mlx5_0:1 (eth0 has the default route) is for GPUs; to "
        "decide: NCCL_IB_HCA",
    )
    assert (fabric.network.ports, fabric.network.port_count) == ((), None)


def test_a_snapshot_knows_the_ports_for_gpus(tmp_path: Path) -> None:
    """It has the places of the GPUs and the default route."""
    host = build(tmp_path, MACHINES["oci_bm_gpu_h100_8"])
    replayed = replay(json.loads(render_snapshot(take_snapshot(host, {}))))
    expected = choose(host).network.ports
    assert len(expected) == 16
    assert choose(replayed).network.ports == expected


def test_gib_is_roce(tmp_path: Path) -> None:
    """Google's plugin of A3 Ultra and later uses the RoCE ports, so it satisfies who requires them."""
    made = MACHINES["gcp_a3_ultragpu_8g"]
    required = Given("roce", "--require-fabric roce")
    assert choose(build(tmp_path, made), made.environ, required=required).network.fabric == "roce"


@pytest.mark.parametrize("nodes", [TWO_NODES, {"LAUNCHER_NNODES": "1"}])
def test_a_plan_has_a_note_of_an_interface_that_is_not_there(nodes: dict[str, str], tmp_path: Path) -> None:
    """What the user set is kept, and what is wrong with it is said, on one node as well."""
    environ = {**nodes, "GLOO_SOCKET_IFNAME": "^docker0"}
    notes = plan_job(environ, Machine(str(tmp_path)), read_options({}, environ), ["train.py"]).notes
    (note,) = [note for note in notes if "docker0" in note]
    assert note.startswith(
        "GLOO_SOCKET_IFNAME='^docker0': gloo knows whole names alone, without ^ and =; fix: "
    )
