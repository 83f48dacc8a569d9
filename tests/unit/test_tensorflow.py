"""TensorFlow's roles, ports and TF_CONFIG: all nodes agree, and what makes no cluster is refused by name."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.main import dispatch
from launcher.cluster.address_exchange import meet
from launcher.core.errors import LauncherError, NotReady
from launcher.core.frozen import replace
from launcher.core.model import Companion, Meeting, Mode, Plan, PlannedProcess
from launcher.frameworks.tensorflow import Cast, plan_cast
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ
from launcher.process.port_checks import check_ports
from launcher.servers import tf_server
from launcher.servers.tf_server import OPEN, REFUSED, SILENT, PortWatch, split

HOSTS = tuple(f"10.0.0.{index + 4}" for index in range(8))


def make_host(gpu_count: int = 0) -> Host:
    """Return a machine with some GPUs."""
    return replay({"gpus": gpu_count})


def cast(node_count: int, **flags: str | bool) -> Cast:
    """Return the tasks that flags ask for."""
    return plan_cast(read_options(flags, {}), node_count)


def by_node(tasks: Cast) -> str:
    """Return e.g. ``chief 0:0 worker 0:1``: each task and its node."""
    return " ".join(f"{task.role} {task.index}:{task.node}" for task in tasks.tasks)


def plan(
    node_rank: int = 0, node_count: int = 1, environ: Mapping[str, str] | None = None, **flags: str | bool
) -> Plan:
    """Return the plan of one node of a job whose nodes are known."""
    flags = {"nnodes": str(node_count), "node_rank": str(node_rank), **flags}
    if node_count > 1:
        flags["hosts"] = ",".join(HOSTS[:node_count])
    environ = environ or {}
    return plan_job(environ, make_host(), read_options(flags, environ), ("./train",))


def configs(job: Plan) -> dict[str, Any]:
    """Return the TF_CONFIG of every process of a plan, by the name of its task."""
    every: tuple[Companion | PlannedProcess, ...] = (*job.companions, *job.processes)
    texts = [render_environ(job, one, {}).get("TF_CONFIG") for one in every]
    found = [json.loads(text) for text in texts if text]
    return {"{type} {index}".format(**one["task"]): one for one in found}


# --- which task is where


@pytest.mark.parametrize(
    ("node_count", "flags", "expected"),
    [
        (3, {"worker_count": "3"}, "worker 0:0 worker 1:1 worker 2:2"),
        (2, {"worker_count": "3"}, "worker 0:0 worker 1:0 worker 2:1"),
        (3, {"chief": True}, "chief 0:0 worker 0:1 worker 1:2"),
        (2, {"chief": True, "evaluator": True}, "chief 0:0 worker 0:1 evaluator 0:0"),
        (4, {"parameter_server_count": "1"}, "chief 0:0 worker 0:0 worker 1:1 worker 2:2 ps 0:3"),
        (1, {"parameter_server_count": "1", "worker_count": "2"}, "chief 0:0 worker 0:0 worker 1:0 ps 0:0"),
        (2, {"parameter_server_count": "1", "tf1": True}, "worker 0:0 ps 0:1"),
        (2, {"parameter_server_count": "1", "tf1": True, "chief": True}, "chief 0:0 worker 0:1 ps 0:0"),
        (
            7,
            {"roles": "chief=0 ps=1-2 worker=3-6"},
            "chief 0:0 worker 0:3 worker 1:4 worker 2:5 worker 3:6 ps 0:1 ps 1:2",
        ),
        (2, {"roles": "worker=1,1 ps=0"}, "chief 0:0 worker 0:1 worker 1:1 ps 0:0"),
        (2, {"roles": "worker=1,0"}, "worker 0:1 worker 1:0"),
    ],
)
def test_the_stated_rule_places_the_tasks(
    node_count: int, flags: dict[str, str | bool], expected: str
) -> None:
    """Those that compute evenly and in order, servers where the fewest are, coordinator on node 0."""
    assert by_node(cast(node_count, **flags)) == expected


@pytest.mark.parametrize(
    ("node_count", "flags", "code"),
    [
        (2, {"roles": "worker=0-1", "worker_count": "2"}, "flag-conflict"),
        (2, {"roles": "worker=0-2"}, "roles-outside"),
        (2, {"roles": "chief=0,1 worker=0"}, "roles"),
        (2, {"roles": "evaluator=0,1 worker=0"}, "roles"),
        (1, {"roles": "ps=0"}, "roles"),
        (1, {"roles": "chief=0 ps=0"}, "roles"),
        (1, {"roles": "evaluator=0"}, "roles"),
        (1, {"worker_count": "0"}, "roles"),
        (4, {"worker_count": "3"}, "roles-idle-node"),
        (2, {"roles": "worker=0"}, "roles-idle-node"),
        (2, {"parameter_server_count": "1", "chief": False}, "no-chief"),
        (2, {"worker_count": "4", "tf_port": "65535"}, "roles"),
    ],
)
def test_roles_that_make_no_job_are_refused(node_count: int, flags: dict[str, str | bool], code: str) -> None:
    """With what was asked, what is wrong with it, and what to do."""
    with pytest.raises(LauncherError) as refused:
        cast(node_count, **flags)
    (problem,) = refused.value.problems
    assert problem.code == code and problem.fix
    assert "--" in problem.what


@pytest.mark.parametrize(
    "text", ["worker", "worker=", "master=0", "worker=1-0", "worker=0 worker=1", "ps=x", " "]
)
def test_malformed_roles_are_refused(text: str) -> None:
    """Each role once, nodes by index."""
    with pytest.raises(LauncherError) as refused:
        read_options({"roles": text}, {})
    assert refused.value.problems[0].code == "malformed-flag"


@given(
    node_count=st.integers(1, 8),
    workers=st.integers(0, 12),
    servers=st.integers(0, 4),
    chief=st.booleans(),
    evaluator=st.booleans(),
    tf1=st.booleans(),
)
def test_nodes_agree_and_ports_are_their_own(
    node_count: int, workers: int, servers: int, chief: bool, evaluator: bool, tf1: bool
) -> None:
    """All nodes give the same cluster, every task is somebody's once, and no address has two tasks."""
    flags: dict[str, str | bool] = {
        "worker_count": str(workers),
        "parameter_server_count": str(servers),
        **({"chief": True} if chief else {}),
        **({"evaluator": True} if evaluator else {}),
        **({"tf1": True} if tf1 else {}),
    }
    try:
        jobs = [plan(node, node_count, None, **flags) for node in range(node_count)]
    except LauncherError as error:
        assert {problem.code for problem in error.problems} <= {"roles", "roles-idle-node"}
        return
    tasks = [(name, config) for job in jobs for name, config in configs(job).items()]
    clusters = {json.dumps(config["cluster"]) for _, config in tasks}
    assert len(clusters) == 1
    cluster = json.loads(clusters.pop())
    expected = [f"{role} {index}" for role, items in cluster.items() for index in range(len(items))]
    assert sorted(name for name, _ in tasks) == sorted(expected + ["evaluator 0"] * evaluator)
    addresses = [address for items in cluster.values() for address in items]
    assert max(Counter(addresses).values()) == 1
    mine = [
        f"{HOSTS[node] if node_count > 1 else '127.0.0.1'}:{port}"
        for node, job in enumerate(jobs)
        for port, _ in job.ports
    ]
    assert sorted(mine) == sorted(addresses)
    assert {process.rank for job in jobs for process in job.processes} == set(
        range(jobs[0].topology.world_size or 0)
    )
    assert len(cluster.get("chief", ())) == int(chief or bool(servers and not tf1))


