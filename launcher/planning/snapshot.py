"""Snapshot: a JSON file with a node as the launcher sees it, which can be replayed anywhere.

Format, version 1 (every field may be missing; ``environ`` alone is enough)::

    {"version": 1, "launcher": "0.1.0", "hostname": "node0",
     "addresses": {"eth0": ["10.0.0.4"]},
     "interfaces": [{"name": "eth0", "addresses": ["10.0.0.4/24"], "is_up": true, "kind": "ethernet"}],
     "environ": {"RANK": "0"},
     "gpus": 8 or [{"index": 0, "name": ..., "uuid": ..., "pci_bus_id": ..., "numa_node": 0, ...}],
     "accelerators": {"xpu": 4},
     "cpus": {"granted": 96, "bound": 1, "affinity": "0", "cpuset": "0-95",
              "cores": {"0": "0,48 1,49 2,50 ...", "1": "24,72 25,73 ..."}},
     "ancestors": [["hydra_pmi_proxy", "--proxy-id", "1"]],
     "torch": {"": "2.13.0", "python": "2.13.0", "python3": ""},
     "root": false,
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
     "vm_size": "Standard_ND96isr_H100_v5",
     "towards": {"node0": "10.0.0.5"}, "resolved": {"node0": ["10.0.0.4"]}}

A snapshot has no secrets: only variables on an allow-list of names are written, and secrets in their values
are redacted (`launcher.core.redact`).
"""

from __future__ import annotations

import contextlib
import json

from launcher.core.environ import is_host, leave_out_services
from launcher.core.errors import LauncherError, Unavailable
from launcher.core.redact import is_public_name, redact, redact_argv
from launcher.core.version import __version__
from launcher.fabrics.facts import IMEX_CHANNELS
from launcher.fabrics.reading import TOPOLOGYD, read_configured, read_mpi_choice, read_topologies
from launcher.machine.azure_vm import ASSET_TAG, ASSET_TAG_FILE, Vm, is_azure, read_vm
from launcher.machine.cgroup import read_memory_limit
from launcher.machine.cpus import render_cpu_list
from launcher.machine.driver import FILE as DRIVER
from launcher.machine.gpu_facts import GpuFacts, describe_gpu
from launcher.machine.hardware import read_functions
from launcher.machine.host import Host
from launcher.machine.infiniband import read_ports
from launcher.machine.numa import read_gpu_paths
from launcher.machine.nvml import read_amd_gpus
from launcher.machine.sysfs import natural_order
from launcher.options.config import LIMIT_BYTES
from launcher.options.reading import CONFIG, ETC, read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import HOME, VERSION
from launcher.sources.hydra import PROXY_NAMES
from launcher.sources.indexed_job import HOSTS_FILE, INDEX
from launcher.sources.sagemaker import FILE, JOB
from launcher.sources.signs import HOST_FILES, NODE_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Layout
    from launcher.machine.network import Interface

PYTHONS = ("", "python", "python3")
"""Pythons whose torch and packages are recorded: the launcher's own (empty) and those that commands name."""
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
SYSFS_FOLDERS = frozenset(("ports",))
NO_NODE = "-1"
"""The kernel's number for an unknown NUMA node of a core."""
CHECKED_LINES = {
    "/proc/self/limits": ("Max locked memory", "Max open files"),
    "/proc/self/status": ("CapEff:",),
    "/proc/self/uid_map": ("",),
    "/proc/meminfo": ("MemTotal:",),
    "/proc/net/route": ("",),
    "/proc/net/ipv6_route": ("",),
    DRIVER: ("NVRM version:",),
    "/.dockerenv": ("",),
    "/run/.containerenv": ("",),
}
"""Files that checks and the topology read, and the prefixes of the lines that are recorded."""
LISTED = (IMEX_CHANNELS, TOPOLOGYD)
"""Folders of which only the file names are recorded."""
CHECKED_FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 - only their space is read
CHECKED_LIBRARIES = ("libnccl.so.2", "libcuda.so.1")


