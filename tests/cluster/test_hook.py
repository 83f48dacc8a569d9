"""Plain ``torchrun train.py`` on several nodes, by the environment hook alone: real nodes, real torch.

Nobody starts the launcher here: the platform starts the command, as it does where it has overridden the entry
point. Every number is computed across processes: a wrong rank, world or master gives a wrong sum, or none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import need_namespaces
from tests.mpis import find_mpi
from tests.process.hooking import install, make_venv
from tests.process.starting import ROOT, clean_environ
from tests.pythons import need_python

pytestmark = pytest.mark.root

DEADLINE_S = 180.0
ALLREDUCE = os.path.join(ROOT, "examples", "allreduce.py")
TORCHRUN = "#!{python}\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
SHOW = """
import os, socket
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")
line = " ".join([*(str(os.environ.get(name)) for name in names), socket.gethostname()])
os.write(1, f"{line}\\n".encode())  # in one piece: the lines of several processes meet
"""
# Intel MPI does not tell processes where rank 0 runs; the hook, too, asks for it instead of guessing.
EXTRA = {"impi": ("--env", "MASTER_ADDR=10.77.0.10")}
DRIVER = "import subprocess, sys\nsys.exit(subprocess.run(sys.argv[1:]).returncode)\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with torch, its command torchrun, and the hook."""
    torch = pytest.importorskip("torch")
    prefix = make_venv(tmp_path_factory.mktemp("torch") / "venv")
    path = install(prefix)
    (path.parent / "torch_of_the_tests.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    torchrun = prefix / "bin" / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=prefix / "bin" / "python"))
    torchrun.chmod(0o755)
    return prefix


def rehearse(
    like: str, processes: int, scope: str, *command: str, **variables: str
) -> list[dict[str, object]]:
    """Start a command as a platform does, without the launcher, and return what allreduce.py prints."""
    words = ["--like", like, "--nodes", "2", "--processes", str(processes), "--scope", scope, "--bare"]
    pairs = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "rehearse", *words, *pairs, "--", *command],
        env=clean_environ(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def assert_sum(results: list[dict[str, object]], *, nodes: list[str] | None) -> None:
    """One job of four processes, each where it belongs."""
    (result,) = results
    assert (result["sum"], result["expected"]) == (10, 10)
    processes = result["processes"]
    assert isinstance(processes, list)
    assert [(p["RANK"], p["LOCAL_RANK"]) for p in processes] == [
        *(("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")),
    ]
    assert nodes is None or [p["NODE_RANK"] for p in processes] == nodes


@pytest.mark.parametrize("like", ["azure-batch", "slurm", "azureml-pytorch", "azureml-mpi"])
def test_plain_torchrun_starts_one_job_on_two_nodes(like: str, environment: Path) -> None:
    """No flag at all: which node, how many, where to meet, two processes each."""
    need_namespaces()
    torchrun = str(environment / "bin" / "torchrun")
    results = rehearse(like, 2, "node", torchrun, ALLREDUCE)
    assert_sum(results, nodes=["0", "0", "1", "1"])


@pytest.mark.thorough
def test_a_script_that_starts_torchrun(environment: Path, tmp_path: Path) -> None:
    """A driver in Python, as the command of the platform: it is told of the node, and torchrun all of it."""
    need_namespaces()
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    python, torchrun = (str(environment / "bin" / name) for name in ("python", "torchrun"))
    assert_sum(
        rehearse("azure-batch", 2, "node", python, str(driver), torchrun, ALLREDUCE),
        nodes=["0", "0", "1", "1"],
    )


@pytest.fixture(scope="module", params=[sys.version_info[1], 8], ids=lambda minor: f"3.{minor}")
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python with the hook: one that plans by itself, and one that asks the launcher's."""
    found = sys.executable if request.param == sys.version_info[1] else need_python(request.param)
    prefix = make_venv(tmp_path_factory.mktemp("hooked") / "venv", found)
    install(prefix)
    return str(prefix / "bin" / "python")


@pytest.mark.mpi
@pytest.mark.parametrize("family", ["openmpi4", "openmpi5", "mpich", "impi"])
def test_every_mpi_starts_plain_python(family: str, python: str, tmp_path: Path) -> None:
    """Rank, node and master of 2 nodes x 2, also where only the command line of the parent knows the node."""
    need_namespaces()
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    words = ("--like", "openmpi", "--nodes", "2", "--processes", "2", "--bare", *EXTRA.get(family, ()))
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "rehearse", *words, "--", python, str(script)],
        env=clean_environ(PATH=find_mpi(family).environ["PATH"]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "launcher: hook" not in done.stderr
    lines = sorted(done.stdout.splitlines())
    places = [line.split()[:4] + line.split()[5:] for line in lines]
    assert places == [
        ["0", "4", "0", "0", "node0"],
        ["1", "4", "1", "0", "node0"],
        ["2", "4", "0", "1", "node1"],
        ["3", "4", "1", "1", "node1"],
    ]
    assert {line.split()[4] for line in lines} <= {"10.77.0.10", "node0"}
