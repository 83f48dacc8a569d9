"""What DeepSpeed needs in tests: a folder for what it compiles, and its own command."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

EXAMPLE = "deepspeed_zero.py"


def deepspeed_environ() -> dict[str, str]:
    """Return its variables on machines without a GPU, and a PATH on which its command is.

    At first use it compiles a small operation, for 20 s or more: once for all tests, whatever HOME is.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("LAUNCHER_CACHE") or os.path.join(cache, "cluster-launcher")
    return {
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": os.path.join(folder, "torch_extensions"),
        "PATH": ":".join((os.path.dirname(sys.executable), find_commands(), os.environ["PATH"])),
    }


def find_commands() -> str:
    """Return the folder with the commands ``deepspeed`` and ``ninja``."""
    found = importlib.util.find_spec("deepspeed")
    if found is None or found.origin is None:
        pytest.fail("no deepspeed: run bash tools/test.sh", pytrace=False)
    site = os.path.dirname(os.path.dirname(found.origin))
    return os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(site))), "bin")
