"""What is planned where mpirun starts the job: its line on node 0, what serves on the others.

The machines are recorded ones: a snapshot says which mpirun they have.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.entry import main
from launcher.core.errors import EnvironmentUntrusted, LauncherError, NotReady, Unavailable, UsageError
from launcher.core.model import Fleet, NodeCommand, Plan
from launcher.engines.mpirun import FOLDER, JOB, WRAPPER
from launcher.frameworks.torch import UNBUFFERED
from launcher.machine.host import Host
from launcher.mpi.start import write_files
from launcher.options.parser import read_run
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.views.plan import render_text
from launcher.views.plan_json import render_json
from tests.golden.jobs import read_case, snapshots
from tests.unit.machines import recorded_cpus, recorded_gpus

FAMILIES = {
    "openmpi4": ("Open MPI", "4.1.4"),
    "openmpi5": ("Open MPI", "5.0.11"),
    "mpich": ("MPICH", "5.0.2"),
    "impi": ("Intel MPI", "2021.18.1"),
}
SECRETS = {
    "HF_TOKEN": "hush-hush-token",
    "WANDB_API_KEY": "hush-hush-key",
    "LAUNCHER_TOKEN": "hush-hush-token-of-the-job",
}
ENVIRON = {
    **SECRETS,
    "PATH": "/usr/bin",
    "HOME": "/root",
    "NCCL_DEBUG": "INFO",
    "DATA_DIR": "/mnt/data",
    "AZ_BATCH_POOL_ID": "pool",
    "AZ_BATCH_NODE_ID": "tvmps_own",
    "AZ_BATCH_TASK_WORKING_DIR": "/mnt/task",
    "RANK": "0",
    "SSH_CONNECTION": "a b c d",
}
PLAIN = {name: value for name, value in ENVIRON.items() if name not in (*SECRETS, "RANK")}
"""Nothing of a key or of ranks."""
HOSTS = ("10.0.0.4", "10.0.0.5")
GPUS = [(f"0000:0{index}:00.0", index // 2, f"GPU-{index}") for index in range(4)]
LOCALITY = {
    "affinity": "0-15",
    "files": {**recorded_gpus(GPUS), **recorded_cpus("0-15", {0: "0-7", 1: "8-15"})},
}


def node(index: int = 0, family: str = "openmpi5", **fields: object) -> Host:
    """Return a node of the job: its address is the one of `HOSTS`, its network 10.0.0.0/24."""
    address = f"10.0.0.{4 + index}"
    named, version = FAMILIES[family]
    return replay(
        {
            "hostname": f"node{index}",
            "addresses": {"eth0": [f"{address}/24"]},
            "environ": ENVIRON,
            "gpus": 0,
            "mpirun": {"path": "/opt/mpi/bin/mpirun", "family": named, "version": version},
            **fields,
        }
    )


def plan(host: Host, *command: str, **flags: str) -> Plan:
    """Return the plan of a node for ``launcher run --engine mpirun`` with more flags."""
    typed = {"engine": "mpirun", **flags}
    return plan_job(host.environ, host, read_options(typed, host.environ), command or ("python", "train.py"))


def agent_of(found: Plan) -> tuple[NodeCommand, Fleet]:
    """Return who starts the processes, and the nodes."""
    assert found.agent is not None and found.agent.fleet is not None
    return found.agent, found.agent.fleet


def refusal(host: Host, *command: str, **flags: str) -> tuple[str, str, str]:
    """Return (code, what, fix) of the one thing that is wrong."""
    with pytest.raises(LauncherError) as caught:
        plan(host, *command, **flags)
    (problem,) = caught.value.problems
    return problem.code, problem.what, problem.fix


def pairs(words: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return each word with the one behind it."""
    return set(pairwise(words))


# --- the plan of each node


