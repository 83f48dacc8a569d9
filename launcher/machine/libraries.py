"""Finds shared libraries by name prefix, as the dynamic loader would, without running any code.

The loader searches the folders of LD_LIBRARY_PATH, then its cache, then the default folders; the first file
of a name wins. Folders that a library's own RUNPATH adds are ignored.

Source: ld.so(8); glibc sysdeps/generic/dl-cache.h (the cache holds full paths between NUL bytes).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from launcher.machine.host import Host

NCCL_PLUGINS = ("libnccl-net", "libnccl-tuner", "libsharp_coll", "libmsccl")
"""Prefixes of libraries that NCCL loads, or that replace it: net plugins, tuners, SHARP, MSCCL, MSCCL++."""
SEARCH = "LD_LIBRARY_PATH"
CACHE = "/etc/ld.so.cache"
DEFAULTS = (
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
    *("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)


def find_libraries(host: Host, environ: Mapping[str, str], beginnings: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of ``*.so`` files with one of these name prefixes, one per name, in search order."""
    found: dict[str, str] = {}
    for path in _all(host, environ, tuple(beginnings)):
        found.setdefault(path.rpartition("/")[2], path)
    return tuple(found.values())


def _all(host: Host, environ: Mapping[str, str], beginnings: tuple[str, ...]) -> Iterator[str]:
    for folder in environ.get(SEARCH, "").replace(";", ":").split(":"):
        if folder.startswith("/"):
            yield from list_libraries(host, folder, beginnings)
    cache = host.read_text(CACHE) or ""
    for path in cache.split("\0"):
        if path.startswith("/") and _fits(path.rpartition("/")[2], beginnings):
            yield path
    for folder in DEFAULTS:
        if not _leads_elsewhere(host, folder):
            yield from list_libraries(host, folder, beginnings)


def list_libraries(host: Host, folder: str, beginnings: tuple[str, ...]) -> list[str]:
    """Return the paths of the ``*.so`` files of one folder with one of these name prefixes."""
    place = folder.rstrip("/")
    return [f"{place}/{name}" for name in host.list_folder(folder) if _fits(name, beginnings)]


def _fits(name: str, beginnings: tuple[str, ...]) -> bool:
    return name.startswith(beginnings) and name.endswith(".so")


def _leads_elsewhere(host: Host, folder: str) -> bool:
    """Whether a link makes a default folder the same as another one (/lib links to /usr/lib today)."""
    return host.read_link("/" + folder.split("/")[1]) is not None
