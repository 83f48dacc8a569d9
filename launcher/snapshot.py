"""One JSON file that holds a node as the launcher sees it, to be replayed anywhere.

Format, version 1 (every field may be missing; ``environ`` alone is enough)::

    {"version": 1, "launcher": "0.1.0", "hostname": "node0",
     "addresses": {"eth0": ["10.0.0.4"]},
     "interfaces": [{"name": "eth0", "addresses": ["10.0.0.4/24"], "is_up": true, "kind": "ethernet"}],
     "environ": {"RANK": "0"},
     "gpus": 8 or [{"index": 0, "name": ..., "uuid": ..., "pci_bus_id": ..., "numa_node": 0, ...}],
     "cpus": {"granted": 96, "bound": 1, "affinity": "0", "cpuset": "0-95",
              "cores": {"0": "0,48 1,49 2,50 ...", "1": "24,72 25,73 ..."}},
     "ancestors": [["hydra_pmi_proxy", "--proxy-id", "1"]],
     "torch": {"": "2.13.0", "python": "2.13.0", "python3": ""},
     "mpirun": {"path": "/usr/bin/mpirun", "family": "Open MPI", "version": "4.1.4"},
     "sysfs": {"class/infiniband/mlx5_0": {"link": "../../devices/..."},
               "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"},
     "verbs": ["uverbs0"],
     "checked": {"/proc/self/limits": "Max open files    1024    524288    files"},
     "space": {"/dev/shm": [67108864, 67108864]},
     "packages": {"python": [{"name": "torch", "version": "2.13.0", "folder": ..., "mpi": ""}]},
     "libraries": {"libnccl.so.2": [["/usr/lib/libnccl.so.2", "/usr/lib/libnccl.so.2.21.5"]]},
     "mpiruns": ["/usr/bin/mpirun"],
     "nccl_plugins": ["/opt/amazon/ofi-nccl/lib/libnccl-net.so"],
     "files": {"/etc/nccl.conf": "NCCL_IB_SL=1"},
     "vm_size": "Standard_ND96isr_H100_v5"}

Secrets never enter: only variables on an allow-list of names are written, and what looks like a
secret inside their values is taken out (`launcher.redact`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TypeVar

from launcher import __version__
from launcher.errors import NotReady, Problem, Unavailable, UsageError
from launcher.fabrics.facts import IMEX_CHANNELS, TOPOLOGYD, read_configured, read_mpi_choice, read_topologies
from launcher.host import Host
from launcher.machine.azure_vm import ASSET_TAG, ASSET_TAG_FILE, Vm, find_kind, is_azure, read_vm
from launcher.machine.cgroup import read_memory_limit
from launcher.machine.clock import Clock
from launcher.machine.cpus import parse_cpu_list, render_cpu_list
from launcher.machine.gpu_facts import GpuFacts, describe_gpu, parse_gpu
from launcher.machine.gpu_use import GpuUse
from launcher.machine.hardware import read_functions
from launcher.machine.infiniband import read_ports
from launcher.machine.loader import Library
from launcher.machine.mpi import Mpi, unknown_mpirun
from launcher.machine.network import Interface
from launcher.machine.numa import parse_pci_address, render_pci_address
from launcher.machine.nvml import read_amd_gpus
from launcher.machine.packages import Package
from launcher.machine.sysfs import natural_order
from launcher.master import DEFAULT_PORT
from launcher.model import Core, Gpu, Layout
from launcher.redact import is_public_name, redact, redact_argv
from launcher.replace import replace_file
from launcher.sources.hydra import PROXY_NAMES

T = TypeVar("T")

VERSION = 1
PYTHONS = ("", "python", "python3")
"""Whose torch is written down: that of the launcher's own Python, and of those that commands name."""
SYSFS_ROOTS = ("class/infiniband",)
SYSFS_FILES = frozenset(
    (
        "link_layer",
        "state",
        "phys_state",
        "rate",
        "lid",
        "node_guid",
        "board_id",
        "fw_ver",
        "hca_type",
    )
)
HOME = "~"
"""Stands for the user's home folder, whose path is nobody else's business."""
NO_NODE = "-1"
"""The NUMA node of a core where the kernel tells none, in its own way of saying so."""
SYSFS_FOLDERS = frozenset(("ports",))
CHECKED_LINES = {
    "/proc/self/limits": ("Max locked memory", "Max open files"),
    "/proc/self/status": ("CapEff:",),
    "/proc/self/uid_map": ("",),
    "/proc/meminfo": ("MemTotal:",),
    "/proc/net/route": ("",),
    "/proc/net/ipv6_route": ("",),
    "/proc/driver/nvidia/version": ("NVRM version:",),
    "/.dockerenv": ("",),
    "/run/.containerenv": ("",),
}
"""Files that checks and the topology look at, and how the lines of them begin that say something."""
LISTED = (IMEX_CHANNELS, TOPOLOGYD)
"""Folders of which only the names count."""
CHECKED_FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 - asked for their space only
CHECKED_LIBRARIES = ("libnccl.so.2", "libcuda.so.1")
GPU_LIMIT = 256
"""More than a node has: a file that says so is not believed."""