@pytest.mark.parametrize("script", ["from mpi4py import MPI\n", "import jax\njax.distributed.initialize()\n"])
def test_every_node_of_mpirun_takes_a_script_alike(tmp_path: Path, script: str) -> None:
    """mpirun runs on node 0 and the others serve it: on all it gives the processes their world."""
    path = tmp_path / "train.py"
    path.write_text(script)
    flags = {"nnodes": "2", "hosts": ",".join(HOSTS), "token_file": "/t"}
    jobs = [plan(node(index), "python", str(path), node_rank=str(index), **flags) for index in (0, 1)]
    assert [agent_of(job)[0].engine for job in jobs] == ["mpirun", "serve"]
    coordinators = [
        [one.value for one in job.settings if one.name == "JAX_COORDINATOR_ADDRESS"] for job in jobs
    ]
    assert coordinators[0] == coordinators[1] and not [*jobs[0].warnings, *jobs[1].warnings]


@pytest.mark.parametrize("family", FAMILIES)
def test_node_0_runs_mpirun(family: str) -> None:
    """Its whole line: mpirun by its path, hosts in a file, the shim, the command at the end."""
    agent, fleet = agent_of(plan(node(0, family), hosts=",".join(HOSTS), nproc_per_node="2"))
    assert (agent.engine, agent.argv[0]) == ("mpirun", "/opt/mpi/bin/mpirun")
    assert agent.argv[-3:] == ("--", "python", "train.py")
    assert (WRAPPER, JOB) in pairs(agent.argv)
    form = "{} slots=2\n" if family.startswith("openmpi") else "{}:2\n"
    assert agent.files == ((f"{FOLDER}/hostfile", "".join(map(form.format, HOSTS))),)
    assert f"{FOLDER}/hostfile" in agent.argv
    assert (fleet.hosts, fleet.per_node, fleet.address) == (HOSTS, 2, "10.0.0.4")
    told = {setting.name: setting.value for setting in agent.settings}
    assert f"rsh.py {FOLDER}/rsh" in " ".join((*agent.argv, *told.values()))


def test_a_machine_that_is_taken_back_is_no_word_for_mpirun() -> None:
    """Typed it is refused; what a platform or an image says does nothing."""
    code, what, _ = refusal(node(), hosts=",".join(HOSTS), preemption="azure")
    assert code == "engine-conflict" and what.startswith("--preemption azure: mpirun starts")
    for more in ({"LAUNCHER_PREEMPTION": "azure"}, {"AZ_BATCH_NODE_IS_DEDICATED": "false"}):
        job = plan(node(environ={**ENVIRON, **more}), hosts=",".join(HOSTS), nproc_per_node="2")
        assert job.supervision.preemption is None


def test_mpirun_runs_no_health_command() -> None:
    """Typed it is refused on every node, before anything starts; an image's is noted."""
    hosts = ",".join(HOSTS)
    for host in (node(), node(1)):
        code, what, _ = refusal(host, hosts=hosts, restarts="3", health_command="true")
        assert code == "flag-conflict" and what.startswith("--health-command true does nothing if ")
    told = node(environ={**ENVIRON, "LAUNCHER_HEALTH_COMMAND": "true"})
    notes = plan(told, hosts=hosts, restarts="3").notes
    assert any(note.startswith("LAUNCHER_HEALTH_COMMAND='true': no effect") for note in notes)


@pytest.mark.parametrize("family", FAMILIES)
def test_node_1_serves(family: str) -> None:
    """Whatever its mpirun is, or if it has none: it joins node 0, with its own rank."""
    for host in (node(1, family), node(1, mpirun=None)):
        agent, fleet = agent_of(plan(host, hosts=",".join(HOSTS)))
        assert (agent.engine, agent.files, agent.settings) == ("serve", (), ())
        assert (fleet.hosts[0], fleet.index, fleet.ports) == (HOSTS[0], 1, tuple(range(6106, 6114)))
        assert fleet.timeout_s == 900


