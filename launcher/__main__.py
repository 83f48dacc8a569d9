"""``python -m launcher``, and the same as a file: ``python launcher/__main__.py``.

Nothing is imported from the working directory, where Python looks first with ``-m``: a user's json.py is
not ours. (What Python itself has imported before, in 3.12 importlib and types, is out of our reach: the
program ``launcher`` and ``python -P -m launcher`` look there for nothing at all.)
"""

import os
import sys


def leave_folder() -> None:
    """Take the working directory, or this file's folder, out of the folders that are imported from."""
    if not __package__:  # as a file: this package, though another one of its name may be nearer
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        __import__("launcher")
        del sys.path[0]
    elif sys.path and sys.path[0] in ("", _find_cwd()) and not (sys.flags.isolated or _is_safe()):
        del sys.path[0]


def _find_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _is_safe() -> bool:
    """Whether Python has put nothing of its own in front: ``-P``, known since 3.11."""
    return bool(getattr(sys.flags, "safe_path", False))


if __name__ == "__main__":
    leave_folder()
    from launcher.cli.entry import run_and_exit

    run_and_exit()