# --- who runs what


def test_a_coordinator_is_all_that_the_user_writes() -> None:
    """Workers and servers run TensorFlow's server, chief and evaluator the command; the chief is the rank."""
    job = plan(parameter_server_count="1", worker_count="2", evaluator=True)
    lines = {one.name: one.argv for one in job.companions}
    assert list(lines) == ["worker 0", "worker 1", "ps 0", "evaluator 0"]
    assert [lines[name][1].endswith("servers/tf_server.py") for name in list(lines)[:3]] == [True] * 3
    assert lines["evaluator 0"] == ("./train",)
    assert [process.argv for process in job.processes] == [("./train",)]
    assert configs(job)["chief 0"]["task"] == {"type": "chief", "index": 0}
    assert all(config["environment"] == "cloud" for config in configs(job).values())
    assert [one.finishes for one in job.companions] == [False, False, False, True]


def test_every_task_runs_the_command_where_that_is_asked() -> None:
    """--tf-server script: the command knows what to do in each role."""
    job = plan(parameter_server_count="1", worker_count="1", tf_server="script")
    assert {one.argv for one in job.companions} == {("./train",)}


def test_companions_have_nothing_of_a_rank() -> None:
    """Also where mpirun has left its own names around."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMIX_RANK")
    environ = dict.fromkeys(names, "0") | {"WORLD_SIZE": "1", "SLURM_JOB_ID": "1", "SLURM_NTASKS": "1"}
    job = plan_job(
        environ,
        make_host(),
        read_options(
            {
                "source": "manual",
                "nnodes": "1",
                "node_rank": "0",
                "worker_count": "1",
                "parameter_server_count": "1",
            },
            environ,
        ),
        ("./train",),
    )
    for one in job.companions:
        assert not set(render_environ(job, one, environ)) & {
            *names,
            "NODE_RANK",
            "GROUP_RANK",
            "JAX_PROCESS_ID",
        }


def test_a_node_without_the_chief_watches_it() -> None:
    """The servers there end by themselves; on the chief's node the launcher ends them."""
    chiefs, servers = (plan(node, 2, roles="chief=0 worker=1 ps=1") for node in range(2))
    assert [one.name for one in chiefs.companions] == ["watch"]
    assert chiefs.companions[0].argv[1:6] == ("-I", "-S", tf_server.__file__, "--while", f"{HOSTS[1]}:2222")
    assert [one.argv[2:] for one in servers.companions] == [
        ("--until", f"{HOSTS[0]}:2222", "--wait", "900")
    ] * 2
    assert servers.processes == () and servers.mode is Mode.SUPERVISE