@pytest.mark.parametrize("family", FAMILIES)
def test_all_nodes_agree_on_the_job(family: str) -> None:
    """The shape, the master, and the ranks of each in blocks."""
    flags = {"hosts": ",".join(HOSTS), "nproc_per_node": "2"}
    first, second = (plan(node(index, family), **flags) for index in (0, 1))
    assert {one.topology.world_size for one in (first, second)} == {4}
    assert {one.topology.master_addr for one in (first, second)} == {"10.0.0.4"}
    assert [[p.rank for p in one.processes] for one in (first, second)] == [[0, 1], [2, 3]]
    assert agent_of(first)[1].hosts == agent_of(second)[1].hosts


STARTED_BY_OPEN_MPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")


@pytest.mark.parametrize("flags", [{}, {"bind": "none"}, {"bind": "core"}, {"gpus_per_process": "1"}])
def test_ranks_get_what_the_plan_of_their_node_shows(flags: dict[str, str]) -> None:
    """The shim of a rank, as mpirun starts it, comes to the same variables, CPUs and command."""
    host = node(0, "openmpi4", **LOCALITY)
    job = plan(host, hosts=",".join(HOSTS), **flags)
    agent, fleet = agent_of(job)
    words = agent.argv[agent.argv.index(JOB) + 1 :]
    handed = {item.name: item.value for item in job.settings if item.name == UNBUFFERED}
    for wanted in job.processes:
        numbers = (wanted.rank, 8, wanted.local_rank, 4)
        told = {
            **{name: value for name, value in host.environ.items() if name in fleet.forward},
            **handed,  # by the session, see launcher.mpi.start
            **{f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(STARTED_BY_OPEN_MPI, numbers, strict=True)},
            "LAUNCHER_NODE_RANK": "0",
            "LAUNCHER_NNODES": "2",
            "LAUNCHER_MASTER_ADDR": job.topology.master_addr,
            "LAUNCHER_MASTER_PORT": str(job.topology.master_port),
        }
        typed, command, _ = read_run(words, told)
        shim = plan_job(told, host, read_options(typed, told), command)
        (process,) = shim.processes
        variables = {item.name: item.value for item in (*shim.settings, *process.settings)}
        assert {**handed, **variables} == {
            item.name: item.value for item in (*job.settings, *wanted.settings)
        }
        assert (process.argv, process.cpus) == (wanted.argv, wanted.cpus)
    assert (job.processes[0].cpus == (0, 1, 2, 3)) == ("bind" not in flags or flags["bind"] == "core")


def test_what_is_about_ranks_is_handed_to_their_shims() -> None:
    """Logs, signals and the role are carried out where the rank runs; the grace and the record are ours."""
    flags = {"signal_to": "group", "tee": "3", "log_dir": "/logs", "role": "trainer", "grace": "5"}
    agent, _ = agent_of(plan(node(), hosts=",".join(HOSTS), failure_file="/f", **flags))
    shim = agent.argv[agent.argv.index(JOB) :]
    assert {"--signal-to=group", "--tee=3", "--log-dir=/logs", "--role=trainer"} < set(shim)
    assert not any("grace" in word or "failure" in word for word in shim)


# --- where the hosts come from


