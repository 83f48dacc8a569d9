"""All checks together: what is printed, what the status is, what hostile files do, and how long it takes."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.checks import TABLE, Result, run_checks
from launcher.checks.case import RUNTIMES, find_runtime, read_case
from launcher.checks.finding import LEVELS, OK, PROBLEM, WARNING, Finding
from launcher.cli.entry import main
from launcher.core.errors import EXIT_HARDWARE, EXIT_USAGE
from launcher.machine.host import Host
from launcher.machine.packages import Package
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.snapshot import KEPT_LINES, render_snapshot, take_snapshot
from launcher.views.check import render_text
from tests.process.starting import ROOT, launch
from tests.unit.checks.cases import DOCKER, Machine, case, limits
from tests.unit.platforms_model import deterministic

NAMES = [row.name for row in TABLE]
SMALL = {"/dev/shm": [64 << 20, 64 << 20]}
RECORDED = {"version": 2, "hostname": "node0", "environ": {}, "gpus": 8, "space": SMALL}
PATHS = (
    *(path.lstrip("/") for path in KEPT_LINES),
    *("proc/net/tcp", "proc/net/tcp6", "etc/ld.so.cache", "sys/fs/cgroup/memory.max"),
    *("proc/sys/net/ipv4/ip_local_port_range", "proc/sys/net/ipv4/ip_local_reserved_ports"),
)
GARBAGE = (b"", b"\n", b"\0" * 64, b"x" * 4096, b"\xff\xfe\x80", b"1 2 3 4 5 6 7 8 9 10 11 12\n" * 4, b"-1\n")


def replay_file(tmp_path: Path, data: dict[str, object]) -> str:
    """Write a recorded machine to a file."""
    path = tmp_path / "node.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_each_check_is_a_function_with_tests_and_a_row_in_the_documentation() -> None:
    """In the order of the table, with the same words."""
    page = (Path(ROOT) / "docs/checks.md").read_text()
    functions = [
        (path.stem, name)
        for path in (Path(ROOT) / "launcher/checks").glob("*.py")
        for name in re.findall(r"^def check_(\w+)\(", path.read_text(), re.MULTILINE)
    ]
    assert sorted(functions) == sorted((row.module, row.name) for row in TABLE)
    assert [name for name in NAMES if not Path(__file__).with_name(f"test_{name}.py").exists()] == []
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .* \| (yes|no) \| (yes|no) \|$", page, flags=re.MULTILINE)
    words = {True: "yes", False: "no"}
    expected = [(row.name, row.about, words[row.is_quick], words[not row.is_live]) for row in TABLE]
    assert rows == expected


def test_levels_and_fixes_go_together() -> None:
    """What is wrong has a fix, and what is right needs none."""
    with pytest.raises(ValueError, match="with fix"):
        Finding("shm", PROBLEM, "a", "b", "c", "")
    with pytest.raises(ValueError, match="with fix"):
        Finding("shm", OK, "a", "b", "c", "do it")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_has_words_for_an_option(tmp_path: Path, runtime: str) -> None:
    """Whoever starts the container, there is something to type."""
    here = case(Machine(tmp_path), runtime=runtime)
    words = here.option("--cap-add IPC_LOCK", kubernetes="in a pod", machine="on a machine")
    assert "IPC_LOCK" in words or words in ("in a pod", "on a machine")


def test_where_we_run(tmp_path: Path) -> None:
    """By variables first, then by the marks that engines leave."""
    bare, docker = Host(str(tmp_path / "bare")), Machine(tmp_path / "docker", DOCKER)
    assert find_runtime(bare, {}) == "machine"
    assert find_runtime(docker, {}) == "container"
    assert find_runtime(bare, {"AZ_BATCH_TASK_ID": "t"}) == "machine"
    assert find_runtime(docker, {"AZ_BATCH_TASK_ID": "t"}) == "Azure Batch"
    assert find_runtime(docker, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == "Kubernetes"
    assert find_runtime(docker, {"AZUREML_RUN_ID": "r", "KUBERNETES_SERVICE_HOST": "x"}) == "Azure ML"


def test_problems_stand_last(tmp_path: Path) -> None:
    """One line for each, aligned; then the counts, and what had nothing to look at."""
    fixed = Finding("shm", PROBLEM, "/dev/shm", "8\nGiB", "64 MiB\x1b[2J", "docker run --shm-size=8g")
    result = Result((Finding("nofile", OK, "open files", "", "1048576", ""), fixed), ("gpus",))
    text = render_text(result, case(Machine(tmp_path)))
    assert text.splitlines() == [
        "ok       nofile  open files: 1048576",
        "problem  shm     /dev/shm: expected 8 GiB, found 64 MiB\\x1b[2J; fix: docker run --shm-size=8g",
        "node0 (machine): 1 problem, 0 warnings, 1 ok",
        "skipped: gpus",
    ]
    assert "\x1b[1;31mproblem" in render_text(result, case(Machine(tmp_path)), colours=True)


@pytest.mark.parametrize(("strict", "status"), [([], 0), (["--strict"], EXIT_HARDWARE)])
def test_a_recorded_machine_with_a_problem(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], strict: list[str], status: int
) -> None:
    """Status 69 only where somebody wants it."""
    assert main(["check", *strict, "--replay", replay_file(tmp_path, RECORDED)], {}) == status
    out = capfd.readouterr().out
    assert "problem  shm" in out and "found 64 MiB; fix: " in out and "\x1b" not in out


def test_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same for tools."""
    assert main(["check", "--format", "json", "--replay", replay_file(tmp_path, RECORDED)], {}) == 0
    document = json.loads(capfd.readouterr().out)
    assert set(document) == {
        *(
            *("version", "launcher", "hostname", "runtime", "verdict", "problems", "warnings", "findings"),
            "silent",
        )
    }
    assert document["problems"] == 1 and {item["level"] for item in document["findings"]} <= set(LEVELS)
    assert set(document["findings"][0]) == set(Finding.__annotations__)
    checked = {item["check"] for item in document["findings"]}
    assert checked | set(document["silent"]) == set(NAMES)