def test_an_evaluator_on_a_node_of_its_own_is_ended_when_the_chief_is_gone() -> None:
    """Its command runs below a program that looks."""
    (evaluator,) = plan(1, 2, roles="chief=0 worker=0 evaluator=1", grace="7").companions
    assert evaluator.argv[4:] == (
        *("--until", f"{HOSTS[0]}:2222,{HOSTS[0]}:2223", "--wait", "900", "--linger", "7", "--"),
        "./train",
    )
    (evaluator,) = plan(1, 2, roles="chief=0 worker=0 evaluator=1", shutdown_timeout="9").companions
    assert evaluator.argv[8:10] == ("--linger", "9")


def test_one_worker_per_node_has_all_its_gpus() -> None:
    """MultiWorkerMirroredStrategy uses all that it sees."""
    flags = {"nnodes": "1", "node_rank": "0", "framework": "tensorflow"}
    job = plan_job({}, make_host(gpu_count=8), read_options(flags, {}), ("./train",))
    assert len(job.processes) == 1
    assert configs(job)["worker 0"]["cluster"] == {"worker": ["127.0.0.1:2222"]}


def test_tasks_that_share_a_node_share_its_gpus() -> None:
    """TensorFlow takes all memory of every GPU that it sees: a server beside a worker must see none."""
    flags: dict[str, str | bool] = {"worker_count": "2", "parameter_server_count": "1"}
    job = plan_job({}, make_host(gpu_count=4), read_options(flags, {}), ("./train",))
    seen = {one.name: render_environ(job, one, {}).get("CUDA_VISIBLE_DEVICES") for one in job.companions}
    assert seen == {"worker 0": "0,1", "worker 1": "2,3", "ps 0": "-1"}
    assert render_environ(job, job.processes[0], {})["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.parametrize(
    ("visible", "gpus", "workers", "expected"),
    [(None, 1, 2, ["0", "0"]), (None, 2, 3, ["0", "1", "0"]), ("5,7", 2, 3, ["5", "7", "5"])],
)
def test_more_tasks_than_gpus_have_one_each(
    visible: str | None, gpus: int, workers: int, expected: list[str]
) -> None:
    """Several share a GPU, of which none then takes all memory; what the user says of that stays."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    options = read_options({"nnodes": "1", "worker_count": str(workers)}, {})
    job = plan_job(environ, make_host(gpu_count=8 if visible else gpus), options, ("./train",))
    seen = [render_environ(job, one, environ) for one in job.processes]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == expected
    assert {one["TF_FORCE_GPU_ALLOW_GROWTH"] for one in seen} == {"true"}
    kept = render_environ(job, job.processes[0], {**environ, "TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert kept["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"


def test_tasks_that_have_a_gpu_each_take_its_memory() -> None:
    """Nothing is shared."""
    options = read_options({"nnodes": "1", "worker_count": "2"}, {})
    job = plan_job({}, make_host(gpu_count=2), options, ("./train",))
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in render_environ(job, job.processes[0], {})


def test_nodes_that_nobody_has_listed_meet_at_the_master() -> None:
    """The first plan says where, the second has what they told, or the start signal has."""
    flags: dict[str, str | bool] = {"nnodes": "2", "node_rank": "1", "master_addr": "10.0.0.4"}
    options = read_options({**flags, "framework": "tensorflow"}, {})
    first = plan_job({}, make_host(), options, ("./train",))
    assert first.meeting == Meeting("10.0.0.4", 6105, 1, 2, 1, 2, 900.0, at_start=True)
    alone = read_options({**flags, "framework": "tensorflow", "peers": False}, {})
    assert plan_job({}, make_host(), alone, ("./train",)).meeting == replace(first.meeting, at_start=False)
    assert configs(first)["worker 1"]["cluster"] == {"worker": ["<node 0>:2222", "<node 1>:2222"]}
    second = plan_job({}, make_host(), options, ("./train",), met=("10.0.0.4", "10.0.0.5"))
    assert second.meeting is None
    assert configs(second)["worker 1"]["cluster"] == {"worker": ["10.0.0.4:2222", "10.0.0.5:2222"]}


def test_workers_of_torchrun_meet_beside_its_agent() -> None:
    """The agent listens at MASTER_PORT as long as they run."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }
    options = read_options({"framework": "tensorflow"}, environ)
    job = plan_job(environ, make_host(), options, ("./train",))
    assert job.meeting is not None and job.meeting.port == 29501


