"""All copies of a shared library, in the order in which the dynamic loader looks for it.

It looks at LD_PRELOAD, then in the folders of LD_LIBRARY_PATH, then in its cache, then in the default
folders. What a library's own RPATH adds is not seen here.

Source: ld.so(8); glibc sysdeps/generic/dl-cache.h (paths in the cache stand whole between NULs).
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
    """A file that would be loaded under a name: ``path`` as the loader has it, ``file`` behind its links."""

    path: str
    file: str

    @property
    def version(self) -> str:
        """The version in the file's name, ``"2.21.5"`` of ``libnccl.so.2.21.5``; empty without one."""
        version = self.file.rpartition("/")[2].partition(".so.")[2]
        return version if "." in version else ""


def find_library(host: Host, environ: Mapping[str, str], name: str) -> tuple[Library, ...]:
    """Return every copy of a library, e.g. ``libnccl.so.2``, the one that is loaded first."""
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
    """Return a path without the link at its beginning: /lib is /usr/lib nowadays."""
    first, slash, rest = path[1:].partition("/")
    target = host.read_link(f"/{first}") if slash else None
    return path if target is None else f"/{target.strip('/')}/{rest}"


def _follow(host: Host, path: str) -> str:
    """Return the file behind links in one folder or to another; a circle ends somewhere in it."""
    for _ in range(LINKS_LIMIT):
        target = host.read_link(path)
        if target is None:
            break
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return path
