"""``python -m launcher``, or as a file: ``python launcher/__main__.py``.

With ``-m`` Python searches the working directory first, and a user's json.py could shadow the standard
library's. We remove that directory from `sys.path`, and move the directories of PYTHONPATH behind the
standard library, before we import anything. Python itself imports some modules before this file runs
(importlib and types in 3.12), and finds this package by the same path: we cannot change that. The program
``launcher``, and this file by its path, always find their own package.
"""

import os
import sys


def leave_folder() -> None:
    """Remove the working directory, or this file's directory, from `sys.path`."""
    if not __package__:  # run as a file: import this package before another one of the same name
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        __import__("launcher")
        del sys.path[0]
    elif sys.path and sys.path[0] in ("", _find_cwd()) and not (sys.flags.isolated or _is_safe()):
        del sys.path[0]
    here = _find_cwd()  # an empty or relative part of PYTHONPATH gives it, too
    sys.path[:] = [folder for folder in sys.path if folder not in ("", here)]
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))


def _find_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # the directory was deleted
        return ""


def _is_safe() -> bool:
    """Whether Python runs with ``-P`` (since 3.11) and so adds no directory to the front of `sys.path`."""
    return bool(getattr(sys.flags, "safe_path", False))


if __name__ == "__main__":
    leave_folder()
    from launcher.cli.entry import run_and_exit

    run_and_exit()
