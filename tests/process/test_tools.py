"""The test command where Horovod does not compile, and how it is compiled; the compiler is a stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import ROOT, clean_environ

TEST = "tests/process/test_shadowing.py::test_horovods_server_imports_nothing_from_there"
HIDES = "import sys; sys.modules['horovod'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
FAILS = """
setup_stack() { :; }
compile_horovod() { fail "no compiler"; }
setup_horovod
echo went on
"""
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


def test_without_a_compiled_horovod_the_other_tests_run(tmp_path: Path) -> None:
    """It is said, after what went wrong."""
    done = source(FAILS, LAUNCHER_CACHE=str(tmp_path), CI="")
    assert done.returncode == 0 and "error: no compiler" in done.stderr, done.stderr
    assert "without horovod==" in done.stdout and done.stdout.endswith("went on\n")


def test_in_ci_that_is_a_failure(tmp_path: Path) -> None:
    """Nothing runs."""
    done = source(FAILS, LAUNCHER_CACHE=str(tmp_path), CI="true")
    assert (done.returncode, done.stdout) == (1, "") and "error: no compiler" in done.stderr


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


def run_test(ci: str) -> str:
    """Run a test that needs Horovod, by a pytest that finds none, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", HIDES, "-p", "no:cacheprovider", "-rs", TEST],
        cwd=ROOT,
        env=clean_environ(CI=ci),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout


def test_what_needs_horovod_is_skipped_by_name() -> None:
    """With what to do."""
    said = run_test("")
    assert "1 skipped" in said and "no horovod: run bash tools/test.sh" in said, said
    assert TEST.partition("::")[0] in said


@pytest.mark.torch
@pytest.mark.horovod
def test_in_ci_nothing_is_skipped_for_it() -> None:
    """The test has its own Python, which has Horovod: it runs, and passes."""
    assert "1 passed" in run_test("true")
