"""What the README shows is done here as it stands: its script, its lines, their output, its report."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.failure.symptoms import read_symptoms
from tests.cluster.test_hangs import HANGS
from tests.process.starting import ROOT, clean_environ
from tools import platform_table

README = Path(ROOT, "README.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"((?:^    .*\n)+)", README.replace(SCRIPT, ""), re.MULTILINE)
BROKEN, PLACE = re.findall(
    r"break it: insert `(.*?: raise .*?)` before the line `(\w+) = \.\.\.`", README.replace("\n", " ")
)[0]
(TABLE,) = re.findall(r"^\| you type .*?\n\n", README, re.MULTILINE | re.DOTALL)
OURS = [row.split(" | ")[1] for row in TABLE.strip().splitlines()[2:]]
TYPED = {
    'alias torchrun="launcher run"': "tests/unit/test_engines.py::test_all_of_torchruns_flags_are_ours",
    "launcher run --hosts": "tests/cluster/test_readme_lines.py::test_a_line_of_two_nodes_works_as_it_stands",
    "mpirun -np 16": "tests/cluster/test_real_jobs.py::test_every_platform_starts_the_same_job",
    "LAUNCHER_TOKEN=": "tests/cluster/test_readme_lines.py::test_a_line_of_two_nodes_works_as_it_stands",
    "launcher run --ssh": "tests/cluster/test_mpirun.py::test_ssh_serves_every_engine",
    "srun -N2": "tests/cluster/test_slurm.py::test_one_launcher_per_node_starts_the_processes",
    "launcher run -- accelerate launch": "tests/cluster/test_torch_family.py::test_accelerate",
    "launcher run -- deepspeed": "tests/cluster/test_deepspeed.py::test_",
    'ENTRYPOINT ["launcher", "run", "--"]': "tests/container/test_entry_point.py::test_",
    "import cluster_launcher": "tests/process/test_setup.py::test_setup_gives_what_run_gives",
    "bash tools/demo.sh": "tests/cluster/test_real_jobs.py::test_the_main_job_reaches_the_accuracy",
    "bash tools/test.sh": "tests/process/test_readme.py::test_the_other_lines_have_their_tests",
    "bash tools/site.sh": "tests/process/test_site.py::test_",
    "pip install .": "tests/process/test_package.py::test_",
}
"""What needs other machines, or another test: how it begins, and where it runs for real."""


def run(line: str, folder: Path, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the status and all output of a line, typed in a folder."""
    variables = clean_environ(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", **(environ or {}))
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = subprocess.run(
        ["sh", "-c", f"{line} 2>&1"],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def pattern(lines: str) -> str:
    """Return what lines of output look like whatever their numbers, hosts and fabrics are."""
    text = re.escape("\n".join(line.removeprefix("    ") for line in lines.splitlines()))
    text = re.sub(r"(?<=[\w\\]) host\\? \w+,", r" host\\ \\S+,", text.replace(r"\ ", " "))
    text = text.replace("network namespaces", "[a-z ]+")
    return re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", text)


@pytest.mark.torch
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.startswith("    $ ")], ids=lambda block: block.split()[2]
)
def test_the_first_minute(block: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert len(SCRIPT.splitlines()) == 16
    line, _, said = block.removeprefix("    $ ").partition("\n")
    status, out = run(line, tmp_path)
    assert status == 0 and re.search(pattern(said), out), out
    exact = [text.strip() for text in said.splitlines() if text.strip().startswith("[rank")]
    assert exact and set(exact) <= set(out.splitlines()), "the numbers that the script prints, too"


@pytest.mark.torch
def test_the_report_of_the_broken_script(tmp_path: Path) -> None:
    lines = SCRIPT.splitlines()
    at = next(index for index, line in enumerate(lines) if line.strip().startswith(PLACE))
    lines.insert(at, "    " + BROKEN)
    (tmp_path / "train.py").write_text("\n".join(lines))
    (report,) = [block for block in BLOCKS if "failed first" in block]
    status, out = run("launcher run --nproc-per-node 2 train.py", tmp_path)
    assert status == 1 and re.search(pattern(report), out), out


def test_the_numbers_of_the_first_screen_are_those_of_the_program() -> None:
    """Platforms, causes and kinds of hangs, by their tables."""
    found = (len(platform_table.ROWS), len(read_symptoms()), len(HANGS))
    named = r"variables of (\d+)\s+platforms.*one of (\d+)\s+causes.* \[(\d+) kinds of hangs"
    (shown,) = re.findall(named, README, re.DOTALL)
    assert tuple(map(int, shown)) == found
    page = Path(ROOT, "docs", "mistakes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| [^|]*, (\d+) lines \| [^|]*, (\d+) lines \|$", page, re.MULTILINE)
    ours, theirs = ([int(row[index]) for row in rows] for index in (0, 1))
    assert f"take {min(ours)} to {max(ours)} lines where torchrun prints up to {max(theirs)}" in README


def test_the_lines_of_the_table_work(tmp_path: Path) -> None:
    """Those that need no other machine: typed as they stand."""
    (tmp_path / "train.py").write_text(
        "import os\nprint(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    here = [line for line in _lines() if not _elsewhere(line)]
    assert len(here) >= 3, here
    for line in here:
        status, out = run(line, tmp_path, {"LAUNCHER_NPROC_PER_NODE": "2"} if "nproc" not in line else None)
        assert status == 0, (line, out)


def test_the_other_lines_have_their_tests() -> None:
    """Each of the named tests is there, and each name begins a line of the README."""
    for where in TYPED.values():
        path, _, name = where.partition("::")
        assert f"def {name}" in Path(ROOT, path).read_text(encoding="utf-8"), where
    for begin in TYPED:
        assert any(line.startswith(begin) for line in _lines()), f"no longer in the README: {begin}"


def _lines() -> list[str]:
    """Return all lines of the README that can be typed, or written."""
    table = [code for cell in OURS for code in re.findall(r"`(.*?)`", cell)]
    blocks = [re.sub(r"\s+#\s.*$", "", line[4:]) for block in BLOCKS for line in block.splitlines()]
    words = re.findall(r"`((?:launcher|bash) [\w. /-]+)`", re.sub(r"^\|.*$", "", README, flags=re.MULTILINE))
    lines = [one for one in (*table, *blocks, *words) if not one.startswith(("$", "[", "loss", "launcher:"))]
    return [line for line in lines if shlex.split(line, comments=True)]


def _elsewhere(line: str) -> bool:
    return any(line.startswith(begin) for begin in TYPED)
