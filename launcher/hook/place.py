"""Target of the hook: a Python environment, and the directory in it that its Python reads at start."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from launcher.core.errors import make_error
from launcher.core.frozen import frozen
from launcher.machine.pythons import isolate

Facts = dict[str, Any]
"""The output of `PROBE`."""
OLDEST = (3, 8)
PROBE_TIMEOUT_S = 30.0
PROBE = """
import json, os, site, sys, sysconfig
try:
    user = site.getusersitepackages() if sys.prefix == sys.base_prefix else ""
except Exception:
    user = ""
print(json.dumps({
    "version": list(sys.version_info[:3]), "prefix": sys.prefix, "base": sys.base_prefix,
    "folder": sysconfig.get_path("purelib"), "read": site.getsitepackages(), "user": user,
    "managed": os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"),
}))
"""
"""Run by the environment's own Python: only it knows its layout (Debian's differs from all others)."""


@frozen
class HookPlace:
    """A Python environment and the directory for the hook.

    Attributes:
        kind: ``venv``, ``conda``, ``pyenv``, ``system`` or ``target``.
        prefix: Path of the environment.
        version: Version of its Python, e.g. ``"3.11.2"``; empty for a target, which any Python may use.
        folder: Directory of the hook's file.
        managed: The file that marks the environment as managed by a distribution; empty if none.
    """

    kind: str
    prefix: str
    version: str
    folder: str
    managed: str = ""


def find_place(prefix: str, *, user: bool = False) -> HookPlace:
    """Return the place in an environment.

    Args:
        prefix: Its directory or its Python.
        user: Whether to use the directory of the user's own packages instead of the environment's.

    Raises:
        UsageError: It is not a Python environment, or the hook does not support it.
    """
    python = _find_python(prefix)
    facts = _ask(python)
    version = ".".join(map(str, facts["version"]))
    if tuple(facts["version"][:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise make_error("python-too-old", python=python, version=version, oldest=oldest)
    read = facts["read"]  # by site, which need not read the directory for packages
    own = facts["folder"] if facts["folder"] in read or not read else read[0]
    folder = str(facts["user"] if user else own)
    if not folder:
        raise make_error("user-of-venv", prefix=facts["prefix"])
    is_virtual = facts["prefix"] != facts["base"]  # which no distribution manages (PEP 668)
    managed = "" if user or is_virtual or not os.path.isfile(facts["managed"]) else str(facts["managed"])
    return HookPlace(_name_kind(facts), str(facts["prefix"]), version, folder, managed)


def find_target(folder: str) -> HookPlace:
    """Return the place for a directory of ``pip install --target``.

    Raises:
        UsageError: The directory does not exist.
    """
    if not os.path.isdir(folder):
        raise make_error("no-target", path=folder)
    path = os.path.abspath(folder)
    return HookPlace("target", path, "", path)


def _find_python(prefix: str) -> str:
    path = os.path.abspath(prefix)
    if os.path.isfile(path) and os.access(path, os.X_OK):
        return path
    for name in ("python3", "python"):
        python = os.path.join(path, "bin", name)
        if os.path.isfile(python) and os.access(python, os.X_OK):
            return python
    if not os.path.isdir(path):
        raise make_error("no-prefix", path=prefix)
    versions = os.path.join(path, "versions")
    if os.path.isdir(versions):
        inside = ", ".join(os.path.join(prefix, "versions", name) for name in sorted(os.listdir(versions)))
        raise make_error("pyenv-folder", path=prefix, inside=inside)
    raise make_error("no-python", path=prefix)


def _ask(python: str) -> Facts:
    try:
        done = subprocess.run(
            isolate(python, PROBE),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        facts: Facts = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"its Python does not run ({error})"
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        why = f"its Python does not identify itself ({said})"
    else:
        return facts
    raise make_error("broken-python", path=python, why=why)


def _name_kind(facts: Facts) -> str:
    prefix = str(facts["prefix"])
    if prefix != facts["base"]:
        return "venv"
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return "conda"
    if os.path.basename(os.path.dirname(prefix)) == "versions":
        return "pyenv"
    return "system"
