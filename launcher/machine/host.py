"""Access to this node: its files, and the answers that are no files.

The files are under a root: a directory, ``/`` for this machine, or the files of a snapshot. Names, addresses,
mpirun and the packages of Pythons are no files: of these, a snapshot has the answers. The other modules of
`launcher.machine` read their subject from a `Host`. A value that cannot be read is None or empty, and the
caller decides what that means; methods that raise document it.

A snapshot may contain anything: an answer of the wrong type counts as unknown.
"""

from __future__ import annotations

import os
import sys

from launcher.core.errors import attempt
from launcher.core.ranks import is_number, parse_cpu_list
from launcher.machine.files import Folder, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Mapping, Sequence

    from launcher.machine.addresses import Addresses
    from launcher.machine.mpi import Mpi
    from launcher.machine.packages import Package

LOOK_UP_S = 10.0
LINE_LIMIT = 256
"""Longest text that is read as a value; files in /sys with a single value are shorter."""
HOME = "~"
"""Stands for the user's home directory in a snapshot: its path is private."""


class Host:
    """A machine.

    Attributes:
        environ: The environment that a snapshot has, empty for this machine.
        noted: The files that were read, as a recording has them; None to note nothing.

    Args:
        root: The directory that its files are under, or the files of a snapshot.
        look_up_s: Limit of the seconds for all name lookups together, so that a plan never waits longer.
        port: Returned as the free port, for a plan that is only shown; with 0 a real one is reserved.
        answers: A snapshot's answers; None if this machine itself is asked.
        own_depth: Number of nearest ancestors that are ours, and so no sign of what started the job.
    """

    def __init__(
        self,
        root: str | Mapping[str, object] = "/",
        look_up_s: float = LOOK_UP_S,
        port: int = 0,
        answers: Mapping[str, object] | None = None,
        own_depth: int = 0,
    ) -> None:
        self.answers = answers
        self.environ = {name: str(value) for name, value in _object(self.recorded("environ")).items()}
        self.forget_answers()
        self.files = Folder(root) if isinstance(root, str) else Recording(root)
        self.noted: dict[str, object] | None = None
        self.look_up_s = self._left_s = look_up_s
        self._port = port
        self._own_depth = own_depth
        self._held: tuple[socket, ...] = ()

    def forget_answers(self) -> None:
        """Begin to collect the answers of resolver and kernel, as a snapshot holds them."""
        self.resolved: dict[str, frozenset[str]] = {}
        self.reached: dict[str, str | None] = {}

    def path(self, path: str) -> str:
        """Return where an absolute path of the machine is on this one."""
        return self.files.path(path)

    def read_text(self, path: str) -> str | None:
        """Return a file's text (at most 1 MiB, undecodable bytes escaped), None if unreadable."""
        text = self.files.read_text(path)
        if self.noted is not None and text is not None:
            self.noted[path] = text
        return text

    def read_line(self, path: str) -> str | None:
        """Return a file's only line without spaces around it, as in /sys.

        None if it is empty, too long or not printable ASCII.
        """
        text = (self.read_text(path) or "").strip()
        fits = 0 < len(text) <= LINE_LIMIT and text.isascii() and text.isprintable()
        return text if fits else None

    def read_number(self, path: str, digits: int = 10) -> int | None:
        """Return the number in a file; None if there is none, for ``max``, and for -1: unknown in /sys."""
        text = self.read_line(path) or ""
        return int(text) if is_number(text, digits) else None

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link, None if it is not a link."""
        target = self.files.read_link(path)
        if self.noted is not None and target is not None:
            self.noted[path] = {"link": target}
        return target

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; empty if it cannot be listed."""
        names = self.files.list_folder(path)
        if self.noted is not None:
            for name in names:
                self.noted.setdefault(f"{path.rstrip('/')}/{name}", None)
        return names

    def has_file(self, path: str) -> bool:
        """Whether a path exists, as a file of any kind or as a link."""
        return self.files.has_file(path)

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return the content of a file that the user names: see `launcher.machine.files.read_whole`."""
        return self.files.read_whole(path, limit_bytes, pipe_s)

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return the content of a file that configures us: see `launcher.machine.files.read_guarded`."""
        return self.files.read_guarded(path, limit_bytes, of_system=of_system)

    def is_recorded(self) -> bool:
        """Whether this is only a snapshot of a machine, which has no answer to new questions."""
        return self.answers is not None

    def recorded(self, name: str) -> object:
        """Return a snapshot's answer; None without one."""
        return None if self.answers is None else self.answers.get(name)

    def space(self, path: str) -> tuple[int, int] | None:
        """Return (size, free) in bytes of a path's file system, None if unreadable."""
        if self.answers is not None:
            sizes = [
                size for size in _list(_object(self.recorded("space")).get(path)) if isinstance(size, int)
            ]
            return (sizes[0], sizes[1]) if len(sizes) == 2 else None
        found = attempt(lambda: os.statvfs(self.path(path)))
        return found and (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def hostname(self) -> str:
        """Return the hostname of this node."""
        if self.answers is not None:
            name = self.recorded("hostname")
            return name if isinstance(name, str) else "recorded"
        found = attempt(os.uname)
        if found is None:  # it is refused
            return (self.read_text("/proc/sys/kernel/hostname") or "").strip() or "unknown"
        return found.nodename

    def networks(self) -> Addresses:
        """Return the IP addresses of every interface, each with the prefix length of its network."""
        from launcher.machine.addresses import parse_addresses, read_addresses

        return read_addresses() if self.answers is None else parse_addresses(self.recorded("addresses"))

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Return the IP addresses of every interface, without zone suffixes."""
        return {name: tuple(address for address, _ in pairs) for name, pairs in self.networks().items()}

    def own_addresses(self) -> frozenset[str]:
        """Return all addresses of this node, and its hostname."""
        addresses = {address for items in self.addresses().values() for address in items}
        return frozenset({*addresses, self.hostname()})

    def resolve(self, name: str) -> frozenset[str]:
        """Return the addresses of a name; empty if it cannot be resolved in time."""
        return self.look_up((name,)).get(name, frozenset())

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        """Return the addresses of names, resolved in parallel, without names that got no answer in time."""
        if self.answers is not None:
            known = _object(self.recorded("resolved"))
            return {name: frozenset(map(str, _list(known.get(name)))) for name in names}
        import time

        from launcher.machine.names import resolve_names

        begun = time.monotonic()
        found = resolve_names(names, self._left_s)
        self._left_s -= time.monotonic() - begun
        self.resolved.update(found)
        return found

    def is_root(self) -> bool:
        """Whether our effective user ID is root's."""
        return os.geteuid() == 0 if self.answers is None else bool(self.recorded("root"))

    def home(self) -> str:
        """Return the user's home directory from the system's accounts; empty without an account."""
        if self.answers is not None:
            return HOME
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return ""

    def free_port(self) -> int:
        """Return a free port, always the same; the next port, which Horovod's rendezvous uses, is free too.

        Both are reserved as long as this object exists: see `launcher.machine.ports`.
        """
        return self._port or self.renew_port()

    def renew_port(self) -> int:
        """Reserve another free port and return it, as `free_port` does from now on."""
        from launcher.core.model import DEFAULT_PORT
        from launcher.machine.ports import hold_pair

        last = self._held
        try:
            self._port, self._held = hold_pair()
        except OSError:  # if we may not open sockets, nothing will listen and any number will do
            self._port = self._port or DEFAULT_PORT
        else:
            for one in last:  # only now: the new port is another one
                one.close()
        return self._port

    def find_version(self, python: str | None, environ: Mapping[str, str], name: str) -> str | None:
        """Return the version of a package that a Python has; empty without it, None if unknown.

        ``python`` is the first word of a command line; None means the default Python, see `own_python`. A
        snapshot has only packages that jobs use.
        """
        if self.answers is not None:
            found = self.packages(python, environ)
            return None if found is None else next((one.version for one in found if one.name == name), "")
        from launcher.machine.pythons import find_version, own_python

        return find_version(python or own_python(environ), environ, name)

    def packages(self, python: str | None, environ: Mapping[str, str]) -> tuple[Package, ...] | None:
        """Return the packages of a Python, as in `find_version`, that matter to a job; None if unknown."""
        if self.answers is not None:
            from launcher.machine.packages import parse_packages

            name = "" if python in (None, sys.executable) else str(python)
            return parse_packages(_object(self.recorded("packages")).get(name))
        from launcher.machine.packages import find_packages
        from launcher.machine.pythons import own_python

        return find_packages(python or own_python(environ), environ)

    def mpi_starters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the paths of the mpiruns and mpiexecs on PATH, in search order."""
        if self.answers is not None:
            return tuple(map(str, _list(self.recorded("mpiruns"))))
        from launcher.machine.mpi import list_starters

        return list_starters(environ)

    def find_mpi(self, environ: Mapping[str, str]) -> Mpi | None:
        """Return the first mpirun on PATH, or else the first mpiexec; None without either.

        Raises:
            Unavailable: It does not report its version, or is of an unknown family.
        """
        from launcher.machine.mpi import find_mpi, parse_mpi

        return find_mpi(environ) if self.answers is None else parse_mpi(_object(self.recorded("mpirun")))

    def affinity(self) -> frozenset[int] | None:
        """Return the CPUs that this process may run on; None if the kernel does not report them."""
        if self.answers is not None:
            return parse_cpu_list(str(self.recorded("affinity"))) or None
        found = attempt(os.sched_getaffinity, 0)
        return None if found is None else frozenset(found)

    def ask_source(self, target: str) -> str | None:
        """Return the address from which the kernel would reach a host, None without an address or a route.

        Of several addresses the first with a route counts; IPv6 goes before IPv4, as with the C library.
        """
        from launcher.machine.names import is_address

        numbers = [target]
        if not is_address(target.partition("%")[0]):
            numbers = sorted(self.resolve(target), key=lambda one: (":" not in one, one))
        return next(filter(None, (attempt(_find_source, one) for one in numbers)), None)

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        """Return the command lines of our parent, grandparent and so on, nearest first."""
        if self.answers is not None:
            found = [line for line in _list(self.recorded("ancestors"))[:limit] if isinstance(line, list)]
            return tuple(tuple(map(str, line)) for line in found)
        lines: list[tuple[str, ...]] = []
        parent = os.getppid()
        while parent > 0 and len(lines) < limit + self._own_depth:
            cmdline = self.read_text(f"/proc/{parent}/cmdline")
            stat = self.read_text(f"/proc/{parent}/stat")
            if cmdline is None or stat is None:
                break
            lines.append(tuple(cmdline.split("\0")[:-1]))
            # The second field is the name in parentheses, which can contain any character.
            words = stat.rpartition(")")[2].split()[:2]
            parent = int(words[1]) if len(words) == 2 and is_number(words[1], 9) else 0
        return tuple(lines[self._own_depth :])


def _find_source(number: str) -> str:
    """Return the address from which the kernel would reach an address, which is not looked up.

    Raises:
        OSError: It is none, or there is no route.
    """
    import socket

    where = socket.getaddrinfo(number, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    family, kind, protocol, _, end = where[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(end)  # sends nothing: the kernel looks up the route
        ours = str(probe.getsockname()[0]).partition("%")[0]
    loops = ours == "::1" or ours.startswith("127.")
    return str(end[0]) if loops else ours  # the route is the loopback, so the target is this node


def _object(value: object) -> Mapping[str, object]:
    """Return a JSON object; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """Return a JSON list; an empty one for any other value."""
    return value if isinstance(value, list) else []