def test_uneven_nodes_are_told_about() -> None:
    """Nothing says which ranks the other node has."""
    environ = {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.4",
    }
    flags: dict[str, str | bool] = {"framework": "tensorflow", "nnodes": "2", "scope": "process"}
    with pytest.raises(LauncherError) as refused:
        plan_job(environ, make_host(), read_options(flags, environ), ("./train",))
    assert refused.value.problems[0].code == "tf-config-unknown"


def meet_all(meetings: list[Meeting]) -> list[tuple[str, ...] | str]:
    """Return what each launcher of a job is told, or the code of what it says."""

    def attend(meeting: Meeting) -> tuple[str, ...] | str:
        try:
            return meet(meeting, {})
        except NotReady as error:
            return error.problems[0].code

    with ThreadPoolExecutor(len(meetings)) as pool:
        return list(pool.map(attend, meetings))


def intrude(port: int) -> None:
    """Say what is no word of a launcher, as soon as somebody listens."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with suppress(OSError), create_connection(("127.0.77.2", port), 1) as server:
            server.sendall(b'{"job": [2, 4], "member": 9, "node": 0}\n')
            return


def test_launchers_tell_each_other_their_addresses() -> None:
    """The last comes first, two are of one node, and strangers are not listened to."""
    port = Host().free_port()
    meetings = [Meeting("127.0.77.2", port, member, 4, member // 2, 2, 20.0) for member in (3, 2, 1, 0)]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(intrude, port)
        assert meet_all(meetings) == [("127.0.77.2", "127.0.0.1")] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("members", "address"), [((0, 1), "127.0.77.2"), ((0, 1, 2), "127.0.77.2")])
def test_launchers_that_do_not_meet_say_so(members: tuple[int, ...], address: str) -> None:
    """One does not come; two nodes come from one address."""
    port = Host().free_port()
    meetings = [Meeting(address, port, member, 3, member, 3, 1.0) for member in members]
    assert meet_all(meetings) == ["peers-missing"] * len(members)


@pytest.mark.parametrize("flags", [{"worker_count": "2"}, {"tf1": True}, {"tf_port": "2300"}])
def test_flags_of_tensorflow_are_not_for_another_framework(flags: dict[str, str | bool]) -> None:
    """Who names another one has made a mistake, and one of the two would be ignored."""
    with pytest.raises(LauncherError) as refused:
        read_options({"framework": "horovod", **flags}, {})
    assert refused.value.problems[0].code == "flag-conflict"
    assert read_options(flags, {"LAUNCHER_FRAMEWORK": "torch"}).framework == "tensorflow"


def test_ports_end_without_roles_too() -> None:
    """Two processes on each node, and one port."""
    with pytest.raises(LauncherError, match="65536"):
        plan(0, 2, framework="tensorflow", nproc_per_node="2", tf_port="65535")


def test_an_evaluator_needs_no_port() -> None:
    """It is in no cluster: the last port is a worker's."""
    job = plan(0, 1, worker_count="1", evaluator=True, tf_port="65535")
    assert job.ports == ((65535, "worker 0"),)
    with pytest.raises(LauncherError, match="2 tasks that listen, and the last would listen on port 65536"):
        plan(0, 1, worker_count="2", evaluator=True, tf_port="65535")


