"""Snapshot: a JSON file with a node as the launcher sees it, which can be replayed anywhere.

It has the files that the launcher's readers read, and the answers that are no files. Format, version 2 (every
field may be missing; ``environ`` alone is enough)::

    {"version": 2, "launcher": "0.1.0", "hostname": "node0",
     "environ": {"RANK": "0"},
     "files": {"/sys/class/infiniband/mlx5_0": {"link": "../../devices/..."},
               "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\\n",
               "/dev/nvidia0": null,
               "/proc/self/limits": "Max open files    1024    524288    files"},
     "addresses": {"eth0": ["10.0.0.4/24"]},
     "affinity": "0-95",
     "gpus": 8 or [{"index": 0, "name": ..., "uuid": ..., "pci_bus_id": ..., "numa_node": 0, ...}],
     "ancestors": [["hydra_pmi_proxy", "--proxy-id", "1"]],
     "root": false,
     "mpirun": {"path": "/usr/bin/mpirun", "family": "Open MPI", "version": "4.1.4"},
     "mpiruns": ["/usr/bin/mpirun"],
     "packages": {"python": [{"name": "torch", "version": "2.13.0", "folder": ..., "mpi": ""}]},
     "space": {"/dev/shm": [67108864, 67108864]},
     "vm_size": "Standard_ND96isr_H100_v5",
     "towards": {"node0": "10.0.0.5"}, "resolved": {"node0": ["10.0.0.4"]}}

A name in ``files`` with null is known to exist. A snapshot has no secrets: only variables on an allow-list of
names are written, only files and lines that `_keep` lets through, and secrets in their values are redacted
(`launcher.core.redact`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from copy import copy

from launcher.core.environ import is_host, leave_out_services
from launcher.core.errors import LauncherError, Unavailable
from launcher.core.ranks import render_cpu_list
from launcher.core.redact import redact, redact_argv
from launcher.core.secrets import is_public_name
from launcher.core.version import __version__
from launcher.fabrics.facts import IMEX_CHANNELS, TOPOLOGYD, read_configured, read_mpi_choice, read_topologies
from launcher.machine import OTHERS
from launcher.machine.accelerators import PLAIN, count_accelerators
from launcher.machine.azure import ASSET_TAG, ASSET_TAG_FILE, ask_vm, is_azure, read_vm
from launcher.machine.cgroup import read_granted_cpus, read_memory_limit
from launcher.machine.gpus import DRIVER, count_gpus
from launcher.machine.hardware import Hardware, read_hardware
from launcher.machine.host import HOME, Host
from launcher.machine.infiniband import read_verbs_devices
from launcher.machine.libraries import CACHE, NCCL_PLUGINS, find_libraries, find_library
from launcher.machine.numa import read_gpu_paths, read_layout
from launcher.machine.nvml import NVIDIA, describe_gpu
from launcher.options.config import LIMIT_BYTES
from launcher.options.given import CONFIG, ETC
from launcher.options.reading import find_beside, read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import VERSION
from launcher.sources.hydra import PROXY_NAMES
from launcher.sources.indexed_job import HOSTS_FILE, INDEX
from launcher.sources.sagemaker import FILE, JOB
from launcher.sources.signs import HOST_FILES

PYTHONS = ("", "python", "python3")
"""Pythons whose packages are recorded: the launcher's own (empty) and those that commands name."""
KEPT_LINES = {
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
LIBRARIES = ("libnccl.so.2", "libcuda.so.1")
DEVICES = ("nvidia", "null", *OTHERS, *(prefix for _, prefix, _ in PLAIN))
"""Prefixes of the names in /dev that are recorded; every machine has ``null``: a known /dev is not empty."""
LISTED = ("/sys/", "/dev/dri/", "/dev/accel/", "/dev/infiniband/", f"{IMEX_CHANNELS}/", f"{TOPOLOGYD}/")
"""Folders of which all names are recorded."""
UNREDACTED = ("/sys/", "/dev/", "/proc/driver/")
"""Folders whose files only the kernel writes."""
SPACES = ("/dev/shm", "/tmp")  # noqa: S108 - only their space is read


def take_snapshot(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return this node as a JSON object, without secrets."""
    environ = leave_out_services(environ)
    affinity = host.affinity()
    addresses = {
        name: [address if length is None else f"{address}/{length}" for address, length in pairs]
        for name, pairs in host.networks().items()
    }
    vm = read_vm(environ) or (ask_vm(host) if is_azure(host, environ) else None)
    seen = copy(host)
    seen.noted = noted = dict[str, object]()
    gpus = _read(seen, environ).gpus
    nvidia = [describe_gpu(gpu) for gpu in gpus if gpu.vendor == NVIDIA and gpu.address]
    read_topologies(seen, vm)
    home = f"{host.home()}/"
    kept = {path: _keep(path, value) for path, value in noted.items() if _is_kept(path, value)}
    hosts = {path: redact(text) for path, text in _read_hosts(host, environ).items()}
    files = {f"{HOME}/{path[len(home) :]}" if path.startswith(home) else path: kept[path] for path in kept}
    count = count_gpus(host) if host.is_recorded() else None
    return {
        "version": VERSION,
        "launcher": __version__,
        "hostname": host.hostname(),
        "environ": {name: redact(environ[name]) for name in sorted(environ) if is_public_name(name)},
        "files": dict(sorted({**files, **hosts}.items())),
        "addresses": addresses,
        "affinity": None if affinity is None else render_cpu_list(affinity),
        "gpus": nvidia or count,
        "ancestors": [
            redact_argv(line)
            for line in host.ancestors()
            if line and line[0].rpartition("/")[2] in PROXY_NAMES
        ],
        "root": host.is_root(),
        "mpirun": _describe_mpi(host, environ),
        "mpiruns": list(host.mpi_starters(environ)),
        "packages": {name: _describe_packages(host, name, environ) for name in PYTHONS},
        "space": {path: host.space(path) for path in SPACES},
        "vm_size": vm.size if vm and vm.size else None,
        **_describe_names(host, environ),
    }


def _read(seen: Host, environ: Mapping[str, str]) -> Hardware:
    """Read all that plans, checks and the topology read in files, so that it is noted."""
    read_verbs_devices(seen)
    count_accelerators(seen, environ)
    read_granted_cpus(seen)
    read_layout(seen)
    find_libraries(seen, environ, NCCL_PLUGINS)
    for name in LIBRARIES:
        find_library(seen, environ, name)
    for path in (*KEPT_LINES, ASSET_TAG_FILE):
        seen.read_text(path)
    for folder in (IMEX_CHANNELS, TOPOLOGYD):
        seen.list_folder(folder)
    read_configured(seen, environ)
    read_mpi_choice(seen, environ)
    read_memory_limit(seen)
    read_gpu_paths(seen)
    return read_hardware(seen)


def _is_kept(path: str, value: object) -> bool:
    """Whether a file is recorded."""
    folder, _, name = path.rpartition("/")
    if path == ASSET_TAG_FILE:
        return isinstance(value, str) and value.strip() == ASSET_TAG
    if value is None:
        is_device = folder == "/dev" and name.startswith(DEVICES)
        return is_device or path.startswith(LISTED) or name.startswith((*NCCL_PLUGINS, *LIBRARIES))
    return True


def _keep(path: str, value: object) -> object:
    """Return what is recorded of a file's text; a link or a name is recorded as it is."""
    if not isinstance(value, str):
        return value
    if path == CACHE:
        names = (*NCCL_PLUGINS, *LIBRARIES)
        return "\0".join(one for one in value.split("\0") if one.rpartition("/")[2].startswith(names))
    if path in KEPT_LINES:
        value = "\n".join(line for line in value.splitlines() if line.startswith(KEPT_LINES[path]))
    return value if path.startswith(UNREDACTED) else redact(value)


def _describe_packages(host: Host, python: str, environ: Mapping[str, str]) -> list[dict[str, str]] | None:
    found = host.packages(python or None, environ)
    return None if found is None else [dict(vars(package)) for package in found]


def _describe_names(host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the addresses of other nodes' names and our addresses towards them that a plan needs."""
    if host.is_recorded():
        return {name: host.recorded(name) for name in ("towards", "resolved")}
    asked = copy(host)
    asked.forget_answers()
    with contextlib.suppress(LauncherError):  # without a plan, the lookups before the error are recorded
        plan_job(environ, asked, read_options({}, environ, asked, ()), ())
    return {
        "towards": {redact(name): address for name, address in sorted(asked.reached.items())},
        "resolved": {redact(name): sorted(found) for name, found in sorted(asked.resolved.items())},
    }


def _read_hosts(host: Host, environ: Mapping[str, str]) -> dict[str, str]:
    """Return other files that sources and options read.

    These are a batch system's host files, our own lines of /etc/hosts, and files of defaults.
    """
    found = {}
    for name in HOST_FILES:
        path = environ.get(name)
        text = host.read_text(path) if path else None
        if path and text is not None:
            words = dict.fromkeys(line.split()[0] for line in text.splitlines() if line.strip())
            found[path] = "\n".join(word for word in words if is_host(word))
    if environ.get(INDEX):
        lines = (host.read_text(HOSTS_FILE) or "").splitlines()
        found[HOSTS_FILE] = "\n".join(line for line in lines if host.hostname() in line.split())
    named = environ.get(CONFIG)
    for path in filter(None, (ETC, named, find_beside((), host))):
        with contextlib.suppress(OSError):
            data = host.read_guarded(path, LIMIT_BYTES, of_system=path != named)
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


def render_snapshot(snapshot: Mapping[str, object]) -> str:
    """Return the file's text. Bytes that are not UTF-8 become JSON's lone surrogate escapes."""
    return json.dumps(snapshot, indent=1) + "\n"