def test_hosts_of_a_hostfile_with_their_slots(tmp_path: Path) -> None:
    """In the dialect of any mpirun; the slots are the ranks on each node, unless a flag says otherwise."""
    file = tmp_path / "hosts"
    file.write_text("10.0.0.4 slots=3\n10.0.0.5:3\n")
    host = OnDisk(node())
    _, fleet = agent_of(plan(host, hostfile=str(file)))
    assert (fleet.hosts, fleet.per_node) == (HOSTS, 3)
    _, fleet = agent_of(plan(host, hostfile=str(file), nproc_per_node="1"))
    assert fleet.per_node == 1
    file.write_text("10.0.0.4 slots=3\n10.0.0.5 slots=2\n")
    code, what, _ = refusal(host, hostfile=str(file))
    assert code == "malformed-hostfile" and "from 2 to 3 processes" in what


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("# nodes\n10.0.0.4\n10.0.0.5 slots=x\n", ", line 3: '10.0.0.5 slots=x': expected an integer in 1.."),
        ("10.0.0.4\nnode/5\n", ", line 2: 'node/5': expected a hostname or an IP address"),
        ("# nothing\n\n", ": expected at least one host"),
        ("10.0.0.4\n10.0.0.4\n", ": expected each host only once, not '10.0.0.4' twice"),
    ],
)
def test_what_is_wrong_in_a_hostfile_is_named_with_its_line(tmp_path: Path, text: str, wrong: str) -> None:
    """Where to look, and what stands there."""
    file = tmp_path / "hosts"
    file.write_text(text)
    code, what, _ = refusal(OnDisk(node()), hostfile=str(file))
    assert code == "malformed-hostfile" and what.startswith(f"--hostfile {file}{wrong}")


def test_a_hostfile_that_is_not_there_has_another_fix_than_its_lines(tmp_path: Path) -> None:
    """The system's own words, and the flag that takes names."""
    code, what, text = refusal(OnDisk(node()), hostfile=f"{tmp_path}/none")
    assert (code, what) == ("malformed-hostfile", f"--hostfile {tmp_path}/none: No such file or directory")
    assert "--hosts HOST,..." in text and "slots" not in text


class OnDisk(Host):
    """A recorded machine on which files can be read."""

    def __init__(self, host: Host) -> None:
        super().__init__({}, answers=host.answers)

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        return Path(path).read_bytes()


@pytest.mark.parametrize(("index", "engine", "rank"), [(1, "mpirun", 0), (0, "serve", 1)])
def test_hosts_of_azure_batch_with_the_master_first(index: int, engine: str, rank: int) -> None:
    """The master need not stand first in the list, and its port is Batch's, not ours."""
    batch = {"AZ_BATCH_HOST_LIST": ",".join(HOSTS), "AZ_BATCH_MASTER_NODE": "10.0.0.5:6000"}
    found = plan(node(index, environ={**ENVIRON, **batch}))
    agent, fleet = agent_of(found)
    assert (agent.engine, found.topology.node_rank) == (engine, rank)
    assert (fleet.hosts, fleet.ports[0]) == (("10.0.0.5", "10.0.0.4"), 6106)
    assert fleet.address == HOSTS[index]


def slurm(case: str) -> Iterator[Host]:
    """Yield the nodes of a recorded job of Slurm, with an mpirun."""
    for snapshot in snapshots(read_case(case)):
        mpirun = {"path": "/usr/bin/mpirun", "family": "MPICH", "version": "4.0.2"}
        yield replay({**snapshot, "mpirun": mpirun})


@pytest.mark.parametrize("case", ["slurm_22.05_batch_script", "slurm_22.05_salloc_shell"])
def test_hosts_of_a_batch_script(case: str) -> None:
    """The script runs once, on the first node: that is where mpirun belongs."""
    (host,) = slurm(case)
    found = plan(host, token_file="/t")
    agent, fleet = agent_of(found)
    assert (agent.engine, found.topology.node_rank) == ("mpirun", 0)
    assert (fleet.hosts, fleet.per_node, fleet.token_file) == (("node0", "node1"), 2, "/t")
    assert not any(name.startswith("SLURM") for name in fleet.forward)
    assert "SLURM_JOB_ID" in agent.unset, "mpirun would ask Slurm for its hosts"
    with pytest.raises(EnvironmentUntrusted, match="no-identity"):
        plan_job(host.environ, host, read_options({}, {}), ("python", "train.py"))


