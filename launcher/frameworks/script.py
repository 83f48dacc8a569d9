"""The script of the command, read to find its framework; it is never run.

Its imports come from its syntax: their names, and whether each is unconditional. We call Python's own parser
by `compile`: the module ``ast`` would cost as much as the rest of a start.
"""

from __future__ import annotations

import os

from launcher.command.words import find_script, is_python, part_module, read_flags, read_python
from launcher.core.errors import Problem, make_problem
from launcher.core.frozen import frozen
from launcher.machine.pythons import find_module, find_program, import_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from launcher.machine.host import Host

FRAMEWORKS = ("accelerate", "horovod", "jax", "lightning", "mpi4py", "tensorflow", "transformers")
"""Parts of names of packages whose imports tell something about the job."""
ENTRY_POINT_LINES = 20
ONLY_AST = 0x400
"""``ast.PyCF_ONLY_AST``: parse only, generate no code."""
INNER = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields with inner statements."""
TENSORFLOW, STRATEGY = "tensorflow", "MultiWorkerMirroredStrategy"


@frozen
class Script:
    """A script, as far as it can be read.

    Attributes:
        path: As on the command line; for a module its file; ``-c`` for code on the command line.
        text: The text. Path and text are empty without a script.
        modules: The modules that it imports, and whether each is imported unconditionally. They are only read
            if the text contains one of `FRAMEWORKS`.
        folders: Directories that its Python searches for modules before its own: the script's, and
        PYTHONPATH.
    """

    path: str = ""
    text: str = ""
    modules: Mapping[str, bool] = {}
    folders: tuple[str, ...] = ()

    def imports(self, name: str) -> bool:
        """Whether it imports the module or a part of it, even in a function or a ``try``."""
        return any(module == name or module.startswith(f"{name}.") for module in self.modules)

    def needs(self, name: str) -> bool:
        """Whether it imports the module unconditionally, so that it fails without it."""
        return any(self.modules[m] for m in self.modules if m == name or m.startswith(f"{name}."))


def read_script(argv: tuple[str, ...], environ: Mapping[str, str], host: Host) -> Script:
    """Return the script that a Python's command line runs: a file, a module (``-m``) or code (``-c``).

    A module is searched for where that Python would search, and not imported. An executable whose ``#!`` is a
    Python is such a command line, too, and a console script of pip means the module that it calls.
    """
    if argv and not is_python(argv[0]) and not host.is_recorded():
        argv = _open_program(argv, environ, host)
    if not argv or not is_python(argv[0]):
        return Script()
    argv = part_module(argv)
    place, flag, after = read_flags(argv)
    flags, words = argv[1:place], (*argv[place:], "")
    if flag == "c":
        code = words[1] if after == place + 2 else words[0].partition("c")[2]
        return _make("-c", code, folders=_list_near(".", flags, environ))
    path, near, module = words[0], "", ""
    if flag == "m":
        module, near = words[1], "."
        path = _find_file(module, flags, argv[0], environ, host)
    elif os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    if not os.path.isfile(path):
        return Script()
    folders = _list_near(near or os.path.dirname(path) or ".", flags, environ)
    return _make(path, host.read_text(os.path.abspath(path)) or "", module, folders)


def _open_program(argv: tuple[str, ...], environ: Mapping[str, str], host: Host) -> tuple[str, ...]:
    """Return the command line of the Python that a program's ``#!`` names; empty if it names none."""
    path = find_program(argv[0], environ) or ""
    python = read_python(path)
    called = read_entry_point(host.read_text(path) or "") if python else ""
    if called and _find_file(called, (), python[0], environ, host):
        return (python[0], "-m", called, *argv[1:])
    return (*python, path, *argv[1:]) if python else ()


def read_entry_point(text: str) -> str:
    """Return the module that a console script of pip or uv calls; empty for any other text."""
    lines = [line.strip() for line in text.splitlines()]
    calls = any(line.startswith(("sys.exit(", "raise SystemExit(")) for line in lines)
    named = [line.split()[1] for line in lines if line.startswith("from ") and " import " in line]
    return named[0] if calls and len(named) == 1 and len(lines) < ENTRY_POINT_LINES else ""


def _make(path: str, text: str, module: str = "", folders: tuple[str, ...] = ()) -> Script:
    """Return a script; ``module``: the name that it is run by, whose package is imported first."""
    first = module.partition(".")[0]
    own = {first: True} if first else {}
    found = read_imports(text) if any(name in text for name in FRAMEWORKS) else {}
    return Script(path, text, {**found, **own}, folders)