def take_snapshot(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return this node as a JSON object, without secrets."""
    environ = leave_out_services(environ)
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
        "accelerators": dict(host.accelerators(environ)),
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
        **_describe_files(host, environ),
        "mpirun": _describe_mpi(host, environ),
        **_describe_checked(host, environ),
        "root": host.is_root(),
        **_describe_names(host, environ),
    }


def _describe_names(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the addresses of other nodes' names and our addresses towards them that a plan needs."""
    if host.is_recorded():
        return {}
    asked = _Asked(host)
    with contextlib.suppress(LauncherError):  # without a plan, the lookups before the error are recorded
        plan_job(environ, asked, read_options({}, environ, asked), ())
    return {
        "towards": {redact(name): address for name, address in sorted(asked.towards.items())},
        "resolved": {redact(name): sorted(found) for name, found in sorted(asked.resolved.items())},
    }


def _describe_interface(interface: Interface) -> dict[str, object]:
    """Return an interface's fields, with addresses as ``10.0.0.4/24``, or bare without a known prefix."""
    addresses = [
        address if length is None else f"{address}/{length}" for address, length in interface.addresses
    ]
    return {**vars(interface), "addresses": addresses}


def _describe_gpus(gpus: tuple[GpuFacts, ...]) -> list[dict[str, object]]:
    """Return the facts of each GPU; nothing if only their number is known."""
    return [describe_gpu(gpu) for gpu in gpus] if any(gpu.address for gpu in gpus) else []


def _describe_files(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the size of the VM, and the files that fabrics and sources read."""
    certain = is_azure(host, environ)
    vm = read_vm(environ) or (host.ask_vm() if certain else None)
    seen = _ReadHost(host)
    read_configured(seen, environ)
    read_topologies(seen, vm)
    read_mpi_choice(seen, environ)
    seen.read_text(ASSET_TAG_FILE)
    listed = {f"{folder}/{name}": "" for folder in LISTED for name in host.list_folder(folder)}
    home = f"{host.home()}/"
    files = {
        f"{HOME}/{path[len(home) :]}" if path.startswith(home) else path: redact(text)
        for path, text in seen.told.items()
        if isinstance(text, str) and (path.startswith("/") or text.strip() == ASSET_TAG)
    }
    files |= {path: redact(text) for path, text in _read_hosts(host, environ).items()}
    return {"vm_size": vm.size if vm and vm.size else None, "files": {**listed, **files}}


def _read_hosts(host: Host, environ: Mapping[str, str]) -> dict[str, str]:
    """Return other files that sources and options read.

    These are a batch system's host files, our own lines of /etc/hosts, and files of defaults.
    """
    found = {}
    for name in (NODE_FILE, *(name for name, _ in HOST_FILES)):
        path = environ.get(name)
        text = host.read_text(path) if path else None
        if path and text is not None:
            words = dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip())
            found[path] = "\n".join(word for word in words if is_host(word))
    if environ.get(INDEX):
        lines = (host.read_text(HOSTS_FILE) or "").splitlines()
        found[HOSTS_FILE] = "\n".join(line for line in lines if host.hostname() in line.split())
    for path in filter(None, (ETC, environ.get(CONFIG))):
        with contextlib.suppress(OSError):
            data = host.read_guarded(path, LIMIT_BYTES, of_system=path == ETC)
            found[path] = data.decode("utf-8", "surrogateescape")
    text = host.read_text(FILE) if environ.get(JOB) else None
    return {**found, FILE: text} if text is not None else found


def _describe_mpi(host: Host, environ: Mapping[str, str]) -> dict[str, str] | None:
    """Return the mpirun of this node, or the problem with it; None if there is none."""
    try:
        mpi = host.find_mpi(environ)
    except Unavailable as error:
        return {"problem": redact(error.problems[0].what)}
    return {"path": mpi.path, "family": mpi.family, "version": mpi.version} if mpi else None


def _describe_checked(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the other inputs of `launcher.checks`."""
    texts = {path: host.read_text(path) for path in CHECKED_LINES}
    files = {
        path: "\n".join(line for line in text.splitlines() if line.startswith(CHECKED_LINES[path]))
        for path, text in texts.items()
        if text is not None
    }
    seen = _ReadHost(host)
    read_memory_limit(seen)
    packages = {name: host.packages(name or None, environ) for name in PYTHONS}
    return {
        "checked": {path: redact(str(text)) for path, text in {**files, **seen.told}.items()},
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
    """Return the CPUs as kernel lists; the cores of a NUMA node are lists separated by spaces."""
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
    """Return the files below /sys that show ports and positions in the PCI tree, unchanged.

    So a fault in them can be replayed. Zero entries of tables are left out: there are hundreds, and they
    mean nothing.
    """
    seen = _ReadHost(host)
    ports = read_ports(seen)
    read_functions(seen, (*gpus, *read_amd_gpus(seen)), ports)
    read_gpu_paths(seen)
    return {path: told for path, told in seen.told.items() if not _is_empty_entry(path, told)}


def _is_empty_entry(path: str, told: object) -> bool:
    table = path.split("/")[-2]
    return table in ("gids", "pkeys") and not str(told).strip("0x:")


class _ReadHost(Host):
    """A proxy of another host that records the files and links that it reads."""

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


class _Asked(Host):
    """A proxy of another host that records name lookups and source addresses."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.root)
        self._host = host
        self.towards: dict[str, str | None] = {}
        self.resolved: dict[str, frozenset[str]] = {}

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        found = self._host.look_up(names)
        self.resolved.update(found)
        return found

    def address_towards(self, target: str) -> str | None:
        return self.towards.setdefault(target, self._host.address_towards(target))

    def netmasks(self) -> dict[str, tuple[tuple[str, str | None], ...]]:
        return self._host.netmasks()

    def hostname(self) -> str:
        return self._host.hostname()

    def ask_vm(self) -> Vm | None:
        return None  # the snapshot itself asks once


def render_snapshot(snapshot: Mapping[str, object]) -> str:
    """Return the file's text. Bytes that are not UTF-8 become JSON's lone surrogate escapes."""
    return json.dumps(snapshot, indent=1) + "\n"
