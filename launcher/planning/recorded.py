"""Recorded machine: a `Host` that answers from a snapshot (`launcher.planning.snapshot`).

A snapshot may contain anything: a value of the wrong type counts as unknown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from errno import ENOENT
from typing import TypeVar

from launcher.core.environ import DEFAULT_PORT
from launcher.core.errors import Problem, Unavailable, UsageError
from launcher.core.messages import DEPTH_MAX, is_shallow
from launcher.core.model import ACCELERATORS, Core, Gpu, Layout
from launcher.machine.azure_sizes import find_kind
from launcher.machine.azure_vm import Vm
from launcher.machine.clock import Clock
from launcher.machine.cpus import CPU_LIMIT, parse_cpu_list
from launcher.machine.gpu_facts import GpuFacts, parse_gpu
from launcher.machine.host import Host
from launcher.machine.loader import Library
from launcher.machine.mpi import Mpi, unknown_mpirun
from launcher.machine.network import Interface, find_source
from launcher.machine.numa import parse_pci_address, render_pci_address
from launcher.machine.packages import Package
from launcher.machine.whole import PIPE_S, read_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.machine.gpu_use import GpuUse
    from launcher.machine.infiniband import Port

VERSION = 1
SNAPSHOT_LIMIT_BYTES = 1 << 24
"""Far more than any node's snapshot needs; it guards against endless files."""
HOME = "~"
"""Stands for the user's home folder, whose path is private."""
ENTRIES_LIMIT = 1 << 15
"""More names and items than any node's snapshot has, a thousand network interfaces included."""
DEVICE_LIMIT = 256
"""More GPUs or RDMA ports than any node has: a snapshot with more is not trusted."""
T = TypeVar("T")
DIGITS_LIMIT = 19
"""Maximum digits of a number: bytes of memory have fewer."""