def _list_near(first: str, flags: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories that a Python searches before its own; the implicit one is first."""
    own = {*"".join(word for word in flags if word.startswith("-"))}
    is_here = not (own & {"I", "P"} or environ.get("PYTHONSAFEPATH"))
    asked = "" if own & {"I", "E"} else environ.get("PYTHONPATH", "")
    return (*((first,) if is_here else ()), *filter(None, asked.split(os.pathsep)))


def _find_file(name: str, flags: tuple[str, ...], python: str, environ: Mapping[str, str], host: Host) -> str:
    """Return the file of a module; empty if none. Searches our directory, PYTHONPATH, then Python's own."""
    if host.is_recorded() or not name:
        return ""
    found = find_module(name, _list_near(".", flags, environ))
    return os.path.normpath(found) if found else find_module(name, import_folders(python, environ) or ())


def find_missing(argv: tuple[str, ...]) -> str:
    """Return the script that a Python's command line names, if it does not exist; otherwise empty."""
    place = find_script(argv) if argv and is_python(argv[0]) else None
    if place is None or argv[place] == "-m" or os.path.exists(argv[place]):
        return ""
    return argv[place]


def describe_missing(path: str) -> Problem:
    """Return the problem of a missing script, as for a missing program."""
    place = "on this machine" if path.startswith("/") else f"in {os.getcwd()}"
    quotes = f"write the command without quotes, as words: launcher run -- {path}; or "
    return make_problem("no-script", path=path, place=place, quotes=quotes if len(path.split()) > 1 else "")


def names_workers(script: Script) -> bool:
    """Whether a script uses several TensorFlow workers that need TF_CONFIG.

    A script that writes TF_CONFIG before it reads it, or takes the ranks from something else, needs none.
    """
    text = script.text
    after = text.partition("TF_CONFIG")[2].lstrip("\"'] ")
    writes = after.startswith("=") and not after.startswith("==")
    has_others = text.count("ClusterResolver") > text.count("TFConfigClusterResolver")
    return STRATEGY in text and script.imports(TENSORFLOW) and not has_others and not writes


def read_imports(text: str) -> dict[str, bool]:
    """Return the modules that a script imports, and whether each is imported unconditionally.

    ``from a import b`` may mean a module ``a.b``, and counts as both. An import inside a function, an ``if``,
    or a ``try`` with handlers is conditional. An import only for type checkers does not count. A text that
    this Python cannot parse is read line by line. Relative imports do not count: they are the user's own.
    """
    found: dict[str, bool] = {}
    for name, is_certain in _read_lines(text) if (body := parse(text)) is None else visit(body, True):
        found[name] = found.get(name, False) or is_certain
    return found


def parse(text: str) -> list[Any] | None:
    """Return the statements of a script; None for a text that this Python cannot parse."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own Python will print its warnings
            body: list[Any] = compile(text, "script", "exec", ONLY_AST, True).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return body


def visit(body: list[Any], is_certain: bool) -> Iterator[tuple[str, bool]]:
    """Yield the modules that statements import, and whether each is imported unconditionally."""
    for node in body:
        kind = type(node).__name__
        if kind == "Import":
            yield from ((alias.name, is_certain) for alias in node.names)
        elif kind == "ImportFrom":
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from ((name, is_certain) for name in names if not node.level)
        else:
            for_types = kind == "If" and find_name(node.test) == "TYPE_CHECKING"
            is_reached = is_certain and (for_types or _is_straight(node, kind))
            parts = ("orelse",) if for_types else INNER
            yield from (pair for part in parts for pair in visit(getattr(node, part, []), is_reached))


def _is_straight(node: Any, kind: str) -> bool:
    """Whether the body of a statement always runs when the statement is reached."""
    if kind == "If":
        return find_name(getattr(node.test, "left", None)) == "__name__"
    return kind in ("With", "ClassDef") or (kind.startswith("Try") and not node.handlers)


def find_name(node: Any) -> str:
    """Return the name of a node, or of the attribute that it reads; empty if it has none."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def _read_lines(text: str) -> Iterator[tuple[str, bool]]:
    for line in text.splitlines():
        words = line.split()
        if words[1:] and words[0] in ("import", "from"):
            yield words[1].rstrip(","), line.startswith(words[0])