def test_a_job_that_cannot_be_planned_is_a_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The machine is looked at all the same; a wrong flag is a wrong flag."""
    data = {**RECORDED, "environ": {"RANK": "x", "WORLD_SIZE": "2"}}
    assert main(["check", "--replay", replay_file(tmp_path, data)], {}) == 0
    out = capfd.readouterr().out
    assert "problem  plan" in out and "[malformed-variable]" in out and "shm" in out
    assert main(["check", "--nnodes", "none"], {}) == EXIT_USAGE


def test_a_check_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours costs nobody the other findings."""
    from launcher.checks import memory

    def fail(_: object) -> list[Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(memory, "check_shm", fail)
    result = run_checks(case(Machine(tmp_path, limits("1", "1"))), quick=True)
    assert [item.level for item in result.findings if item.check == "shm"] == [WARNING]
    assert any(item.check == "memlock" for item in result.findings)


def test_a_snapshot_says_the_same_as_the_machine(tmp_path: Path) -> None:
    """As far as a file can know."""
    files = {**DOCKER, **limits("65536", "65536"), "proc/meminfo": "MemTotal:  1048576 kB\nSwapTotal: 1 kB\n"}
    files["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  x\n"
    torch = (Package("torch", "2.9.0+cu130", "/site"),)
    here = Machine(tmp_path, files, gpus=2, packages=torch, spaces={"/dev/shm": (64 << 20, 1 << 20)})
    there = replay(json.loads(render_snapshot(take_snapshot(here, {}))))
    live = {row.name for row in TABLE if row.is_live} | {"mpi", "gpus"}
    found = [
        [item for item in run_checks(case(host)).findings if item.check not in live] for host in (here, there)
    ]
    assert found[0] == found[1] and len(found[0]) >= 4
    assert "SwapTotal" not in str(take_snapshot(here, {}))


@deterministic(60)
@given(data=st.data())
def test_no_file_makes_a_check_fail(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Empty files, garbage, long lines, folders in their place: a check that fails would be a warning."""
    root = tmp_path_factory.mktemp("machine")
    for path in PATHS:
        content = data.draw(st.one_of(st.none(), st.sampled_from(GARBAGE), st.binary(max_size=200)))
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            place.mkdir()
        else:
            place.write_bytes(content)
    host = Machine(root, {}, gpus=2)
    seen = case(
        host, {"CUDA_VISIBLE_DEVICES": data.draw(st.text(max_size=20))}, is_master=True, master_port=1
    )
    assert [item for item in run_checks(seen).findings if item.what == "the check itself"] == []


@pytest.mark.parametrize("value", [None, 1, "x", [], [1], ["a", "b"], {"": 1}, {"/dev/shm": "x"}, [[1, 2]]])
def test_no_snapshot_makes_a_check_fail(value: object) -> None:
    """Fields of any type."""
    fields = ("space", "packages", "mpiruns", "mpirun", "gpus", "files", "addresses", "affinity", "vm_size")
    host = replay({"environ": {}, **dict.fromkeys(fields, value)})
    found = run_checks(read_case(host, {}, None, ())).findings
    assert [item for item in found if item.what == "the check itself"] == []


def test_the_quick_part_is_quick() -> None:
    """Under 100 ms of this machine's processors; the best of five."""
    host, times = Host(), []
    plan = plan_job({}, host, read_options({}, {}), ("true",))
    for _ in range(5):
        start = time.process_time()
        run_checks(read_case(host, {}, plan, ("true",)), quick=True)
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_what_the_job_itself_changes_is_looked_at_before_it(tmp_path: Path) -> None:
    """Rank 0 listens on MASTER_PORT: beside a job that has started, that is no finding."""
    here = case(Machine(tmp_path, {"proc/net/tcp": ""}), is_master=True, master_port=6105)
    names = [
        {item.check for item in run_checks(here, quick=True, started=started).findings}
        for started in (False, True)
    ]
    assert names[0] - names[1] == {"port"}


def test_run_prints_problems_only() -> None:
    """Before the start, to standard error, where somebody asks for it; and it starts all the same."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        words = ("--", "echo", "started")
        rank = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_PORT": port}
        rank |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        for flags, environ, said in (
            (["--check"], {}, True),
            ([], {"LAUNCHER_CHECK": "1"}, True),
            ([], {}, False),
            (["--no-check"], {"LAUNCHER_CHECK": "1"}, False),
        ):
            done = launch("run", *flags, *words, environ={**rank, **environ})
            assert (done.returncode, done.stdout) == (0, "started\n")
            lines = [line for line in done.stderr.splitlines() if line.startswith("launcher: check: ")]
            assert bool(lines) == said and all("[port] MASTER_PORT" in line for line in lines)


def test_ranks_of_mpirun_say_it_once_per_node() -> None:
    """Where every process has a launcher, the first of the node speaks."""
    environ = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "LAUNCHER_CHECK": "1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for rank in ("0", "1"):
            own = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank, "MASTER_PORT": port}
            done = launch("run", "--", "true", environ={**environ, **own})
            assert done.returncode == 0 and ("[port]" in done.stderr) == (rank == "0")
