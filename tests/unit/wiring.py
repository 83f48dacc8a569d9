"""A machine with made-up network interfaces, read as the kernel shows them."""

from __future__ import annotations

from collections.abc import Callable

from launcher.machine.addresses import Addresses
from launcher.machine.files import Folder
from launcher.machine.host import Host
from launcher.machine.network import DEVTYPES, IFF_LOOPBACK, IFF_UP, KINDS_BY_ARP_TYPE, NET, Interface

ARP_TYPES = {kind: number for number, kind in KINDS_BY_ARP_TYPE.items()}


class Wired(Host):
    """A machine in a folder, with these interfaces."""

    found: tuple[Interface, ...] = ()
    towards: str | None = None

    def __init__(self, root: str = "/nonexistent") -> None:
        super().__init__(root)
        self.files = WiredFiles(root, lambda: self.found)

    def networks(self) -> Addresses:
        return {one.name: one.addresses for one in self.found}

    def ask_source(self, target: str) -> str | None:
        return self.towards


class WiredFiles(Folder):
    """The files of a folder, and those of interfaces in /sys/class/net."""

    def __init__(self, root: str, found: Callable[[], tuple[Interface, ...]]) -> None:
        super().__init__(root)
        self._found = found

    def read_text(self, path: str) -> str | None:
        name, _, file = path.removeprefix(f"{NET}/").partition("/")
        one = next((one for one in self._found() if path.startswith(NET) and one.name == name), None)
        return super().read_text(path) if one is None else _show(one, file)

    def read_link(self, path: str) -> str | None:
        for one in self._found():
            if path == f"{NET}/{one.name}":
                return f"../../devices/{'virtual' if one.kind == 'virtual' else 'pci0'}/net/{one.name}"
            if path == f"{NET}/{one.name}/master":
                return one.master and f"../{one.master}"
        return super().read_link(path)


def _show(one: Interface, file: str) -> str | None:
    """Return the text of a file of an interface in /sys/class/net."""
    match file:
        case "flags" if one.is_up is not None:
            return f"{IFF_UP * one.is_up | IFF_LOOPBACK * one.is_loopback:#x}\n"
        case "carrier" if one.has_carrier is not None:
            return f"{one.has_carrier:d}\n"
        case "speed" if one.speed_mbps is not None:
            return f"{one.speed_mbps}\n"
        case "type" if one.kind is not None:
            return f"{ARP_TYPES.get(one.kind, ARP_TYPES['ethernet'])}\n"
        case "uevent" if one.kind in DEVTYPES:
            return f"DEVTYPE={one.kind}\n"
    return None
