"""Checks which ``libnccl.so.2`` torch loads, and which other copies programs beside it may load.

Two versions in one job hang, or fail with a message that explains nothing ("unhandled system error");
plugins and settings for one may not fit the other.

Source: ld.so(8); PyTorch .ci/manywheel/build_cuda.sh (wheels search NVIDIA's packages first, by an RPATH that
takes precedence over LD_LIBRARY_PATH).
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, ok, warn
from launcher.machine.libraries import find_library
from launcher.machine.packages import NCCLS

NAME = "libnccl.so.2"


def look(case: CheckedNode) -> Findings:
    """Report the copy that torch loads, and warn of copies of another version."""
    copies = _find_copies(case) if case.exposed_count else []
    if not copies:
        return
    names = [f"{version or 'unknown version'} ({path})" for path, version in copies]
    first, own = copies[0]
    others = [
        name for name, (_, version) in zip(names, copies, strict=True) if own and version not in (own, "")
    ]
    if others:
        fix = f"remove the other copy, or make all load one: LD_PRELOAD={first}"
        yield warn(NAME, "copies of one version", f"{names[0]}; also {', '.join(others)}", fix)
    else:
        yield ok(NAME, names[0])


def _find_copies(case: CheckedNode) -> list[tuple[str, str]]:
    """Return (path, version) of each copy, beginning with the one that torch loads.

    An unknown version is empty.
    """
    found = find_library(case.host, case.environ, NAME)
    first = case.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    preloaded = [item for item in found if item.path in first]
    wheel = next((package for package in case.packages or () if package.name in NCCLS), None)
    path = f"{wheel.folder}/nvidia/nccl/lib/{NAME}" if wheel else ""
    ours = [(path, wheel.version)] if wheel and not any(item.file == path for item in preloaded) else []
    rest = [item for item in found if item not in preloaded and item.file != path]
    before, after = ([(copy.path, copy.version) for copy in copies] for copies in (preloaded, rest))
    return [*before, *ours, *after]
