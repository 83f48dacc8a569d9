"""Whatever the environment or a snapshot file holds: a plan or a named error, and text safe to print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launcher
from launcher.cli.entry import main
from launcher.core.errors import EXIT_UNTRUSTED, EXIT_USAGE
from launcher.process import watchdog
from tests.fuzz import nasty
from tests.fuzz.snapshots import CONTROL, EXPECTED, judge
from tests.thorough import FEW_STARTERS, all_but
from tests.unit.platforms_model import PLATFORMS, Job, Node, deterministic, jobs

PACKAGE = Path(launcher.__file__).parent
COMMANDS = (
    ["plan"],
    ["plan", "--format", "json", "--", "python", "train.py"],
    ["env"],
    ["env", "--all", "--format", "json"],
    ["env", "--format", "sh"],
    ["run", "--dry-run", "--", "true"],
)
NAMES = [name for name in nasty.VARIABLES if name != "LAUNCHER_SOURCE"]
NUMBERS, HOSTS, NASTY = map(st.sampled_from, (nasty.NUMBERS, nasty.HOSTS, nasty.TEXTS))
LISTS = st.builds(
    lambda items, separator: separator.join(items),
    st.lists(HOSTS, max_size=6),
    st.sampled_from([",", ";", "\n", " ", ",,"]),
)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | NUMBERS
    | HOSTS
    | st.sampled_from(["worker", "chief", "ps", "master", "evaluator", "RANK", "VK_TASK_INDEX"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("cluster", "task", "type", "index", "worker", "chief", "ps", "rank", "host_list"),
                    *("gpu_count", "evaluator", "\n", ""),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
CLUSTERS = st.fixed_dictionaries(
    {
        "cluster": st.dictionaries(st.sampled_from(["worker", "chief", "ps"]), JSON_VALUES) | JSON_VALUES,
        "task": st.fixed_dictionaries({"type": st.just("worker") | JSON_VALUES, "index": JSON_VALUES}),
    }
)
JSON_TEXTS = (JSON_VALUES | CLUSTERS).map(json.dumps) | st.sampled_from(nasty.JSON_TEXTS)
TEXTS = st.text(st.characters(exclude_characters="\0", codec=None), max_size=30)
VALUES = NUMBERS | HOSTS | LISTS | JSON_TEXTS | NASTY | TEXTS
ENVIRONMENTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=12)


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, str]:
    """Draw what a platform really sets, with some of it spoiled and some of another platform's in it."""
    platform = PLATFORMS[draw(st.sampled_from(sorted(PLATFORMS)))]
    start = draw(st.sampled_from(platform.start(draw(jobs(platform)))))
    environ = dict(start.environ)
    for name in draw(st.lists(st.sampled_from(sorted(environ)), min_size=1, max_size=3)):
        environ[name] = draw(VALUES)
    return {**environ, **draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))}


quiet = settings(suppress_health_check=[*HealthCheck], parent=deterministic(400))


def check(argv: list[str], environ: Mapping[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """One command over one environment: an expected status, named errors, nothing that a terminal obeys."""
    status = main(argv, environ)
    judge(argv, status, *capfd.readouterr())


@quiet
@given(environ=ENVIRONMENTS, argv=st.sampled_from(COMMANDS))
def test_any_environment_gives_a_plan_or_named_errors(
    environ: dict[str, str], argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Values of all kinds under all names that any source reads."""
    check(argv, environ, capfd)


@pytest.mark.thorough
@quiet
@given(environ=spoiled(), argv=st.sampled_from(COMMANDS))
def test_a_platform_with_spoiled_values_gives_a_plan_or_named_errors(
    environ: dict[str, str], argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Real environments with one to three values replaced reach further than random ones."""
    check(argv, environ, capfd)


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "\uff12", "\xb2", "-1", "1_0", "1\n2"])
@pytest.mark.parametrize("name", all_but(FEW_STARTERS, sorted(PLATFORMS)))
def test_every_number_of_every_platform_is_checked(
    name: str, number: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each variable that holds a number, spoiled on its own: int() alone takes some of these, or raises."""
    nodes = (Node(0, "node0", "10.0.0.4", 1), Node(1, "node1", "10.0.0.5", 1))
    start = PLATFORMS[name].start(Job(nodes, gpus=2))[1]
    for variable, value in start.environ.items():
        if value.isdecimal():
            check(["plan"], {**start.environ, variable: number}, capfd)


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"environ":{"RANK":"' + b"9" * 200_000, b"\x00", b"9" * 5000],
)
def test_files_that_are_no_snapshots_are_named(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not UTF-8, cut off, nested too deeply: status 64 and the file's name."""
    path = tmp_path / "snap\nshot\x1b.json"
    path.write_bytes(content)
    assert main(["plan", "--replay", str(path)], {}) == EXIT_USAGE
    _, err = capfd.readouterr()
    assert "[bad-snapshot]" in err
    assert not CONTROL.search(err)


@pytest.mark.parametrize(
    ("variable", "status"),
    [
        ("LAUNCHER_NPROC_PER_NODE", EXIT_USAGE),
        ("SM_NUM_GPUS", EXIT_UNTRUSTED),
        ("SKYPILOT_NUM_GPUS_PER_NODE", EXIT_UNTRUSTED),
        ("PET_NPROC_PER_NODE", EXIT_UNTRUSTED),
    ],
)
def test_more_processes_than_a_node_can_hold_are_refused_before_they_are_planned(
    variable: str, status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sixteen million processes are a malformed number, not a plan of sixteen million rows."""
    single = {"PET": {"PET_STANDALONE": "1"}, "SM": {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "a"}}
    single["SKYPILOT"] = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}
    environ = {**single.get(variable.partition("_")[0], {}), variable: "16777215"}
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"environ": environ}))
    assert main(["plan", "--replay", str(path)], {}) == status
    assert "16777215" in capfd.readouterr().err


@pytest.mark.parametrize("gpus", [257, 10**9, [{}] * 257, True])
def test_more_gpus_than_a_node_can_hold_are_not_believed(
    gpus: object, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A snapshot that claims a thousand million of them: their number is not known."""
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"environ": {"LAUNCHER_NPROC_PER_NODE": "2"}, "gpus": gpus}))
    assert main(["plan", "--format", "json", "--replay", str(path)], {}) == 0
    assert json.loads(capfd.readouterr().out)["machine"]["gpu_count"] is None


