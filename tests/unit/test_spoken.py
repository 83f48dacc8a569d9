"""What NCCL says of its network: lines of real logs, by version, from public issues (named at each).

Host names and process ids are shortened; everything behind ``NCCL INFO`` is as it was written.
"""

# ruff: noqa: E501 - lines of logs
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.supervision import Network
from launcher.fabrics.spoken import NAME_CHARS, Spoken, compare, hear
from tests.unit.platforms_model import deterministic

IB8 = tuple(f"mlx5_ib{number}:1" for number in range(8))
INFINIBAND = Network("ib", "8 active InfiniBand ports of 400 Gb/s", 8, IB8)
TCP = Network("tcp", "TCP through eth0")


def listed(names: tuple[str, ...], kind: str) -> str:
    return " ".join(f"[{place}]{name}/{kind}" for place, name in enumerate(names))


LOGS = {
    # NVIDIA/nccl issue 302, with the last line as newer versions have it
    "InfiniBand and RoCE": """
[155] c:5330:5330 [3] NCCL INFO Bootstrap : Using [0]eth0:10.100.62.64<0>
[155] c:5330:5330 [3] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
[155] c:5330:5330 [3] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_3:1/IB [2]mlx5_0:1/IB [3]mlx5_2:1/RoCE [4]mlx5_4:1/IB ; OOB eth0:10.100.62.64<0>
[155] c:5330:5330 [3] NCCL INFO Using network IB""",
    # NVIDIA/nccl issue 676
    "2.11.4 sockets": """
g:124172:124172 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to en
g:124172:124172 [0] NCCL INFO Bootstrap : Using enp225s0f1:10.10.10.2<0>
g:124172:124172 [0] NCCL INFO NET/Socket : Using [0]enp225s0f1:10.10.10.2<0>
g:124172:124172 [0] NCCL INFO Using network Socket
NCCL version 2.11.4+cuda11.4""",
    # NVIDIA/nccl-tests issue 185
    "2.19.3 RoCE": """
d:460770:460770 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation
NCCL version 2.19.3+cuda12.3
d:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.128.136<0>
d:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
d:460770:460842 [0] NCCL INFO Using network IB""",
    # NVIDIA/nccl issue 1357
    "NVIDIA's plugin": """
q:39632:39687 [3] NCCL INFO NET/Plugin: Loaded collnet plugin SHARP (v6)
q:39632:39687 [3] NCCL INFO P2P plugin IBext
q:49357:49418 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [2]mlx5_4:1/IB/SHARP [3]mlx5_5:1/IB/SHARP [RO]; OOB ibp25s0:10.20.0.119<0>
q:49355:49414 [1] NCCL INFO Using network IBext""",
    # NVIDIA/nccl-tests issue 373
    "merged ports": """
b:1884:2298 [0] NCCL INFO P2P plugin IBext_v8
b:1884:2298 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/RoCE} [RO]; OOB bond0.526:169.136.106.9<0>
b:1884:2298 [0] NCCL INFO Using network IBext_v8""",
    # NVIDIA/nccl issue 1925
    "2.28 InfiniBand": """
n:2620971:2620971 [3] NCCL INFO NCCL_IB_DISABLE set by environment to 0.
n:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>
n:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB
n:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
n:2620971:2620971 [3] NCCL INFO Using network IB""",
    # NVIDIA/nccl issue 1597
    "2.25 EFA": """
8:6310:6318 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
8:6831:6840 [0] NCCL INFO NET/OFI Setting NCCL_TOPO_FILE environment variable to /proc/self/fd/150
8:6831:6840 [0] NCCL INFO Using network Libfabric""",
}
HEARD = {
    "InfiniBand and RoCE": Spoken(
        "IB",
        (
            *(("mlx5_1:1", "IB"), ("mlx5_3:1", "IB"), ("mlx5_0:1", "IB")),
            *(("mlx5_2:1", "RoCE"), ("mlx5_4:1", "IB")),
        ),
        signs=frozenset({5}),
    ),
    "2.11.4 sockets": Spoken("Socket", (), ("enp225s0f1",)),
    "2.19.3 RoCE": Spoken("IB", (("mlx5_10:1", "RoCE"), ("mlx5_11:1", "RoCE")), signs=frozenset({5})),
    "NVIDIA's plugin": Spoken(
        "IBext", tuple((f"mlx5_{number}:1", "IB") for number in (0, 1, 4, 5)), signs=frozenset({5})
    ),
    "merged ports": Spoken("IBext_v8", tuple((f"mlx5_{number}:1", "RoCE") for number in (2, 3, 0, 1))),
    "2.28 InfiniBand": Spoken("IB", (("mlx5_0:1", "IB"),)),
    "2.25 EFA": Spoken("Libfabric", provider="efa", signs=frozenset({4})),
}


def listen(log: str) -> Spoken:
    spoken = Spoken()
    for line in log.splitlines():
        spoken = hear(spoken, line)
    return spoken


@pytest.mark.parametrize("name", LOGS)
def test_every_version_is_understood(name: str) -> None:
    """The network, the ports with their kinds, the interfaces: from 2.6 on."""
    assert listen(LOGS[name]) == HEARD[name]


