"""Access to this node: /proc, /sys, /dev, the hostname, addresses, ports, programs and packages.

`Host` takes a root, so that a folder can replace a machine. `launcher.planning.recorded.RecordedHost` returns
the same values from a snapshot file. A value that cannot be read is None or empty, and the caller decides
what that means; methods that raise document it. `Host` is one class because a machine is replaced as a whole.
The modules of `launcher.machine` do the reading, and are loaded on first use.
"""

from __future__ import annotations

import os
import stat
from errno import EINVAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Gpu, Layout
    from launcher.machine.azure_vm import Vm
    from launcher.machine.clock import Clock
    from launcher.machine.gpu_facts import GpuFacts
    from launcher.machine.gpu_use import GpuUse
    from launcher.machine.infiniband import Port
    from launcher.machine.loader import Library
    from launcher.machine.mpi import Mpi
    from launcher.machine.network import Interface
    from launcher.machine.packages import Package

READ_LIMIT_BYTES = 1 << 20
_READ_STEP_BYTES = 1 << 14
LOOK_UP_S = 10.0


class Host:
    """A machine whose files are under ``root``.

    ``look_up_s`` limits the seconds for all name lookups together, so that a plan never waits longer.
    ``port`` is returned as the free port, for a plan that is only shown; with 0 a real one is reserved.
    """

    def __init__(self, root: str = "/", look_up_s: float = LOOK_UP_S, port: int = 0) -> None:
        self.root = root
        self._look_up_s = self._left_s = look_up_s
        self._port = port
        self._held: tuple[socket, ...] = ()

    def path(self, path: str) -> str:
        """Return the path under ``root`` of an absolute path of the machine."""
        return os.path.join(self.root, path.lstrip("/"))

    def read_text(self, path: str) -> str | None:
        """Return a file's text (at most 1 MiB, undecodable bytes escaped), None if unreadable.

        Reads regular files only: what we read from a pipe or a terminal would be lost to its real reader.
        """
        try:
            return _read(self.path(path)).decode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            return None

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return the content of a file that the user names: a regular file, or a pipe if ``pipe_s`` is not 0.

        Returns:
            At most one byte more than the limit, which shows that the file is longer.

        Raises:
            OSError: It cannot be read, is another kind of file, or is a pipe that does not end within
                ``pipe_s`` seconds.
        """
        from launcher.machine.whole import read_whole

        return read_whole(self.path(path), limit_bytes, pipe_s)

    def has_file(self, path: str) -> bool:
        """Whether a path exists, as a file of any kind or as a link."""
        return os.path.lexists(self.path(path))

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return the content of a regular file that configures us; refuse one that all users can write.

        Args:
            path: Path of the file.
            limit_bytes: At most one byte more is returned, which shows that the file is longer.
            of_system: Whether the file must belong to root or to our user.

        Raises:
            OSError: It cannot be read, is not a regular file, has a wrong owner, or all users can write it.
        """
        from launcher.machine.whole import read_guarded

        return read_guarded(self.path(os.path.abspath(path)), limit_bytes, of_system=of_system)

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link, None if it is not a link."""
        try:
            return os.readlink(self.path(path))
        except (OSError, ValueError):
            return None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; empty if it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self.path(path))))
        except (OSError, ValueError):
            return ()

    def is_recorded(self) -> bool:
        """Whether this is only a snapshot of a machine, which has no answer to new questions."""
        return False

    def is_init(self) -> bool:
        """Whether we are process 1 of a container: if we stay, we must do the work of an init."""
        return os.getpid() == 1

    def age_s(self, path: str) -> float | None:
        """Return the seconds since a file was last written, None if it does not exist."""
        import time

        try:
            return time.time() - os.stat(self.path(path)).st_mtime
        except (OSError, ValueError):
            return None

    def space(self, path: str) -> tuple[int, int] | None:
        """Return (size, free) in bytes of a path's file system, None if unreadable."""
        try:
            found = os.statvfs(self.path(path))
        except (OSError, ValueError):
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def hostname(self) -> str:
        """Return the hostname of this node."""
        try:
            return os.uname().nodename
        except OSError:  # uname is refused
            return (self.read_text("/proc/sys/kernel/hostname") or "").strip() or "unknown"

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return the IP addresses of every interface, without zone suffixes."""
        return {name: tuple(address for address, _ in pairs) for name, pairs in self.netmasks().items()}

    def netmasks(self) -> dict[str, tuple[tuple[str, str | None], ...]]:
        """Return the IP addresses of every interface, without zone suffixes, each with its netmask."""
        from launcher.machine.addresses import read_netmasks

        return read_netmasks()

    def own_addresses(self) -> frozenset[str]:
        """Return all addresses of this node, and its hostname."""
        addresses = {address for items in self.addresses().values() for address in items}
        return frozenset({*addresses, self.hostname()})

    def is_own(self, name: str) -> bool:
        """Whether a name or an address is this node's, literally or by the addresses that it resolves to.

        Raises:
            NotReady: The resolver has not answered in time.
        """
        return bool(self.own_places((name,)))

    def is_called(self, *names: str) -> bool:
        """Whether one of these names and addresses is literally this node's, without resolving it.

        Of a host name only the part before the first dot must be the same.
        """
        if not names:
            return False  # reading the addresses costs an import
        own, hostname = self.own_addresses(), self.hostname()
        return any(_is_called(name, own, hostname) for name in names)

    def is_elsewhere(self, address: str) -> bool:
        """Whether an IP address is in a network of this node, and not its own; False for a name.

        An address of another network may be translated on the way, and lead here.
        """
        from launcher.machine.addresses import is_near

        pairs = [pair for pairs in self.netmasks().values() for pair in pairs]
        return address not in self.own_addresses() and any(is_near(address, *pair) for pair in pairs)

    def own_places(self, names: Sequence[str]) -> list[int]:
        """Return the indices of this node in a list of names and addresses.

        If a name or an address is literally ours, nothing is resolved: a resolver that is down takes seconds
        for each name.

        Raises:
            NotReady: The resolver has not answered for all names in time. A guess could start another job.
        """
        own, hostname = self.own_addresses(), self.hostname()
        places = [place for place, name in enumerate(names) if _is_called(name, own, hostname)]
        if places or not names:
            return places
        found = self.look_up(names)
        if any(name not in found for name in names):
            raise self._silence(names, found)
        return [place for place, name in enumerate(names) if not own.isdisjoint(found[name])]

    def resolve(self, name: str) -> frozenset[str]:
        """Return the addresses of a name; empty if it cannot be resolved in time."""
        return self.look_up((name,)).get(name, frozenset())

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """Return the addresses of names, resolved in parallel, without names that got no answer in time."""
        import time

        from launcher.machine.names import resolve_names

        begun = time.monotonic()
        found = resolve_names(names, self._left_s)
        self._left_s -= time.monotonic() - begun
        return found

    def _silence(self, names: Sequence[str], found: Mapping[str, object]) -> Exception:
        from launcher.core.errors import NotReady, Problem

        left = [name for name in names if name not in found]
        what = (
            f"no answer within {self._look_up_s:g} s for {len(left)} of {len(names)} names (e.g. "
            f"{left[0]}): cannot tell which of them is this node"
        )
        fix = "fix name resolution (getent hosts NAME), list addresses, or pass --node-rank R"
        return NotReady(Problem("resolver-silent", what, "the resolver of this node, /etc/resolv.conf", fix))

    def address_of(self, name: str) -> str:
        """Return our address behind a name of ours; the name itself if it is an address, or if unknown."""
        own = self.own_addresses()
        found = sorted(address for address in self.resolve(name) if address in own and address != name)
        return name if name in own - {self.hostname()} or not found else found[0]

    def is_root(self) -> bool:
        """Whether our effective user ID is root's."""
        return os.geteuid() == 0

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the network interfaces. Costs a millisecond or two: reads several files of each."""
        from launcher.machine.network import read_interfaces

        return read_interfaces(self)

    def routes(self) -> dict[str, tuple[str, ...]]:
        """Return the networks that each interface leads to, with ``default`` for the default route."""
        from launcher.machine.network import read_routes

        return read_routes(self)

    def hca_ports(self, *, tables: bool = True) -> tuple[Port, ...]:
        """Return the ports of RDMA devices, InfiniBand or not; see `read_ports` for ``tables``."""
        from launcher.machine.infiniband import read_ports

        return read_ports(self, tables=tables)

    def nccl_plugins(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the paths of the plugins that NCCL could load; of each name the first in search order."""
        from launcher.machine.libraries import NCCL_PLUGINS, find_libraries

        return find_libraries(self, environ, NCCL_PLUGINS)

    def ask_vm(self) -> Vm | None:
        """Ask Azure's metadata service which VM this is; None if it does not answer within a second."""
        from launcher.machine.azure_vm import ask_vm

        return ask_vm()

    def home(self) -> str:
        """Return the user's home folder from the system's accounts; empty without an account."""
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return ""

    def can_write(self, path: str) -> bool:
        """Whether a folder exists and we can make files in it."""
        return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)

    def verbs_devices(self) -> frozenset[str] | None:
        """Return the names (uverbsN) of the RDMA device files exposed to us, None if unknown."""
        names = self.list_folder("/dev/infiniband")
        return frozenset(name for name in names if name.startswith("uverbs"))

    def address_towards(self, target: str) -> str | None:
        """Return the address from which we would reach a host, None if it has no address or no route."""
        import socket

        from launcher.machine.names import is_address

        if not is_address(target) and not self.resolve(target):
            return None
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)  # sends nothing: the kernel looks up the route
                ours = str(probe.getsockname()[0]).partition("%")[0]
        except (OSError, ValueError):
            return None
        loops = ours == "::1" or ours.startswith("127.")
        return str(where[0]) if loops else ours  # the route is the loopback, so the target is this node

    def free_port(self) -> int:
        """Return a free port, always the same; the next port, which Horovod's rendezvous uses, is free too.

        Both are reserved as long as this object exists: see `launcher.machine.ports`.
        """
        if not self._port:
            from launcher.core.environ import DEFAULT_PORT
            from launcher.machine.ports import hold_pair

            try:
                self._port, self._held = hold_pair()
            except OSError:  # if we may not open sockets, nothing will listen and any number will do
                self._port = DEFAULT_PORT
        return self._port

    def renew_port(self) -> int:
        """Reserve another free port and return it, as `free_port` does from now on."""
        from launcher.machine.ports import hold_pair

        last = self._held
        try:
            self._port, self._held = hold_pair()
        except OSError:
            return self.free_port()
        for one in last:  # only now: the new port is another one
            one.close()
        return self._port

    def find_torch(self, python: str | None, environ: Mapping[str, str]) -> str | None:
        """Return the version of torch that a Python has; empty without torch, None if unknown.

        ``python`` is the first word of a command line; None means the default Python, see `own_python`.
        """
        from launcher.machine.pythons import own_python

        return self.find_version(python or own_python(environ), environ, "torch")

    def find_version(self, python: str, environ: Mapping[str, str], name: str) -> str | None:
        """Return the version of a package that a Python has; empty without it, None if unknown."""
        from launcher.machine.pythons import find_version

        return find_version(python, environ, name)

    def has_module(self, name: str) -> bool:
        """Whether the launcher's own Python can find a module; does not import it."""
        from importlib.util import find_spec

        try:
            return find_spec(name) is not None
        except ModuleNotFoundError:  # the package that it would be in
            return False

    def packages(self, python: str | None, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
        """Return the packages of a Python that matter to a job, None if unknown.

        ``python`` is the first word of a command line; None means the default Python, see `own_python`.
        """
        from launcher.machine.packages import find_packages
        from launcher.machine.pythons import own_python

        return find_packages(python or own_python(environ), environ)

    def libraries(self, name: str, environ: Mapping[str, str]) -> tuple[Library, ...]:
        """Return the copies of a shared library in search order: the first one is loaded."""
        from launcher.machine.loader import find_library

        return find_library(self, environ, name)

    def clock(self) -> Clock:
        """Return the time, and whether the clock is synchronized."""
        from launcher.machine.clock import read_clock

        return read_clock(self)

    def gpu_use(self) -> tuple[GpuUse, ...]:
        """Return the processes and the memory in use on each GPU. Slow: asks NVML."""
        from launcher.machine.gpu_use import read_gpu_use

        return read_gpu_use()

    def mpi_starters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the paths of the mpiruns and mpiexecs on PATH, in search order."""
        from launcher.machine.mpi import list_starters

        return list_starters(environ)

    def find_mpi(self, environ: Mapping[str, str]) -> Mpi | None:
        """Return the first mpirun on PATH, or else the first mpiexec; None without either.

        Raises:
            Unavailable: It does not report its version, or is of an unknown family.
        """
        from launcher.machine.mpi import find_mpi

        return find_mpi(environ)

    def gpu_count(self) -> int | None:
        """Return the number of NVIDIA GPUs exposed to us, by their device files; None if unknown.

        The container runtime grants the device files. /proc/driver/nvidia lists all GPUs of the node, and
        NVML needs tens of milliseconds for the same answer.
        """
        return len(self.gpu_minors())

    def gpu_minors(self) -> frozenset[str]:
        """Return the numbers N of the device files /dev/nvidiaN."""
        names = self.list_folder("/dev")
        return frozenset(name[6:] for name in names if name[:6] == "nvidia" and name[6:].isdigit())

    def accelerators(self, environ: Mapping[str, str]) -> tuple[tuple[str, int | None], ...]:
        """Return (kind, number that a process here can see) of each kind of accelerator but NVIDIA's."""
        from launcher.machine.accelerators import count_accelerators

        return count_accelerators(self, environ)

    def gpu_facts(self) -> tuple[GpuFacts, ...]:
        """Return all known properties of the exposed NVIDIA GPUs. Slow: asks NVML."""
        from launcher.machine.nvml import read_gpu_facts

        return read_gpu_facts(self)

    def affinity(self) -> frozenset[int] | None:
        """Return the CPUs that this process may run on; None if the kernel does not report them."""
        try:
            return frozenset(os.sched_getaffinity(0))
        except OSError:
            return None

    def granted_cpus(self) -> int | None:
        """Return the number of CPUs that the cgroup grants; None if it cannot be read."""
        from launcher.machine.cpus import read_granted_cpus

        return read_granted_cpus(self)

    def gpus(self, *, name_gpus: bool = False) -> tuple[Gpu, ...]:
        """Return addresses, NUMA nodes and, if asked, UUIDs of the exposed NVIDIA GPUs, in CUDA's order."""
        from launcher.machine.numa import read_gpus

        return read_gpus(self, name_gpus)

    def layout(self, *, name_gpus: bool = True) -> Layout:
        """Return our CPUs by core and NUMA node, and the GPUs by NUMA node.

        Args:
            name_gpus: Whether to read the GPUs' UUIDs. The driver may block a reader while another process
                initializes a GPU, so the UUIDs are read only if CUDA_VISIBLE_DEVICES has some.
        """
        from launcher.machine.numa import read_layout

        return read_layout(self, name_gpus)

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        """Return the command lines of our parent, grandparent and so on, nearest first."""
        lines: list[tuple[str, ...]] = []
        parent = os.getppid()
        while parent > 0 and len(lines) < limit:
            cmdline = self.read_text(f"/proc/{parent}/cmdline")
            stat = self.read_text(f"/proc/{parent}/stat")
            if cmdline is None or stat is None:
                break
            lines.append(tuple(cmdline.split("\0")[:-1]))
            # The second field is the name in parentheses, which can contain any character.
            words = stat.rpartition(")")[2].split()[:2]
            parent = int(words[1]) if len(words) == 2 and words[1].isdecimal() and len(words[1]) < 10 else 0
        return tuple(lines)


def _is_called(name: str, own: frozenset[str], hostname: str) -> bool:
    is_address = name.replace(".", "").isdecimal()
    called = hostname.partition(".")[0]
    return name in own or (not is_address and name.partition(".")[0] == called != "")


def _read(path: str) -> bytes:
    """Return a file's bytes; takes a third of the time of `open`, which matters for 100 small files."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(EINVAL, "not a regular file")
        data = part = os.read(fd, _READ_STEP_BYTES)
        while part and len(data) < READ_LIMIT_BYTES:
            part = os.read(fd, _READ_STEP_BYTES)
            data += part
        return data
    finally:
        os.close(fd)
