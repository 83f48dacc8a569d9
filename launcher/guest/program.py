"""Which program a Python is about to run, by its own command line: a job's script, or a tool.

Python 3.8 and newer.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
INTERPRETERS = ("python", "pypy")
"""In the names of programs that are a Python: python3.11-dbg, .python3-wrapped."""
TORCHRUN = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "composer",
    "composer.cli.launcher",
)
"""Programs that start a node's processes and read from variables what they are not told by flags."""
TOOLS_TEXT = """
    pip pipx pipenv poetry pdm hatch flit uv uvx build twine wheel virtualenv venv ensurepip setuptools
    conda conda-env mamba micromamba easy_install cython cythonize meson ninja
    launcher az azcopy aws gcloud gsutil kubectl ansible supervisord supervisorctl
    pytest tox nox coverage ruff mypy pylint black isort pre-commit py-spy timeit pydoc site sysconfig
    platform compileall py_compile zipapp zipfile tarfile json http ipython jupyter jupyter-lab
    jupyter-notebook ipykernel ipykernel_launcher tensorboard nvitop gpustat
"""
TOOLS = frozenset(TOOLS_TEXT.split())
"""Programs of a job's container that are no part of the job."""
TOOL_FILES = ("setup.py", "get-pip.py", "__pip-runner__.py", "_in_process.py", "torchrun_agent.py")
"""Files that installers run; what the launcher itself has made torchrun's agent."""
PACKAGES = ("site-packages", "dist-packages")
"""Folders that others install into."""


def read_command_line() -> list[str]:
    """Return this Python's own command line; empty inside of another program.

    `sys.argv` lacks Python's options and, at this moment, the module behind ``-m``. A program with Python
    inside may have given that its own command line.
    """
    if not _runs_python():
        return []
    words = getattr(sys, "orig_argv", None)  # 3.10 and newer
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = [word.decode(errors="surrogateescape") for word in file.read().split(b"\0")[:-1]]
    return list(words)


def _runs_python() -> bool:
    """Whether the program of this process is a Python by its name, or the loader that runs one."""
    try:
        name = os.path.basename(os.readlink("/proc/self/exe"))
    except OSError:  # no /proc: its command line has to do
        return True
    return name.startswith("ld-") or any(word in name for word in INTERPRETERS)


def find_program(words: Sequence[str]) -> str:
    """Return the script's path, ``-m NAME``, or nothing for ``-c``, ``-``, a terminal, another program."""
    place = 1
    while place < len(words):
        word = words[place]
        if not word.startswith("-"):
            return word
        if word == "-":  # the program comes from standard input, the words behind are its own
            return ""
        if word.startswith("--") or word in WITH_VALUE:
            place += 2 if word in WITH_VALUE else 1
            continue
        for index, letter in enumerate(word[1:], 2):  # -um NAME, -mNAME
            if letter == "m":
                rest = word[index:] or "".join(words[place + 1 : place + 2])
                return f"-m {rest}"
            if letter == "c":
                return ""
            if letter in "WX":
                break
        place += 1
    return ""


def is_job(program: str, folder: str = "") -> bool:
    """Whether a program may be the job's; what is no tool is.

    Args:
        program: As `find_program` has it.
        folder: Where Python looks first for a module: the working directory.
    """
    if not program:
        return False
    if program.startswith("-m "):
        return program[3:].partition(".")[0] not in TOOLS or _is_module_of(folder, program[3:])
    place = program.rstrip("/")
    if place.endswith("/__main__.py"):
        place = place[: -len("/__main__.py")]
    above, _, name = place.rpartition("/")
    if name in TOOL_FILES:
        return False
    is_own = os.path.isdir(place) and not above.endswith(PACKAGES)  # tools are files, or installed
    return is_own or name.rstrip("0123456789.") not in TOOLS  # pip3.11


def _is_module_of(folder: str, name: str) -> bool:
    """Whether a module stands in a folder itself: the user's, of a tool's name; never the launcher's."""
    words = name.split(".")
    if words[0] == "launcher" and os.path.isfile(os.path.join(folder, "launcher", "hook", "enter.py")):
        return False
    place = os.path.join(folder, *words)
    return os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__main__.py"))


def starts_workers(program: str) -> bool:
    """Whether it is torchrun, or one like it."""
    return (program[3:] if program.startswith("-m ") else program.rpartition("/")[2]) in TORCHRUN