class RecordedHost(Host):
    """A recorded machine, which answers all questions of `Host` from a snapshot."""

    def __init__(self, data: Mapping[str, object]) -> None:
        super().__init__("/nonexistent", port=DEFAULT_PORT)
        self._data = data
        self.environ: dict[str, str] = {
            str(name): str(value) for name, value in mapping(data.get("environ")).items()
        }
        self._sysfs = {
            **mapping(data.get("sysfs")),
            **mapping(data.get("files")),
            **mapping(data.get("checked")),
        }
        self._folders: dict[str, set[str]] = {}

    def read_text(self, path: str) -> str | None:
        """Return a recorded file of /sys, or one of the few other recorded files."""
        text = self._sysfs.get(path.removeprefix("/sys/"))
        return text if isinstance(text, str) else None

    def has_file(self, path: str) -> bool:
        """Whether a file was recorded."""
        return self.read_text(path) is not None

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return a recorded file.

        Raises:
            FileNotFoundError: The snapshot does not have it.
        """
        text = self.read_text(path)
        if text is None:
            raise FileNotFoundError(ENOENT, "the snapshot does not have it")
        return text.encode("utf-8", "surrogateescape")

    def read_link(self, path: str) -> str | None:
        """Return a recorded link's target."""
        target = mapping(self._sysfs.get(path.removeprefix("/sys/"))).get("link")
        return target if isinstance(target, str) else None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names below a recorded folder of /sys."""
        if not self._folders:  # a search for each folder would take hours for thousands
            for name in self._sysfs:
                while name:
                    name, _, last = name.rpartition("/")
                    self._folders.setdefault(name, set()).add(last)
        return tuple(sorted(self._folders.get(path.removeprefix("/sys/").rstrip("/"), ())))

    def is_recorded(self) -> bool:
        """Return True: this machine is recorded."""
        return True

    def space(self, path: str) -> tuple[int, int] | None:
        """Return the recorded (size, free) of a folder."""
        pair = mapping(self._data.get("space")).get(path)
        sizes = [size for size in pair if isinstance(size, int)] if isinstance(pair, (list, tuple)) else []
        return (sizes[0], sizes[1]) if len(sizes) == 2 else None

    def has_module(self, name: str) -> bool:
        """Return True: the modules of the launcher's Python do not matter, because nothing is started."""
        return True

    def packages(self, python: str | None, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
        """Return the packages that were recorded for a Python."""
        listed = mapping(self._data.get("packages")).get(_name_python(python))
        if not isinstance(listed, list):
            return None
        fields = [[str(mapping(item).get(field, "")) for field in Package.__annotations__] for item in listed]
        return tuple(Package(*values) for values in fields)

    def find_version(self, python: str, environ: Mapping[str, str], name: str) -> str | None:
        """Return the recorded version of a Python's package; snapshots have only packages that jobs use."""
        found = self.packages(python, environ)
        return None if found is None else next((item.version for item in found if item.name == name), "")

    def libraries(self, name: str, environ: Mapping[str, str]) -> tuple[Library, ...]:
        """Return the recorded copies of a library."""
        listed = mapping(self._data.get("libraries")).get(name)
        pairs = [pair for pair in listed if isinstance(pair, list)] if isinstance(listed, list) else []
        return tuple(Library(str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)

    def mpi_starters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the recorded paths of mpirun programs."""
        paths = self._data.get("mpiruns")
        return tuple(map(str, paths)) if isinstance(paths, list) else ()

    def clock(self) -> Clock:
        """Return an empty clock: a recorded machine has none."""
        return Clock(0.0, None)

    def gpu_use(self) -> tuple[GpuUse, ...]:
        """Return nothing: the GPUs of a recorded machine are idle."""
        return ()

    def home(self) -> str:
        """Return the placeholder of the user's home folder."""
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
        """Return False: a recorded machine runs nothing."""
        return False

    def hostname(self) -> str:
        """Return the recorded host name, or a placeholder."""
        name = self._data.get("hostname")
        return name if isinstance(name, str) else "recorded"

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """Return the recorded addresses of names; a name that is not recorded has none."""
        known = mapping(self._data.get("resolved"))
        found = {name: known.get(name) for name in names}
        return {name: frozenset(map(str, of) if isinstance(of, list) else ()) for name, of in found.items()}

    def is_root(self) -> bool:
        """Return whether the recorded user was root."""
        return bool(self._data.get("root"))

    def address_towards(self, target: str) -> str | None:
        """Return the recorded source address, or one from the recorded routes; None if unknown."""
        told = mapping(self._data.get("towards"))
        if target in told:
            address = told[target]
            return address if isinstance(address, str) else None
        return find_source(self.interfaces(), self.routes(), target)

    def find_torch(self, python: str | None, environ: Mapping[str, str]) -> str | None:
        """Return the recorded version of a Python's torch."""
        version = mapping(self._data.get("torch")).get(_name_python(python))
        return version if isinstance(version, str) else None

    def find_mpi(self, environ: Mapping[str, str]) -> Mpi | None:
        """Return the recorded mpirun; None if there is none.

        Raises:
            Unavailable: A problem with mpirun was recorded.
        """
        mpirun = mapping(self._data.get("mpirun"))
        if "problem" in mpirun:
            raise Unavailable(unknown_mpirun(str(mpirun["problem"])))
        path, family, version = (str(mpirun.get(name)) for name in ("path", "family", "version"))
        return Mpi(path, family, version) if version.partition(".")[0].isdecimal() else None

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return the recorded addresses; as in the kernel no interface's name has a blank in it."""
        return {
            str(name): tuple(str(item) for item in items)
            for name, items in mapping(self._data.get("addresses")).items()
            if isinstance(items, list) and _is_interface(str(name))
        }

    def netmasks(self) -> dict[str, tuple[tuple[str, str | None], ...]]:
        """Return the recorded addresses without masks, which are recorded only with the interfaces."""
        return {
            name: tuple((address, None) for address in addresses)
            for name, addresses in self.addresses().items()
        }

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the recorded interfaces, or those that follow from the recorded addresses."""
        recorded = self._data.get("interfaces")
        if not isinstance(recorded, list):
            return super().interfaces()
        found = (fields for fields in map(mapping, recorded) if _is_interface(str(fields.get("name") or "")))
        return tuple(map(read_interface, found))

    def verbs_devices(self) -> frozenset[str] | None:
        """Return the recorded names of RDMA device files."""
        verbs = self._data.get("verbs")
        return frozenset(map(str, verbs)) if isinstance(verbs, list) else None

    def gpu_count(self) -> int | None:
        """Return the recorded number of GPUs; None if unknown or more than DEVICE_LIMIT."""
        gpus = self._data.get("gpus")
        count = len(gpus) if isinstance(gpus, list) else gpus
        return count if type(count) is int and 0 <= count <= DEVICE_LIMIT else None

    def hca_ports(self, *, tables: bool = True) -> tuple[Port, ...]:
        """Return the recorded ports of RDMA devices."""
        return super().hca_ports(tables=tables)[:DEVICE_LIMIT]

    def accelerators(self, environ: Mapping[str, str]) -> tuple[tuple[str, int | None], ...]:
        """Return the recorded numbers of accelerators."""
        counts = mapping(self._data.get("accelerators"))
        known = {kind: count for kind in ACCELERATORS if (count := counts.get(kind, 0)) != 0}
        return tuple(
            (kind, count if isinstance(count, int) and count > 0 else None) for kind, count in known.items()
        )

    def gpu_facts(self) -> tuple[GpuFacts, ...]:
        """Return the recorded GPUs; if only their number is recorded, as many GPUs without facts."""
        gpus = self._data.get("gpus")
        if not isinstance(gpus, list):
            return tuple(GpuFacts(index) for index in range(self.gpu_count() or 0))
        return tuple(parse_gpu(index, mapping(gpu)) for index, gpu in enumerate(gpus[:DEVICE_LIMIT]))

    def affinity(self) -> frozenset[int] | None:
        """Return the recorded mask; if only the number of bound CPUs is recorded, as many CPUs."""
        listed = self._cpu_list("affinity")
        if listed:
            return listed
        bound = mapping(self._data.get("cpus")).get("bound")
        return frozenset(range(bound)) if isinstance(bound, int) and 0 < bound < 1 << 16 else None

    def gpus(self, *, name_gpus: bool = True) -> tuple[Gpu, ...]:
        """Return the recorded GPUs."""
        return read_gpus(self._data.get("gpus"))[:DEVICE_LIMIT]

    def layout(self, *, name_gpus: bool = True) -> Layout:
        """Return the recorded cores and GPUs."""
        return Layout(
            own=tuple(sorted(self._cpu_list("affinity"))),
            cpuset=tuple(sorted(self._cpu_list("cpuset"))),
            cores=read_cores(mapping(mapping(self._data.get("cpus")).get("cores"))),
            gpus=self.gpus(),
        )

    def _cpu_list(self, name: str) -> frozenset[int]:
        text = mapping(self._data.get("cpus")).get(name)
        return parse_cpu_list(text) if isinstance(text, str) else frozenset()

    def granted_cpus(self) -> int | None:
        """Return the recorded number of CPUs that the cgroup grants."""
        granted = mapping(self._data.get("cpus")).get("granted")
        return granted if isinstance(granted, int) and granted > 0 else None

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        """Return the recorded command lines of the process's ancestors."""
        lines = self._data.get("ancestors")
        if not isinstance(lines, list):
            return ()
        return tuple(tuple(str(word) for word in line) for line in lines[:limit] if isinstance(line, list))


def _name_python(python: str | None) -> str:
    """Return the name of a Python in a snapshot; empty for the launcher's own."""
    return "" if python in (None, sys.executable) else str(python)


def read_snapshot(path: str) -> RecordedHost:
    """Read a snapshot file.

    Raises:
        UsageError: It cannot be read, is not JSON, or is not a snapshot of a supported version.
    """
    try:
        read = read_whole(path, SNAPSHOT_LIMIT_BYTES, PIPE_S)
        if len(read) > SNAPSHOT_LIMIT_BYTES:
            raise UsageError(_refuse(path, f"expected at most {SNAPSHOT_LIMIT_BYTES >> 20} MiB"))
        data = json.loads(read.decode("utf-8"), parse_int=_parse_int)
        text = json.dumps(data, ensure_ascii=False)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or f"is not JSON: {error}"
        raise UsageError(_refuse(path, reason)) from error
    if not is_shallow(data):
        raise UsageError(_refuse(path, f"nested more than {DEPTH_MAX} levels deep"))
    if _count(data) > ENTRIES_LIMIT:
        raise UsageError(_refuse(path, f"expected at most {ENTRIES_LIMIT} entries"))
    if not isinstance(data, dict) or not isinstance(data.get("environ"), dict):
        raise UsageError(_refuse(path, 'expected a JSON object with an "environ" object'))
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        reason = "a text holds half of a surrogate pair: no machine has such a text"
        raise UsageError(_refuse(path, reason)) from error
    if data.get("version", VERSION) != VERSION:
        raise UsageError(_refuse(path, f"version {data['version']!r}: expected {VERSION}"))
    return RecordedHost(data)


def _count(value: object) -> int:
    """Return the number of names and items in a shallow JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    return len(value) + sum(map(_count, value)) if isinstance(value, list) else 0


def _parse_int(digits: str) -> int:
    """Return an integer of at most DIGITS_LIMIT digits.

    Raises:
        ValueError: It has more digits.
    """
    if len(digits) > DIGITS_LIMIT:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _refuse(path: str, reason: str) -> Problem:
    return Problem(
        "bad-snapshot",
        f"--replay {path!r}: {reason}",
        "command line",
        "a file from: launcher snapshot",
    )


def mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object; an empty object for any other value."""
    return value if isinstance(value, Mapping) else {}


def _is_interface(name: str) -> bool:
    return name.isprintable() and " " not in name and name != ""


def read_interface(fields: Mapping[str, object]) -> Interface:
    """Return one recorded interface; a field of the wrong type is None."""
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


def read_cores(nodes: Mapping[str, object]) -> tuple[Core, ...]:
    """Return the recorded cores in the order of NUMA nodes; none if they have more CPUs than a kernel."""
    cores: list[Core] = []
    count = 0
    for name, text in nodes.items():
        node = int(name) if name.isascii() and name.isdecimal() and len(name) < DIGITS_LIMIT else None
        for cpus in map(parse_cpu_list, text.split() if isinstance(text, str) else ()):
            count += len(cpus)
            if count > CPU_LIMIT:
                return ()
            cores += [Core(tuple(sorted(cpus)), node)] if cpus else []
    return tuple(sorted(cores, key=lambda core: (-1 if core.node is None else core.node, core.cpus)))


def read_gpus(gpus: object) -> tuple[Gpu, ...]:
    """Return the recorded GPUs; none if only their number is recorded."""
    found = []
    for gpu in gpus if isinstance(gpus, list) else ():
        address = parse_pci_address(str(mapping(gpu).get("pci_bus_id")))
        node, uuid = mapping(gpu).get("numa_node"), mapping(gpu).get("uuid")
        found.append(
            Gpu(
                address=render_pci_address(address) if address else "",
                node=node if isinstance(node, int) and node >= 0 else None,
                uuid=uuid if isinstance(uuid, str) else None,
            )
        )
    return tuple(found)