@pytest.mark.parametrize("line", ["mpirun -np 16000000 t", "accelerate launch --num_processes 16000000 t"])
def test_more_processes_than_a_node_can_hold_are_refused(
    line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a launcher's own flags, too: a plan of them would not fit into memory."""
    assert main(["plan", "--", *line.split()], {}) == EXIT_UNTRUSTED
    assert "[too-many-processes] the command is" in capfd.readouterr().err


def test_processes_of_all_nodes_may_be_more_than_a_node_can_hold(capfd: pytest.CaptureFixture[str]) -> None:
    """Where the nodes are counted at the start, a launcher's number is that of the whole job."""
    nodes = ("--nnodes", "1:4", "--rdzv-endpoint", "10.0.0.4")
    line = "accelerate launch --num_processes 5000 train.py"
    assert main(["plan", *nodes, "--", *line.split()], {}) == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    "name", ["MASTER_ADDR", "RANK", "OMPI_COMM_WORLD_RANK", "TF_CONFIG", "LAUNCHER_NNODES"]
)
@pytest.mark.parametrize("argv", [["env", "--all", "--format", "sh"], ["plan"], ["run", "--dry-run", "true"]])
def test_bytes_that_are_not_utf_8_in_a_real_environment(name: str, argv: list[str]) -> None:
    """Names and values as the kernel hands them over, in a process of its own."""
    environ = {
        b"PATH": os.environb[b"PATH"],
        b"PYTHONPATH": os.fsencode(PACKAGE.parent),
        os.fsencode(name): b"\xff\xfe\x1b[31m",
        b"na\xffme": b"val\xfeue\n",
        b"com.nvidia.cuda.version": b"12\n",
    }
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *argv], env=environ, capture_output=True, timeout=60, check=False
    )
    assert done.returncode in EXPECTED, done.stderr
    assert b"Traceback" not in done.stderr
    assert not CONTROL.search(done.stderr.decode("utf-8", "replace"))


def test_the_mark_of_a_run_is_found_in_any_environment() -> None:
    """Root reads those of all users: twenty processes, each with five million zeros, took 21 seconds."""
    marked = (
        *(
            b"LAUNCHER_RUN_ID=a1",
            b"A=b\0LAUNCHER_RUN_ID=x/a1\0B=c",
            b"LAUNCHER_RUN_ID=x\0LAUNCHER_RUN_ID=a1/y",
        ),
        b"\0" * (1 << 24) + b"LAUNCHER_RUN_ID=" + b"/" * (1 << 24) + b"a1",
    )
    others = (b"", b"LAUNCHER_RUN_ID=", b"LAUNCHER_RUN_ID=a12", b"A=a1\0XLAUNCHER_RUN_ID=a1", b"A=b/a1/c")
    begun_s = time.process_time()
    assert [watchdog._has_mark(environ, b"a1") for environ in (*marked, *others)] == [True] * 4 + [False] * 5
    assert time.process_time() - begun_s < 0.3
