"""Who starts the processes: what is chosen, why, and the command lines of those that are not us."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from string import Template
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.command.arguments import expand_local_rank, names_local_rank
from launcher.command.launchers import TABLE, find_launcher, read_pairs
from launcher.core.blocks import read_blocks
from launcher.core.errors import LauncherError, UsageError
from launcher.core.model import NODE, RANK, Mode, Plan, Scope
from launcher.engines.torchrun import AGENT, WORKER
from launcher.frameworks.torch import MAX_RESTARTS
from launcher.options.flags import FLAGS, NEEDS, Flag
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import apply_settings, render_environ
from launcher.sources.launched import MARKER
from launcher.views.plan_json import describe
from tests.unit.machines import recorded_cpus
from tests.unit.perturbations import ONE_RUN
from tests.unit.test_options import SAMPLE

PYTHON = "/opt/env/bin/python"
TRAIN = (PYTHON, "train.py")
HAS_TORCH = {"name": "torch", "version": "2.13.0"}
TORCH: dict[str, Any] = {"packages": {PYTHON: [HAS_TORCH], "": []}}
NO_TORCH: dict[str, Any] = {"packages": {PYTHON: [], "": []}}
NODES: dict[str, Any] = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.4"}
PER_RANK = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PER_NODE = {**PER_RANK, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
BATCH_SCRIPT = {"SLURM_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "2"}


def plan(
    *command: str,
    environ: Mapping[str, str] | None = None,
    machine: Mapping[str, Any] | None = None,
    **flags: str | bool,
) -> Plan:
    """Return the plan on a recorded machine."""
    host = replay({"environ": dict(environ or {}), **(machine or {})})
    return plan_job(host.environ, host, read_options(flags, host.environ), command)


def refuse(*command: str, **kwargs: Any) -> tuple[int, str, str]:
    """Return status, code and text of why there is no plan."""
    with pytest.raises(LauncherError) as caught:
        plan(*command, **kwargs)
    (problem,) = caught.value.problems
    return caught.value.exit_status, problem.code, f"{problem.what} | {problem.fix}"


def agent_flags(job: Plan) -> dict[str, str]:
    """Return the flags of torchrun's agent, less its worker."""
    assert job.agent is not None
    words = job.agent.argv
    assert words[1] == AGENT or words[1:3] == ("-m", "torch.distributed.run")
    flags = {}
    for word in words[2 if words[1] == AGENT else 3 :]:
        if word in ("--no_python", "--run_path"):
            break
        name, _, text = word.removeprefix("--").partition("=")
        flags[name] = text
    return flags


