"""Whatever the environment or a snapshot file holds: a plan or a named error, and text safe to print."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import launcher
from launcher.cli.entry import main
from launcher.core.errors import EXIT_HARDWARE, EXIT_UNTRUSTED, EXIT_USAGE
from launcher.options.flags import FLAGS
from tests.unit.platforms_model import PLATFORMS, Job, Node, deterministic, jobs

PACKAGE = Path(launcher.__file__).parent
NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)*")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EXPECTED = (0, EXIT_USAGE, EXIT_HARDWARE, EXIT_UNTRUSTED)
ERROR = re.compile(r"launcher: error: \[[a-z-]+\] ")
COMMANDS = (
    ["plan"],
    ["plan", "--format", "json", "--", "python", "train.py"],
    ["env"],
    ["env", "--all", "--format", "json"],
    ["env", "--format", "sh"],
    ["run", "--dry-run", "--", "true"],
)


def source_names() -> list[str]:
    """Return every variable that the sources name, collected from their code."""
    found: set[str] = set()
    for path in sorted((PACKAGE / "sources").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= {node.value} if NAME.fullmatch(node.value) else set()
    return sorted(found)


OTHERS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHON_EXEC", "TORCHELASTIC_USE_AGENT_STORE", "PATH")
NAMES = [*source_names(), *(flag.variable for flag in FLAGS if flag.dest != "source"), *OTHERS]

NUMBERS = st.sampled_from(
    [
        *("0", "1", "2", "3", "4", "8", " 2 ", "-1", "+1", "1.0", "1e3", "0x10", "1_000", "007"),
        *("16777215", "16777216", "999999999", "4294967296", "9" * 30, "9" * 5000),
        *(
            "\u0663",
            "\uff12",
            "\xb2",
            "\u2167",
            "\U0001d7da",
            "1\n",
            "1\n2",
            "2:2",
            "1:4",
            ":",
            "auto",
            "gpu",
            "cpu",
            "True",
        ),
        *("2(x2)", "3,1", "1(x99999999)", "0(x1)", "(x2)"),
    ]
)
HOSTS = st.sampled_from(
    [
        *("10.0.0.4", "node0", "localhost", "127.0.0.1", "::1", "0.0.0.0", "fe80::1%eth0"),
        *("fd00::1", "[fd00::1]", "[fd00::1]:6000", "fd00::1:6000", "[fd00::1", "fd00::1]:1", "[]", "[]:1"),
        *("10.0.0.4:6000", "10.0.0.4:0", "10.0.0.4:65536", "host:", ":6000", "a:b:c", "-oProxy=x", "--help"),
        *("x" * 254, "x" * 100_000, "a b", "a;b", "$(id)", "nœud", "хост", "node[0-1]", "node[0-99999999]"),
        *("n[1-2][1-2]", "n[", "n]", "n[1-", "n[5-1]", "[1-3]"),
    ]
)
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
JSON_TEXTS = (JSON_VALUES | CLUSTERS).map(json.dumps) | st.sampled_from(
    [
        *("[" * 100_000, '{"cluster":' * 20_000, "[" * 500 + "]" * 500, '{"a":1,"a":2}', "{}", "[]", "null"),
        *('"\\ud800"', "NaN", "-Infinity", "9" * 5000, '{"rank":"RANK\\u0000"}', '["algo-1","algo-1"]'),
        *('["algo-1"]', '[""]', '["\\u202ealgo"]', '[["a"]]'),
    ]
)
NASTY = st.sampled_from(
    [
        *("", " ", "\t", "\n", "\r\n", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x7f", "\x85", "\u2028"),
        *("\udcff", "a\udc80b", "\u202egnp", "\u200b", "\ufeff1", "$HOME", "`id`", "'", '"', "\\", "%s"),
        *("[red]x[/red]", "[/]", "{0}", "a=b", "x" * 100_000, "7," * 50_000, "\U0010ffff", "\ue000"),
        *("GPU-1,GPU-2", "0,1,2,3", "NoDevFiles", "-1", "prterun-\n-1@1", "1.0;tcp://:1", "7.1;tcp6://[]:1"),
        *(
            "1.99999999;",
            "99999999999999999999.1;tcp://a,b:1",
            "x@0.2;",
            "node[1:0-2]@0(99999999)",
            "@",
            "@0(",
        ),
    ]
)
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
    out, err = capfd.readouterr()
    assert status in EXPECTED, err
    assert "Traceback" not in err
    assert bool(ERROR.search(err)) == (status != 0)
    assert not CONTROL.search(err)
    if argv[-1] != "sh":  # values for a shell are what they are, in quotes
        assert not CONTROL.search(out)
    if "json" in argv and status == 0:
        assert isinstance(json.loads(out), dict)


@quiet
@given(environ=ENVIRONMENTS, argv=st.sampled_from(COMMANDS))
def test_any_environment_gives_a_plan_or_named_errors(
    environ: dict[str, str], argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Values of all kinds under all names that any source reads."""
    check(argv, environ, capfd)


