"""Finds all copies of a shared library, in the search order of the dynamic loader.

The loader takes LD_PRELOAD first, then searches the folders of LD_LIBRARY_PATH, its cache, and the default
folders. Folders that a library's own RPATH adds are ignored.

Source: ld.so(8); glibc sysdeps/generic/dl-cache.h (the cache holds full paths between NUL bytes).
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.machine.libraries import CACHE, DEFAULTS, SEARCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.machine.host import Host

LINKS_LIMIT = 8


@frozen
class Library:
    """A file that can be loaded under a name: ``path`` as the loader finds it, ``file`` without links."""

    path: str
    file: str

    @property
    def version(self) -> str:
        """Version in the file's name, ``"2.21.5"`` for ``libnccl.so.2.21.5``; empty if it has none."""
        version = self.file.rpartition("/")[2].partition(".so.")[2]
        return version if "." in version else ""


def find_library(host: Host, environ: Mapping[str, str], name: str) -> tuple[Library, ...]:
    """Return all copies of a library, e.g. ``libnccl.so.2``, in search order: the first one is loaded."""
    found: dict[str, Library] = {}
    for path in _candidates(host, environ, name):
        file = _follow(host, _through(host, path))
        found.setdefault(file, Library(path, file))
    return tuple(found.values())


def _candidates(host: Host, environ: Mapping[str, str], name: str) -> Iterator[str]:
    for path in environ.get("LD_PRELOAD", "").replace(":", " ").split():
        if path.startswith("/") and path.rpartition("/")[2].startswith(name) and _exists(host, path):
            yield path
    cache = (host.read_text(CACHE) or "").split("\0")
    folders = environ.get(SEARCH, "").replace(";", ":").split(":")
    paths = [
        *(f"{folder.rstrip('/')}/{name}" for folder in folders if folder.startswith("/")),
        *(path for path in cache if path.startswith("/") and path.endswith("/" + name)),
        *(f"{folder}/{name}" for folder in DEFAULTS),
    ]
    yield from (path for path in dict.fromkeys(paths) if _exists(host, path))


def _exists(host: Host, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in host.list_folder(folder or "/")


def _through(host: Host, path: str) -> str:
    """Return a path with a link at its top folder resolved: /lib links to /usr/lib today."""
    first, slash, rest = path[1:].partition("/")
    target = host.read_link(f"/{first}") if slash else None
    return path if target is None else f"/{target.strip('/')}/{rest}"


def _follow(host: Host, path: str) -> str:
    """Return the file that a chain of links leads to; stops after `LINKS_LIMIT` links, also in a loop."""
    for _ in range(LINKS_LIMIT):
        target = host.read_link(path)
        if target is None:
            break
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return path
