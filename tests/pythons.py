"""Other Pythons of this machine: the hook runs in those of users, which are older and newer than ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def find_python(minor: int) -> str | None:
    """Return pyenv's Python 3.minor of this machine, or Debian's; nothing else has several of them."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = sorted(pyenv.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))
    debian = Path(f"/usr/bin/python3.{minor}")
    return next((str(path) for path in (*reversed(found), debian) if path.exists()), None)


def need_python(minor: int) -> str:
    """Return a Python 3.minor, or skip: Debian has one version, and pip has none."""
    python = find_python(minor)
    if python is None:
        pytest.skip(f"no Python 3.{minor} on this machine: pyenv install 3.{minor}")
    return python