def test_a_server_of_tensorflow_1_is_not_waited_for() -> None:
    """It joins for ever: only an evaluator has something to do when the workers have ended."""
    flags: dict[str, str | bool] = {"roles": "worker=0 ps=0 evaluator=0", "tf1": True}
    job = plan_job({}, make_host(), read_options(flags, {}), ("./train",))
    assert {one.name: one.finishes for one in job.companions} == {"ps 0": False, "evaluator 0": True}


def test_roles_need_one_launcher_per_node() -> None:
    """Under an mpirun that has started two processes on a node, each would start all tasks of it."""
    environ = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    }
    with pytest.raises(LauncherError) as refused:
        asked = read_options({"worker_count": "2", "chief": True}, environ)
        plan_job(environ, make_host(), asked, ("./train",))
    (problem,) = refused.value.problems
    assert problem.code == "launcher-per-process"
    said = "--worker-count 2, --chief: the launcher would start the processes of this node, but"
    assert problem.what.startswith(said)


def test_roles_need_the_launcher_as_the_parent() -> None:
    """An agent's processes are all alike."""
    options = read_options({"worker_count": "1", "engine": "torchrun"}, {})
    with pytest.raises(LauncherError) as refused:
        plan_job({}, replay({"packages": "torch"}), options, ("python", "train.py"))
    (problem,) = refused.value.problems
    assert problem.code == "engine-conflict" and problem.what.startswith(
        "--worker-count 1: torchrun starts the processes"
    )


# --- a platform's TF_CONFIG

CLUSTER = {"ps": ["c:2222"], "worker": ["a:2222", "b:2222"]}


def inherit(role: str, index: object = 0, cluster: object = CLUSTER, **flags: str | bool) -> Plan:
    """Return the plan of a task that a platform has started."""
    config = {"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"}
    environ = {"TF_CONFIG": json.dumps(config), **({"RANK": "0"} if role in ("ps", "evaluator") else {})}
    return plan_job(environ, make_host(), read_options(flags, environ), ("./train",))


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_a_platforms_task_without_a_rank_becomes_its_command(role: str) -> None:
    """Its TF_CONFIG stays, and it has no rank: not even one that somebody has left."""
    job = inherit(role)
    (one,) = job.companions
    assert (one.name, one.argv, job.mode, job.processes) == (f"{role} 0", ("./train",), Mode.EXEC, ())
    assert render_environ(job, one, {"RANK": "0", "TF_CONFIG": "kept"}) == {
        "TF_CONFIG": "kept",
        "LAUNCHER_LAUNCHED": render_environ(job, one, {})["LAUNCHER_LAUNCHED"],
    }


def test_a_platforms_workers_can_run_the_standard_server() -> None:
    """--tf-server standard: then only the chief is a rank."""
    cluster = {**CLUSTER, "chief": ["d:2222"]}
    for role in ("worker", "ps"):
        job = inherit(role, cluster=cluster, tf_server="standard")
        assert job.companions[0].argv[1].endswith("tf_server.py") and not job.processes
        assert job.companions[0].argv[2:] == ("--until", "d:2222", "--wait", "900")
    chief = inherit("chief", cluster=cluster, tf_server="standard")
    assert [process.argv for process in chief.processes] == [("./train",)] and not chief.companions


