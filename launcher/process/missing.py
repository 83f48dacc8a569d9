"""Finds the name of a missing program or module in error output, and how to install it.

Loaded only after a failure.
"""

from __future__ import annotations

import os
import re
import sys

from launcher.core.blocks import read_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TABLE = "process/missing.txt"
ENDINGS = ("command not found", "not found", "No such file or directory", "bad interpreter")
_QUOTED = re.compile(r"[\u2018'`\"]([^\s\u2018\u2019'`\"]{1,60})[\u2019'`\"]")
_NAME = re.compile(
    r"([^\s:\u2018\u2019'`\"]{1,60}):? (?:(?:command )?not found|No such file|failed: No such file)"
)
_LAST = re.compile(r"command not found: (\S{1,60})$")
_MODULE = re.compile(r"No module named '?([\w.]{1,60})'?$")
_RAISED = re.compile(r"^FileNotFoundError: \[Errno 2\] No such file or directory: '([^'/\s]{1,60})'$")


def find_program(lines: Sequence[str], messages: Sequence[str], traceback: Sequence[str], code: int) -> str:
    """Return the name of the program that a process did not find, read from its output; empty if none.

    Args:
        lines: The process's output without its traceback.
        messages: Messages of its exceptions.
        traceback: Lines of its traceback: a missing file is a missing program only if a process was to be
            started.
        code: Its exit status; a shell, env and others report a missing program as 127.
    """
    if any("_execute_child" in line or "in execvp" in line for line in traceback):
        found = (_RAISED.match(line) for line in reversed(messages))
        return next((match[1] for match in found if match), "")
    return next(_read_lines(lines), "") if code == 127 else ""


def _read_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in reversed(lines):
        if "shared librar" in line or not any(ending in line for ending in ENDINGS):
            continue
        line = line.replace(": bad interpreter:", ":")
        found = _LAST.search(line) or _QUOTED.search(line) or _NAME.search(line)
        if found:
            yield found[1].removesuffix(":")


WINDOWS_FIX = "the script has Windows line ends: sed -i 's/\\r$//' SCRIPT"
"""Fix for a name that ends with a carriage return."""


def fix_missing(name: str) -> str:
    """Return how to provide a program that was not found; empty if unknown."""
    base = name.rpartition("/")[2]
    if base.endswith(("\r", "\\r")):
        return WINDOWS_FIX
    here = _fix_file(name)
    if here:
        return here
    if base.endswith((".sh", ".py")):
        return "check the name and the working directory, and that the node has the code"
    known = _read_table()
    if base in known["pip"]:
        return (
            f"pip install {known['pip'][base]} in the image, or put its environment's bin directory on PATH"
        )
    if base in known["others"]:
        return f"{base} is not installed here: {known['others'][base]}"
    package, flag = known["apt"].get(base, ""), known["instead"].get(base, "")
    if not package:
        return ""
    more = f"; or leave it out: the launcher's {flag} does this" if flag else ""
    return f"install {package} in the image (apt-get install {package}){more}"


def _fix_file(name: str) -> str:
    """Return the fix for what is here in another form: a module, or a file whose interpreter is missing."""
    if not os.path.isfile(name):
        module = name.removeprefix("./").replace("/", ".")
        is_one = os.path.isfile(f"{module.replace('.', '/')}.py")
        return f"write it as a module: launcher run -- -m {module}" if is_one else ""
    try:
        with open(name, "rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    import shlex

    program = (first[2:].split() or [b""])[0].decode("utf-8", "replace") if first.startswith(b"#!") else ""
    if program and first.endswith(b"\r\n"):
        return f"its first line has a Windows line end: sed -i 's/\\r$//' {shlex.quote(name)}"
    if program and not os.path.exists(program):
        return (
            f"its first line names {program}, which is not here: correct the line, or put a program in front"
        )
    return ""


def _read_table() -> dict[str, Mapping[str, str]]:
    return {block.name: block.fields for block in read_blocks(TABLE)}


def fix_module(message: str) -> str:
    """Return how to install the package of a missing module; empty if unknown."""
    found = _MODULE.search(message)
    name = found[1] if found else ""
    known = _read_table()
    if name in known["modules"]:
        return f"`pip install {known['modules'][name]}`"
    if any(os.path.isfile(path) for path in (f"{name}.py", f"{name}/__init__.py")):
        return f"`PYTHONPATH=$PWD`: {name} is in this directory, but Python searches the script's directory"
    if not name or "." in name or name in known["own"]["names"].split() or name in sys.stdlib_module_names:
        return ""  # "a.b": the package is there, but this part of it is not
    return f"`pip install {name}`"
