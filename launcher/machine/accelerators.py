"""Counts accelerators other than NVIDIA's by their device files, less those that variables hide.

Loaded only if ``--nproc-per-node`` is a word (``auto``, ``xpu``, ...). torch itself would ask the driver's
library, which takes seconds.

Source: docs.kernel.org, gpu/amdgpu and accel; ROCm, "GPU isolation techniques"; intel.com, "Flattening GPU
Tile Hierarchy"; docs.habana.ai, HABANA_VISIBLE_MODULES; hiascend.com, ASCEND_RT_VISIBLE_DEVICES.
"""

from __future__ import annotations

from launcher.core.model import AMD_GPU, INTEGRATED_XPU
from launcher.machine.gpus import count_visible_gpus
from launcher.machine.numa import parse_pci_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

INTEL, HABANA = "0x8086", "0x1da3"
"""PCI vendor IDs."""
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PLAIN = (
    ("npu", "davinci", "ASCEND_RT_VISIBLE_DEVICES"),
    ("mlu", "cambricon_dev", "MLU_VISIBLE_DEVICES"),
    ("musa", "mtgpu.", "MUSA_VISIBLE_DEVICES"),
)
"""(kind, prefix of its device files in /dev, variable that lists the devices that a process sees)."""


def count_accelerators(host: Host, environ: Mapping[str, str]) -> tuple[tuple[str, int | None], ...]:
    """Return (kind, number that a process here can see, None if unknown) of each kind that is present."""
    found: list[tuple[str, int | None]] = [
        (AMD_GPU, _count_amd(host, environ)),
        *_count_intel(host, environ),
        ("hpu", _count_habana(host, environ)),
    ]
    names = host.list_folder("/dev")
    for kind, prefix, variable in PLAIN:
        exposed = len(_numbered(names, prefix))
        found.append((kind, count_visible_gpus(exposed, environ.get(variable))))
    return tuple((kind, count) for kind, count in found if count != 0)


def _numbered(names: tuple[str, ...], prefix: str) -> list[str]:
    return [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()]


def _read_vendor(host: Host, device: str) -> str:
    return (host.read_text(f"{device}/vendor") or "").strip()


def _count_amd(host: Host, environ: Mapping[str, str]) -> int | None:
    """Count the AMD GPUs, or partitions of one, that compute and whose render node is exposed to us."""
    exposed = set(_numbered(host.list_folder("/dev/dri"), "renderD"))
    if "kfd" not in host.list_folder("/dev") or not exposed:
        return 0
    count: int | None = 0
    for node in host.list_folder(KFD_NODES):
        text = host.read_text(f"{KFD_NODES}/{node}/properties") or ""
        fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        computes = fields.get("simd_count", "0").strip() != "0"
        count = (count or 0) + (
            computes and f"renderD{fields.get('drm_render_minor', '').strip()}" in exposed
        )
    listed = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    return count_visible_gpus(count_visible_gpus(count, environ.get("ROCR_VISIBLE_DEVICES")), listed)


def _count_intel(host: Host, environ: Mapping[str, str]) -> list[tuple[str, int | None]]:
    """Count Intel's devices as Level Zero lists them, integrated GPUs only if there is no other.

    Unknown if a variable chooses among them, or if a GPU has tiles, which may be devices of their own.
    """
    folders = [f"/sys/class/drm/{name}/device" for name in _numbered(host.list_folder("/dev/dri"), "renderD")]
    ours = [folder for folder in folders if _read_vendor(host, folder) == INTEL]
    places = [parse_pci_address((host.read_link(folder) or "").rpartition("/")[2]) for folder in ours]
    apart = [folder for folder, place in zip(ours, places, strict=True) if place is None or place[1]]
    if not apart:
        return [(INTEGRATED_XPU, len(ours))]
    is_chosen = environ.get("ONEAPI_DEVICE_SELECTOR") or environ.get("ZE_AFFINITY_MASK")
    return [("xpu", None if is_chosen or any(_has_tiles(host, folder) for folder in apart) else len(apart))]


def _has_tiles(host: Host, device: str) -> bool:
    cards = _numbered(host.list_folder(f"{device}/drm"), "card")
    engines = [_numbered(host.list_folder(f"{device}/drm/{card}/gt"), "gt") for card in cards]
    tiles = _numbered(host.list_folder(device), "tile")
    return len(tiles) > 1 or (not tiles and any(len(found) > 1 for found in engines))


def _count_habana(host: Host, environ: Mapping[str, str]) -> int:
    accels = _numbered(host.list_folder("/dev/accel"), "accel")
    ours = [name for name in accels if _read_vendor(host, f"/sys/class/accel/{name}/device") == HABANA]
    exposed = len(ours or _numbered(host.list_folder("/dev"), "hl"))
    listed = environ.get("HABANA_VISIBLE_MODULES", "all")  # indices among all modules of the node
    return exposed if listed == "all" else min(exposed, len(list(filter(None, listed.split(",")))))