def take_snapshot(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return this node as a JSON object, without secrets."""
    affinity = host.affinity()
    layout = host.layout()
    verbs = host.verbs_devices()
    gpus = host.gpu_facts()
    return {
        "version": VERSION,
        "launcher": __version__,
        "hostname": host.hostname(),
        "addresses": {name: list(items) for name, items in host.addresses().items()},
        "interfaces": [_describe_interface(interface) for interface in host.interfaces()],
        "environ": {name: redact(environ[name]) for name in sorted(environ) if is_public_name(name)},
        "gpus": _describe_gpus(gpus) or host.gpu_count(),
        "cpus": {
            "granted": host.granted_cpus(),
            "bound": affinity and len(affinity),
            **_describe_cpus(layout),
        },
        "ancestors": [
            redact_argv(line)
            for line in host.ancestors()
            if line and line[0].rpartition("/")[2] in PROXY_NAMES
        ],
        "torch": {name: host.find_torch(name or None, environ) for name in PYTHONS},
        "sysfs": {**_read_sysfs(host), **_read_files_of_devices(host, gpus)},
        "verbs": None if verbs is None else sorted(verbs, key=natural_order),
        "nccl_plugins": list(host.nccl_plugins(environ)),
        **_describe_fabric(host, environ),
        "mpirun": _describe_mpi(host, environ),
        **_describe_checked(host, environ),
        "root": host.is_root(),
    }


def _describe_interface(interface: Interface) -> dict[str, object]:
    """Return an interface's fields, its addresses as ``10.0.0.4/24``, or bare where no prefix is known."""
    addresses = [
        address if length is None else f"{address}/{length}" for address, length in interface.addresses
    ]
    return {**vars(interface), "addresses": addresses}


def _describe_gpus(gpus: tuple[GpuFacts, ...]) -> list[dict[str, object]]:
    """Return what is known of each GPU; nothing where only their number is."""
    return [describe_gpu(gpu) for gpu in gpus] if any(gpu.address for gpu in gpus) else []


def _describe_fabric(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the size of the VM, and the files that the choice of a fabric looks at."""
    certain = is_azure(host, environ)
    vm = read_vm(environ) or (host.ask_vm() if certain else None)
    witness = _Witness(host)
    read_configured(witness, environ)
    read_topologies(witness, vm)
    read_mpi_choice(witness, environ)
    witness.read_text(ASSET_TAG_FILE)
    listed = {f"{folder}/{name}": "" for folder in LISTED for name in host.list_folder(folder)}
    home = f"{host.home()}/"
    files = {
        f"{HOME}/{path[len(home) :]}" if path.startswith(home) else path: redact(text)
        for path, text in witness.told.items()
        if isinstance(text, str) and (path.startswith("/") or text.strip() == ASSET_TAG)
    }
    return {"vm_size": vm.size if vm and vm.size else None, "files": {**listed, **files}}


def _describe_mpi(host: Host, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return which mpirun there is, or what is wrong with it."""
    try:
        mpi = host.find_mpi(environ)
    except Unavailable as error:
        return {"problem": redact(error.problems[0].what)}
    return {"path": mpi.path, "family": mpi.family, "version": mpi.version} if mpi else None


def _describe_checked(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return what else `launcher.checks` look at."""
    texts = {path: host.read_text(path) for path in CHECKED_LINES}
    files = {
        path: "\n".join(line for line in text.splitlines() if line.startswith(CHECKED_LINES[path]))
        for path, text in texts.items()
        if text is not None
    }
    witness = _Witness(host)
    read_memory_limit(witness)
    packages = {name: host.packages(name or None, environ) for name in PYTHONS}
    return {
        "checked": {path: redact(str(text)) for path, text in {**files, **witness.told}.items()},
        "space": {path: host.space(path) for path in CHECKED_FOLDERS},
        "packages": {
            name: None if found is None else [vars(package) for package in found]
            for name, found in packages.items()
        },
        "libraries": {
            name: [[item.path, item.file] for item in host.libraries(name, environ)]
            for name in CHECKED_LIBRARIES
        },
        "mpiruns": list(host.mpi_starters(environ)),
    }


def _describe_cpus(layout: Layout) -> dict[str, object]:
    """Return the CPUs by number: kernel lists; the cores of a NUMA node as lists with spaces between."""
    cores: dict[str, str] = {}
    for core in layout.cores:
        node = NO_NODE if core.node is None else str(core.node)
        cores[node] = f"{cores.get(node, '')} {','.join(map(str, core.cpus))}".lstrip()
    known = {"affinity": render_cpu_list(layout.own), "cpuset": render_cpu_list(layout.cpuset)}
    return {**known, "cores": cores} if cores else {}


def _read_sysfs(host: Host) -> dict[str, object]:
    found: dict[str, object] = {}
    for root in SYSFS_ROOTS:
        for device in host.list_folder(f"/sys/{root}"):
            path = f"{root}/{device}"
            target = host.read_link(f"/sys/{path}")
            if target is not None:
                found[path] = {"link": target}
            _read_folder(host, path, found)
    return found


def _read_folder(host: Host, path: str, found: dict[str, object], depth: int = 0) -> None:
    for name in host.list_folder(f"/sys/{path}"):
        if name in SYSFS_FILES:
            text = host.read_text(f"/sys/{path}/{name}")
            if text is not None:
                found[f"{path}/{name}"] = text.rstrip("\n")
        elif depth < 2 and (name in SYSFS_FOLDERS or name.isdecimal()):
            _read_folder(host, f"{path}/{name}", found, depth + 1)


def _read_files_of_devices(host: Host, gpus: tuple[GpuFacts, ...]) -> dict[str, object]:
    """Return what is looked at below /sys to find ports and places in the PCI tree, as it stands there.

    Its fault would then replay. Entries of tables that are zero stay out: there are hundreds, and they
    say nothing.
    """
    witness = _Witness(host)
    ports = read_ports(witness)
    read_functions(witness, (*gpus, *read_amd_gpus(witness)), ports)
    return {path: told for path, told in witness.told.items() if not _is_empty_entry(path, told)}


def _is_empty_entry(path: str, told: object) -> bool:
    table = path.split("/")[-2]
    return table in ("gids", "pkeys") and not str(told).strip("0x:")


class _Witness(Host):
    """A machine that passes on what another one answers, and remembers it."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.root)
        self._host = host
        self.told: dict[str, object] = {}

    def read_text(self, path: str) -> str | None:
        text = self._host.read_text(path)
        if text is not None:
            self.told[path.removeprefix("/sys/")] = text.rstrip("\n")
        return text

    def read_link(self, path: str) -> str | None:
        target = self._host.read_link(path)
        if target is not None:
            self.told[path.removeprefix("/sys/")] = {"link": target}
        return target

    def list_folder(self, path: str) -> tuple[str, ...]:
        return self._host.list_folder(path)

    def home(self) -> str:
        return self._host.home()

    def verbs_devices(self) -> frozenset[str] | None:
        return self._host.verbs_devices()


def render_snapshot(snapshot: Mapping[str, object]) -> str:
    """Return the file's text. Bytes that are not UTF-8 become JSON's lone surrogate escapes."""
    return json.dumps(snapshot, indent=1) + "\n"


def write_snapshot(text: str, path: str) -> None:
    """Write a file in one step: a reader sees the old one or the whole new one.

    Raises:
        NotReady: The folder or the disk refuses.
    """
    try:
        replace_file(text, path)
    except OSError as error:
        raise NotReady(
            Problem(
                "cannot-write",
                f"{path!r}: {error.strerror}",
                "command line",
                "name a writable place with -o FILE",
            )
        ) from error


class RecordedHost(Host):
    """A machine that is only a file: answers what `Host` answers, from a snapshot."""

    def __init__(self, data: Mapping[str, object]) -> None:
        super().__init__("/nonexistent")
        self._data = data
        self.environ: dict[str, str] = {
            str(name): str(value) for name, value in _mapping(data.get("environ")).items()
        }
        self._sysfs = {
            **_mapping(data.get("sysfs")),
            **_mapping(data.get("files")),
            **_mapping(data.get("checked")),
        }

    def read_text(self, path: str) -> str | None:
        """Return a recorded file of /sys, or one of the few others that are looked at."""
        text = self._sysfs.get(path.removeprefix("/sys/"))
        return text if isinstance(text, str) else None

    def read_link(self, path: str) -> str | None:
        """Return a recorded link's target."""
        target = _mapping(self._sysfs.get(path.removeprefix("/sys/"))).get("link")
        return target if isinstance(target, str) else None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names below a recorded folder of /sys."""
        prefix = path.removeprefix("/sys/").rstrip("/") + "/"
        below = (name.removeprefix(prefix) for name in self._sysfs if name.startswith(prefix))
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def is_recorded(self) -> bool:
        """This is only a file about a machine."""
        return True

    def space(self, path: str) -> tuple[int, int] | None:
        """Return the recorded (size, free) of a folder."""
        pair = _mapping(self._data.get("space")).get(path)
        sizes = [size for size in pair if isinstance(size, int)] if isinstance(pair, (list, tuple)) else []
        return (sizes[0], sizes[1]) if len(sizes) == 2 else None

    def packages(self, python: str | None, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
        """Return the packages that were recorded for a Python."""
        name = "" if python in (None, sys.executable) else str(python)
        listed = _mapping(self._data.get("packages")).get(name)
        if not isinstance(listed, list):
            return None
        fields = [
            [str(_mapping(item).get(field, "")) for field in Package.__annotations__] for item in listed
        ]
        return tuple(Package(*values) for values in fields)

    def find_version(self, python: str, environ: Mapping[str, str], name: str) -> str | None:
        """Return the version that was recorded for a Python; only of packages that matter to a job."""
        found = self.packages(python, environ)
        return None if found is None else next((item.version for item in found if item.name == name), "")

    def libraries(self, name: str, environ: Mapping[str, str]) -> tuple[Library, ...]:
        """Return the recorded copies of a library."""
        listed = _mapping(self._data.get("libraries")).get(name)
        pairs = [pair for pair in listed if isinstance(pair, list)] if isinstance(listed, list) else []
        return tuple(Library(str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)

    def mpi_starters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the recorded paths of mpiruns."""
        paths = self._data.get("mpiruns")
        return tuple(map(str, paths)) if isinstance(paths, list) else ()

    def clock(self) -> Clock:
        """A recorded machine has no clock."""
        return Clock(0.0, None)

    def gpu_use(self) -> tuple[GpuUse, ...]:
        """Nobody uses the GPUs of a recorded machine."""
        return ()

    def home(self) -> str:
        """Return what stands for the user's home folder."""
        return HOME

    def nccl_plugins(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the recorded paths of NCCL's plugins."""
        plugins = self._data.get("nccl_plugins")
        return tuple(map(str, plugins)) if isinstance(plugins, list) else ()

    def ask_vm(self) -> Vm | None:
        """Return the recorded size of the VM."""
        size = self._data.get("vm_size")
        return Vm(size, find_kind(size), "recorded") if isinstance(size, str) and size else None

    def is_init(self) -> bool:
        """A recorded machine runs nothing."""
        return False

    def hostname(self) -> str:
        """Return the recorded name, or one that no host has."""
        name = self._data.get("hostname")
        return name if isinstance(name, str) else "recorded"

    def resolve(self, name: str) -> frozenset[str]:
        """Return nothing: names mean what they mean here, not there."""
        return frozenset()

    def is_root(self) -> bool:
        """Return whether the recorded user was root."""
        return bool(self._data.get("root"))

    def address_towards(self, target: str) -> str | None:
        """A recorded machine has no routes."""
        return None

    def free_port(self) -> int:
        """Return the port that is used if nothing is known: a recorded machine listens nowhere."""
        return DEFAULT_PORT

    def find_torch(self, python: str | None, environ: Mapping[str, str]) -> str | None:
        """Return the version of torch that was recorded for a Python."""
        name = "" if python in (None, sys.executable) else str(python)
        version = _mapping(self._data.get("torch")).get(name)
        return version if isinstance(version, str) else None

    def find_mpi(self, environ: Mapping[str, str]) -> Mpi | None:
        """Return the mpirun that was recorded, or raise what was wrong with it."""
        mpirun = _mapping(self._data.get("mpirun"))
        if "problem" in mpirun:
            raise Unavailable(unknown_mpirun(str(mpirun["problem"])))
        path, family, version = (str(mpirun.get(name)) for name in ("path", "family", "version"))
        return Mpi(path, family, version) if version.partition(".")[0].isdecimal() else None

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return the recorded addresses."""
        return {
            str(name): tuple(str(item) for item in items)
            for name, items in _mapping(self._data.get("addresses")).items()
            if isinstance(items, list)
        }

    def netmasks(self) -> dict[str, tuple[tuple[str, str | None], ...]]:
        """Return the recorded addresses; masks are recorded with the interfaces only."""
        return {
            name: tuple((address, None) for address in addresses)
            for name, addresses in self.addresses().items()
        }

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the recorded interfaces; of a snapshot without them, what the addresses tell."""
        recorded = self._data.get("interfaces")
        if not isinstance(recorded, list):
            return super().interfaces()
        return tuple(_read_interface(fields) for fields in map(_mapping, recorded) if fields.get("name"))

    def verbs_devices(self) -> frozenset[str] | None:
        """Return the recorded names of RDMA device files."""
        verbs = self._data.get("verbs")
        return frozenset(map(str, verbs)) if isinstance(verbs, list) else None

    def gpu_count(self) -> int | None:
        """Return the recorded number of GPUs."""
        gpus = self._data.get("gpus")
        if isinstance(gpus, list):
            return len(gpus)
        return gpus if isinstance(gpus, int) and gpus >= 0 else None

    def gpu_facts(self) -> tuple[GpuFacts, ...]:
        """Return the recorded GPUs; of a snapshot with their number alone, as many without any fact."""
        gpus = self._data.get("gpus")
        if not isinstance(gpus, list):
            return tuple(GpuFacts(index) for index in range(min(self.gpu_count() or 0, GPU_LIMIT)))
        return tuple(parse_gpu(index, _mapping(gpu)) for index, gpu in enumerate(gpus[:GPU_LIMIT]))

    def affinity(self) -> frozenset[int] | None:
        """Return the recorded mask, or as many CPUs as the process was bound to if only that is known."""
        listed = self._cpu_list("affinity")
        if listed:
            return listed
        bound = _mapping(self._data.get("cpus")).get("bound")
        return frozenset(range(bound)) if isinstance(bound, int) and 0 < bound < 1 << 16 else None

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the recorded GPUs."""
        return _read_gpus(self._data.get("gpus"))

    def layout(self, *, name_gpus: bool = True) -> Layout:
        """Return the recorded cores and GPUs."""
        return Layout(
            own=tuple(sorted(self._cpu_list("affinity"))),
            cpuset=tuple(sorted(self._cpu_list("cpuset"))),
            cores=_read_cores(_mapping(_mapping(self._data.get("cpus")).get("cores"))),
            gpus=self.gpus(),
        )

    def _cpu_list(self, name: str) -> frozenset[int]:
        text = _mapping(self._data.get("cpus")).get(name)
        return parse_cpu_list(text) if isinstance(text, str) else frozenset()

    def granted_cpus(self) -> int | None:
        """Return the recorded share of the cgroup."""
        granted = _mapping(self._data.get("cpus")).get("granted")
        return granted if isinstance(granted, int) and granted > 0 else None

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        """Return the recorded command lines above the process."""
        lines = self._data.get("ancestors")
        if not isinstance(lines, list):
            return ()
        return tuple(tuple(str(word) for word in line) for line in lines[:limit] if isinstance(line, list))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _read_interface(fields: Mapping[str, object]) -> Interface:
    """Return one recorded interface; a field of another type than it should have is None."""
    addresses = fields.get("addresses")
    return Interface(
        name=str(fields["name"]),
        addresses=tuple(map(_read_address, addresses)) if isinstance(addresses, list) else (),
        is_up=_field(fields, "is_up", bool),
        has_carrier=_field(fields, "has_carrier", bool),
        speed_mbps=_field(fields, "speed_mbps", int),
        is_loopback=_field(fields, "is_loopback", bool) or False,
        kind=_field(fields, "kind", str),
        master=_field(fields, "master", str),
    )


def _field(fields: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = fields.get(name)
    return value if isinstance(value, kind) else None


def _read_address(text: object) -> tuple[str, int | None]:
    address, _, length = str(text).partition("/")
    return address, int(length) if length.isascii() and length.isdecimal() and len(length) <= 3 else None


def _read_cores(nodes: Mapping[str, object]) -> tuple[Core, ...]:
    """Return the recorded cores in the order of NUMA nodes."""
    cores = []
    for name, text in nodes.items():
        node = int(name) if name.isascii() and name.isdecimal() else None
        lists = text.split() if isinstance(text, str) else ()
        cores += [Core(tuple(sorted(cpus)), node) for cpus in map(parse_cpu_list, lists) if cpus]
    return tuple(sorted(cores, key=lambda core: (-1 if core.node is None else core.node, core.cpus)))


def _read_gpus(gpus: object) -> tuple[Gpu, ...]:
    """Return the recorded GPUs; none where only their number was recorded."""
    found = []
    for gpu in gpus if isinstance(gpus, list) else ():
        address = parse_pci_address(str(_mapping(gpu).get("pci_bus_id")))
        node, uuid = _mapping(gpu).get("numa_node"), _mapping(gpu).get("uuid")
        found.append(
            Gpu(
                address=render_pci_address(address) if address else "",
                node=node if isinstance(node, int) and node >= 0 else None,
                uuid=uuid if isinstance(uuid, str) else None,
            )
        )
    return tuple(found)


def read_snapshot(path: str) -> RecordedHost:
    """Read a snapshot file.

    Raises:
        UsageError: It cannot be read, is not JSON, or not a snapshot of a version we know.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"is not JSON: {error}"
        raise UsageError(_refuse(path, reason)) from error
    if not isinstance(data, dict) or not isinstance(data.get("environ"), dict):
        raise UsageError(_refuse(path, 'expected a JSON object with an "environ" object'))
    try:
        "\n".join(str(value) for value in data["environ"].values()).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        reason = "a variable holds half of a surrogate pair, which no environment can"
        raise UsageError(_refuse(path, reason)) from error
    if data.get("version", VERSION) != VERSION:
        raise UsageError(_refuse(path, f"version {data['version']!r}: expected {VERSION}"))
    return RecordedHost(data)


def _refuse(path: str, reason: str) -> Problem:
    return Problem(
        "bad-snapshot",
        f"--replay {path!r}: {reason}",
        "command line",
        "a file from: launcher snapshot",
    )