@pytest.mark.parametrize(
    ("role", "index", "cluster", "code"),
    [
        ("master", 0, CLUSTER, "tf-config-master"),
        ("worker", 0, {"master": ["d:1"], **CLUSTER}, "tf-config-master"),
        ("worker", 2, CLUSTER, "tf-config-index"),
        ("worker", -1, CLUSTER, "tf-config-index"),
        ("chief", 0, CLUSTER, "tf-config-index"),
        ("evaluator", 1, CLUSTER, "tf-config-index"),
        ("worker", 0, {"worker": {"1": "a:2222"}}, "tf-config-sparse"),
        ("worker", 0, {**CLUSTER, "chief": ["d:1", "e:1"]}, "tf-config-roles"),
        ("worker", 0, {**CLUSTER, "evaluator": ["d:1", "e:1"]}, "tf-config-roles"),
        ("driver", 0, CLUSTER, "malformed-variable"),
        ("worker", 0, {"worker": [1]}, "malformed-variable"),
        ("worker", "x", CLUSTER, "malformed-variable"),
        ("worker", 0, [], "malformed-variable"),
        ("worker", 0.9, CLUSTER, "malformed-variable"),
        ("worker", True, CLUSTER, "malformed-variable"),
        ("worker", 0, {"worker": ["a"]}, "malformed-variable"),
        ("worker", 0, {"worker": ["a:1", "b:1", "a:1"]}, "malformed-variable"),
        ("worker", 0, {"worker": ["a:1"], "ps": ["a:1"]}, "malformed-variable"),
        ("worker", 0, {"worker": ["a:1", "a:01"]}, "malformed-variable"),
        ("worker", 0, {"worker": ["a:1"], "ps": ["A:1"]}, "malformed-variable"),
        ("worker", "0_1", CLUSTER, "malformed-variable"),
        ("worker", 0, {"worker": ["a:1"], "ps": ["\x1b[31m:1"]}, "malformed-variable"),
    ],
)
def test_what_tensorflow_would_refuse_or_hang_on_is_named(
    role: str, index: object, cluster: object, code: str
) -> None:
    """An index of -1 passes TensorFlow's own check, a sparse map does not: both are told before the start."""
    with pytest.raises(LauncherError) as refused:
        inherit(role, index, cluster)
    assert code in {problem.code for problem in refused.value.problems}


def test_a_long_name_is_shortened() -> None:
    """What is wrong with a TF_CONFIG fits on a screen, whatever it holds."""
    with pytest.raises(LauncherError) as refused:
        inherit("x" * 90_000)
    assert len(refused.value.problems[0].what) < 1000


def test_an_index_may_be_text() -> None:
    """TensorFlow reads it so."""
    assert inherit("worker", "1").topology.rank == 1


def test_an_empty_tf_config_is_not_handed_on() -> None:
    """TensorFlow dies on it."""
    job = plan_job({"TF_CONFIG": ""}, make_host(), read_options({}, {}), ("./train",))
    assert job.unset == ("TF_CONFIG",)


def test_azure_mls_servers_without_a_chief_are_told_about() -> None:
    """The strategy of TensorFlow 2 would hang; a program of TensorFlow 1 is content."""
    with pytest.raises(LauncherError) as refused:
        inherit("worker", framework="tensorflow")
    assert refused.value.problems[0].code == "no-chief"
    assert inherit("worker", framework="tensorflow", tf1=True).processes
    with pytest.raises(LauncherError, match="no-chief"):
        inherit("ps", tf_server="standard")


def test_roles_do_not_overwrite_a_tf_config() -> None:
    """Two words about one thing: the user takes one back."""
    with pytest.raises(LauncherError) as refused:
        inherit("worker", cluster={"worker": ["a:1", "b:1"]}, worker_count="2")
    assert refused.value.problems[0].code == "roles-and-config"


# --- ports and watches


def find_quiet_port() -> int:
    """Return a free port below those that the kernel gives out: no other test's connection takes it next."""
    for port in range(20000 + os.getpid() % 5000, 32000):
        with suppress(OSError), socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def test_a_port_that_is_taken_is_told_before_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    """With who has it: us, here."""
    port = find_quiet_port()
    taken = socket()
    taken.bind(("127.0.0.1", port))
    taken.listen(1)
    with pytest.raises(NotReady) as refused:
        check_ports([(port, "worker 0")], Host())
    (problem,) = refused.value.problems
    assert problem.code == "port-taken"
    assert f"port {port} of this node is needed for worker 0, but process " in problem.what
    with pytest.raises(NotReady):
        dispatch(
            ["run", "--worker-count", "1", "--tf-port", str(port), "--", "true"], {"PATH": "/bin:/usr/bin"}
        )
    taken.close()
    check_ports([(port, "worker 0")], Host())