@quiet
@given(environ=spoiled(), argv=st.sampled_from(COMMANDS))
def test_a_platform_with_spoiled_values_gives_a_plan_or_named_errors(
    environ: dict[str, str], argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Real environments with one to three values replaced reach further than random ones."""
    check(argv, environ, capfd)


SNAPSHOT_VALUES = st.fixed_dictionaries(
    {
        "environ": ENVIRONMENTS
        | st.dictionaries(st.sampled_from(NAMES), JSON_VALUES, max_size=6)
        | JSON_VALUES
    },
    optional={
        "version": st.just(1) | JSON_VALUES,
        "hostname": HOSTS | NASTY | JSON_VALUES,
        "addresses": st.dictionaries(st.just("eth0"), st.lists(HOSTS | JSON_VALUES)) | JSON_VALUES,
        "gpus": st.sampled_from([0, 8, -1, 10**9, 10**30, True, "8", [{}, {}], [[]], 1.5]) | JSON_VALUES,
        "cpus": st.fixed_dictionaries({"granted": JSON_VALUES, "bound": JSON_VALUES}) | JSON_VALUES,
        "ancestors": st.lists(st.lists(st.just("hydra_pmi_proxy") | HOSTS | JSON_VALUES)) | JSON_VALUES,
        "sysfs": st.dictionaries(st.just("class/infiniband/x"), JSON_VALUES) | JSON_VALUES,
    },
)


@quiet
@given(data=SNAPSHOT_VALUES | JSON_VALUES, argv=st.sampled_from(COMMANDS))
def test_any_snapshot_gives_a_plan_or_named_errors(
    data: object, argv: list[str], tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file with any type in any field."""
    path = tmp_path_factory.getbasetemp() / "snapshot.json"
    path.write_text(json.dumps(data))
    check([argv[0], "--replay", str(path), *argv[1:]], {}, capfd)


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "\uff12", "\xb2", "-1", "1_0", "1\n2"])
@pytest.mark.parametrize("name", sorted(PLATFORMS))
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


def test_more_gpus_than_a_node_can_hold_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A snapshot that claims a thousand million of them."""
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"environ": {}, "gpus": 10**9}))
    assert main(["plan", "--replay", str(path)], {}) == EXIT_UNTRUSTED
    assert "[too-many-processes]" in capfd.readouterr().err


@pytest.mark.parametrize("line", ["mpirun -np 16000000 t", "accelerate launch --num_processes 16000000 t"])
def test_more_processes_than_a_node_can_hold_are_refused(
    line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a launcher's own flags, too: a plan of them would not fit into memory."""
    assert main(["plan", "--", *line.split()], {}) == EXIT_UNTRUSTED
    assert "[too-many-processes] the command is" in capfd.readouterr().err


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
