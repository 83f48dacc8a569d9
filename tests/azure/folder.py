"""Where ``bash tools/test.sh`` has put Azure's libraries: an environment of their own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIBRARIES = ("azure-ai-ml==1.35.2", "azure-batch==15.1.0")
"""What the environment has, with pins; tools/setup.sh installs the same list, and a test compares the two."""
LOAD = Path(__file__).parent / "load.py"
DEADLINE_S = 120.0


def azure_python() -> str:
    """Return the Python that has the libraries, as tools/setup.sh names its folder.

    Raises:
        FileNotFoundError: They have not been installed.
    """
    given = os.environ.get("LAUNCHER_TEST_AZURE")
    if given:
        return f"{given}/bin/python"
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher"))
    made = [path.parent for path in sorted(cache.glob("azure-*/.recipe")) if _is_ours(path)]
    if not made:
        raise FileNotFoundError(f"no {cache}/azure-* of {' '.join(LIBRARIES)}: run bash tools/test.sh")
    return f"{made[-1]}/bin/python"


def _is_ours(recipe: Path) -> bool:
    return set(LIBRARIES) <= set(recipe.read_text().split())


def load(kind: str, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what `load` says of each file; one process for all, because its imports cost seconds.

    Args:
        kind: ``environment``, ``job`` or ``task``.
        files: YAML for the first two, JSON for the last.
    """
    # No proxy, no account, no configuration of the machine: nothing that could lead to Azure.
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [azure_python(), str(LOAD), kind, *map(str, files)],
        env={**kept, "AZURE_CORE_COLLECT_TELEMETRY": "0"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
