"""Every command that the README shows is typed here, or names the test that starts it for real."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.starting import ROOT, clean_environ

README = Path(ROOT, "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
LINES = [
    re.sub(r"\s+#\s.*$", "", line[4:])
    for line in README.splitlines()
    if re.match(r"    (launcher|bash|docker|\. )", line) and "launcher:" not in line
]
"""What is typed, without the words after it."""
EXAMPLE = re.compile(r"examples/(\w+\.py)")
CLUSTER = "tests/cluster/"
ELSEWHERE = {
    "bash tools/demo.sh": f"{CLUSTER}test_real_jobs.py::test_the_main_job_reaches_the_accuracy",
    "bash tools/test.sh": "tests/process/test_readme.py::test_the_other_lines_have_their_tests",
    "docker run": "tests/container/test_clusters.py",
    "launcher run --engine mpirun --hosts": f"{CLUSTER}test_mpirun.py::test_the_head_alone_where_sshd",
}
"""What cannot be typed on one bare machine, by how it begins: where it runs for real."""
TRAIN = "import os\nassert os.environ['WORLD_SIZE']\n"


def is_elsewhere(line: str) -> bool:
    """Whether a test of another file runs a line."""
    return bool(EXAMPLE.search(line)) or any(line.startswith(begin) for begin in ELSEWHERE)


@pytest.mark.mpi
def test_what_the_readme_shows_works_as_it_stands(tmp_path: Path) -> None:
    """In its order, in one folder that has a train.py: later lines read what earlier ones wrote."""
    (tmp_path / "train.py").write_text(TRAIN)
    typed = [line for line in LINES if not is_elsewhere(line)]
    assert len(typed) >= 9, typed
    scripts = str(Path(sys.executable).parent)
    environ = clean_environ(OMPI_MCA_rmaps_base_oversubscribe="1")
    environ["PATH"] = f"{scripts}:{environ['PATH']}"
    for line in typed:
        done = subprocess.run(
            shlex.split(line),
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-2000:])
    assert {"n.svg", "node.json", "job.key"} <= {path.name for path in tmp_path.iterdir()}


def test_the_other_lines_have_their_tests() -> None:
    """Each of the named tests is there, and each line that is not typed above has one."""
    for where in ELSEWHERE.values():
        path, _, name = where.partition("::")
        assert f"def {name}" in Path(ROOT, path).read_text(encoding="utf-8"), where
    for begin in ELSEWHERE:
        assert any(line.startswith(begin) for line in LINES), f"no longer in the README: {begin}"


@pytest.mark.parametrize("name", sorted(set(EXAMPLE.findall("\n".join(LINES)))))
def test_an_example_of_the_readme_is_run(name: str) -> None:
    """By name, in the tests of the frameworks."""
    assert Path(ROOT, "examples", name).exists()
    tests = Path(ROOT, "tests").rglob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in tests if path.name != Path(__file__).name]
    assert any(name in text for text in texts), f"no test names {name}"