def told(job: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a wrapped launcher's command line, and the variables it is given."""
    assert job.agent is not None
    return job.agent.argv, {setting.name: setting.value for setting in job.agent.settings}


def agent_environ(job: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of an agent."""
    assert job.agent is not None
    return apply_settings(environ, job.agent.unset, job.agent.settings)


CHOICES: list[tuple[dict[str, Any], dict[str, str], dict[str, Any], str, str]] = [
    ({}, {}, TORCH, "process", "one node"),
    (NODES, {}, TORCH, "process", "2 nodes, a fixed number; for torchrun's agent: --engine torchrun"),
    (NODES, {}, NO_TORCH, "process", "2 nodes, a fixed number"),
    (NODES, {}, {}, "process", "2 nodes, a fixed number"),
    ({**NODES, "failure_file": "f"}, {}, TORCH, "process", "2 nodes, a fixed number"),
    ({**NODES, "prefix": True}, {}, TORCH, "process", "2 nodes, a fixed number"),
    ({**NODES, "engine": "torchrun"}, {}, TORCH, "torchrun", "--engine torchrun"),
    ({**NODES, "max_restarts": "1"}, {}, TORCH, "torchrun", "--max-restarts 1"),
    ({**NODES, "engine": "process"}, {}, TORCH, "process", "--engine process"),
    ({"engine": "torchrun"}, {}, TORCH, "torchrun", "--engine torchrun"),
    ({"max_restarts": "3"}, {}, TORCH, "torchrun", "--max-restarts 3; --restarts 3 would report"),
    ({"max_restarts": "0"}, {}, TORCH, "process", "one node"),
    ({}, {"PET_MAX_RESTARTS": "2"}, TORCH, "torchrun", "PET_MAX_RESTARTS='2'"),
    ({}, {"LAUNCHER_MAX_RESTARTS": "2"}, TORCH, "torchrun", "LAUNCHER_MAX_RESTARTS='2'"),
    ({"nnodes": "1:4", "rdzv_endpoint": "node0:29400"}, {}, TORCH, "torchrun", "1 to 4 nodes"),
    ({"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "node0:29400"}, {}, TORCH, "torchrun", "c10d"),
    ({"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}, {}, TORCH, "process", "one node"),
    ({"standalone": True}, {}, TORCH, "process", "one node"),
    ({"run_path": True}, {}, {"packages": {"": [HAS_TORCH]}}, "torchrun", "--run-path"),
    ({"virtual_local_rank": True}, {}, TORCH, "torchrun", "--virtual-local-rank"),
    ({"numa_binding": "node"}, {}, TORCH, "torchrun", "--numa-binding node"),
    ({"logs_specs": "mine"}, {}, TORCH, "torchrun", "--logs-specs mine"),
    ({}, PER_RANK, TORCH, "process", "one process of the job"),
]


@pytest.mark.parametrize(("flags", "environ", "machine", "engine", "why"), CHOICES)
def test_the_engine_is_chosen_and_said(
    flags: dict[str, Any],
    environ: dict[str, str],
    machine: dict[str, Any],
    engine: str,
    why: str,
) -> None:
    """auto: ours for every job of a fixed size, whatever is installed; torchrun for what only that can do."""
    job = plan(*TRAIN, environ=environ, machine=machine, **flags)
    assert job.engine == engine
    (note,) = [note for note in job.notes if note.startswith(f"engine {engine}: ")]
    assert why in note
    assert (job.agent is None) is (engine == "process")


@pytest.mark.parametrize("command", [("bash", "train.sh"), ("./train",), TRAIN])
@pytest.mark.parametrize("machine", [TORCH, NO_TORCH, {}], ids=["torch", "none", "unknown"])
def test_all_nodes_decide_alike(command: tuple[str, ...], machine: dict[str, Any]) -> None:
    """Neither what is installed nor what the command is decides: nodes may differ in both."""
    assert plan(*command, machine=machine, **NODES).engine == "process"


ELASTIC = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
)


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ({}, {}, ("none", "0", "0", "False")),
        ({"restarts": "3"}, {}, ("none", "0", "3", "False")),
        ({"rdzv_id": "mine"}, {"AZUREML_RUN_ID": "theirs"}, ("mine", "0", "0", "False")),
        ({}, {"AZ_BATCH_JOB_ID": "theirs"}, ("theirs", "0", "0", "False")),
        ({}, dict(zip(ELASTIC, ("old", "5", "5", "True"), strict=True)), ("none", "0", "0", "False")),
    ],
)
def test_a_worker_has_torchruns_marks(
    flags: dict[str, Any], environ: dict[str, str], expected: tuple[str, ...]
) -> None:
    """By them torch and libraries know that they were launched; what another run has left is replaced."""
    job = plan(*TRAIN, environ=environ, machine=TORCH, **flags)
    seen = render_environ(job, job.processes[0], environ)
    assert tuple(seen[name] for name in ELASTIC) == expected


def test_a_worker_of_torchrun_keeps_what_torchrun_told_it() -> None:
    """As a process of this launcher keeps what the launcher around it has said."""
    told = dict(zip(ELASTIC, ("job", "2", "5", "True"), strict=True))
    environ = {
        **told,
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    job = plan(*TRAIN, environ=environ, machine=TORCH)
    seen = render_environ(job, job.processes[0], environ)
    assert {name: seen[name] for name in ELASTIC} == told


MACROS = {
    "--out=x${local_rank}": "--out=x1",
    "$local_rank.log": "1.log",
    "$$${local_rank}": "$1",
    "$${local_rank} of $local_rank": "${local_rank} of 1",
    "$local_ranks $LOCAL_RANK ${local_rank": "$local_ranks $LOCAL_RANK ${local_rank",
    "$${local_rank}": "${local_rank}",
    "$HOME$$": "$HOME$$",  # no macro, so no word of torchrun's: in a shell's text $$ is a process
}


@pytest.mark.parametrize("word", MACROS)
def test_the_local_rank_in_an_argument_is_each_processes_own(word: str) -> None:
    """torchrun's macro in both spellings, and its way of escaping it; the rest is the command's affair."""
    job = plan(*TRAIN, word, nproc_per_node="2")
    assert job.processes[1].argv == (*TRAIN, MACROS[word])


@given(
    st.text(alphabet="$ {}_xlocarnk", max_size=12),
    st.lists(st.sampled_from(["$local_rank", "${local_rank}"])),
)
def test_an_argument_with_the_macro_reads_as_in_torchrun(text: str, macros: list[str]) -> None:
    """It is a `string.Template` there, in which local_rank alone has a value."""
    word = text.join(["", *macros, ""])
    whole = Template(word).safe_substitute(local_rank="1")
    assert expand_local_rank(word, 1) == (whole if names_local_rank(word) else word)
    assert names_local_rank(word) or whole == Template(word).safe_substitute()


def test_an_elastic_job_without_torch_is_an_error() -> None:
    """Neither the command's Python nor ours has it: status 69, with what asked for it."""
    status, code, text = refuse(*TRAIN, machine=NO_TORCH, nnodes="1:4", rdzv_endpoint="node0:29400")
    assert (status, code) == (69, "torch-missing")
    assert "1 to 4 nodes" in text and PYTHON in text
    assert "--max-restarts" in text


def test_torchrun_gets_seconds_without_a_unit() -> None:
    """Which it would not know."""
    job = plan(*TRAIN, machine=TORCH, engine="torchrun", nproc_per_node="2", monitor_interval="1.5m")
    assert agent_flags(job)["monitor_interval"] == "90"


def test_torchrun_that_was_asked_for_without_torch_can_be_left_out() -> None:
    """The launcher starts the processes itself; a fixed job on one node needs no other flag."""
    status, code, text = refuse(*TRAIN, machine=NO_TORCH, engine="torchrun")
    assert (status, code) == (69, "torch-missing")
    assert "or leave out --engine torchrun: " in text and "--max-restarts" not in text


def test_the_launchers_own_torch_does_where_the_commands_python_has_none() -> None:
    """The agent only has to start the command; which Python that has is the command's affair."""
    machine = {"packages": {PYTHON: [], "": [HAS_TORCH]}}
    job = plan(*TRAIN, machine=machine, max_restarts="1")
    assert job.agent is not None and job.agent.argv[0] == sys.executable
    assert job.agent.argv[-2:] == TRAIN


@pytest.mark.parametrize(
    "flags",
    [
        {"max_restarts": "3"},
        {"nnodes": "1:4", "rdzv_endpoint": "node0:29400"},
        {"nnodes": "2", "rdzv_backend": "c10d", "rdzv_endpoint": "node0:29400"},
        {"run_path": True},
    ],
)
def test_engine_process_refuses_what_only_torchrun_can_do(flags: dict[str, Any]) -> None:
    """It names the flags instead of leaving them out."""
    status, code, text = refuse(*TRAIN, machine=TORCH, engine="process", **flags)
    assert (status, code) == (64, "engine-conflict")
    assert "--engine process" in text and "only torchrun" in text


def test_engine_process_wins_over_a_platforms_words_for_torchrun() -> None:
    """The user wins: PET_MAX_RESTARTS and PET_RDZV_BACKEND yield to --engine process, the facts stay."""
    environ = {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "job-0",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_MAX_RESTARTS": "3",
    }
    assert plan(*TRAIN, environ=environ, machine=TORCH).allocation.ranks_at_start
    job = plan(*TRAIN, environ=environ, machine=TORCH, engine="process")
    assert job.engine == "process" and [process.rank for process in job.processes] == [2, 3]


def test_a_static_job_is_told_its_place() -> None:
    """torchrun's agent gets what the launcher found out, by flags that all its versions know."""
    flags = {**NODES, "engine": "torchrun"}
    job = plan(*TRAIN, machine=TORCH, nproc_per_node="2", **flags)
    assert agent_flags(job) == {
        "nnodes": "2",
        "nproc_per_node": "2",
        "node_rank": "1",
        "master_addr": "10.0.0.4",
        "master_port": "6105",
    }
    assert (job.mode, job.topology.world_size) == (Mode.SUPERVISE, 4)
    assert [process.rank for process in job.processes] == [2, 3]


def test_each_worker_starts_through_the_launcher() -> None:
    """An isolated Python of ours runs ``launcher run -- COMMAND``; what torchrun would replace is kept."""
    job = plan(PYTHON, "train.py", "$HOME", "$$", "${local_rank}", machine=TORCH, max_restarts="1")
    assert job.agent is not None
    worker = job.agent.argv[job.agent.argv.index("--no_python") + 1 :]
    assert worker[:4] == (sys.executable, "-I", "-S", WORKER)
    assert worker[4:7] == ("--own-threads", "run", "--")
    assert worker[7:] == (PYTHON, "train.py", "$$HOME", "$$$$", "$${local_rank}")


def test_what_each_process_gets_goes_with_the_worker() -> None:
    """GPUs and CPUs of a process are its own: the flags stand with it, and not with the agent."""
    machine = {**TORCH, "gpus": 4, "files": recorded_cpus("0-7"), "affinity": "0-7"}
    job = plan(*TRAIN, machine=machine, engine="torchrun", gpus_per_process="2", nproc_per_node="2")
    assert job.agent is not None
    worker = job.agent.argv[job.agent.argv.index("run") :]
    assert "--gpus-per-process=2" in worker
    assert "gpus_per_process" not in agent_flags(job)


def test_the_users_threads_are_kept() -> None:
    """OMP_NUM_THREADS of the user passes through agent and worker; else each process gets its own."""
    job = plan(*TRAIN, machine=TORCH, environ={"OMP_NUM_THREADS": "7"}, max_restarts="1")
    assert job.agent is not None and "--own-threads" not in job.agent.argv
    assert agent_environ(job, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_an_elastic_job_meets_where_it_is_told() -> None:
    """A range of nodes, c10d, the endpoint as typed, the address of this node, restarts; no ranks yet."""
    machine = {**TORCH, "addresses": {"eth0": ["10.0.0.4"]}}
    flags: dict[str, Any] = {"nnodes": "1:4", "nproc_per_node": "2", "max_restarts": "3", "rdzv_id": "job 7"}
    job = plan(*TRAIN, machine=machine, rdzv_endpoint="10.0.0.4:29400", **flags)
    assert agent_flags(job) == {
        "nnodes": "1:4",
        "nproc_per_node": "2",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "10.0.0.4:29400",
        "rdzv_conf": "is_host=true",
        "local_addr": "10.0.0.4",
        "max_restarts": "3",
        "rdzv_id": "job 7",
    }
    assert (job.processes, job.settings, job.topology.world_size) == ((), (), None)


def test_the_users_words_on_the_rendezvous_are_kept() -> None:
    """--rdzv-conf with is_host, --local-addr, another backend: handed on as they are."""
    flags: dict[str, Any] = {
        "nnodes": "2",
        "rdzv_backend": "etcd-v2",
        "rdzv_endpoint": "etcd:2379",
        "local_addr": "10.0.0.9",
    }
    found = agent_flags(plan(*TRAIN, machine=TORCH, rdzv_conf="timeout=60,is_host=false", **flags))
    assert found["rdzv_backend"] == "etcd-v2" and found["rdzv_endpoint"] == "etcd:2379"
    assert found["rdzv_conf"] == "timeout=60,is_host=false" and found["local_addr"] == "10.0.0.9"


def test_the_hosts_of_the_platform_give_the_local_address() -> None:
    """Where the platform lists the nodes, this one's entry is what the others know it by."""
    environ = {
        "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
        "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
    }
    machine = {**TORCH, "addresses": {"eth0": ["10.0.0.5"]}}
    found = agent_flags(plan(*TRAIN, environ=environ, machine=machine, max_restarts="1"))
    assert (found["rdzv_endpoint"], found["local_addr"]) == ("10.0.0.4:6105", "10.0.0.5")
    assert found["rdzv_conf"] == "is_host=false"


def test_a_loopback_endpoint_is_no_place_to_meet_for_several_nodes() -> None:
    """Each node would be a job of its own, unless the user has typed that all run on this machine."""
    local = {"rdzv_endpoint": "localhost:29400"}
    assert refuse(*TRAIN, machine=TORCH, environ={"LAUNCHER_NNODES": "1:4"}, **local)[1] == "contradiction"
    assert refuse(*TRAIN, machine=TORCH, environ={"PET_NNODES": "1:4"}, **local)[1] == "contradiction"
    assert refuse(*TRAIN, machine=TORCH, nnodes="2", rdzv_endpoint="node0:0", rdzv_backend="c10d")[1] == (
        "contradiction"
    )
    assert refuse(*TRAIN, machine=TORCH, nnodes="1:4")[1] == "missing-variable"
    line = ("torchrun", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29400", "t.py")
    text = refuse(*line, machine=TORCH, environ={"PET_NNODES": "2"})[2]
    assert "| --rdzv_endpoint with the address of node 0, or leave it out" in text


def test_what_the_user_types_of_several_nodes_on_this_machine_is_obeyed() -> None:
    """By its own flags or a command's; the agent's workers are told so, as they only see variables."""
    said = "is this machine: all nodes of this job run here"
    elastic = plan(*TRAIN, machine=TORCH, nnodes="1:4", rdzv_endpoint="127.0.0.1:29400")
    assert f"--rdzv-endpoint 127.0.0.1:29400 {said}" in elastic.notes
    assert "rdzv_conf" not in agent_flags(elastic), "the first agent of several here keeps the store"
    line = ("torchrun", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29400", "t.py")
    assert any(said in note for note in plan(*line, machine=TORCH).notes)
    fixed: dict[str, Any] = {"nnodes": "2", "node_rank": "1", "master_addr": "127.0.0.1"}
    assert f"--master-addr 127.0.0.1 {said}" in plan(*TRAIN, **fixed).notes
    agent = plan(*TRAIN, machine=TORCH, engine="torchrun", **fixed).agent
    assert agent is not None and "--master_addr=127.0.0.1" in agent.argv


@pytest.mark.parametrize("dest", ["nnodes", "node_rank", "master_addr"])
def test_a_variable_makes_no_job_of_several_nodes_on_this_machine(dest: str) -> None:
    """An image may have it: each of a platform's nodes would wait for others here, or be a job of its own."""
    fixed = {"nnodes": "2", "node_rank": "1", "master_addr": "127.0.0.1"}
    environ = {f"LAUNCHER_{dest.upper()}": fixed.pop(dest)}
    _, code, text = refuse(*TRAIN, environ=environ, **fixed)
    assert code == "contradiction"
    assert "several nodes on this machine: type --nnodes N, --node-rank R and --master-addr ADDRESS" in text


def test_a_platform_with_several_nodes_is_none_of_this_machines() -> None:
    """Whatever is typed: they are several machines."""
    fixed = {"nnodes": "2", "node_rank": "1", "master_addr": "127.0.0.1"}
    for environ in ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}, {"NODE_RANK": "1"}):
        _, code, text = refuse(*TRAIN, environ=environ, **fixed)
        assert (code, "several nodes on this machine" in text) == ("contradiction", False)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_agents_of_an_elastic_job_can_be_on_one_machine(host: str) -> None:
    """Where one node is enough and the user says so, with a note; torchrun finds out who keeps the store."""
    machine = {**TORCH, "addresses": {"lo": ["127.0.0.1"], "eth0": ["10.0.0.4"]}}
    job = plan(*TRAIN, machine=machine, nnodes="1:4", rdzv_endpoint=f"{host}:29400")
    flags = agent_flags(job)
    assert (flags["nnodes"], flags["rdzv_endpoint"]) == ("1:4", f"{host}:29400")
    assert "is_host" not in flags.get("rdzv_conf", "")
    assert any("all nodes of this job run here" in note for note in job.notes)


def test_workers_of_several_agents_on_one_machine_keep_their_master() -> None:
    """torchrun's nodes have met at it, so all of them reach it; elsewhere localhost is refused."""
    worker = {
        **dict(zip(ELASTIC, ("job", "0", "0", "False"), strict=True)),
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    job = plan(*TRAIN, environ=worker)
    assert (job.processes[0].rank, job.topology.master_addr) == (3, "127.0.0.1")
    others = {name: text for name, text in worker.items() if name not in ELASTIC}
    assert refuse(*TRAIN, environ=others)[1] == "contradiction"


def test_with_virtual_local_ranks_torchrun_starts_the_command_itself() -> None:
    """LOCAL_RANK is 0 in all workers there: nothing of ours could tell which of them it is."""
    job = plan(*TRAIN, "${local_rank}", "$$", machine=TORCH, virtual_local_rank=True, nproc_per_node="2")
    assert job.agent is not None
    at = job.agent.argv.index("--no_python")
    assert "--virtual_local_rank" in job.agent.argv[:at]
    assert job.agent.argv[at + 1 :] == (*TRAIN, "${local_rank}", "$$$$")
    assert {setting.name for setting in job.agent.settings} >= {"NODE_RANK", "PYTHONUNBUFFERED"}
    on = {"LAUNCHER_VIRTUAL_LOCAL_RANK": "true"}
    wrapped = plan("torchrun", "train.py", environ=on, machine=TORCH).agent
    assert wrapped is not None  # PET_* of a switch is a number for torchrun
    assert {s.value for s in wrapped.settings if s.name == "PET_VIRTUAL_LOCAL_RANK"} == {"1"}
    status, code, text = refuse(*TRAIN, machine=TORCH, virtual_local_rank=True, expand_args=True)
    assert (status, code) == (64, "arguments-per-process") and "--virtual-local-rank: torchrun" in text


def test_a_port_that_each_process_would_choose_is_no_port() -> None:
    """--standalone and port 0 are for processes that one launcher starts; PET_* mean nothing elsewhere."""
    environ = {**PER_RANK, "MASTER_ADDR": "127.0.0.1"}
    assert refuse(*TRAIN, environ=environ, rdzv_endpoint="127.0.0.1:0")[1] == "contradiction"
    assert refuse(*TRAIN, environ=environ, standalone=True)[1] == "contradiction"
    around = {**environ, "PET_STANDALONE": "1", "PET_RDZV_BACKEND": "etcd"}
    assert plan(*TRAIN, environ=around).topology.master_port == 6105


@pytest.mark.parametrize(
    ("endpoint", "addresses", "keeps"),
    [
        ("10.0.0.4:1", ["10.0.0.4"], "is_host=true"),
        ("10.0.0.4:1", ["10.0.0.5"], "is_host=false"),
        ("10.0.0.4:1", [], None),
        ("node0.example:1", ["10.0.0.5"], None),
    ],
)
def test_who_keeps_the_store_is_said_where_it_is_known(
    endpoint: str, addresses: list[str], keeps: str | None
) -> None:
    """By address, never by a name that may mean another node; torchrun finds out the rest."""
    machine = {**TORCH, "addresses": {"eth0": addresses} if addresses else {}}
    flags = agent_flags(plan(*TRAIN, machine=machine, nnodes="1:2", rdzv_endpoint=endpoint))
    assert flags.get("rdzv_conf") == keeps


def test_restarts_on_several_nodes_are_told_to_all_of_them() -> None:
    """--max-restarts with a fixed number of nodes: c10d, because static agents do not hear of each other."""
    found = agent_flags(plan(*TRAIN, machine=TORCH, max_restarts="2", **NODES))
    assert (found["nnodes"], found["rdzv_backend"], found["max_restarts"]) == ("2", "c10d", "2")
    assert "node_rank" not in found


def test_logs_and_patience_are_torchruns_own() -> None:
    """What it has flags for is handed on; its patience by a variable, which old versions overlook."""
    flags: dict[str, Any] = {
        "redirects": "3",
        "tee": "0:1",
        "log_dir": "/logs",
        "local_ranks_filter": "0",
        "grace": "7.5",
    }
    job = plan(*TRAIN, machine=TORCH, engine="torchrun", restarts="2", role="trainer", **flags)
    found = agent_flags(job)
    assert {name: found[name] for name in ("redirects", "tee", "log_dir", "local_ranks_filter")} == {
        "redirects": "3", "tee": "0:1", "log_dir": "/logs", "local_ranks_filter": "0",
    }  # fmt: skip
    assert (found["max_restarts"], found["role"]) == ("2", "trainer")
    assert agent_environ(job, {})["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "8"
    assert (job.supervision.restarts.most, job.supervision.log_dir) == (0, None)


def test_the_launcher_stays_where_it_asks_for_the_machine() -> None:
    """As the parent of torchrun's agent, of somebody else's process, and of what is a launcher itself."""
    cheap = {"AZ_BATCH_NODE_IS_DEDICATED": "false"}
    torchrun: dict[str, Any] = {"environ": cheap, "machine": TORCH, "engine": "torchrun", "nnodes": "1"}
    for job in (
        plan(*TRAIN, **torchrun),
        plan(*TRAIN, environ=PER_RANK, preemption="azure"),
        plan("accelerate", "launch", "train.py", environ=cheap),
    ):
        assert job.mode is Mode.SUPERVISE and job.supervision.preemption is not None
    for job in (
        plan(*TRAIN, environ={**PER_RANK, **cheap}),
        plan(*TRAIN, environ=PER_RANK),
    ):
        assert job.supervision.preemption is None


def test_the_agent_does_not_inherit_what_was_for_us_or_for_mpi() -> None:
    """Not the flags of this launcher, MPI's private state, a stale rank, nor torchrun's flags once more."""
    environ = {
        **PER_NODE,
        "PMIX_RANK": "1",
        "OMPI_MCA_ess_base_jobid": "1",
        "LAUNCHER_NNODES": "2",
        "LAUNCHER_NODE_RANK": "1",
        "LAUNCHER_MASTER_ADDR": "10.0.0.4",
        "PET_RDZV_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "RANK": "1",
    }
    left = agent_environ(
        plan(*TRAIN, environ=environ, machine=TORCH, scope="node", engine="torchrun"), environ
    )
    kept = {name for name in left if name in environ}
    assert kept == {*PER_NODE, "TORCHELASTIC_ENABLE_FILE_TIMER"}  # workers get the truth about the former


def test_process_1_of_a_container_stays_as_the_agents_parent() -> None:
    """With --init the agent is the only child, and nothing of ours comes between its output and the log."""
    job = plan(*TRAIN, machine=TORCH, engine="torchrun", nproc_per_node="4", init=True)
    assert job.mode is Mode.SUPERVISE and len(job.processes) == 4
    assert len(job.supervision.routes) == 1 and not job.supervision.prefix


# Commands that are launchers


def test_an_ipv6_master_has_brackets_only_on_a_command_line() -> None:
    """Composer's variable is PyTorch's, too; that of the others becomes torchrun's flag."""
    nodes = {**NODES, "master_addr": "fd00::4"}
    assert told(plan("composer", "train.py", **nodes))[1]["MASTER_ADDR"] == "fd00::4"
    assert told(plan("swift", "sft", **nodes))[1]["MASTER_ADDR"] == "[fd00::4]"


@pytest.mark.parametrize(
    ("line", "flags", "told_by"),
    [
        ("axolotl train a.yml", ("--launcher=torchrun",), "PET_"),
        ("axolotl train a.yml --launcher torchrun", ("--launcher=torchrun",), "PET_"),
        ("llamafactory-cli train a.yaml", (), ""),
        ("lmf train a.yaml lr=1", (), ""),
        ("swift sft --model a --dataset b", (), ""),
    ],
)
def test_programs_with_a_torchrun_inside_are_told_of_the_job(
    line: str, flags: tuple[str, ...], told_by: str
) -> None:
    """By the variables that they or their torchrun read; each of these would be a job per process."""
    words = tuple(line.split())
    job = plan(*words, machine={"gpus": 4}, **NODES)
    argv, variables = told(job)
    assert argv == (*words[:2], *flags, *words[2:])
    expected = {"NNODES": "2", "NPROC_PER_NODE": "4", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4"}
    assert {f"{told_by}{name}": text for name, text in expected.items()}.items() <= variables.items()
    assert ("FORCE_TORCHRUN" in variables) is (words[0] in ("llamafactory-cli", "lmf"))
    assert job.engine == {"lmf": "llamafactory", "llamafactory-cli": "llamafactory"}.get(words[0], words[0])


def test_torchtune_gets_torchruns_flags_for_several_processes() -> None:
    """With any of them a recipe for a single device stops."""
    argv, _ = told(
        plan("tune", "run", "full_finetune_distributed", "--config", "c", machine={"gpus": 4}, **NODES)
    )
    flags = ("--nnodes=2", "--node_rank=1", "--nproc_per_node=4", "--master_addr=10.0.0.4")
    assert argv[:6] == ("tune", "run", *flags) and argv[-3:] == ("full_finetune_distributed", "--config", "c")
    alone = ("tune", "run", "lora_finetune_single_device", "--config", "c")
    assert told(plan(*alone, machine={"gpus": 1}))[0] == alone


def test_xtuner_gets_its_variables() -> None:
    """It names the address and the port in its own way."""
    argv, variables = told(plan("xtuner", "train", "a.py", machine={"gpus": 4}, **NODES))
    assert argv == ("xtuner", "train", "a.py")
    expected = {"NNODES": "2", "NPROC_PER_NODE": "4", "NODE_RANK": "1", "ADDR": "10.0.0.4", "PORT": "6105"}
    assert expected.items() <= variables.items()


@pytest.mark.parametrize("rest", ["--model_name_or_path a", "--accelerate_config zero3 --bf16"])
def test_trl_hands_accelerates_flags_on(rest: str) -> None:
    """Its command line takes them; without them it starts ``accelerate launch`` in each process."""
    argv, _ = told(plan("trl", "sft", *rest.split(), machine={"gpus": 4}, **NODES))
    nodes = ["--num_machines=2", "--machine_rank=1", "--main_process_ip=10.0.0.4"]
    assert argv[:5] == ("trl", "sft", *nodes) and "--num_processes=8" in argv
    assert argv[-len(rest.split()) :] == tuple(rest.split())


@pytest.mark.parametrize("line", ["accelerate launch unread.py", "trl sft --config a.yaml"])
def test_accelerate_is_told_to_use_cpus_whatever_its_script_shows(line: str) -> None:
    """Without an accelerator its processes join a group that they do not use: each trains alone."""
    job = plan(*line.split(), machine={"gpus": 0}, nproc_per_node="2")
    assert told(job)[1]["ACCELERATE_USE_CPU"] == "true"
    assert "ACCELERATE_USE_CPU" not in told(plan(*line.split(), machine={"gpus": 2}))[1]


@pytest.mark.parametrize(
    "line",
    [
        "trl chat --model a",
        "axolotl preprocess a.yml",
        "axolotl train a.yml --launcher python",
        "llamafactory-cli export a.yaml",
        "swift build",
        "swift infer",
        "tune ls",
        "xtuner chat a",
    ],
)
def test_their_other_commands_are_no_launchers(line: str) -> None:
    assert find_launcher(line.split()) is None


@pytest.mark.parametrize(
    "call", [(row.name, call) for row in read_blocks(TABLE) for call in row.items], ids=str
)
def test_every_way_to_call_a_launcher_is_recognised(call: tuple[str, str]) -> None:
    """By name, by path, as a module, and as a script of a Python with options."""
    name, words = call[0], tuple(call[1].split())
    lines = [(PYTHON, *words), (PYTHON, "-u", "-X", "dev", *words)]
    if words[0] != "-m":
        path = ("/opt/env/bin/" + words[0], *words[1:])
        lines = [words, path, (PYTHON, *path)]
    for line in lines:
        found = find_launcher((*line, "--flag", "train.py"))
        assert found is not None
        assert (found.name, found.head) == (name, len(line))


@pytest.mark.parametrize(
    "line",
    [
        "bash -c torchrun",
        "python train.py torchrun",
        "python -m train -m torch.distributed.run",
        "accelerate config",
        "accelerate",
        "fabric consolidate",
        "lightning run app",
        "mpirunner",
        "env torchrun train.py",
        "python -c torchrun",
        "python",
        "torchrun.py",
    ],
)
def test_other_commands_are_no_launchers(line: str) -> None:
    """A launcher's name as an argument, in a shell, or another subcommand of the same program."""
    assert find_launcher(line.split()) is None


def test_torchruns_own_flags_are_the_users_word() -> None:
    """What stands on its command line is a fact of the plan, and nothing is added that says otherwise."""
    environ = {"LAUNCHER_NPROC_PER_NODE": "2"}
    job = plan(
        "torchrun", "--nproc-per-node=4", "-r", "3", "train.py", "--nnodes", "9", environ=environ, **NODES
    )
    argv, variables = told(job)
    assert argv == ("torchrun", "--nproc-per-node=4", "-r", "3", "train.py", "--nnodes", "9")
    assert variables == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.4",
        "PET_MASTER_PORT": "6105",
        "NODE_RANK": "1",
    }
    assert (job.engine, job.topology.world_size, job.processes) == ("torchrun", 8, ())
    assert job.mode is Mode.SUPERVISE


def test_a_torchrun_of_one_node_keeps_its_own_rendezvous() -> None:
    """It takes a free port by itself; what it lacks is the number of processes, and a name that resolves."""
    _, variables = told(plan("torchrun", "train.py", machine={"gpus": 4}))
    assert variables["PET_NPROC_PER_NODE"] == "4" and variables["PET_LOCAL_ADDR"] == "127.0.0.1"
    assert not {"PET_MASTER_PORT", "PET_NODE_RANK", "PET_RDZV_BACKEND"} & variables.keys()


def test_a_torchrun_that_gives_out_ranks_needs_no_index() -> None:
    """torchrun's most common line: c10d on a fixed number of nodes, the same words on every node."""
    line = (
        "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.4:29400 train.py"
    )
    machine = {"addresses": {"eth0": ["10.0.0.4"]}}
    argv, variables = told(plan(*line.split(), machine=machine))
    assert " ".join(argv) == line
    sockets = {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}
    assert variables == {"PET_RDZV_CONF": "is_host=true", "PET_LOCAL_ADDR": "10.0.0.4", **sockets}


def test_a_platforms_words_reach_the_torchrun_they_are_for() -> None:
    """Kubeflow's PET_* are kept where the command is torchrun, and taken away from any other launcher."""
    environ = {
        "PET_NNODES": "1:4",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "job-0:29400",
        "PET_MAX_RESTARTS": "3",
    }
    job = plan("torchrun", "train.py", environ=environ, machine={"hostname": "job-0"})
    left = agent_environ(job, environ)
    assert {name: left[name] for name in environ} == environ
    fixed = {**environ, "PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "job-0"}
    del fixed["PET_RDZV_BACKEND"], fixed["PET_MAX_RESTARTS"]
    left = agent_environ(plan("accelerate", "launch", "train.py", environ=fixed), fixed)
    assert [name for name in left if name.startswith("PET_")] == []


def test_accelerate_is_told_by_flags_in_front_of_its_own() -> None:
    """The last one counts there, so what the user wrote wins."""
    line = ("accelerate", "launch", "--config_file", "a.yaml", "train.py", "--num_machines", "7")
    argv, _ = told(plan(*line, machine={"gpus": 4}, **NODES))
    assert argv == (
        "accelerate",
        "launch",
        "--num_machines=2",
        "--machine_rank=1",
        "--main_process_ip=10.0.0.4",
        "--main_process_port=6105",
        "--num_processes=8",
        "--deepspeed_multinode_launcher=standard",
        *line[2:],
    )


def test_accelerates_total_is_the_worlds() -> None:
    """--num_processes counts all nodes together."""
    job = plan("accelerate", "launch", "--num-processes", "16", "train.py", machine={"gpus": 4}, **NODES)
    assert (job.topology.world_size, job.topology.local_size) == (16, 8)
    assert not any(word.startswith("--num_processes") for word in told(job)[0])


def test_accelerate_on_nodes_with_one_gpu_starts_ranks() -> None:
    """By itself it would start one process without a rank there; unless the user says what it is to be."""
    assert "--multi_gpu" in told(plan("accelerate", "launch", "train.py", machine={"gpus": 1}, **NODES))[0]
    line = ("accelerate", "launch", "--use_fsdp", "train.py")
    assert "--multi_gpu" not in told(plan(*line, machine={"gpus": 1}, **NODES))[0]
    assert "--multi_gpu" not in told(plan("accelerate", "launch", "train.py"))[0]


def test_deepspeed_gets_a_hostfile_on_several_nodes() -> None:
    """Without one it starts nothing there; without ssh it only counts its lines."""
    job = plan("deepspeed", "train.py", "--deepspeed", machine={"gpus": 8}, **NODES)
    argv, _ = told(job)
    flags = (
        "--hostfile={hostfile}",
        "--no_ssh",
        "--node_rank=1",
        "--master_addr=10.0.0.4",
        "--master_port=6105",
    )
    assert argv == ("deepspeed", *flags, "train.py", "--deepspeed")
    assert job.agent is not None
    assert job.agent.files == (("{hostfile}", "node0 slots=8\nnode1 slots=8\n"),)
    own = told(plan("deepspeed", "-H", "hosts", "train.py", machine={"gpus": 8}, **NODES))[0]
    assert not any(word.startswith("--hostfile") for word in own)


def test_deepspeed_on_one_node_sees_the_visible_gpus() -> None:
    """--num_gpus makes it overlook CUDA_VISIBLE_DEVICES, so it is left out where that is set."""
    assert told(plan("deepspeed", "train.py", machine={"gpus": 4}))[0][1] == "--num_gpus=4"
    visible = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert told(plan("deepspeed", "train.py", machine={"gpus": 4}, environ=visible))[0][1] == "train.py"


def test_fabric_takes_its_flags_anywhere() -> None:
    """click reads flags behind the script, too: those the user wrote there are the user's."""
    argv, _ = told(
        plan("fabric", "run", "train.py", "--devices", "2", "--lr", "1", machine={"gpus": 4}, **NODES)
    )
    assert argv[:4] == ("fabric", "run", "--num-nodes=2", "--node-rank=1")
    assert not any(word.startswith("--devices=") for word in argv)
    assert "--main-address=10.0.0.4" in argv and "--main-port=6105" in argv


def test_composer_is_told_by_variables() -> None:
    """It reads them where a flag is missing."""
    job = plan("composer", "-n", "2", "train.py", machine={"gpus": 4}, **NODES)
    assert told(job) == (
        ("composer", "-n", "2", "train.py"),
        {
            "NODE_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "10.0.0.4",
            "MASTER_PORT": "6105",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        },
    )


@pytest.mark.parametrize("name", ["mpirun", "mpiexec", "horovodrun"])
def test_launchers_of_whole_jobs_are_for_one_node(name: str) -> None:
    """On one node -np is added if it is missing; on several they would start the job as many times."""
    assert told(plan(name, PYTHON, "train.py", "-n", "5", machine={"gpus": 4}))[0][:4] == (
        name,
        "-np",
        "4",
        PYTHON,
    )
    assert told(plan(name, "-np", "2", PYTHON, "train.py"))[0] == (name, "-np", "2", PYTHON, "train.py")
    assert plan(name, "-np", "6", PYTHON).topology.world_size == 6
    status, code, text = refuse(name, "-np", "2", PYTHON, "train.py", **NODES)
    assert (status, code) == (64, "job-per-node") and "out: launcher run -- COMMAND" in text


def test_a_job_is_started_from_where_its_launcher_can_start_it() -> None:
    """In a batch script mpirun is run as it is: its own allocation knows the nodes; a script is not."""
    job = plan("mpirun", PYTHON, "train.py", environ=BATCH_SCRIPT)
    assert told(job) == (("mpirun", PYTHON, "train.py"), {})
    assert job.topology.master_addr == ""
    assert (job.topology.world_size, job.topology.node_count) == (None, None)
    assert refuse(*TRAIN, environ=BATCH_SCRIPT)[1] == "no-identity"


def test_the_launcher_pod_keeps_mpiruns_settings() -> None:
    """OMPI_MCA_* are what the operator tells mpirun there."""
    environ = {"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile", "OMPI_MCA_plm_rsh_agent": "/kubexec.sh"}
    left = agent_environ(plan("mpirun", PYTHON, "train.py", environ=environ), environ)
    assert left.keys() >= environ.keys()


@pytest.mark.parametrize(
    "command", [("torchrun", "train.py"), ("accelerate", "launch", "t.py"), ("mpirun", "t")]
)
def test_a_launcher_per_process_is_refused(command: tuple[str, ...]) -> None:
    """Two processes on this node would start two launchers, each for both."""
    status, code, text = refuse(*command, environ={**PER_RANK, "MASTER_ADDR": "10.0.0.4"})
    assert (status, code) == (
        64,
        "launcher-per-process",
    ) and "already started 2 processes on this node" in text
    assert f"the command is {command[0]}: it would start the processes of this node" in text


@pytest.mark.parametrize("given", [{"require_meeting": True}, {}], ids=["flag", "variable"])
def test_a_meeting_cannot_be_required_where_nobody_could_see_it(given: dict[str, Any]) -> None:
    """The launcher becomes each process, or a launcher that tells nothing of its own; by a variable, too."""
    environ = {} if given else {"LAUNCHER_REQUIRE_MEETING": "1"}
    per_rank = {**PER_RANK, "MASTER_ADDR": "10.0.0.4", **environ}
    status, code, text = refuse(*TRAIN, environ=per_rank, **given)
    assert (status, code) == (64, "cannot-look") and "let the platform start one launcher per node" in text
    _, code, text = refuse("composer", "-n", "2", "t.py", environ=environ, **given)
    assert code == "cannot-look" and "composer starts the processes" in text
    assert plan(*TRAIN, environ=environ, nproc_per_node="1", **given).engine == "process"


@pytest.mark.parametrize("command", [TRAIN, ("torchrun", "train.py")], ids=["engine", "command"])
def test_the_launcher_looks_whether_the_workers_of_an_agent_meet(command: tuple[str, ...]) -> None:
    """As the parent of the agent."""
    given: dict[str, Any] = {} if command != TRAIN else {"engine": "torchrun"}
    given |= {"machine": TORCH, "nnodes": "1", "nproc_per_node": "2"}
    job = plan(*command, **given, require_meeting=True, meeting_timeout="7")
    contact = job.supervision.contact
    assert job.mode is Mode.SUPERVISE and contact is not None
    assert (contact.of_agent, contact.required, contact.timeout_s) == (True, True, 7.0)


@pytest.mark.parametrize("command", ["torchrun", "deepspeed", "composer", "accelerate launch", "fabric run"])
def test_the_users_own_launcher_takes_part_in_the_roll_call(command: str) -> None:
    """Nodes with other numbers of processes would be two worlds."""
    two: dict[str, Any] = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.4", "nproc_per_node": "2"}
    job = plan(*command.split(), "train.py", machine=TORCH, **two)
    assert job.peers is not None and job.mode is Mode.SUPERVISE
    assert (
        plan(*command.split(), "train.py", machine=TORCH, **{**two, "nnodes": "1", "node_rank": "0"}).peers
        is None
    )


TWO_NODES = {
    "azure ml": {
        "AZUREML_NODE_COUNT": "2",
        "NODE_RANK": "N",
        "RANK": "N",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
    },
    "batch": {"AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5", "AZ_BATCH_TASK_ID": "t", "LAUNCHER_NODE_RANK": "N"},
    "mpirun": {**PER_NODE, "OMPI_COMM_WORLD_RANK": "N"},
    "slurm": {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "N",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "N",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "node[0-1]",
    },
    "flags": {"LAUNCHER_NNODES": "2", "LAUNCHER_NODE_RANK": "N"},
}
OTHER_COUNTS = {
    "torchrun --nnodes=1 t.py": "torchrun --nnodes 1 is for 1 node",
    "torchrun --nnodes 3 t.py": "torchrun --nnodes 3 is for 3 nodes",
    "torchrun --nnodes=1 --node_rank=0 --master_addr=localhost t.py": "torchrun --nnodes 1 is for 1 node",
    "torchrun --standalone t.py": "torchrun --standalone is for 1 node",
    "torchrun --standalone --nnodes=1 --nproc_per_node=2 t.py": "torchrun --standalone is for 1 node",
    "python -m torch.distributed.launch --nnodes 1 t.py": "torchrun --nnodes 1 is for 1 node",
    "deepspeed --num_nodes 1 t.py": "deepspeed --num_nodes 1 is for 1 node",
    "accelerate launch --num_machines 1 t.py": "accelerate --num_machines 1 is for 1 node",
    "fabric run --num-nodes=1 t.py": "fabric --num_nodes 1 is for 1 node",
}


@pytest.mark.parametrize("platform", TWO_NODES)
@pytest.mark.parametrize("command", OTHER_COUNTS)
def test_another_number_of_nodes_is_the_same_error_on_both(platform: str, command: str) -> None:
    """What the command says and what the platform says are named, and that it is to be left out."""
    said = []
    for node in "01":
        environ = {name: node if text == "N" else text for name, text in TWO_NODES[platform].items()}
        environ |= {"MASTER_ADDR": "10.0.0.4", "LAUNCHER_NPROC_PER_NODE": "2"}
        said.append(refuse(*command.split(), environ=environ))
    assert said[0] == said[1]
    assert said[0][1] == "contradiction"
    assert said[0][2].startswith(f"{OTHER_COUNTS[command]}, but the platform has 2 (")
    assert " | leave out --" in said[0][2]


@pytest.mark.parametrize("platform", [name for name in TWO_NODES if name not in ("flags", "mpirun")])
def test_one_node_is_refused_where_the_platform_has_started_two(platform: str) -> None:
    """--nnodes 1 and LAUNCHER_NNODES=1: the same on both nodes, with what helps."""
    for node in "01":
        environ = {name: node if text == "N" else text for name, text in TWO_NODES[platform].items()}
        environ["MASTER_ADDR"] = "10.0.0.4"
        assert refuse(*TRAIN, environ=environ, nnodes="1")[2].startswith("--nnodes 1 is for 1 node, but")
        named = refuse(*TRAIN, environ={**environ, "LAUNCHER_NNODES": "1"})[2]
        assert named.startswith("LAUNCHER_NNODES='1' is for 1 node, but") and "unset LAUNCHER_NNODES" in named
        assert "launcher run --source manual --standalone -- ..." in named
        alone = plan(*TRAIN, environ=environ, source="manual", standalone=True)
        assert alone.topology.world_size == 1


def test_a_node_rank_of_the_command_that_is_another_nodes_is_refused() -> None:
    """torchrun --node_rank 0, copied to both nodes: two nodes would have the same ranks."""
    environ = {"AZUREML_NODE_COUNT": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4"}
    status, code, text = refuse("torchrun", "--nnodes=2", "--node_rank=0", "t.py", environ=environ)
    assert (status, code) == (78, "contradiction")
    assert text.startswith(
        "torchrun --node_rank 0, but according to the platform this is node 1 (NODE_RANK='1')"
    )
    others = ("torchrun", "--nnodes=2", "--node_rank=0", "--master_addr=10.0.0.5", "t.py")
    assert plan(*others, environ=environ).engine == "torchrun"  # it numbers the nodes by itself


def test_numbers_that_are_the_platforms_are_no_contradiction() -> None:
    """The same number, a range around it, a part of the nodes, an image's defaults, half an allocation."""
    two = {"AZUREML_NODE_COUNT": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.4"}
    assert plan("torchrun", "--nnodes=2", "t.py", environ=two).topology.node_count == 2
    elastic = ("torchrun", "--nnodes=1:2", "--rdzv_backend=c10d", "--rdzv_endpoint=10.0.0.4:1", "t.py")
    assert plan(*elastic, environ=two).engine == "torchrun"
    four = {**two, "AZUREML_NODE_COUNT": "4", "NODE_RANK": "3"}
    part = ("torchrun", "--nnodes=2", "--node_rank=1", "--master_addr=10.0.0.6", "t.py")
    assert plan(*part, environ=four).engine == "torchrun"
    image = {"RANK": "0", "WORLD_SIZE": "1"}
    meet = ("torchrun", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=node0:1", "t.py")
    assert plan(*meet, environ=image).engine == "torchrun"


@pytest.mark.parametrize(("total", "nodes"), [("1", "2"), ("3", "2")])
def test_a_total_that_the_nodes_cannot_share_is_refused(total: str, nodes: str) -> None:
    """accelerate --num_processes and composer --world_size count the processes of all nodes."""
    flags = {"nnodes": nodes, "node_rank": "1", "master_addr": "10.0.0.4"}
    line = ("accelerate", "launch", "--num_processes", total, "t.py")
    assert refuse(*line, **flags)[:2] == (64, "flag-conflict")
    text = refuse("composer", "-n", "2", "--world_size", total, "t.py", **flags)[2]
    assert "expected 4 | leave --world_size out" in text


def test_flags_for_torchrun_are_refused_per_process_too() -> None:
    """--max-restarts where mpirun has started the ranks cannot be honoured; PET_* are nobody's wish there."""
    environ = {**PER_RANK, "MASTER_ADDR": "10.0.0.4"}
    assert refuse(*TRAIN, environ=environ, max_restarts="3")[1] == "launcher-per-process"
    assert refuse(*TRAIN, environ=environ, engine="torchrun")[1] == "launcher-per-process"
    assert plan(*TRAIN, environ={**environ, "PET_MAX_RESTARTS": "3"}).engine == "process"


def test_one_launcher_on_this_node_is_one_per_node() -> None:
    """Without GPUs a lone rank would be a process; a command that is a launcher says that it is a node."""
    environ = {**PER_NODE, "MASTER_ADDR": "10.0.0.4"}
    assert plan(*TRAIN, environ=environ).allocation.scope is Scope.PROCESS
    job = plan("torchrun", "--nproc_per_node=2", "train.py", environ=environ, node_rank="1", nnodes="2")
    assert (job.allocation.scope, job.topology.world_size) == (Scope.NODE, 4)


def test_a_worker_of_a_job_with_one_process_per_node_may_start_launchers() -> None:
    """A script of an outer launcher that calls torchrun itself: its process stands for its node."""
    outer = plan("bash", "job.sh", **NODES)
    environ = {setting.name: setting.value for setting in (*outer.settings, *outer.processes[0].settings)}
    job = plan("torchrun", "--nproc_per_node=2", "train.py", environ=environ)
    assert told(job)[1]["PET_NODE_RANK"] == "1"
    assert "LAUNCHER_LAUNCHED" in (job.agent.unset if job.agent else ())


@pytest.mark.parametrize(
    "flags",
    [
        {"nproc_per_node": "4"},
        {"nproc_per_node": "1", "nnodes": "2"},
        {"engine": "torchrun"},
        {"engine": "mpirun"},
        {"scope": "node"},
        {"nproc_per_node": "4", "scope": "node"},
    ],
)
def test_a_job_inside_a_rank_has_one_fix(flags: dict[str, Any]) -> None:
    """It leads to a plan, and nothing else is proposed beside it."""
    outer = plan("python", "train.py", nproc_per_node="2")
    environ = {setting.name: setting.value for setting in (*outer.settings, *outer.processes[1].settings)}
    with pytest.raises(UsageError) as found:
        plan("python", "inner.py", environ=environ, **flags)
    assert "rank 1 of another launcher" in str(found.value) and "--source manual" in str(found.value)
    assert len(found.value.problems) == 1 and not found.value.notes
    if len(flags) == 1 and "nproc_per_node" in flags:
        assert plan("python", "inner.py", environ=environ, source="manual", **flags).topology.world_size == 4


def test_workers_of_a_wrapped_launcher_see_no_lies() -> None:
    """Ranks of what the platform started would be the same in all of them: taken away."""
    environ = {**PER_NODE, "PMIX_RANK": "1", "RANK": "1", "SLURM_PROCID": "1", "MASTER_ADDR": "10.0.0.4"}
    left = agent_environ(
        plan("torchrun", "train.py", environ=environ, scope="node", nnodes="2", node_rank="1"), environ
    )
    assert {name for name in left if name in environ} == {"MASTER_ADDR"}
    assert left["NODE_RANK"] == "1"


def test_engine_process_runs_a_launcher_like_any_command() -> None:
    """The way out: as many of them as there are processes."""
    job = plan("torchrun", "train.py", machine={"gpus": 2}, engine="process")
    assert job.agent is None and len(job.processes) == 2
    with pytest.raises(UsageError, match="engine-conflict"):
        plan("torchrun", "train.py", engine="torchrun")


def test_a_module_given_by_flag_is_recognised() -> None:
    """launcher run -m torch.distributed.run is python -m torch.distributed.run."""
    job = plan("torch.distributed.run", "train.py", module=True, environ={"PYTHON_EXEC": PYTHON})
    assert job.engine == "torchrun" and told(job)[0][:3] == (PYTHON, "-m", "torch.distributed.run")


# PET_*


def test_pet_variables_come_last() -> None:
    """Flag, LAUNCHER_*, PET_*; not in a worker, and not where another source alone is to be believed."""
    pet, own = {"PET_MAX_RESTARTS": "1"}, {"LAUNCHER_MAX_RESTARTS": "2"}
    assert read_options({}, pet).text("max_restarts") == "1"
    assert read_options({}, {**pet, **own}).text("max_restarts") == "2"
    assert read_options({"max_restarts": "3"}, {**pet, **own}).text("max_restarts") == "3"
    for around in ("TORCHELASTIC_RUN_ID", "LAUNCHER_LAUNCHED"):
        assert read_options({}, {**pet, around: "1"}).get("max_restarts") is None
    assert read_options({"source": "slurm"}, pet).get("max_restarts") is None
    assert read_options({"source": "torch_agent"}, pet).text("max_restarts") == "1"


def test_a_malformed_pet_variable_is_named() -> None:
    """It is reported as it was set."""
    with pytest.raises(UsageError, match="PET_MAX_RESTARTS='x': expected an integer"):
        read_options({}, {"PET_MAX_RESTARTS": "x"})


@pytest.mark.slow
@pytest.mark.torch
def test_all_of_torchruns_flags_are_ours() -> None:
    """Every spelling of torch's parser is a spelling of ours, and takes a value where it does there."""
    assert importlib.util.find_spec("torch") is not None, "needs the framework environment"
    from torch.distributed.run import get_args_parser

    ours = {flag.dest: flag for flag in FLAGS}
    for action in get_args_parser()._actions:
        if not action.option_strings or action.dest == "help":
            continue
        flag = ours[action.dest]
        spellings = {flag.name, f"--{flag.dest}", flag.short}
        assert set(action.option_strings) <= spellings
        assert (flag.parse is None) is (action.nargs == 0)
        has_variable = type(action).__name__ in ("env", "check_env")
        is_read = "pet" in flag.kinds or flag.fact is not None
        assert is_read is has_variable or action.dest == "local_addr"


@pytest.mark.thorough
@pytest.mark.torch
def test_the_switches_of_torchrun_and_accelerate_are_theirs() -> None:
    """A flag that wrongly counts as one without a value would end their own flags too early, or too late."""
    from accelerate.commands.launch import launch_command_parser
    from torch.distributed.run import get_args_parser

    rows = {row.name: row for row in read_blocks(TABLE)}
    for name, parser in (("torchrun", get_args_parser()), ("accelerate", launch_command_parser())):
        switches = {
            spelling.lstrip("-").replace("-", "_")
            for action in parser._actions
            for spelling in action.option_strings
            if action.nargs == 0
        }
        assert set(rows[name].words("switches")) - {"use_env"} == switches
        known = {spelling.lstrip("-") for action in parser._actions for spelling in action.option_strings}
        assert read_pairs(rows[name], "facts").keys() <= {spelling.replace("-", "_") for spelling in known}


ENVIRONMENTS: list[dict[str, str]] = [
    {},
    PER_RANK,
    PER_NODE,
    BATCH_SCRIPT,
    {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "a:1", "PET_RDZV_BACKEND": "c10d"},
    {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a", "PET_RDZV_BACKEND": "etcd"},
    {"PET_STANDALONE": "1", "PET_MAX_RESTARTS": "1"},
    {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h"},
]
COMMANDS = (
    *("", "train.py", f"{PYTHON} train.py", "bash -c torchrun", PYTHON, f"{PYTHON} -m"),
    *(
        "torchrun",
        "torchrun --nnodes 1:2 --nproc_per_node x t",
        "torchrun --standalone -r3 t -n 4",
        "torchrun --",
    ),
    *(
        "accelerate launch --num_processes",
        "accelerate launch --num_processes 0 t",
        "deepspeed --num_gpus 2 t",
    ),
    *(
        "fabric run t --devices auto",
        "composer -n 3 t",
        "mpirun --mca",
        "mpirun -np x t",
        "horovodrun -np 3 t",
    ),
)


@given(
    environ=st.builds(
        lambda one, two: {**one, **two}, st.sampled_from(ENVIRONMENTS), st.sampled_from(ENVIRONMENTS)
    ),
    flags=st.dictionaries(
        st.sampled_from([flag for flag in FLAGS if flag.dest in SAMPLE or flag.parse is None]), st.booleans()
    ),
    command=st.sampled_from(COMMANDS),
    machine=st.sampled_from([{}, TORCH, NO_TORCH, {**TORCH, "gpus": 4}]),
)
def test_every_mixture_is_a_plan_or_a_named_error(
    environ: dict[str, str], flags: dict[Flag, bool], command: str, machine: dict[str, Any]
) -> None:
    """Flags, commands, platforms and machines in any combination: never a traceback."""
    typed: dict[str, Any] = {
        flag.dest: True if flag.parse is None else SAMPLE[flag.dest][int(second)]
        for flag, second in flags.items()
    }
    try:
        job = plan(*command.split(), environ=environ, machine=machine, **typed)
    except LauncherError:
        return
    describe(job, environ)
    assert job.agent is not None or job.processes
    assert job.agent is None or job.engine == job.agent.engine


def test_who_would_hear_nccl_starts_the_processes() -> None:
    """--verify-fabric needs them as its own children; where another launcher starts them, that is said."""
    job = plan(PYTHON, "train.py", machine=TORCH, verify_fabric=True, **NODES)
    assert (job.engine, job.warnings) == ("process", ())
    (warning,) = plan("torchrun", "train.py", verify_fabric=True, **NODES).warnings
    assert warning.startswith("--verify-fabric: torchrun starts the processes, so nothing is verified")


@pytest.mark.parametrize(
    ("command", "flags", "fix"),
    [
        ((PYTHON, "train.py"), {"engine": "torchrun"}, "leave out --engine torchrun ("),
        (("torchrun", "train.py"), {}, "leave out what calls for torchrun ("),
    ],
)
def test_a_framework_that_an_engine_does_not_serve_names_both(
    command: tuple[str, ...], flags: dict[str, str], fix: str
) -> None:
    """Either can be left out, and each is named."""
    _, code, text = refuse(*command, machine=TORCH, framework="horovod", nproc_per_node="2", **flags)
    assert code == "engine-conflict"
    assert fix in text and "or --framework horovod" in text
    assert ("--engine process starts torchrun" in text) is (command[0] == "torchrun")


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        (
            ("torchrun", "--nproc-per-node", "2", "t.py"),
            {"nproc_per_node": "4"},
            "torchrun --nproc_per_node 2",
        ),
        (("deepspeed", "--num_gpus", "1", "t.py"), {"nproc_per_node": "4"}, "deepspeed --num_gpus 1"),
        (("torchrun", "--max-restarts", "1", "t.py"), {"max_restarts": "3"}, "torchrun --max_restarts 1"),
        (
            ("accelerate", "launch", "--num_processes", "2", "t"),
            {"nproc_per_node": "4"},
            "accelerate --num_processes 2",
        ),
        (("mpirun", "-np", "2", "t"), {"nproc_per_node": "4"}, "mpirun --np 2"),
    ],
)
def test_a_flag_of_ours_that_the_commands_own_beats_is_warned_about(
    command: tuple[str, ...], flags: dict[str, Any], said: str
) -> None:
    """The number nearest to the script counts, and the other one would be believed."""
    ((name, value),) = flags.items()
    flag = f"--{name.replace('_', '-')} {value}"
    made = plan(*command, machine=TORCH, **flags)
    assert f"{flag}: no effect, {said} is closer to the script" in made.warnings
    again: dict[str, Any] = {name: said.rpartition(" ")[2]}
    same = plan(*command, machine=TORCH, **again)
    assert not any("nearer" in note for note in (*same.warnings, *same.notes))


@pytest.mark.parametrize(
    "front",
    [
        "env WORLD_SIZE=1 RANK=0",
        "nice env -u LOCAL_RANK",
        "env --unset=NODE_RANK",
        "nice env -i A=1",
        "env - A=1",
    ],
)
def test_variables_of_a_process_that_env_changes_are_warned_about(front: str) -> None:
    """They come behind ours, and are the same in all processes."""
    (warning,) = plan(*front.split(), *TRAIN, nproc_per_node="2").warnings
    assert warning.startswith(f"{front.removeprefix('nice ')} comes after the launcher") or "env" in warning
    assert not plan("env", "A=1", "MASTER_PORT=5", *TRAIN, nproc_per_node="2").warnings
    assert not plan(*front.split(), *TRAIN, nproc_per_node="1").warnings
    assert not plan(*TRAIN, "RANK=0", nproc_per_node="2").warnings


@pytest.mark.parametrize("word", ["--out=$RANK", "${LOCAL_RANK}", "$(RANK)", "a-$NODE_RANK.log"])
def test_a_variable_that_no_shell_replaces_is_warned_about(word: str) -> None:
    """A shell would have, and --expand-args does."""
    (warning,) = plan(*TRAIN, word, nproc_per_node="2").warnings
    assert warning.startswith(f"{word}: no shell replaces it") and "--expand-args" in warning
    assert not plan(*TRAIN, word, nproc_per_node="2", expand_args=True).warnings
    assert not plan("bash", "-c", f"echo {word}", nproc_per_node="2").warnings
    assert not plan(*TRAIN, "$HOME", "RANK", nproc_per_node="2").warnings


# --- one launcher for each rank


def test_a_launcher_stays_with_its_rank_where_it_is_asked_to() -> None:
    """It talks with those of the other ranks, wherever they are; by default it becomes the process."""
    stays = plan(*TRAIN, environ={**PER_RANK, "MASTER_ADDR": "10.0.0.4"}, stay=True)
    assert stays.allocation.scope is Scope.PROCESS and stays.mode is Mode.SUPERVISE
    assert stays.peers is not None and stays.peers.member == RANK and stays.supervision.prefix
    assert [process.rank for process in stays.processes] == [1]
    becomes = plan(*TRAIN, environ={**PER_RANK, "MASTER_ADDR": "10.0.0.4"})
    assert becomes.mode is Mode.EXEC and becomes.peers is None
    assert [process.settings for process in becomes.processes] == [one.settings for one in stays.processes]


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({**PER_RANK, MARKER: "1"}, {"stay": True}),  # a process of a launcher, which stays already
        (PER_RANK, {"stay": False}),
        ({**PER_RANK, "LAUNCHER_STAY": "0"}, {}),
    ],
)
def test_a_launcher_that_need_not_stay_is_gone(environ: dict[str, str], flags: dict[str, Any]) -> None:
    """Nothing is left of it."""
    found = plan(*TRAIN, environ={"MASTER_ADDR": "10.0.0.4", **environ}, **flags)
    assert found.mode is Mode.EXEC and found.peers is None


AZUREML_PER_NODE = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.4",
    "AZUREML_RUN_ID": "x",
}
"""One process per node, whose number nothing states: the PyTorch distribution of Azure ML."""


@pytest.mark.parametrize("environ", [AZUREML_PER_NODE, {**PER_NODE, "MASTER_ADDR": "10.0.0.4"}])
def test_a_launcher_stays_to_see_whether_the_rank_of_its_node_meets_the_others(
    environ: dict[str, str],
) -> None:
    """Alone on its node, each rank may be a job of its own, and no other launcher could see that."""
    stays = plan(*TRAIN, environ=environ)
    assert stays.allocation.scope is Scope.PROCESS and stays.mode is Mode.SUPERVISE
    assert stays.supervision.contact is not None and stays.supervision.contact.spans_nodes
    assert stays.peers is None and not stays.supervision.prefix  # neither a port nor a changed line
    assert "the launcher stays as its parent" in " ".join(stays.notes)
    asked = plan(*TRAIN, environ=environ, require_meeting=True)
    assert asked.supervision.contact is not None and asked.supervision.contact.required


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        (AZUREML_PER_NODE, {"meeting": False}),
        ({**AZUREML_PER_NODE, "LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}, {}),  # one of several
        ({**AZUREML_PER_NODE, MARKER: "1"}, {}),
        ({**AZUREML_PER_NODE, "LAUNCHER_STAY": "0"}, {}),
        ({**PER_RANK, "MASTER_ADDR": "10.0.0.4"}, {}),
    ],
)
def test_a_launcher_that_has_nothing_to_see_becomes_the_command(
    environ: dict[str, str], flags: dict[str, Any]
) -> None:
    """Without the check, in a process of a launcher, and where it is one of several launchers of a node."""
    assert plan(*TRAIN, environ=environ, **flags).mode is Mode.EXEC


def test_who_stays_alone_talks_to_nobody() -> None:
    """One rank has no others; with --no-peers they are left alone."""
    alone = {**PER_RANK, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    alone |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    one = plan(*TRAIN, environ=alone, stay=True)
    assert one.mode is Mode.SUPERVISE and one.peers is None and not one.supervision.prefix
    two = plan(*TRAIN, environ=PER_RANK, stay=True, peers=False, master_addr="10.0.0.4")
    assert two.mode is Mode.SUPERVISE and two.peers is None and two.supervision.prefix


def test_what_only_a_parent_can_do_is_said_where_there_is_none() -> None:
    """Who has typed it is warned; what an image says for all jobs is a note."""
    words = "no effect, the launcher becomes the command (--stay keeps it)"
    typed = plan(*TRAIN, environ=PER_RANK, master_addr="10.0.0.4", failure_file="f.json", prefix=True)
    assert f"--failure-file f.json, --prefix: {words}" in typed.warnings
    told = plan(*TRAIN, environ={**PER_RANK, "LAUNCHER_PREFIX": "1"}, master_addr="10.0.0.4")
    assert f"LAUNCHER_PREFIX='1': {words}" in told.notes and not told.warnings
    assert not plan(*TRAIN, environ=PER_RANK, master_addr="10.0.0.4", prefix=True, stay=True).warnings


@pytest.mark.parametrize(
    ("environ", "flags", "why"),
    [
        (PER_RANK, {"stay": True, "master_addr": "10.0.0.4"}, "the platform starts the processes"),
        ({}, {"nproc_per_node": "2", "engine": "torchrun"}, "torchrun starts the processes"),
        ({}, {"nproc_per_node": "2"}, None),
    ],
    ids=["platform", "torchrun", "launcher"],
)
def test_only_the_processes_of_a_launcher_can_be_forks(
    environ: dict[str, str], flags: dict[str, Any], why: str | None
) -> None:
    found = plan(*TRAIN, environ=environ, machine=TORCH, preload="numpy", **flags)
    assert any(why in line for line in (*found.warnings, *found.notes)) if why else found.supervision.preload


ALONE = {name: "0" if name.endswith("RANK") else "1" for name in PER_RANK}
ACTS = ("check", "no_python", "expand_args", "ssh")
"""Flags that are no part of a plan, or that depend on the command."""
WORDS = {"meeting_timeout": "60", "local_ranks_filter": "1", "metrics_port": "9400", "hosts": "10.0.0.4,x"}
WORDS |= {"scope": "node", "nproc_per_node": "3", "redirects": "3", "forward": "DISPLAY"}
AT_SCOPES: dict[str, tuple[tuple[str, ...], dict[str, str], dict[str, Any]]] = {
    "process": (TRAIN, PER_RANK, {"master_addr": "10.0.0.4"}),
    "process, init": (TRAIN, PER_RANK, {"master_addr": "10.0.0.4", "init": True}),
    "process, stays": (TRAIN, PER_RANK, {"master_addr": "10.0.0.4", "stay": True}),
    "process, alone": (TRAIN, ALONE, {}),
    "process, alone, asked": (TRAIN, ALONE, {"scope": "process"}),
    "process, alone, stays": (TRAIN, ALONE, {"stay": True}),
    "node, alone": (TRAIN, {}, {"nproc_per_node": "1"}),
    "node": (TRAIN, {}, {"nproc_per_node": "2"}),
    "nodes": (TRAIN, {}, {**NODES, "node_rank": "0", "nproc_per_node": "2"}),
    "torchrun": (TRAIN, {}, {"nproc_per_node": "2", "engine": "torchrun"}),
    "torchrun, alone": (TRAIN, {}, {"nproc_per_node": "1", "engine": "torchrun"}),
    "torchrun, init": (TRAIN, {}, {"nproc_per_node": "2", "engine": "torchrun", "init": True}),
    "torchrun, nodes": (TRAIN, {}, {**NODES, "nproc_per_node": "2", "engine": "torchrun"}),
    "torchrun's command": (("torchrun", "train.py"), {}, {"nproc_per_node": "2"}),
    "accelerate": (("accelerate", "launch", "train.py"), {}, {"nproc_per_node": "2"}),
    "accelerate, init": (("accelerate", "launch", "train.py"), {}, {"nproc_per_node": "2", "init": True}),
    "mpirun": (TRAIN, {"DISPLAY": ":0"}, {"nproc_per_node": "2", "engine": "mpirun"}),
}
MACHINE = {
    **TORCH,
    "gpus": 4,
    "modules": ["prometheus_client"],
    "mpiruns": {"mpirun": "/opt/mpi/bin/mpirun"},
    "mpirun": {"path": "/opt/mpi/bin/mpirun", "family": "Open MPI", "version": "5.0.7"},
}


@pytest.mark.slow
@pytest.mark.parametrize("scope", AT_SCOPES)
def test_no_flag_is_dropped_without_a_word(scope: str) -> None:
    """Each changes the plan, is refused, or is named in a warning that ``launcher run`` prints."""
    command, environ, base = AT_SCOPES[scope]

    def show(**flags: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return what the plan does, and its warnings."""
        job = plan(*command, environ=environ, machine=MACHINE, **{**base, **flags})
        document: dict[str, Any] = describe(job, environ)
        del document["notes"]
        if document["mode"] == "exec":
            del document["grace_s"]
        for part in (document, *document["processes"]):  # the number of restarts restarts nothing
            part["settings"] = [one for one in part["settings"] if one["name"] != MAX_RESTARTS]
        return document, job.warnings

    def honours(flag: Flag, value: str | bool, others: dict[str, Any]) -> bool:
        try:
            after, warnings = show(**{**others, flag.dest: value})
            return after != show(**others)[0] or any(flag.name[2:] in warning for warning in warnings)
        except LauncherError:
            return True

    before, _ = show()
    watch = before["supervision"]
    is_met = {"init", "stay", "progress_pattern"} if watch else set()  # a pattern is for the report of a hang
    is_met |= {"meeting"} if watch and watch["meeting_timeout_s"] else set()
    is_met |= {"peers"} if before["peers"] else set()
    is_met |= {"token_file"} if before["agent"] and before["agent"]["fleet"] else set()
    dropped = []
    for flag in FLAGS:
        if flag.dest in {*base, *ACTS, *is_met}:
            continue
        needed = NEEDS.get(flag.dest, ("", ""))[0].replace("engine", "")
        others = {needed: SAMPLE[needed][0]} if needed else {}
        values = (True, False) if flag.parse is None else (WORDS.get(flag.dest), *SAMPLE[flag.dest])
        if not any(honours(flag, value, others) for value in values if value is not None):
            dropped.append(flag.name)
    assert dropped == []


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"meeting_timeout": "60"}, "--meeting-timeout 60: no effect, the job has one process"),
        ({"require_meeting": True}, "--require-meeting: no effect, the job has one process"),
        (
            {"keep_going": True, "lost_after": "20"},
            "--lost-after 20, --keep-going: no effect, the launchers of this job have no control channel",
        ),
        (
            {"restarts": "2", "restart_delay": "1"},
            "--restarts 2, --restart-delay 1: no effect, the launcher becomes the command (--stay keeps it)",
        ),
        ({"monitor_interval": "1"}, "--monitor-interval 1: no effect, torchrun does not start the processes"),
    ],
)
def test_a_typed_flag_without_effect_is_a_warning(flags: dict[str, Any], why: str) -> None:
    """The same from a variable is a note: an image may set it for other jobs."""
    assert plan(*TRAIN, environ=ALONE, scope="process", **flags).warnings == (why,)
    variables = {f"LAUNCHER_{dest.upper()}": "1" if on is True else on for dest, on in flags.items()}
    from_image = plan(*TRAIN, environ={**ALONE, **variables}, scope="process")
    assert not from_image.warnings
    (note,) = [note for note in from_image.notes if ": no effect, " in note]
    assert note.partition(": no effect, ")[2] == why.partition(": no effect, ")[2]


def test_typed_and_untyped_flags_are_apart() -> None:
    """The warning names only what the user can take back."""
    job = plan(*TRAIN, environ={**PER_RANK, "LAUNCHER_TIMINGS": "1"}, master_addr="10.0.0.4", prefix=True)
    words = "no effect, the launcher becomes the command (--stay keeps it)"
    assert job.warnings == (f"--prefix: {words}",)
    assert f"LAUNCHER_TIMINGS='1': {words}" in job.notes


def test_one_rank_is_not_started_again_alone() -> None:
    """The others would wait for a process that does not know them."""
    status, code, text = refuse(*TRAIN, environ=PER_RANK, master_addr="10.0.0.4", restarts="2")
    assert (status, code) == (64, "restarts-need-one-launcher") and "one launcher per process" in text
    assert "--scope node" not in text


AZURE_ML = {
    "AZUREML_NODE_COUNT": "2",
    "AZUREML_RUN_ID": "run",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "6105",
}
SRUN = {
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "n[0-1]",
}


@pytest.mark.parametrize("environ", [AZURE_ML, SRUN], ids=["azure-ml", "slurm"])
def test_a_launcher_of_the_only_process_of_its_node_restarts_it(environ: dict[str, str]) -> None:
    """One per node and one per process are the same; only who asks for restarts makes a difference."""
    found = plan(*TRAIN, environ=environ, restarts="2")
    assert found.allocation.scope is Scope.NODE and found.supervision.restarts.most == 2
    assert found.peers is not None and found.peers.member == NODE
    assert plan(*TRAIN, environ=environ).allocation.scope is Scope.PROCESS


def test_a_task_that_shares_nodes_is_not_taken_for_a_node() -> None:
    """srun -N2 -n3: this node has one task, and the other two."""
    uneven = {**SRUN, "SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_STEP_TASKS_PER_NODE": "2,1"}
    status, code, _ = refuse(*TRAIN, environ=uneven, restarts="2")
    assert (status, code) == (64, "restarts-need-one-launcher")


def test_a_process_of_mpi_is_taken_for_a_node_only_if_the_user_says_so() -> None:
    """It may call MPI_Init, which works only in the process that mpirun has started."""
    status, code, text = refuse(*TRAIN, environ=PER_NODE, master_addr="10.0.0.4", restarts="2")
    assert (status, code) == (64, "restarts-need-one-launcher") and "--scope node" in text
    status, code, text = refuse(*TRAIN, environ=PER_NODE, master_addr="10.0.0.4", restarts="2", spares="1")
    assert (status, code) == (64, "no-spares-here") and "--scope node" in text
    found = plan(*TRAIN, environ=PER_NODE, master_addr="10.0.0.4", restarts="2", scope="node")
    assert found.allocation.scope is Scope.NODE and found.supervision.restarts.most == 2


RULES = {"restarts": "3", "restarts_per_cause": "1", "attempts_file": "f", "progress_file": "x"}


@pytest.mark.parametrize(
    ("command", "flags"),
    [(TRAIN, {"engine": "torchrun", **RULES}), (("torchrun", "train.py"), RULES)],
    ids=["engine", "command"],
)
def test_torchrun_restarts_by_its_own_rules(command: tuple[str, ...], flags: dict[str, str]) -> None:
    """Rules of ours that it does not know are refused; those of an image are noted."""
    status, code, text = refuse(*command, machine=TORCH, **flags)
    assert (status, code) == (64, "flag-conflict")
    assert "--restarts-per-cause 1, --progress-file x, --attempts-file f does nothing" in text
    typed = {name: value for name, value in flags.items() if name in ("engine", "restarts")}
    environ = {"LAUNCHER_RESTARTS_PER_CAUSE": "1"}
    noted = plan(*command, machine=TORCH, environ=environ, **typed)
    assert any("LAUNCHER_RESTARTS_PER_CAUSE='1': no effect, torchrun" in note for note in noted.notes)


WORKER_SEES = {
    **ONE_RUN,
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_the_attempt_is_that_of_the_nearest_launcher() -> None:
    """A value from outside is not inherited; a worker of torchrun has the count of its agent."""
    outside = {"LAUNCHER_ATTEMPT": "7"}
    found = plan(*TRAIN, environ=outside)
    assert "LAUNCHER_ATTEMPT" not in render_environ(found, found.processes[0], outside)
    for count, seen in (("0", None), ("2", "2")):
        worker = {**WORKER_SEES, "TORCHELASTIC_RESTART_COUNT": count, **outside}
        found = plan(*TRAIN, environ=worker)
        assert render_environ(found, found.processes[0], worker).get("LAUNCHER_ATTEMPT") == seen


@pytest.mark.parametrize("flags", [{"restarts": "2"}, {"restarts": "2", "spares": "1"}])
def test_one_rank_on_each_node_is_started_again_by_its_launcher(flags: dict[str, Any]) -> None:
    """Srun --ntasks-per-node=1 with one GPU: the launcher is the only one of its node, so it stays."""
    step = {
        "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_NODES": "4",
        "SLURM_STEP_NODELIST": "node[0-3]", "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    }  # fmt: skip
    assert plan(*TRAIN, environ=step).peers is None
    made = plan(*TRAIN, environ=step, **flags)
    assert made.mode is Mode.SUPERVISE and made.topology.world_size == 4 - int(flags.get("spares", "0"))
