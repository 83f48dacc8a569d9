"""DeepSpeed's own functions, with what the launcher gives a process of every recorded job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.agent.starter import read_status
from launcher.core.errors import LauncherError
from launcher.core.model import Plan
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ
from tests.golden.jobs import plan_snapshot, read_case, snapshots
from tests.golden.truth import TRUTH, Job
from tests.process.starting import clean_environ

DEADLINE_S = 300.0
PROBE = Path(__file__).parent / "deepspeed_probe.py"


def ask_deepspeed(environs: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return what the real DeepSpeed makes of each of these environments."""
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(environs),
        env=clean_environ(DS_ACCELERATOR="cpu"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def processes_of_all_jobs() -> list[tuple[str, Plan, dict[str, str], dict[str, Any]]]:
    """Return, for each process of each recorded job: a name, its plan, its environment, and the truth."""
    found = []
    for name in sorted(name for name, truth in TRUTH.items() if isinstance(truth, Job)):
        case = read_case(name)
        for place, snapshot in enumerate(snapshots(case)):
            try:
                plan, environ = plan_snapshot(case, place, snapshot)
            except LauncherError:
                continue
            for process in plan.processes:
                job = plan.topology
                expected = {
                    "asked": [],
                    "rank": process.rank,
                    "local_rank": process.local_rank,
                    "world_size": job.world_size,
                    "master": f"{job.master_addr}:{job.master_port}",
                    "engine_local_rank": process.local_rank,
                    "local_size": job.local_size,
                    "machine_rank": job.node_rank if job.node_count is not None else None,
                    "num_machines": job.node_count if job.node_rank is not None else None,
                }
                found.append(
                    (f"{name} rank {process.rank}", plan, render_environ(plan, process, environ), expected)
                )
    return found


@pytest.mark.thorough
@pytest.mark.torch
def test_deepspeed_agrees_in_every_recorded_job() -> None:
    """It asks neither MPI nor Azure ML, and has the launcher's ranks; the user's network stays."""
    processes = processes_of_all_jobs()
    assert len(processes) > 200
    answers = ask_deepspeed([environ for _, _, environ, _ in processes])
    for (name, _, environ, expected), answer in zip(processes, answers, strict=True):
        assert "error" not in answer, (name, answer)
        known = {key: value for key, value in expected.items() if value is not None}
        assert known == {key: answer[key] for key in known}, name
        assert answer["NCCL_SOCKET_IFNAME"] == environ.get("NCCL_SOCKET_IFNAME"), name


@pytest.mark.thorough
@pytest.mark.torch
def test_what_deepspeed_does_without_the_launcher() -> None:
    """On Azure ML its own reading fails, or overwrites the user's interface; elsewhere it asks mpi4py."""
    azure, openmpi = (
        dict(snapshots(read_case(name))[0]["environ"]) for name in ("azureml_mpi_2x2", "openmpi_5.0.11_2x2")
    )
    without, with_network = azure, {**azure, "NCCL_SOCKET_IFNAME": "ib0"}
    lost, overwritten, asks_mpi = ask_deepspeed([without, with_network, openmpi])
    assert lost["asked"] == ["patch_aml_env_for_torch_nccl_backend"]
    assert lost["error"] == "KeyError: 'NCCL_SOCKET_IFNAME'"
    assert overwritten["NCCL_SOCKET_IFNAME"] == "^docker0,lo"
    assert asks_mpi["asked"] == ["mpi_discovery"]


HOSTS = "one slots=4\ntwo slots=4\n"
TWO_NODES: dict[str, Any] = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.4"}
COMMAND = ("deepspeed", "train.py")


def plan(
    *command: str,
    files: dict[str, str] | None = None,
    gpus: int = 4,
    environ: dict[str, str] | None = None,
    **flags: Any,
) -> Plan:
    """Plan a command on a node of GPUs with these files."""
    options = read_options(flags, {})
    recorded = {"hostname": "here", "gpus": gpus, "environ": environ or {}, "files": files or {}}
    host = replay(recorded)
    return plan_job(host.environ, host, options, command)


def refused(*command: str, **options: Any) -> str:
    """Return the code of the one thing that is wrong."""
    with pytest.raises(LauncherError) as caught:
        plan(*command, **options)
    (problem,) = caught.value.problems
    return problem.code


def test_a_hostfile_that_nobody_named_is_not_followed_to_other_nodes() -> None:
    """/job/hostfile is DeepSpeed's default; one of this very node does no harm."""
    assert refused(*COMMAND, files={"/job/hostfile": HOSTS}) == "default-hostfile"
    assert plan(*COMMAND, files={"/job/hostfile": "here slots=4\n"})
    assert plan("deepspeed", "--hostfile=none", "train.py", files={"/job/hostfile": HOSTS})
    assert plan("python", "train.py", files={"/job/hostfile": HOSTS}, framework="deepspeed")
    assert plan(*COMMAND, files={"/job/hostfile": HOSTS}, **TWO_NODES)  # it is given another


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HOSTS, None),
        ("one slots=4\n", "hostfile-mismatch"),
        ("# none\n", "hostfile-mismatch"),
        ("one slots=many\ntwo slots=4\n", "hostfile-mismatch"),
    ],
    ids=range(4),
)
def test_a_hostfile_of_the_users_fits_the_job(text: str, code: str | None) -> None:
    """As many nodes as the job has."""
    command = ("deepspeed", "-H", "/hosts", "train.py")
    options: dict[str, Any] = {"files": {"/hosts": text}, **TWO_NODES}
    if code is None:
        assert plan(*command, **options)
    else:
        assert refused(*command, **options) == code