@pytest.mark.parametrize(
    ("network", "name", "holds", "text"),
    [
        (TCP, "2.11.4 sockets", True, "NCCL uses NET/Socket (enp225s0f1), as planned"),
        (Network("efa", "", 2, ("efa_0:1",)), "2.25 EFA", True, "NCCL uses NET/Libfabric (provider efa), as planned"),
        (Network("ib", "", 1, ("mlx5_0:1",)), "2.28 InfiniBand", True, "NCCL uses NET/IB (1 InfiniBand port), as planned"),
        (Network("ib", "", 1), "2.28 InfiniBand", True, "NCCL uses NET/IB (1 InfiniBand port), as planned"),
        (Network("roce", "", 4), "merged ports", True, "NCCL uses NET/IBext_v8 (4 RoCE ports), as planned"),
        (INFINIBAND, "2.11.4 sockets", False, "expected 8 InfiniBand ports, NCCL uses NET/Socket (enp225s0f1)"),
        (
            Network("ib", "", 2, ("mlx5_0:1", "mlx5_7:1")),
            "2.28 InfiniBand",
            False,
            "expected 2 InfiniBand ports, NCCL uses NET/IB (1 InfiniBand port), without mlx5_7:1",
        ),
        (
            Network("ib", "", 4, ("mlx5_0:1", "mlx5_1:1", "mlx5_3:1", "mlx5_4:1")),
            "InfiniBand and RoCE",
            False,
            "expected 4 InfiniBand ports, NCCL uses NET/IB (4 InfiniBand ports, 1 RoCE port)",
        ),
        (TCP, "2.28 InfiniBand", False, "expected TCP, NCCL uses NET/IB (1 InfiniBand port)"),
        (Network("gcp", ""), "2.11.4 sockets", False, "expected GPUDirect-TCPX, NCCL uses NET/Socket (enp225s0f1)"),
    ],
)  # fmt: skip
def test_what_is_used_is_compared_with_what_was_planned(
    network: Network, name: str, holds: bool, text: str
) -> None:
    """One line that names both."""
    found = compare(network, listen(LOGS[name]))
    assert (found.holds, found.text) == (holds, text)
    assert bool(found.fix) is not holds


@pytest.mark.parametrize(
    ("line", "network", "fix"),
    [
        ("NET/IB : No device found.", INFINIBAND, "libibverbs1 and ibverbs-providers in the image"),
        ("NCCL_IB_DISABLE set by environment to 1.", INFINIBAND, "something sets NCCL_IB_DISABLE=1"),
        ("Failed to open libibverbs.so[.1]", INFINIBAND, "rdma-core"),
        ("NET/IB : No device found.", Network("efa", "", 2), "NET/ lines"),
        ("NET/Plugin: Could not find: libnccl-net.so", Network("efa", "", 2), "LD_LIBRARY_PATH"),
        ("", INFINIBAND, "NCCL_DEBUG=INFO"),
    ],
)
def test_the_fix_follows_from_what_nccl_says(line: str, network: Network, fix: str) -> None:
    """What keeps NCCL from the network stands in lines of its own."""
    log = f"h:1:1 [0] NCCL INFO {line}\nh:1:1 [0] NCCL INFO Using network Socket\n"
    assert fix in compare(network, listen(log)).fix


def test_what_nobody_knows_is_claimed_of_nothing() -> None:
    """An unknown plugin is no failure, libfabric over TCP is no EFA, what is no port is none."""
    # It may be just what the user wants; nothing is claimed.
    found = compare(INFINIBAND, listen("h:1:1 [0] NCCL INFO Using network Rockport"))
    assert (found.holds, found.fix) == (None, "")
    assert "NET/Rockport: a network that cannot be compared" in found.text
    # The plugin alone is no proof: it falls back to sockets of its own.
    log = "h:1:1 [0] NCCL INFO NET/OFI Selected Provider is tcp;ofi_rxm\nh:1:1 [0] NCCL INFO Using network AWS Libfabric"
    found = compare(Network("efa", "", 2), listen(log))
    assert (found.holds, found.text) == (
        False,
        "expected 2 EFA ports, NCCL uses NET/AWS Libfabric (provider tcp;ofi_rxm)",
    )
    # From 2.27 on the line comes without a port, too.
    log = "h:1:1 [0] NCCL INFO NET/IB : Using [RO]; OOB :\nh:1:1 [0] NCCL INFO Using network Socket"
    assert listen(log) == Spoken("Socket")


@deterministic(100)
@given(st.lists(st.text(max_size=200), max_size=10), st.text(max_size=300))
def test_nothing_that_is_written_there_does_harm(lines: list[str], name: str) -> None:
    """What is shown is short and safe, and garbage is no network."""
    spoken = Spoken()
    for line in (*lines, f"NCCL INFO NET/IB : Using [0]{name}:1/IB", f"NCCL INFO Using network {name}"):
        spoken = hear(spoken, line)
    text = compare(INFINIBAND, spoken).text
    assert "\x1b" not in text and "\n" not in text
    assert len(spoken.network) <= 8 * NAME_CHARS
