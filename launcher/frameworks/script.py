"""The script of the command, read to find its framework; it is never run."""

from __future__ import annotations

import os

from launcher.command.line import (
    find_program_script,
    find_script,
    is_python,
    part_module,
    read_flags,
    read_interpreter,
)
from launcher.core.errors import Problem
from launcher.core.frozen import frozen
from launcher.machine.pythons import find_module, import_folders, own_python
from launcher.options.flags import PREFIX
from launcher.options.given import Given
from launcher.options.reading import Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

FRAMEWORKS = ("accelerate", "horovod", "jax", "lightning", "mpi4py", "tensorflow", "transformers")
"""Parts of names of packages whose imports tell something about the job."""
ENTRY_POINT_LINES = 20
TENSORFLOW, STRATEGY = "tensorflow", "MultiWorkerMirroredStrategy"


@frozen
class Script:
    """A script, as far as it can be read.

    Attributes:
        path: As on the command line; for a module its file; ``-c`` for code on the command line.
        text: The text. Path and text are empty without a script.
        modules: The modules that it imports, and whether each is imported unconditionally. They are only read
            if the text contains one of `FRAMEWORKS`.
        folders: Folders that its Python searches for modules before its own: the script's, and PYTHONPATH.
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
    near = ""
    if argv and not is_python(argv[0]) and not host.is_recorded():
        found = find_program_script(argv[0], environ)
        called = read_entry_point(host.read_text(found[-1]) or "") if found else ""
        if called and _find_file(called, (), found[0], environ, host):
            near, found = os.path.dirname(found[-1]), (found[0], "-m", called)
        argv = (*found, *argv[1:]) if found else ()
    if not argv or not is_python(argv[0]):
        return Script()
    argv = part_module(argv)
    place, flag, after = read_flags(argv)
    flags, words = argv[1:place], (*argv[place:], "")
    if flag == "c":
        code = words[1] if after == place + 2 else words[0].partition("c")[2]
        return _make("-c", code, folders=_list_near(".", flags, environ))
    path, module = words[0], ""
    if flag == "m":
        module, near = words[1], near or "."
        path = _find_file(module, flags, argv[0], environ, host)
    elif os.path.isdir(path):
        path = os.path.join(path, "__main__.py")
    if not os.path.isfile(path):
        return Script()
    folders = _list_near(near or os.path.dirname(path) or ".", flags, environ)
    return _make(path, host.read_text(os.path.abspath(path)) or "", module, folders)


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
    if not any(name in text for name in FRAMEWORKS):
        return Script(path, text, own, folders)
    from launcher.frameworks.imports import read_imports

    return Script(path, text, {**read_imports(text), **own}, folders)


def _list_near(first: str, flags: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that a Python searches before its own; the implicit one is first."""
    own = {*"".join(word for word in flags if word.startswith("-"))}
    is_here = not (own & {"I", "P"} or environ.get("PYTHONSAFEPATH"))
    asked = "" if own & {"I", "E"} else environ.get("PYTHONPATH", "")
    return (*((first,) if is_here else ()), *filter(None, asked.split(os.pathsep)))


def _find_file(name: str, flags: tuple[str, ...], python: str, environ: Mapping[str, str], host: Host) -> str:
    """Return the file of a module; empty if none. Searches our folder, PYTHONPATH, and Python's folders."""
    if host.is_recorded() or not name:
        return ""
    found = find_module(name, _list_near(".", flags, environ))
    return os.path.normpath(found) if found else find_module(name, import_folders(python, environ) or ())


def list_pythons(argv: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    """Return the Pythons that a command other than a Python may start, most likely first.

    These are the ones in its words or in the first line of its file, then our own, then those on PATH.

    Args:
        argv: A command line, e.g. ``("bash", "run.sh")``.
        environ: The environment that it would be started with.
    """
    named = [word for word in (*argv, *read_interpreter(argv[0])) if is_python(word)]
    return list(dict.fromkeys((*named, own_python(environ), "python3", "python")))


def find_missing(argv: tuple[str, ...]) -> str:
    """Return the script that a Python's command line names, if it does not exist; otherwise empty."""
    place = find_script(argv) if argv and is_python(argv[0]) else None
    if place is None or argv[place] == "-m" or os.path.exists(argv[place]):
        return ""
    return argv[place]


def describe_missing(path: str) -> Problem:
    """Return the problem of a missing script, as for a missing program."""
    where = "on this machine" if path.startswith("/") else f"in {os.getcwd()}"
    fix = "check the name and the working directory, and that the node has the code"
    if len(path.split()) > 1:
        fix = f"write the command without quotes, as words: launcher run -- {path}; or {fix}"
    return Problem("command-not-found", f"{path!r}: no such script {where}", "command line", fix)


def names_workers(script: Script) -> bool:
    """Whether a script uses several TensorFlow workers that need TF_CONFIG.

    A script that writes TF_CONFIG before it reads it, or takes the ranks from something else, needs none.
    """
    if STRATEGY not in script.text or not script.imports(TENSORFLOW):
        return False
    resolvers = script.text.count("ClusterResolver") - script.text.count("TFConfigClusterResolver")
    if resolvers or "TF_CONFIG" not in script.text:
        return not resolvers
    after = script.text.partition("TF_CONFIG")[2].lstrip("\"'] ")
    return not after.startswith("=") or after.startswith("==")


def name_framework(options: Options, name: str, why: str) -> Options:
    """Return the options with a framework that the job shows, as if the user had named it."""
    return options.with_inner(Options({"framework": Given(name, why, name)}))


def note_framework(options: Options) -> tuple[str, ...]:
    """Return a note with the framework that the job shows; none if the user named it."""
    given = options.get("framework")
    written = given is None or given.is_typed or given.origin.startswith(PREFIX)
    return () if given is None or written else (f"this is a job of {given.value}: {given.origin}",)