HEAD: dict[str, Any] = {"hosts": "one,two", "node_rank": "0", "token_file": "/job.token"}
SCRIPT = ("train.py", "--deepspeed", "ds.json")
TUNE = ("python", "-m", "deepspeed.launcher.runner", "--autotuning", "run", *SCRIPT)


def test_node_0_tunes_and_the_others_serve() -> None:
    """It gets a hostfile that its experiments can read; another node serves, and starts no DeepSpeed."""
    agent = plan(*TUNE, **HEAD).agent
    assert agent is not None and agent.fleet is not None and agent.engine == "deepspeed"
    told = ("--hostfile={folder}/hostfile", "--master_addr=one", "--master_port=6114")
    assert agent.argv == (*TUNE[:3], *told, *TUNE[3:])
    assert agent.files == (("{folder}/hostfile", "one slots=4\ntwo slots=4\n"),)
    other = plan(*TUNE, **{**HEAD, "node_rank": "1"}).agent
    assert other is not None and (other.engine, other.argv) == ("serve", ("serve",))
    assert other.fleet is not None and other.fleet.hosts == agent.fleet.hosts == ("one", "two")


def test_a_hostfile_and_a_master_of_the_users_win() -> None:
    """They stand behind ours, or instead of ours."""
    line = ("deepspeed", "--autotuning", "tune", "-H", "/hosts", "--master_addr", "ib0", "train.py")
    agent = plan(*line, files={"/hosts": HOSTS}, **HEAD).agent
    assert agent is not None
    assert agent.argv == (line[0], "--master_addr=ib0", "--master_port=6114", *line[1:])


def test_a_single_node_tunes_without_a_token() -> None:
    """No hostfile, no token, no other node."""
    agent = plan("deepspeed", "--autotuning=tune", "train.py").agent
    assert agent is not None and agent.argv == ("deepspeed", "--num_gpus=4", "--autotuning=tune", "train.py")
    assert agent.fleet is not None and agent.fleet.hosts == ("here",) and not agent.files


def test_what_the_autotuner_cannot_do_is_told() -> None:
    """No hosts, no token, restarts, GPUs that are not counted from 0."""
    assert refused(*TUNE, environ={"CUDA_VISIBLE_DEVICES": "2,3"}) == "autotuner-gpus"
    assert plan(*TUNE, environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert refused(*TUNE, **TWO_NODES) == "no-hosts"
    assert refused(*TUNE, hosts="one,two", node_rank="1") == "no-token"
    assert refused(*TUNE, restarts="1") == refused(*TUNE, restarts="1", **HEAD) == "engine-conflict"
    assert refused(*TUNE, restarts="1", **{**HEAD, "node_rank": "1"}) == "engine-conflict"


def test_the_hosts_of_a_platform_are_enough_to_tune_on() -> None:
    """A multi-instance task of Azure Batch: no flag names the nodes."""
    case = read_case("azure_batch_2_nodes_gpus8")
    found = []
    for snapshot in snapshots(case):
        host = replay(snapshot)
        job = plan_job(host.environ, host, read_options({"token_file": "/job.token"}, {}), TUNE)
        assert job.agent is not None
        found.append((job.agent.engine, len(job.agent.fleet.hosts) if job.agent.fleet else 0))
    assert found == [("deepspeed", 2), ("serve", 2)]


@pytest.mark.parametrize(
    ("status", "expected"), [(0, 0), (1, 1), (247, 137), (241, 143), (255, 255), (156, 156)]
)
def test_the_signal_of_a_rank_behind_deepspeeds_status(status: int, expected: int) -> None:
    assert read_status(status, "deepspeed") == expected
