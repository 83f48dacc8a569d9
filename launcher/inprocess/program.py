"""Finds the program that a Python is about to run, by its command line: a job's script, or a tool.

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
"""Words in the names of Python interpreters: python3.11-dbg, .python3-wrapped."""
TORCHRUN = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "composer",
    "composer.cli.launcher",
)
"""Programs that start a node's processes and read variables in place of missing flags."""
TOOLS_TEXT = """
    pip pipx pipenv poetry pdm hatch flit uv uvx build twine wheel virtualenv venv ensurepip setuptools
    conda conda-env mamba micromamba easy_install cython cythonize meson ninja
    launcher cluster_launcher az azcopy aws gcloud gsutil kubectl ansible supervisord supervisorctl
    pytest tox nox coverage ruff mypy pylint black isort pre-commit py-spy timeit pydoc site sysconfig
    platform compileall py_compile zipapp zipfile tarfile json http ipython jupyter jupyter-lab
    jupyter-notebook ipykernel ipykernel_launcher tensorboard nvitop gpustat
"""
TOOLS = frozenset(TOOLS_TEXT.split())
"""Programs in a job's container that are not part of the job."""
TOOL_FILES = ("setup.py", "get-pip.py", "__pip-runner__.py", "_in_process.py", "torchrun_agent.py")
"""Files that installers run, and the launcher's own script for torchrun's agent."""
PACKAGES = ("site-packages", "dist-packages")
"""Folders for installed packages."""


def read_command_line() -> list[str]:
    """Return this Python's own command line; empty if another program embeds Python.

    `sys.argv` lacks Python's options and, while Python starts, the module after ``-m``. A program that embeds
    Python may have passed its own command line to it.
    """
    if not _runs_python():
        return []
    words = getattr(sys, "orig_argv", None)  # 3.10 and newer
    if words is None:
        with open("/proc/self/cmdline", "rb") as file:
            words = [word.decode(errors="surrogateescape") for word in file.read().split(b"\0")[:-1]]
    return list(words)


def _runs_python() -> bool:
    """Whether this process's program is a Python by its name, or the dynamic loader, which may run one."""
    try:
        name = os.path.basename(os.readlink("/proc/self/exe"))
    except OSError:  # no /proc: we trust the command line
        return True
    return name.startswith("ld-") or any(word in name for word in INTERPRETERS)


def find_program(words: Sequence[str]) -> str:
    """Return the script's path or ``-m NAME``; empty for ``-c``, ``-``, a terminal, or another program."""
    place = 1
    while place < len(words):
        word = words[place]
        if not word.startswith("-"):
            return word
        if word == "-":  # the program comes from standard input, the following words are its arguments
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
    """Whether a program may be part of the job, which is assumed of every program that is not a known tool.

    Args:
        program: Program as returned by `find_program`.
        folder: The directory in which Python looks first for a module: the working directory.
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
    is_own = os.path.isdir(place) and not above.endswith(PACKAGES)  # tools are files or installed packages
    return is_own or name.rstrip("0123456789.") not in TOOLS  # pip3.11


def _is_module_of(folder: str, name: str) -> bool:
    """Whether a directory has a module itself: the user's own with a tool's name, not the launcher's own."""
    words = name.split(".")
    ours = words[0] in ("launcher", "cluster_launcher")
    if ours and os.path.isfile(os.path.join(folder, "launcher", "hook", "enter.py")):
        return False
    place = os.path.join(folder, *words)
    return os.path.isfile(f"{place}.py") or os.path.isfile(os.path.join(place, "__main__.py"))


def starts_workers(program: str) -> bool:
    """Whether a program is torchrun or a similar one in `TORCHRUN`."""
    return (program[3:] if program.startswith("-m ") else program.rpartition("/")[2]) in TORCHRUN
