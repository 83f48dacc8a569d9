"""Machines of public clouds and vendors, made up from their public descriptions: GPUs, ports, interfaces.

Addresses on the PCI bus are made up; what shares a switch with what, the numbers and the rates are those of
the descriptions. A virtual machine shows each device below a root of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.machine.network import Interface
from tests.golden.fabrics import write_device
from tests.unit.wiring import Wired

IB, ETH, EFA = "InfiniBand", "Ethernet", "Unspecified"
LO = Interface("lo", (("127.0.0.1", 8),), True, True, is_loopback=True, kind="loopback")


@dataclass(frozen=True)
class Device:
    """An RDMA device: its place, its rate, and its interface."""

    at: str
    rate: int
    layer: str = IB
    net: str = ""
    driver: str = "mlx5_core"


@dataclass(frozen=True)
class Made:
    """A machine, and what is right for it.

    ``hca`` are the devices of NCCL_IB_HCA, each with port 1; empty: none may be set. ``source`` is the
    description.
    """

    source: str
    fabric: str
    interface: str
    hca: tuple[str, ...]
    devices: Mapping[str, Device]
    interfaces: tuple[Interface, ...]
    gpus: tuple[str, ...] = ()
    default: str = ""
    gpu_driver: str = "nvidia"
    environ: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


class Built(Wired):
    """A machine in a folder, with its interfaces and routes."""

    made: Made

    def ask_source(self, target: str) -> str | None:
        found = [item for item in self.made.interfaces if item.name == self.made.interface]
        return found[0].addresses[0][0] if found else None

    def home(self) -> str:
        return "/root"


def build(root: Path, made: Made) -> Built:
    """Write a machine's files below a folder."""
    for number, (name, device) in enumerate(made.devices.items()):
        state = {"link_layer": device.layer, "state": "4: ACTIVE", "rate": f"{device.rate} Gb/sec (4X)"}
        told: dict[str, Any] = {"at": device.at, "driver": device.driver, "uverbs": f"uverbs{number}"}
        told |= {"net": {device.net: "0"}} if device.net else {}
        write_device(root, name, {**told, "ports": {"1": state}}, {})
        (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        (root / f"dev/infiniband/uverbs{number}").touch()
    (root / "dev").mkdir(exist_ok=True)
    (root / "proc/net").mkdir(parents=True)
    route = f"{made.default}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
    (root / "proc/net/route").write_text(route)
    for number, at in enumerate(made.gpus):
        address = at.rpartition("/")[2]
        home = root / "sys/devices" / at
        home.mkdir(parents=True, exist_ok=True)
        for folder in ("devices", f"drivers/{made.gpu_driver}"):
            link = root / "sys/bus/pci" / folder / address
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(home, link.parent))
        if made.gpu_driver == "nvidia":
            (root / f"dev/nvidia{number}").touch()
    for path in made.files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    host = Built(str(root))
    host.made = made
    host.found = (LO, *made.interfaces)
    return host


def eth(name: str, address: str = "", master: str = "", kind: str = "ethernet") -> Interface:
    """Return an interface that is up, with an address or as a member."""
    return Interface(name, ((address, 24),) if address else (), True, True, kind=kind, master=master or None)


def near(place: int, function: int = 0) -> str:
    """Return the place of a port at the switch of GPU ``place`` on bare metal."""
    bus = f"0000:{place + 1}"
    return f"pci{bus}0/{bus}0:01.0/{bus}1:00.0/{bus}2:00.0/{bus}4:00.{function}"


def gpus(count: int = 8) -> tuple[str, ...]:
    """Return the places of GPUs on bare metal, each at a switch of its own."""
    return tuple(
        near(place).replace("2:00.0", "2:01.0").replace("4:00.0", "3:00.0") for place in range(count)
    )


def far(place: int, function: int = 0) -> str:
    """Return a place at a root port without a GPU."""
    return f"pci0000:a{place}/0000:a{place}:01.0/0000:b{place}:00.{function}"


def flat(domain: int) -> str:
    """Return the place of a device of a virtual machine: alone below its root."""
    return f"pci{domain:04x}:00/{domain:04x}:00:00.0"


def many(
    name: str, places: Iterable[str], rate: int, layer: str = IB, net: str = "", first: int = 0
) -> dict[str, Device]:
    """Return devices of one kind; ``{}`` in the names is their number."""
    return {
        name.format(number): Device(place, rate, layer, net.format(number))
        for number, place in enumerate(places, first)
    }


def named(name: str, count: int, first: int = 0) -> tuple[str, ...]:
    """Return the names of devices."""
    return tuple(name.format(number) for number in range(first, first + count))


