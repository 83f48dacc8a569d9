"""Finds shared libraries in the search order of the dynamic loader, without running any code.

The loader takes LD_PRELOAD first, then searches the directories of LD_LIBRARY_PATH, its cache, and the
default directories; the first file of a name wins. Directories that a library's own RPATH adds are ignored.

Source: ld.so(8); glibc sysdeps/generic/dl-cache.h (the cache holds full paths between NUL bytes).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from launcher.machine.host import Host

NCCL_PLUGINS = ("libnccl-net", "libnccl-tuner", "libsharp_coll", "libmsccl")
"""Prefixes of libraries that NCCL loads, or that replace it: net plugins, tuners, SHARP, MSCCL, MSCCL++."""
CACHE = "/etc/ld.so.cache"
DEFAULTS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
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


def find_libraries(host: Host, environ: Mapping[str, str], beginnings: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of ``*.so`` files with one of these name prefixes, one per name, in search order."""
    found: dict[str, str] = {}
    for path in _search(host, environ, lambda name: _fits(name, tuple(beginnings))):
        found.setdefault(path.rpartition("/")[2], path)
    return tuple(found.values())


def list_libraries(host: Host, folder: str, beginnings: tuple[str, ...]) -> list[str]:
    """Return the paths of the ``*.so`` files of one directory with one of these name prefixes."""
    names = host.list_folder(folder)
    return [f"{folder.rstrip('/')}/{name}" for name in names if _fits(name, beginnings)]


def find_library(host: Host, environ: Mapping[str, str], name: str) -> tuple[Library, ...]:
    """Return all copies of a library, e.g. ``libnccl.so.2``, in search order: the first one is loaded."""
    found: dict[str, Library] = {}
    loaded = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    preloaded = [path for path in loaded if path.startswith("/") and path.rpartition("/")[2].startswith(name)]
    for path in (*preloaded, *_search(host, environ, name.__eq__)):
        folder, _, base = path.rpartition("/")
        if base in host.list_folder(folder or "/"):
            file = _follow(host, _through(host, path))
            found.setdefault(file, Library(path, file))
    return tuple(found.values())


def _search(host: Host, environ: Mapping[str, str], is_wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of the files with a wanted name, in search order."""
    own = [
        folder
        for folder in environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
        if folder[:1] == "/"
    ]
    for folder in own:
        yield from (f"{folder.rstrip('/')}/{name}" for name in host.list_folder(folder) if is_wanted(name))
    for path in (host.read_text(CACHE) or "").split("\0"):
        if path.startswith("/") and is_wanted(path.rpartition("/")[2]):
            yield path
    for folder in DEFAULTS:
        if host.read_link("/" + folder.split("/")[1]) is None:  # /lib links to /usr/lib today
            yield from (f"{folder}/{name}" for name in host.list_folder(folder) if is_wanted(name))


def _fits(name: str, beginnings: tuple[str, ...]) -> bool:
    return name.startswith(beginnings) and name.endswith(".so")


def _through(host: Host, path: str) -> str:
    """Return a path with a link at its top directory resolved: /lib links to /usr/lib today."""
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
