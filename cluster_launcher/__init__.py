"""The launcher's API under a name of its own: many projects have a ``launcher`` of theirs.

In a script::

    import cluster_launcher as launcher

    topology = launcher.setup()

The package ``launcher`` is loaded from its place beside this one, not through `sys.path`. If the project has
a ``launcher``, ours leaves `sys.modules` again after each call, so ``import launcher`` gives the project's.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock  # a threading.py of the project must not be imported
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from launcher.core import errors as errors
    from launcher.core.model import Plan, Topology
    from launcher.core.version import __version__ as __version__

__all__ = ["__version__", "arm", "errors", "plan", "setup"]
PACKAGE = "launcher"
FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), PACKAGE, "__init__.py")
_ours: dict[str, ModuleType] = {}
_lock = RLock()


class Ours:
    """Makes ``launcher`` mean our package while it is entered."""

    def __enter__(self) -> None:
        """Put our modules into `sys.modules`."""
        _lock.acquire()
        self._theirs = _take_out()
        if _is_our_file(getattr(self._theirs.get(PACKAGE), "__file__", None)):
            _ours.update(self._theirs)
            self._theirs = {}
        sys.modules.update(_ours)
        if PACKAGE not in sys.modules:
            load()

    def __exit__(self, *_: object) -> None:
        """Put the project's modules back, if it has a ``launcher``."""
        _ours.update(_take_out())
        sys.modules.update(self._theirs if self._theirs or _has_another() else _ours)
        _lock.release()


def setup() -> Topology:
    """Set the variables of a process of the job in this interpreter: see `launcher.cli.api.setup`."""
    with Ours():
        return import_module("launcher.cli.api").setup()  # type: ignore[no-any-return]


def plan(
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    root: str | Mapping[str, object] = "/",
    answers: Mapping[str, object] | None = None,
) -> Plan:
    """Return what ``launcher run`` would do on a machine, and start nothing: see `launcher.cli.api.plan`."""
    with Ours():
        return import_module("launcher.cli.api").plan(argv, environ, root, answers)  # type: ignore[no-any-return]


def arm(*, errors: bool = True) -> None:
    """Prepare this process for stack dumps and failure reports: see `launcher.inprocess.arm`."""
    with Ours():
        import_module("launcher.inprocess").arm(errors=errors)


def load() -> None:
    """Import our package from its place, whatever `sys.path` has under its name."""
    spec = spec_from_file_location(PACKAGE, FILE, submodule_search_locations=[os.path.dirname(FILE)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no launcher at {FILE}: install cluster-launcher again")
    sys.modules[PACKAGE] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _take_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in names}


def _has_another() -> bool:
    """Whether ``import launcher`` would give another package or module than ours."""
    found = PathFinder.find_spec(PACKAGE)
    return found is not None and not _is_our_file(found.origin)


def _is_our_file(path: str | None) -> bool:
    return path is not None and os.path.realpath(path) == os.path.realpath(FILE)


def __getattr__(name: str) -> object:
    """Load an attribute on first use."""
    places = {"errors": "launcher.core.errors", "__version__": "launcher.core.version"}
    if name not in places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with Ours():
        module = import_module(places[name])
    return module if name == "errors" else getattr(module, name)