def rails(count: int, name: str = "rdma{}") -> tuple[Interface, ...]:
    """Return interfaces of a RoCE network, each in a network of its own."""
    return tuple(eth(name.format(number), f"192.168.{number}.4") for number in range(count))


DUAL = tuple(near(place, function) for place in range(8) for function in (0, 1))
EIGHT = tuple(near(place) for place in range(8))
FLAT8 = tuple(flat(0x101 + place) for place in range(8))
FLAT_GPUS = tuple(flat(1 + place) for place in range(8))
IPOIB = tuple(eth(f"ib{number}", kind="infiniband") for number in range(8))
BOND = (eth("bond0", "10.0.0.4", kind="bond"), eth("eno1", master="bond0"), eth("eno2", master="bond0"))
FRONT = (eth("eth0", "10.0.0.4"), eth("eth1"))
AZURE = (eth("eth0", "10.0.0.4"), eth("enP1s1", master="eth0"))
AZ = {"AZ_BATCH_NODE_ID": "tvm-1"}
AN = {"mlx5_an0": Device(flat(0x200), 100, ETH, "enP1s1")}
OFI = "opt/amazon/ofi-nccl/lib/libnccl-net.so"
ON_OFI = {"LD_LIBRARY_PATH": "/opt/amazon/ofi-nccl/lib"}


def efa(count: int, rate: int = 100) -> dict[str, Device]:
    """Return EFA devices."""
    return {f"rdmap{n}s0": Device(flat(0x300 + n), rate, EFA, driver="efa") for n in range(count)}


