"""How Horovod is compiled; the compiler is a stand-in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.process.starting import ROOT, clean_environ

# A Python that makes virtual environments of itself, downloads nothing, and tells what it builds with.
PYTHON = """\
#!/bin/sh
case "$*" in
  *"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *" pip download "*) mkdir "${0%/bin/python}/source" ;;
  *" pip wheel "*) env ;;
esac
"""
BUILDS = """
show_packages() { :; }
tar() { :; }
adapt_horovod() { :; }
make_horovod "$1"
"""


def source(lines: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run lines of bash after tools/setup.sh."""
    text = f"set -euo pipefail; source {ROOT}/tools/setup.sh\n{lines}"
    return subprocess.run(
        ["bash", "-c", text, "bash", *words],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_switches_of_an_image_are_not_for_this_build(tmp_path: Path) -> None:
    """An image for GPUs may say how its own Horovod was built."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    theirs = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": "/usr/local/cuda"}
    done = source(BUILDS, str(tmp_path / "made"), PYTHON=str(python), LAUNCHER_CACHE=str(tmp_path), **theirs)
    assert done.returncode == 0, done.stderr
    given = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("HOROVOD_"))
    assert not given.keys() & theirs.keys()
    assert given["HOROVOD_WITH_PYTORCH"] == given["HOROVOD_WITHOUT_NVTX"] == "1"