def test_a_batch_script_outside_of_its_nodes_is_told_so() -> None:
    """A shell of salloc on a login node: nothing there is node 0."""
    (host,) = slurm("slurm_22.05_salloc_shell")
    elsewhere = replay({**(host.answers or {}), "hostname": "login", "addresses": {"eth0": ["10.9.9.9"]}})
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan(elsewhere)
    assert any("SLURM_JOB_NODELIST" in p.what and "--node-rank" in p.fix for p in caught.value.problems)


def test_hosts_of_one_task_per_node() -> None:
    """Under srun --ntasks-per-node=1 every node is started: the first runs mpirun, the others serve."""
    found = [plan(host, token_file="/t") for host in slurm("slurm_22.05_one_per_node_gpus4")]
    assert [agent_of(one)[0].engine for one in found] == ["mpirun", "serve"]
    assert {agent_of(one)[1].hosts for one in found} == {("nodeA", "nodeB")}
    assert {agent_of(one)[1].per_node for one in found} == {4}


def test_a_single_node_needs_no_token() -> None:
    """No list, no token: mpirun on this node alone, whatever it is called."""
    found = plan(node(environ=PLAIN), nproc_per_node="4")
    agent, fleet = agent_of(found)
    assert (agent.engine, fleet.hosts) == ("mpirun", ("node0",))
    assert found.topology.master_addr == "127.0.0.1" and fleet.address == ""
    assert not any("if_include" in word for word in agent.argv)


# --- what goes along


@pytest.mark.parametrize("family", FAMILIES)
def test_what_ranks_get_from_the_head(family: str) -> None:
    """What was set for the job; nothing of this node, of a login, of a rank, of ours, and no secret."""
    agent, fleet = agent_of(plan(node(0, family), hosts=",".join(HOSTS)))
    assert fleet.forward == ("AZ_BATCH_POOL_ID", "DATA_DIR", "NCCL_DEBUG", "PATH")
    assert set(SECRETS) <= set(agent.unset)
    _, fleet = agent_of(plan(node(0, family), hosts=",".join(HOSTS), forward="HF_TOKEN,AZ_BATCH_TASK_*"))
    assert {"HF_TOKEN", "AZ_BATCH_TASK_WORKING_DIR"} < set(fleet.forward)
    assert "WANDB_API_KEY" not in fleet.forward


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("forward", ["", "HF_TOKEN,WANDB_API_KEY,LAUNCHER_TOKEN"])
def test_no_secret_is_shown(family: str, index: int, forward: str) -> None:
    """Not on the line, in the plan, as text or JSON; not even one that goes along."""
    flags = {"hosts": ",".join(HOSTS), **({"forward": forward} if forward else {})}
    found = plan(node(index, family), **flags)
    agent, _ = agent_of(found)
    shown = [" ".join(agent.argv), render_text(found, ENVIRON), render_json(found, ENVIRON)]
    for text in (*shown, *(part for pair in agent.files for part in pair)):
        assert "hush" not in text


# --- what cannot be


@pytest.mark.parametrize("index", [0, 1])
def test_several_nodes_need_a_token(index: int) -> None:
    """Whoever joins could run programs."""
    code, _, fix = refusal(node(index, environ=PLAIN), hosts=",".join(HOSTS))
    assert code == "no-token" and "LAUNCHER_TOKEN=$(openssl rand -hex 32)" in fix and "--token-file" in fix


def test_one_node_because_nothing_speaks_of_others() -> None:
    """It is said what mpirun is not told; a user who asks for one node knows it."""
    said = "mpirun starts processes on this node only"
    for flags, is_said in (({}, True), ({"nnodes": "1"}, False)):
        found = plan(node(environ={}), **flags)
        assert any(note.startswith(said) for note in found.notes) == is_said


def test_several_nodes_without_a_list_are_told_of_one() -> None:
    """And not of variables that mpirun has no use for."""
    code, _, fix = refusal(node(), nnodes="2")
    assert code == "no-hosts" and "--hosts HOST" in fix