MACHINES: dict[str, Made] = {
    "oci_bm_gpu_h100_8":
     Made("Oracle, Compute Shapes: BM.GPU.H100.8, 8x2x200 Gb/s RDMA, front end 1x100 (two ports, bonded)",
     "roce", "bond0", named("mlx5_{}", 16),
     {**many("mlx5_{}", DUAL, 200, ETH, "rdma{}"), "mlx5_16": Device(far(0), 100, ETH, "eno1"),
     "mlx5_17": Device(far(0, 1), 100, ETH, "eno2")}, (*BOND, *rails(16)), gpus(), "bond0"),
    "oci_bm_gpu_h200_8":
     Made("Oracle, Compute Shapes: BM.GPU.H200.8, 8x400 Gb/s RDMA, front end 1x200 (two ports)", "roce",
     "eth0", named("mlx5_{}", 8, 2),
     {**many("mlx5_{}", (far(0), far(0, 1)), 200, ETH, "eth{}"),
     **many("mlx5_{}", EIGHT, 400, ETH, "rdma{}", 2)}, (*FRONT, *rails(10)), gpus(), "eth0"),
    "oci_bm_gpu_mi300x_8":
     Made("Oracle, Compute Shapes: BM.GPU.MI300X.8, 8x400 Gb/s RDMA, front end 1x100 (two ports)", "roce",
     "eth0", named("mlx5_{}", 8, 2),
     {**many("mlx5_{}", (far(0), far(0, 1)), 100, ETH, "eth{}"),
     **many("mlx5_{}", EIGHT, 400, ETH, "rdma{}", 2)}, (*FRONT, *rails(10)), gpus(), "eth0", "amdgpu"),
    "oci_bm_gpu4_8": Made("Oracle, Compute Shapes: BM.GPU4.8 (A100), 8x2x100 Gb/s RDMA, front end 1x50",
     "roce", "eth0", named("mlx5_{}", 16, 1),
     {"mlx5_0": Device(far(0), 50, ETH, "eth0"), **many("mlx5_{}", DUAL, 100, ETH, "rdma{}", 1)},
     (FRONT[0], *rails(17)), gpus(), "eth0"),
    "dgx_a100":
     Made("NVIDIA DGX A100 User Guide: 8 ports for compute, 2 for storage, in Ethernet mode by default", "ib",
     "bond0", named("mlx5_{}", 8),
     {**many("mlx5_{}", EIGHT, 200, IB, "ib{}"),
     **many("mlx5_{}", (far(0), far(0, 1)), 200, ETH, "eno{}", 8)}, (*BOND, *IPOIB), gpus(), "bond0"),
    "dgx_h100_storage_over_ethernet":
     Made("NVIDIA DGX H100 User Guide: 8 ports of 400 Gb/s, 2 cards of 2 ports for storage and in-band", "ib",
     "bond0", named("mlx5_{}", 8),
     {**many("mlx5_{}", EIGHT, 400, IB, "ib{}"),
     **many("mlx5_{}", (far(0), far(0, 1), far(1), far(1, 1)), 200, ETH, "eno{}", 8)}, (*BOND, *IPOIB),
     gpus(), "bond0"),
    "dgx_h100_storage_over_infiniband":
     Made("NVIDIA DGX SuperPOD H100 reference: the storage fabric is InfiniBand of 400 Gb/s as well", "ib",
     "eth0", named("mlx5_{}", 8, 2),
     {**many("mlx5_{}", (far(0), far(1)), 400), **many("mlx5_{}", EIGHT, 400, first=2)}, (FRONT[0], *IPOIB),
     gpus(), "eth0"),
    "dgx_b200":
     Made("NVIDIA DGX B200 User Guide: 8 ports of 400 Gb/s, 2 BlueField-3 of 2 ports for storage and in-band",
     "ib", "bond0", named("mlx5_{}", 8),
     {**many("mlx5_{}", EIGHT, 400, IB, "ib{}"), **many("mlx5_{}", (far(0), far(1)), 200, IB, "", 8),
     "mlx5_10": Device(far(2), 200, ETH, "eno1"), "mlx5_11": Device(far(3), 200, ETH, "eno2")},
     (*BOND, *IPOIB), gpus(), "bond0"),
    "hgx_h100_roce_bonded_management":
     Made("Supermicro SYS-821GE-TNHR, Dell XE9680: 8 cards of 400 Gb/s at the GPUs, 1 of 2 bonded ports",
     "roce", "bond0", named("mlx5_{}", 8),
     {**many("mlx5_{}", EIGHT, 400, ETH, "rdma{}"), "mlx5_bond_0": Device(far(0), 400, ETH, "eno1")},
     (*BOND, *rails(8)), gpus(), "bond0"),
    "hgx_h100_one_network":
     Made("Meta, RoCE networks at scale (SIGCOMM 2024), a backend port used for all: rails with addresses",
     "roce", "rdma0", named("mlx5_{}", 8), many("mlx5_{}", EIGHT, 400, ETH, "rdma{}"), rails(8), gpus(),
     "rdma0"),
    "coreweave_hgx_h100": Made("CoreWeave, HGX H100: 8 NDR ports, 1 BlueField-3 of 100 Gb/s Ethernet", "ib",
     "eth0", named("ibp{}", 8), {**many("ibp{}", EIGHT, 400, IB), "mlx5_0": Device(far(0), 100, ETH, "eth0")},
     (FRONT[0],), gpus(), "eth0"),
    "azure_nd40rs_v2": Made("Microsoft Learn, NDv2: 8 V100, one EDR port", "ib", "eth0", ("mlx5_0",),
     {"mlx5_0": Device(flat(0x101), 100, IB, "ib0"), **AN}, (*AZURE, IPOIB[0]), FLAT_GPUS, "eth0",
     environ=AZ),
    "azure_nd96asr_v4": Made("Microsoft Learn, ND A100 v4: 8 HDR ports, accelerated networking", "ib", "eth0",
     named("mlx5_ib{}", 8), {**many("mlx5_ib{}", FLAT8, 200, IB, "ib{}"), **AN}, (*AZURE, *IPOIB), FLAT_GPUS,
     "eth0", environ=AZ),
    "azure_nd96isr_h100_v5": Made("Microsoft Learn, ND H100 v5: 8 NDR ports, accelerated networking", "ib",
     "eth0", named("mlx5_ib{}", 8), {**many("mlx5_ib{}", FLAT8, 400, IB, "ib{}"), **AN}, (*AZURE, *IPOIB),
     FLAT_GPUS, "eth0", environ=AZ),
    "azure_nd96isr_mi300x_v5": Made("Microsoft Learn, ND MI300X v5: 8 NDR ports", "ib", "eth0",
     named("mlx5_ib{}", 8), {**many("mlx5_ib{}", FLAT8, 400, IB, "ib{}"), **AN}, (*AZURE, *IPOIB), FLAT_GPUS,
     "eth0", "amdgpu", AZ),
    "azure_nd128isr_gb200_v6": Made("Microsoft Learn, ND GB200 v6: 4 GPUs, 4 NDR ports", "ib", "eth0",
     named("mlx5_ib{}", 4), {**many("mlx5_ib{}", FLAT8[:4], 400, IB, "ib{}"), **AN}, (*AZURE, *IPOIB[:4]),
     FLAT_GPUS[:4], "eth0", environ=AZ),
    "azure_one_port_at_half_speed":
     Made("The same with a port that has trained at half its rate: it is one of the eight", "ib", "eth0",
     named("mlx5_ib{}", 8), {**many("mlx5_ib{}", FLAT8, 400, IB, "ib{}"), "mlx5_ib3": Device(FLAT8[3], 200),
     **AN}, (*AZURE, *IPOIB), FLAT_GPUS, "eth0", environ=AZ),
    "aws_p4d_24xlarge": Made("AWS, P4d: 4 EFA of 100 Gb/s", "efa", "ens32", (), efa(4),
     (eth("ens32", "10.0.0.4"),), FLAT_GPUS, "ens32", environ=ON_OFI, files=(OFI,)),
    "aws_p5_48xlarge": Made("AWS, P5: 32 EFA of 100 Gb/s, one of them beside the interface", "efa", "ens32",
     (), efa(32), (eth("ens32", "10.0.0.4"),), FLAT_GPUS, "ens32", environ=ON_OFI, files=(OFI,)),
    "aws_p5en_48xlarge": Made("AWS, P5en: 16 EFA of 200 Gb/s", "efa", "ens32", (), efa(16, 200),
     (eth("ens32", "10.0.0.4"),), FLAT_GPUS, "ens32", environ=ON_OFI, files=(OFI,)),
    "gcp_a3_highgpu_8g": Made("Google, A3 High: 4 gVNIC of 200 Gb/s for GPUDirect-TCPX, one for the rest",
     "gcp", "eth0", (), {}, (FRONT[0], *rails(4, "eth{}")[1:]), FLAT_GPUS, "eth0",
     environ={"LD_LIBRARY_PATH": "/usr/local/tcpx/lib64"}, files=("usr/local/tcpx/lib64/libnccl-net.so",)),
    "gcp_a3_ultragpu_8g":
     Made("Google, A3 Ultra: 8 CX-7 of 400 Gb/s RoCE with the plugin gIB, 2 gVNIC without RDMA", "roce",
     "eth0", named("mlx5_{}", 8), many("mlx5_{}", FLAT8, 400, ETH, "gpu{}rdma0"),
     (FRONT[0], *rails(8, "gpu{}rdma0")), FLAT_GPUS, "eth0",
     environ={"NCCL_NET": "gIB", "LD_LIBRARY_PATH": "/usr/local/gib/lib64"},
     files=("usr/local/gib/lib64/libnccl-net.so",)),
    "alibaba_bonded_rails":
     Made("Alibaba HPN (SIGCOMM 2024): 8 bonds of 2x200 Gb/s at the GPUs, one bond for the front end", "roce",
     "bond0", named("mlx5_bond_{}", 8, 1),
     {"mlx5_bond_0": Device(far(0), 200, ETH, "eno1"), **many("mlx5_bond_{}", EIGHT, 400, ETH, "rdma{}", 1)},
     (*BOND, *(eth(f"rdma{n}", master=f"bond{n}") for n in range(1, 9)),
     *(eth(f"bond{n}", f"192.168.{n}.4", kind="bond") for n in range(1, 9))), gpus(), "bond0"),
    "vm_front_end_of_another_rate":
     Made("IBM Cloud, gx3d-160x1792x8h100: 8 ports of a cluster network; here the front end is one more",
     "roce", "eth0", named("mlx5_{}", 8, 1),
     {"mlx5_0": Device(flat(0x100), 100, ETH, "eth0"), **many("mlx5_{}", FLAT8, 200, ETH, "rdma{}", 1)},
     (FRONT[0], *rails(9)), FLAT_GPUS, "eth0"),
    "vm_front_end_of_the_same_rate":
     Made("The same where only the number of GPUs shows which of nine is one too many", "roce", "eth0",
     named("mlx5_{}", 8, 1), {"mlx5_0": Device(flat(0x100), 200, ETH, "eth0"),
     **many("mlx5_{}", FLAT8, 200, ETH, "rdma{}", 1)}, (FRONT[0], *rails(9)), FLAT_GPUS, "eth0"),
    "two_equal_ports_and_no_gpu":
     Made("A server with one card of 2 ports: nothing tells a second network from a second rail", "roce",
     "eth0", (), many("mlx5_{}", (far(0), far(0, 1)), 100, ETH, "eth{}"),
     (FRONT[0], eth("eth1", "192.168.1.4")), (), "eth0"),
    "two_sockets_of_which_one_has_a_switch":
     Made("A server whose second port and GPU are at root ports of their own: the port may serve that GPU",
     "ib", "eth0", (), many("mlx5_{}", (near(0), far(0)), 400), (FRONT[0],), (gpus(1)[0], far(5)), "eth0"),
    "cpu_cluster_with_one_port":
     Made("A CPU cluster: one HDR port, Ethernet beside it", "ib", "eth0", ("mlx5_0",),
     {"mlx5_0": Device(far(0), 200, IB, "ib0"), "mlx5_1": Device(far(1), 25, ETH, "eth0")},
     (FRONT[0], eth("ib0", "192.168.1.4", kind="infiniband")), (), "eth0"),
}  # fmt: skip