@pytest.mark.parametrize(
    ("answers", "end"),
    [
        ([REFUSED] * 9, None),
        ([REFUSED] * 11, 75),
        ([SILENT] * 11, 75),
        ([REFUSED, OPEN, *[REFUSED] * 4], None),
        ([REFUSED, OPEN, *[REFUSED] * 6], 0),
        ([OPEN, *[REFUSED] * 3, OPEN, *[REFUSED] * 3], None),
        ([OPEN, *[SILENT] * 50], None),
        ([OPEN, *[SILENT] * 61], 75),
        ([OPEN, *[SILENT] * 30, *[REFUSED] * 6], 0),
    ],
)
def test_when_a_server_knows_that_its_job_is_over(
    answers: list[str], end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once seen, then refused for 5 s: over. Never seen, or without any answer: not ready."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = PortWatch("10.0.0.4:2222", wait_s=10)
    for answer in answers:
        clock[0] += 1.0
        monkeypatch.setattr(tf_server, "knock", lambda host, port, answer=answer: answer)
        if watch.end is None:
            watch.look()
    assert watch.end == end


def test_addresses_are_split() -> None:
    """Also those of IPv6."""
    assert split("10.0.0.4:2222") == ("10.0.0.4", 2222)
    assert split("[fd00::4]:2222") == ("fd00::4", 2222)


# --- a script that shows what it is

USES = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
LONE = '{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":0}}'
OWN_CONFIG = "import os\nos.environ['TF_CONFIG'] = make()\n"


class FourGpus(Host):
    """This machine, as if it had four GPUs."""

    def list_folder(self, path: str) -> tuple[str, ...]:
        gpus = [f"nvidia{number}" for number in range(4)] if path == "/dev" else []
        return (*gpus, *super().list_folder(path))


def plan_script(
    folder: Path, text: str, environ: Mapping[str, str] | None = None, **flags: str | bool
) -> Plan:
    """Return the plan of a script, run by this Python."""
    (folder / "train.py").write_text(text)
    options = read_options({"bind": "none", **flags}, environ or {})
    return plan_job(environ or {}, FourGpus(), options, (sys.executable, str(folder / "train.py")))


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (USES, True),
        ("from tensorflow.distribute import MultiWorkerMirroredStrategy\n", True),
        ("import tensorflow as tf\ntf.distribute.MirroredStrategy()\n", False),
        ("import torch\n# like MultiWorkerMirroredStrategy\n", False),
        (USES + OWN_CONFIG, False),  # it says itself who is who
        (USES + "resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()\n", False),
        (USES + "resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n", True),
        (USES + "if os.environ['TF_CONFIG'] == '':\n    pass\n", True),
    ],
)
def test_a_script_that_uses_several_workers_is_told_of_them(tmp_path: Path, text: str, is_told: bool) -> None:
    """Without TF_CONFIG each process would be a training of its own, and end well; the plan says why."""
    job = plan_script(tmp_path, text, nproc_per_node="2")
    assert (configs(job).keys() == {"worker 0", "worker 1"}) is is_told
    assert any("train.py uses MultiWorkerMirroredStrategy" in note for note in job.notes) is is_told


def test_a_script_of_several_workers_has_one_on_each_node(tmp_path: Path) -> None:
    """As with --framework tensorflow: one process with all GPUs, and no other engine takes the job."""
    job = plan_script(tmp_path, USES, nnodes="2", node_rank="1", master_addr="10.0.0.4")
    assert (job.engine, len(job.processes), job.topology.world_size) == ("process", 1, 2)
    assert job.meeting is not None


def test_one_worker_needs_no_port(tmp_path: Path) -> None:
    """Alone it trains on all GPUs of its node, beside others on the same machine."""
    job = plan_script(tmp_path, USES)
    assert (len(job.processes), configs(job), job.ports) == (1, {}, ())


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({}, {"framework": "torch"}),
        ({"TF_CONFIG": LONE}, {}),
    ],
)
def test_who_says_otherwise_goes_first(
    tmp_path: Path, environ: dict[str, str], flags: dict[str, str]
) -> None:
    """A framework that the user names, and a TF_CONFIG that is there."""
    assert not configs(plan_script(tmp_path, USES, environ, **flags))