def test_nodes_that_nothing_names() -> None:
    """A number of nodes is no list: mpirun needs names."""
    code, what, fix = refusal(node(), nnodes="2", node_rank="0", master_addr="10.0.0.4")
    assert code == "no-hosts" and "2 nodes" in what and "--hosts" in fix


def test_a_full_disk_is_no_bug(tmp_path: Path) -> None:
    """The files that mpirun reads cannot be written: status 75, as without a folder for them."""
    starter = NodeCommand("mpirun", (), files=((f"{FOLDER}/hosts", "node0\n"),))
    with pytest.raises(NotReady, match=r"\[no-folder\] no directory for the files of the job: "):
        write_files(starter, str(tmp_path / "gone"))


def test_no_mpirun() -> None:
    """Status 69, and what to install; one that is unknown is quoted."""
    with pytest.raises(Unavailable, match="no-mpirun"):
        plan(node(environ=PLAIN, mpirun=None))
    with pytest.raises(Unavailable, match="unknown-mpirun"):
        plan(node(environ=PLAIN, mpirun={"problem": "/usr/bin/mpirun is LAM"}))


@pytest.mark.parametrize("command", [("mpirun", "-np", "4", "./train"), ("torchrun", "train.py")])
def test_a_command_that_is_a_launcher_itself(command: tuple[str, ...]) -> None:
    """One of the two starts the processes."""
    code, what, _ = refusal(node(), *command, hosts=",".join(HOSTS))
    assert code == "engine-conflict" and command[0] in what


def test_mpirun_on_each_of_several_nodes_names_the_engine() -> None:
    """What was meant can be had: the fix says how."""
    host = node()
    with pytest.raises(UsageError, match="job-per-node") as caught:
        options = read_options({"hosts": ",".join(HOSTS)}, {})
        plan_job(host.environ, host, options, ("mpirun", "-np", "4", "./train"))
    assert "--engine mpirun" in caught.value.problems[0].fix


def test_ranks_that_are_started_already() -> None:
    """Under somebody's mpirun, or said by --scope: each would start the job once more."""
    ranks = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    ranks |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    code, _, _ = refusal(node(environ={**PLAIN, **ranks}))
    assert code == "launcher-per-process"
    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    code, _, _ = refusal(node(environ={**PLAIN, **single}), scope="process")
    assert code == "launcher-per-process"


@pytest.mark.parametrize("family", FAMILIES)
def test_ipv6_hosts_are_refused_by_name(family: str) -> None:
    """No mpirun takes one in a hostfile: better here than an error of a name that was cut at a colon."""
    host = node(0, family, addresses={"eth0": ["fd00::4"]})
    code, what, fix = refusal(host, hosts="fd00::4,node1")
    assert code == "mpirun-line" and "fd00::4" in what and "IPv4" in fix


def test_torchruns_restarts_are_not_mpiruns() -> None:
    """An error before the start, where it would be left out silently."""
    code, what, _ = refusal(node(environ=PLAIN), max_restarts="3")
    assert code == "engine-conflict" and "--max-restarts 3" in what


@pytest.mark.parametrize("index", [0, 1])
def test_the_launcher_starts_mpirun_again(index: int) -> None:
    """On the head and on a node that serves; ranks are not told, because they do not decide."""
    job = plan(node(index), restarts="2", rejoin_timeout="60", token_file="/job.token", hosts=",".join(HOSTS))
    assert (job.supervision.restarts.most, job.supervision.restarts.rejoin_timeout_s) == (2, 60.0)
    assert job.agent is not None and "restarts" not in " ".join(job.agent.argv)


# --- what a person sees


