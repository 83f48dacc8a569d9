"""Engines for real, on one node: torchrun's agent, its command line given to us, launchers as the command.

The torchrun is the real one, of the framework environment. So is accelerate; of fabric, composer and
horovodrun a stand-in shows what they would be given, of deepspeed as well (the real one: test_deepspeed).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from launcher.engines.torchrun import WORKER
from launcher.frameworks.torch import ELASTIC
from launcher.output.folder import SITE
from tests.mpis import FAMILIES, find_mpi
from tests.process.starting import DEADLINE_S, ROOT, clean_environ, launch, open_launcher

DUMP = "import json, os, sys; sys.stdout.write(json.dumps({**os.environ, 'PID': str(os.getpid())}) + chr(10))"
ALLREDUCE = os.path.join(ROOT, "examples", "allreduce.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
torch = pytest.mark.torch


def script(folder: Path, text: str, name: str = "script.py") -> str:
    """Write a script and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def dumps(output: str) -> list[dict[str, str]]:
    """Return the environments that processes printed, by rank."""
    found = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]
    return sorted(found, key=lambda process: int(process.get("RANK", 0)))


def run(
    *words: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run any command to its end."""
    return subprocess.run(
        words,
        env=clean_environ(**(environ or {})),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=cwd,
        check=False,
    )


@torch
def test_workers_of_torchrun_get_what_processes_of_the_launcher_get(tmp_path: Path) -> None:
    """The contract, NODE_RANK, true names of MPI, arguments untouched, the role, threads of their own."""
    environ = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_RANK": "0",
        "LAUNCHER_GRACE": "20",
    }
    words = ("--engine", "torchrun", "--nproc-per-node", "2", "--role", "trainer", "--master-port", "6131")
    dump = script(tmp_path, DUMP.replace("'PID': str(os.getpid())", "'ARGS': json.dumps(sys.argv[1:])"))
    args = ["a b", "$HOME", "$$", "${local_rank}", "--", "--nnodes", "9", ""]
    done = launch("run", *words, "--", sys.executable, dump, *args, environ=environ)
    assert done.returncode == 0, done.stderr
    processes = dumps(done.stdout)
    for rank, seen in enumerate(processes):
        assert json.loads(seen["ARGS"]) == [word.replace("${local_rank}", str(rank)) for word in args]
        wanted = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "NODE_RANK": 0, "MASTER_PORT": 6131}
        wanted |= {
            "OMPI_COMM_WORLD_RANK": rank,
            "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank,
        }
        assert {name: int(seen[name]) for name in wanted} == wanted
        assert (seen["ROLE_NAME"], seen["MASTER_ADDRESS"]) == ("trainer", "127.0.0.1")
        assert int(seen["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
        assert seen["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "20"
        assert not {name for name in seen if name.startswith(("PMIX_", "LAUNCHER_G", "PET_"))}
    assert len(processes) == 2


FAILS_ONCE = """
import json, os, sys
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
sys.stdout.write(json.dumps(dict(os.environ)) + chr(10))
"""


@torch
def test_torchrun_restarts_all_processes_of_a_node(tmp_path: Path) -> None:
    """--max-restarts 1: rank 1 fails once, and both run again; without restarts left the job fails."""
    path = script(tmp_path, FAILS_ONCE)
    words = ("run", "--nproc-per-node", "2", "--standalone")
    done = launch(*words, "--max-restarts", "1", path)
    assert done.returncode == 0, done.stderr
    last = [seen for seen in dumps(done.stdout) if seen["TORCHELASTIC_RESTART_COUNT"] == "1"]
    assert [(seen["RANK"], seen["NODE_RANK"]) for seen in last] == [("0", "0"), ("1", "0")]
    assert launch(*words, "--engine", "torchrun", path).returncode == 1


@torch
def test_the_launcher_is_the_agents_parent() -> None:
    """Signals are passed on to it, and its status is the job's."""
    text = "import os, signal; print(os.getppid(), flush=True); signal.pause()"
    words = ("run", "--engine", "torchrun", "--", sys.executable, "-c", text)
    with open_launcher(*words) as launcher:
        assert launcher.stdout is not None
        agent = int(launcher.stdout.readline().rpartition("]")[2])
        stat = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == launcher.pid
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode not in (0, None)


def test_a_worker_is_this_launcher_whatever_stands_around_it(tmp_path: Path) -> None:
    """A launcher.py in the working directory and a PYTHONPATH of the job's do not come in between."""
    script(tmp_path, "raise SystemExit('the wrong launcher')", "launcher.py")
    environ = dict(
        zip(CONTRACT, ("1", "2", "1", "2", "0", "1", "1", "2", "r", "127.0.0.1", "1"), strict=True)
    )
    environ |= {"TORCHELASTIC_RUN_ID": "x", "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    line = (sys.executable, "-I", "-S", WORKER, "--own-threads", "run", "--", sys.executable, "-c", DUMP)
    done = run(*line, environ=environ, cwd=tmp_path)
    (seen,) = dumps(done.stdout)
    assert (seen["NODE_RANK"], seen["LAUNCHER_LAUNCHED"] != "") == ("0", True), done.stderr
    assert seen["PYTHONPATH"] == str(tmp_path)
    assert int(seen["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


LINES = (
    "--standalone --nnodes=1 --nproc-per-node=2 SCRIPT --lr 0.1",
    "--nnodes=1 --nproc_per_node 2 --node_rank 0 --master_addr 127.0.0.1 --master_port PORT SCRIPT --lr 0.1",
    "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node=2 SCRIPT --lr 0.1",
    "--nproc-per-node=2 --nnodes=1:1 --rdzv-id=job --max-restarts=0 --role=worker -m script --lr 0.1",
    "--nproc-per-node=2 --no-python --monitor-interval=1 --start-method=fork PYTHON SCRIPT --lr 0.1",
    "--standal --nproc-p 2 --node-r 0 --redirect=0 --rdzv-conf= SCRIPT --lr 0.1",
)
# What the environments of the two may differ in, and nothing else.
ONLY_TORCHRUNS = {"TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
# Of a Python that has Horovod.
HOROVODS = (
    *("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)
ONLY_OURS = {
    *("NODE_RANK", "MASTER_ADDRESS", "PYTHONUNBUFFERED"),
    *("LAUNCHER_LAUNCHED", "LAUNCHER_RUN_ID", "LAUNCHER_STACKS_FILE"),
    # of other frameworks: what every job gets, and what keeps a Horovod here from making N worlds of one
    *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    *("LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"),
    *(HOROVODS if find_spec("horovod") else ()),
    # torch's flight recorder
    *("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
}
EACH_ITS_OWN = {
    *("TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS", "PID"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),  # a random name, and a store of the agent's
}


@torch
@pytest.mark.parametrize("line", LINES)
def test_torchruns_command_line_gives_the_same_processes(line: str, tmp_path: Path) -> None:
    """alias torchrun="launcher run": the same variables with the same values, less what is named here."""
    path = script(tmp_path, DUMP)
    words = [
        {"SCRIPT": path, "PORT": free_port(), "PYTHON": sys.executable}.get(word, word)
        for word in line.split()
    ]
    environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    theirs = run(*TORCHRUN, *words, environ=environ)
    ours = run(sys.executable, "-m", "launcher", "run", *words, environ=environ)
    assert (theirs.returncode, ours.returncode) == (0, 0), theirs.stderr + ours.stderr
    masters = {"MASTER_PORT"} if "--master_port" not in words else set()
    masters |= {"MASTER_ADDR"} if "--master_addr" not in words else set()  # this node's name, and 127.0.0.1
    pairs = list(zip(dumps(theirs.stdout), dumps(ours.stdout), strict=True))
    assert len(pairs) == 2
    for their, our in pairs:
        our["PYTHONPATH"] = our["PYTHONPATH"].removeprefix(f"{SITE}:")
        ignored = EACH_ITS_OWN | masters | {name for name in their if name.startswith("_")}
        assert their.keys() - our.keys() - ignored <= ONLY_TORCHRUNS
        assert our.keys() - their.keys() - ignored == ONLY_OURS - their.keys()
        same = (their.keys() & our.keys()) - ignored
        assert {name: their[name] for name in same} == {name: our[name] for name in same}
        assert {name for name in CONTRACT if name not in masters} <= same
        assert set(ELASTIC) <= our.keys() & their.keys()


@torch
@pytest.mark.parametrize("flags", [(), ("--engine", "torchrun"), ("--run-path",), ("--virtual-local-rank",)])
def test_an_argument_can_name_the_local_rank(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Whoever starts the processes; what names it not reaches them as it was typed."""
    path = script(tmp_path, "import json, sys; sys.stdout.write(json.dumps(sys.argv[1:]) + chr(10))")
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    words = (
        *("run", "--nproc-per-node", "2"),
        *flags,
        *(path, "${local_rank}/$local_rank", "$${local_rank}", "$$"),
    )
    done = launch(*words, environ=environ)
    assert done.returncode == 0, done.stderr
    seen = sorted(json.loads(line[line.index('["') :]) for line in done.stdout.splitlines())
    assert seen == [[f"{rank}/{rank}", "${local_rank}", "$$"] for rank in (0, 1)]


@torch
def test_virtual_local_ranks_are_torchruns(tmp_path: Path) -> None:
    """LOCAL_RANK is 0 in each process, which sees a GPU of its own; the ranks differ."""
    words = ("run", "--nproc-per-node", "2", "--virtual-local-rank", script(tmp_path, DUMP))
    done = launch(*words, environ={"CUDA_VISIBLE_DEVICES": "4,7"})
    assert done.returncode == 0, done.stderr
    names = ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "NODE_RANK")
    assert [tuple(seen[name] for name in names) for seen in dumps(done.stdout)] == [
        ("0", "0", "4", "0"),
        ("1", "0", "7", "0"),
    ]


@torch
def test_a_torchrun_as_the_command_runs_once(tmp_path: Path) -> None:
    """As many workers as there are to be on this node, not their square; ours does not stay in between."""
    for call in (TORCHRUN, (os.path.join(os.path.dirname(sys.executable), "torchrun"),)):
        done = launch("run", "--nproc-per-node", "2", "--", *call, script(tmp_path, DUMP))
        assert done.returncode == 0, done.stderr
        seen = dumps(done.stdout)
        assert [process["RANK"] for process in seen] == ["0", "1"]
        assert {process["WORLD_SIZE"] for process in seen} == {"2"}
        assert {process["NODE_RANK"] for process in seen} == {"0"}


@torch
def test_the_users_flags_of_a_torchrun_win(tmp_path: Path) -> None:
    """What it says itself is what happens, and what the plan says."""
    line = (*TORCHRUN, "--nproc-per-node=3", script(tmp_path, DUMP))
    done = launch("run", "--nproc-per-node", "2", "--", *line)
    assert [process["RANK"] for process in dumps(done.stdout)] == ["0", "1", "2"], done.stderr
    plan = launch("plan", "--format", "json", "--nproc-per-node", "2", "--", *line)
    assert json.loads(plan.stdout)["topology"]["world_size"] == 3


@torch
@pytest.mark.parametrize("words", [(), ("-u",)])
def test_accelerate_starts_as_many_processes_as_the_launcher_would(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Also on a node without GPUs, where by itself it would start one, without a rank."""
    line = (
        sys.executable,
        *words,
        "-m",
        "accelerate.commands.launch",
        *("--main_process_port", free_port()),
        script(tmp_path, DUMP),
        "--num_processes",
        "9",
    )
    done = launch("run", "--nproc-per-node", "2", "--", *line)
    assert done.returncode == 0, done.stderr
    seen = dumps(done.stdout)
    assert [(process["RANK"], process["WORLD_SIZE"], process["NODE_RANK"]) for process in seen] == [
        ("0", "2", "0"),
        ("1", "2", "0"),
    ]


@torch
@pytest.mark.thorough  # tests/cluster/test_torch_family.py trains so
def test_accelerate_on_two_nodes_is_one_job() -> None:
    """Told its index and where node 0 is: one launcher per node, and all four processes add up."""
    port = free_port()
    line = (sys.executable, "-m", "accelerate.commands.launch", ALLREDUCE)
    jobs = []
    for node in ("0", "1"):
        place = ("--nnodes", "2", "--node-rank", node, "--master-addr", "127.0.77.10", "--master-port", port)
        jobs.append(open_launcher("run", *place, "--nproc-per-node", "2", "--", *line, environ=ONE_THREAD))
    outputs = []
    for job in jobs:
        with job:
            out, err = job.communicate(timeout=DEADLINE_S)
        assert job.returncode == 0, err
        outputs.append(out)
    assert '"sum": 10, "expected": 10' in outputs[0]
    assert [f'"NODE_RANK": "{node}"' in outputs[0] for node in (0, 1)] == [True, True]


STAND_IN = """#!{python}
import json, os, sys
hostfile = [word.partition("=")[2] for word in sys.argv if word.startswith("--hostfile=")]
text = open(hostfile[0]).read() if hostfile and os.path.isfile(hostfile[0]) else ""
names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "SLURM_PROCID")
seen = {{name: os.environ[name] for name in names if name in os.environ}}
print(json.dumps({{"argv": sys.argv[1:], "hostfile": text, "environ": seen}}))
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[str]:
    """Yield a PATH on which launchers only show what they were given."""
    for name in ("deepspeed", "fabric", "composer", "horovodrun"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(0o755)
    yield f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def given(path: str, flags: Sequence[str], *command: str) -> dict[str, object]:
    """Return what a stand-in was given by launcher run."""
    done = launch("run", *flags, "--", *command, environ={"PATH": path, "RANK": "0", "WORLD_SIZE": "1"})
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


NODES = (
    *("--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.4", "--nproc-per-node", "4", "--scope"),
    *("node", "--no-peers"),
)


def test_deepspeed_can_read_its_hostfile(stand_ins: str) -> None:
    """A file in memory, open when DeepSpeed starts, a line per node; nothing is left on a disk."""
    found = given(stand_ins, NODES, "deepspeed", "train.py", "--deepspeed")
    assert found["hostfile"] == "node0 slots=4\nnode1 slots=4\n"
    argv = found["argv"]
    assert isinstance(argv, list) and argv[0].startswith("--hostfile=/proc/self/fd/")
    assert argv[1:] == [
        "--no_ssh", "--node_rank=1", "--master_addr=10.0.0.4", "--master_port=6105",
        "train.py", "--deepspeed",
    ]  # fmt: skip
    assert found["environ"] == {"NODE_RANK": "1"}


def test_fabric_composer_and_horovodrun_are_told_about_the_job(stand_ins: str) -> None:
    """Flags in front of their own, or variables; ranks of what the platform started are gone."""
    fabric = given(stand_ins, NODES, "fabric", "run", "train.py")
    assert fabric["argv"] == [
        "run", "--num-nodes=2", "--node-rank=1", "--devices=4",
        "--main-address=10.0.0.4", "--main-port=6105", "train.py",
    ]  # fmt: skip
    composer = given(stand_ins, NODES, "composer", "train.py")
    assert composer["environ"] == {
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "6105",
    }
    horovod = given(stand_ins, ("--nproc-per-node", "4"), "horovodrun", "python", "train.py")
    assert horovod["argv"] == ["-np", "4", "python", "train.py"]


@pytest.mark.mpi
@pytest.mark.parametrize("family", FAMILIES)
def test_mpirun_on_one_node_is_told_how_many(family: str) -> None:
    """A real one of each family; and ranks that are launchers themselves get the whole contract."""
    mpi = find_mpi(family)
    words = ("run", "--nproc-per-node", "2", "--", mpi.mpirun)
    # A short line: mpirun cuts long ones of several ranks into each other.
    place = "import os; print(os.environ['RANK'] + ' of ' + os.environ['WORLD_SIZE'] + chr(10), end='')"
    inner = (sys.executable, "-m", "launcher", "run", "--", sys.executable, "-c", place)
    done = launch(*words, *inner, environ=mpi.environ)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"]


def test_python_runs_a_script_that_says_so(tmp_path: Path) -> None:
    """A file that cannot be executed and begins with #!...python, as torchrun runs it."""
    path = script(tmp_path, f"#!/usr/bin/env python3\n{DUMP}", "train")
    (seen,) = dumps(launch("run", path).stdout)
    assert seen["RANK"] == "0"
    assert launch("run", script(tmp_path, DUMP, "plain")).returncode == 126


def test_no_variables_are_shown_of_ranks_that_nobody_knows() -> None:
    """launcher env of an elastic job says why there is nothing to show."""
    done = launch("env", "--nnodes", "1:2", "--rdzv-endpoint", "node0:29400")
    assert done.returncode == 64 and "[ranks-at-start]" in done.stderr and done.stdout == ""
