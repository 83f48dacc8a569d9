"""Open files: the shell's 1,024 are few."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.finding import OK, WARNING
from tests.unit.checks.cases import DOCKER, Machine, case, limits, looker, only

look = looker("nofile")

NAME = "Max open files"
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("soft", "hard", "environ", "level", "fix"),
    [
        ("1048576", "1048576", {}, OK, ""),
        ("unlimited", "unlimited", {}, OK, ""),
        ("1024", "524288", {}, WARNING, "ulimit -n 65535, before the launcher"),
        ("1024", "unlimited", {}, WARNING, "ulimit -n 65535, before the launcher"),
        ("1024", "8192", {}, WARNING, "ulimit -n 8192, before the launcher"),
        ("1024", "1024", {}, WARNING, "docker run --ulimit nofile=65535:65535"),
        (
            *("1024", "1024", KUBERNETES, WARNING),
            "LimitNOFILE=65535 for containerd on the node: a pod cannot ask",
        ),
    ],
)
def test_limits(tmp_path: Path, soft: str, hard: str, environ: dict[str, str], level: str, fix: str) -> None:
    """Raised by the user up to the hard limit, else by whoever starts the container."""
    found = only(look(case(Machine(tmp_path, {**DOCKER, **limits(soft, hard, NAME)}), environ)))
    assert (found.level, found.found) == (level, soft) and found.fix.startswith(fix)