def shown(tmp_path: Path, capfd: pytest.CaptureFixture[str], host: Host, *words: str) -> tuple[str, str]:
    """Return what ``launcher run --dry-run`` prints for a recorded node, and the JSON of its plan."""
    file = tmp_path / "node.json"
    file.write_text(json.dumps(host.answers))
    line = ["--replay", str(file), "--engine", "mpirun", *words, "--", "./train", "--lr", "1 2"]
    assert main(["run", "--dry-run", *line], {}) == 0
    text = capfd.readouterr().out
    assert main(["plan", "--format", "json", *line], {}) == 0
    return text, capfd.readouterr().out


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dry_run_prints_a_line_for_a_shell(
    family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line that a shell takes apart into the very words; what stands for later is explained."""
    words = ("--hosts", ",".join(HOSTS), "--token-file", "/t", "--mpi-args", "--x 'a b'")
    text, document = shown(tmp_path, capfd, node(0, family), *words)
    agent = json.loads(document)["agent"]
    (line,) = [line for line in text.splitlines() if line.startswith("start mpirun: ")]
    assert shlex.split(line.removeprefix("start mpirun: ")) == agent["argv"]
    assert agent["argv"][-4:] == ["--", "./train", "--lr", "1 2"]
    for part in (
        "nodes: 10.0.0.4, 10.0.0.5; 1 rank on each; they join at 10.0.0.4, ports 6106 to 6113",
        "variables forwarded to their ranks: AZ_BATCH_POOL_ID, DATA_DIR, NCCL_DEBUG, PATH",
        "secrets that are not forwarded (--forward NAME forwards one): HF_TOKEN, WANDB_API_KEY",
        "{folder}/hostfile is a file: 10.0.0.4",
        "{folder} is a private directory, {job} the job's name; both are made when the job starts",
    ):
        assert part in text, part


def test_the_fleet_in_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Everything of it but the path of the token."""
    words = ("--hosts", ",".join(HOSTS), "--token-file", "/somewhere/token", "--roll-call-timeout", "60")
    _, document = shown(tmp_path, capfd, node(0, "openmpi4"), *words)
    fleet: dict[str, Any] = json.loads(document)["agent"]["fleet"]
    assert fleet == {
        "hosts": list(HOSTS),
        "per_node": 1,
        "address": "10.0.0.4",
        "ports": list(range(6106, 6114)),
        "timeout_s": 60.0,
        "forward": ["AZ_BATCH_POOL_ID", "DATA_DIR", "NCCL_DEBUG", "PATH"],
        "restored": ["PATH", "LD_LIBRARY_PATH"],
    }
    assert "/somewhere" not in document


def test_what_a_node_that_serves_shows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Where it joins, and until when; nothing about forwarding, which is the head's."""
    text, _ = shown(tmp_path, capfd, node(1), "--hosts", ",".join(HOSTS), "--token-file", "/t")
    assert "serve: join node 0 at 10.0.0.4, ports 6106 to 6113, until it reports" in text
    assert "their ranks get" not in text and "{folder}" not in text


def test_names_of_the_environment_reach_no_terminal_raw(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A variable's name may hold what a terminal obeys; it goes along, and is shown as an escape."""
    evil: Mapping[str, str] = {**ENVIRON, "A\x1b[31mB": "x", "C\nD": "y"}
    text, _ = shown(tmp_path, capfd, node(environ=evil), "--hosts", ",".join(HOSTS), "--token-file", "/t")
    assert "\x1b" not in text and "A\\x1b[31mB" in text


def test_switches_that_are_off_and_a_framework_that_flags_name_reach_the_ranks() -> None:
    """LAUNCHER_EXPAND_ARGS=0 is no switch that is on; a flag of TensorFlow names the framework."""
    off = {"LAUNCHER_EXPAND_ARGS": "0", "LAUNCHER_VERIFY_FABRIC": "0"}
    agent, _ = agent_of(plan(node(environ={**ENVIRON, **off}), hosts=",".join(HOSTS)))
    assert not {"--expand-args", "--verify-fabric"} & {*agent.argv}
    agent, _ = agent_of(plan(node(), hosts=",".join(HOSTS), tf_server="script"))
    assert "--framework=tensorflow" in agent.argv
