"""Plans a preloaded start: which modules to import once, or why the ranks can't be forks. Pure."""

from __future__ import annotations

import os

from launcher.command.words import is_python, read_flags
from launcher.core.supervision import Preload
from launcher.frameworks.horovod import GLOO
from launcher.frameworks.script import find_name, parse, read_imports, visit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from launcher.core.model import NodeCommand
    from launcher.frameworks.case import Case

AUTO = "auto"
APART = "EIS"
"""Python's flags with which it ignores PYTHONPATH, by which the template is reached."""


OF_VARIABLES = ("environ", "environb", "putenv", "unsetenv", "load_dotenv")
"""Names by which a script changes variables."""
SLOW_SHOWN = 2
"""Number of packages whose import time is shown: the slowest ones."""


def plan_preload(case: Case, agent: NodeCommand | None, *, stays: bool) -> tuple[Preload | None, str]:
    """Return what is imported once; None, and why, if the ranks cannot be forks of one process.

    Args:
        case: The job, with ``--preload``.
        agent: The program that starts the processes; None if it is the launcher.
        stays: Whether the launcher is the parent of the processes.
    """
    why = _refuse(case, agent, stays=stays)
    if why:
        return None, why
    asked = case.options.words("preload")
    if asked != (AUTO,):
        return Preload(asked, folders=case.script.folders), ""
    near = [os.path.abspath(folder) for folder in case.script.folders if not folder.endswith("-packages")]
    beside = [name for folder in near for name in case.host.list_folder(folder)]
    own = {"__future__", *(name.removesuffix(".py") for name in beside)}
    names = dict.fromkeys(list_first(case.script.text))
    modules = tuple(name for name in names if name.partition(".")[0] not in own)
    if not modules:
        return None, "the script imports nothing at its top level that can be read"
    return Preload(modules, skips=True, folders=case.script.folders), ""


def _refuse(case: Case, agent: NodeCommand | None, *, stays: bool) -> str:
    """Return why the processes cannot be forks of one process; empty if they can."""
    if agent is not None:
        return f"{agent.engine} starts the processes"
    if not case.forks:
        return "the platform starts the processes, and a launcher for each"
    if not stays:
        return "the launcher becomes the only process"
    if not case.argv or not is_python(case.argv[0]):
        return f"{case.argv[0] if case.argv else 'the command'} is no Python"
    if case.horovod.kind == GLOO:
        return "each process first waits for Horovod's server"
    place, _, _ = read_flags(case.argv)
    found = [word for word in case.argv[1:place] if _ignores_path(word)]
    if found:
        return f"{found[0]}: this Python ignores PYTHONPATH"
    if place >= len(case.argv) or case.argv[place] == "-":
        return "the program comes from standard input"
    return ""


def _ignores_path(flag: str) -> bool:
    """Whether one of Python's flags, or one of several in a word, makes it ignore PYTHONPATH."""
    letters = flag[1:].partition("W")[0].partition("X")[0]
    return not flag.startswith("--") and any(letter in letters for letter in APART)


def list_first(text: str) -> list[str]:
    """Return the modules that a script always imports before it changes variables or ``sys.path``.

    What comes behind such a line may be another module, or may read the variable.
    """
    body = parse(text)
    if body is None:
        return [name for name, is_certain in read_imports(text).items() if is_certain]
    end = next((index for index, node in enumerate(body) if _may_change(node)), len(body))
    return [name for name, is_certain in visit(body[:end], True) if is_certain]


def _may_change(node: Any) -> bool:
    """Whether a statement names the variables or ``sys.path``, other than in a function."""
    kind = type(node).__name__
    if kind.endswith("FunctionDef"):
        return False
    name = find_name(node)
    if name in OF_VARIABLES or (name == "path" and find_name(getattr(node, "value", None)) == "sys"):
        return True
    children = [getattr(node, field) for field in getattr(node, "_fields", ())]
    return any(
        _may_change(one) for child in children for one in (child if isinstance(child, list) else [child])
    )


def describe(preload: Preload) -> str:
    """Return a plan's words for a preloaded start."""
    shown = list(dict.fromkeys(name.partition(".")[0] for name in preload.modules))
    rest = f" and {len(shown) - 4} more" if len(shown) > 5 else ""
    names = shown[:4] if rest else shown
    return f"{', '.join(names)}{rest} imported once, before the processes are forked"


def describe_times(modules: Sequence[str], seconds: Sequence[float]) -> str:
    """Return the packages whose imports took longest, with the seconds, and the number of the others."""
    took: dict[str, float] = {}
    for name, one in zip(modules, seconds, strict=False):
        package = name.partition(".")[0]
        took[package] = took.get(package, 0.0) + one
    first, *others = sorted(took, key=lambda package: -took[package]) or list(modules[:1])
    shown = [first, *others[: SLOW_SHOWN - 1]]
    rest = len(took) - len(shown)
    times = {package: f" ({one:.1f} s)" for package, one in took.items() if one >= 0.05}
    names = ", ".join(f"{package}{times.get(package, '')}" for package in shown)
    return f"{names} and {rest} more" if rest > 0 else names
