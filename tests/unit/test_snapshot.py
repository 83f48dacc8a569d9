"""A snapshot: no secret gets in, and what comes out plans as the machine itself would."""

from __future__ import annotations

import json
import os
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import __version__
from launcher.checks.finding import WARNING, Finding
from launcher.cli.entry import main
from launcher.cli.show import write_to
from launcher.core.errors import EXIT_USAGE, EnvironmentUntrusted, NotReady, UsageError
from launcher.core.secret_names import is_public_name
from launcher.machine.cgroup import read_granted_cpus
from launcher.machine.gpus import count_gpus
from launcher.machine.host import Host
from launcher.machine.infiniband import PORTS_LIMIT, read_ports
from launcher.machine.numa import read_layout
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import FOLDERS_LIMIT, read_snapshot, replay
from launcher.planning.settings import render_environ
from launcher.planning.snapshot import render_snapshot, take_snapshot
from launcher.sources.signs import MARKERS
from launcher.views.check import render_finding
from tests.fuzz.nasty import source_names
from tests.golden.jobs import plan_snapshot, read_case, snapshots
from tests.unit.platforms_model import PLATFORMS, Job, Node, deterministic, jobs

# Made up, and put together here so that scanners of this repository stay quiet.
SECRET = "s3cr3t" + "Zq9XvT7LmK2pR8wB4nY6" * 2
JWT = ".".join(["eyJ" + "hbGciOiJIUzI1NiJ9", "eyJ" + SECRET, SECRET])
SIGNED = f"https://account.blob.core.windows.net/c/f?sv=2024-01-01&sig={SECRET}%3D&se=2026"
PLANTED = {
    # names that nobody may see
    "AZUREML_RUN_TOKEN": JWT,
    "MLFLOW_TRACKING_TOKEN": SECRET,
    "HF_TOKEN": "hf_" + SECRET,
    "WANDB_API_KEY": SECRET,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AZURE_CLIENT_SECRET": SECRET,
    "AZ_BATCH_AUTHENTICATION_TOKEN": json.dumps({"token": SECRET}),
    "AZ_BATCHAI_STORAGE_SAS": SECRET,
    "SLURM_JWT": SECRET,
    "PMI_SHARED_SECRET": SECRET,
    "OMPI_MCA_password": SECRET,
    "MY_OWN_VARIABLE": SECRET,
    "SSH_AUTH_SOCK": f"/tmp/{SECRET}",
    "HOME": f"/home/{SECRET}",
    # innocent names with a secret inside
    "AZ_BATCHAI_HOST_TOOLS_URL": SIGNED,
    "AZ_BATCH_ACCOUNT_URL": f"https://user:{SECRET}@account.batch.azure.com",
    "AZUREML_CR_DISTRIBUTED_CONFIG": json.dumps({"host_list": ["node0"], "token": SECRET}),
    "AZUREML_CR_COMPUTE_CONTEXT": json.dumps({"auth": {"password": SECRET}}),
    "TF_CONFIG": json.dumps({"cluster": {}, "task": {}, "api_key": SECRET}),
    "SM_RESOURCE_CONFIG": json.dumps(json.dumps({"accessKey": SECRET})),
    "NCCL_NET_PLUGIN": f"x --api-key {SECRET}",
    "SLURM_JOB_NAME": f"train --token={SECRET}",
    "OMPI_ARGV": f"train.py --wandb-key {SECRET} Bearer {SECRET}1",
    "LAUNCHER_MASTER_ADDR": f"https://{SECRET}@node0",
    "LD_LIBRARY_PATH": f"/opt/lib:AccountKey={SECRET}==;EndpointSuffix=core.windows.net",
}


class Machine(Host):
    """A machine whose Hydra proxy has a secret on its command line, too."""

    def ancestors(self, limit: int = 4) -> tuple[tuple[str, ...], ...]:
        proxy = ("/usr/bin/hydra_pmi_proxy", "--proxy-id", "1", "--auth-token", SECRET)
        return (proxy, ("bash", "-c", f"export TOKEN={SECRET}"))


def test_no_planted_secret_gets_into_a_snapshot() -> None:
    """Neither by name nor inside a value, nor on a command line above us."""
    text = render_snapshot(take_snapshot(Machine({}, answers={}), PLANTED))
    assert "s3cr3t" not in text
    assert "hydra_pmi_proxy" in text and "bash" not in text
    assert "AZUREML_CR_DISTRIBUTED_CONFIG" in text and "MY_OWN_VARIABLE" not in text


@pytest.mark.parametrize("argv", [["plan"], ["plan", "--format", "json"], ["run", "--dry-run"]])
def test_no_planted_secret_gets_into_a_plan_or_an_error(
    argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Values are quoted in provenance and in messages; what they hide stays hidden."""
    clean = {
        name: value for name, value in PLANTED.items() if name not in ("TF_CONFIG", "LAUNCHER_MASTER_ADDR")
    }
    clean["MASTER_PORT"] = f"token={SECRET}"
    for environ in (PLANTED, clean, {**clean, "MASTER_PORT": "1", "AZUREML_CR_NODE_RANK": "0"}):
        main([*argv, "--", "train.py", "--api-key", SECRET], environ)
        out, err = capfd.readouterr()
        assert "s3cr3t" not in out and "s3cr3t" not in err
        assert out or err


@deterministic(60)
@given(data=st.data())
def test_a_snapshot_replays_as_the_machine_itself(data: st.DataObject) -> None:
    """Taken, written as JSON, read again: the same environment for every process, for every platform."""
    platform = PLATFORMS[data.draw(st.sampled_from(sorted(PLATFORMS)))]
    job = data.draw(jobs(platform))
    start = data.draw(st.sampled_from(platform.start(job)))
    here = replay(start.recording(job.gpus))
    there = replay(json.loads(render_snapshot(take_snapshot(here, start.environ))))
    assert there.environ == {name: text for name, text in start.environ.items() if is_public_name(name)}
    for host in (here, there):
        assert host.own_addresses() == {start.node.hostname, start.node.address, "127.0.0.1"}
    assert environments(there, there.environ) == environments(here, there.environ)


TWO_NODES = Job((Node(0, "node0", "10.0.0.4", 1), Node(1, "node1", "10.0.0.5", 1)), gpus=2)


def environments(host: Host, environ: dict[str, str] | object) -> list[dict[str, str]]:
    assert isinstance(environ, dict)
    try:
        plan = plan_job(environ, host, read_options({}, environ), ("true",))
    except EnvironmentUntrusted as error:
        return [{"refused": str(error)}]
    return [render_environ(plan, process, environ) for process in plan.processes]


@pytest.mark.parametrize("case", ["pbs_one_host", "refused_pbs_script", "indexed_job_2_pods"])
def test_files_that_say_where_a_node_is_are_in_a_snapshot(case: str) -> None:
    """Hosts of a batch system, a pod's full name: or a bug report would replay as another job."""
    outcomes = []
    for place, start in enumerate(snapshots(read_case(case))):
        taken = json.loads(render_snapshot(take_snapshot(replay(start), start["environ"])))
        for data in (start, taken):
            try:
                plan = plan_snapshot(read_case(case), place, data)[0]
            except EnvironmentUntrusted as error:
                outcomes.append(str(error))
            else:
                outcomes.append(
                    f"{plan.topology.node_rank} {plan.topology.node_count} {plan.topology.master_addr}"
                )
    assert outcomes[::2] == outcomes[1::2]
    assert "localhost" not in str(taken["files"])


def test_every_variable_that_a_source_reads_can_be_in_a_snapshot() -> None:
    """Or a bug report would replay as another machine."""
    platforms = {name for p in PLATFORMS.values() for name in p.start(TWO_NODES)[1].environ}
    names = (*source_names(), *(f"ACME{name[1:]}" for name in MARKERS if name[0] == "*"))
    assert [name for name in names if not is_public_name(name)] == []
    assert [name for name in sorted(platforms) if not is_public_name(name)] == [
        "GFORTRAN_UNBUFFERED_PRECONNECTED"
    ]


def test_sysfs_is_recorded_as_files_and_links(tmp_path: Path) -> None:
    """What tells InfiniBand from Ethernet, and nothing else of /sys."""
    link = "/sys/devices/pci0/infiniband/mlx5_0"
    device = tmp_path / link[1:]
    (device / "ports/1").mkdir(parents=True)
    for name, text in {"link_layer": "InfiniBand\n", "state": "4: ACTIVE\n", "lid": "0x1\n"}.items():
        (device / "ports/1" / name).write_text(text)
    (device / "node_guid").write_text("0000:0000\n")
    (tmp_path / "sys/class/infiniband").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0").symlink_to(link)
    recorded = take_snapshot(Host(str(tmp_path)), {})
    files = recorded["files"]
    assert isinstance(files, dict)
    device_files = {path: value for path, value in files.items() if path.startswith("/sys/class/infiniband/")}
    assert device_files == {
        "/sys/class/infiniband/mlx5_0": {"link": link},
        "/sys/class/infiniband/mlx5_0/ports/1": None,
        "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    }
    host = replay(recorded)
    assert host.list_folder("/sys/class/infiniband") == ("mlx5_0",)
    assert host.list_folder("/sys/class/infiniband/mlx5_0/ports") == ("1",)
    assert host.read_text("/sys/class/infiniband/mlx5_0/ports/1/link_layer") == "InfiniBand\n"
    assert host.read_link("/sys/class/infiniband/mlx5_0") == link
    assert host.read_text("/proc/self/cgroup") is None


def test_fields_may_be_missing_or_of_another_type() -> None:
    """environ alone is enough; the rest is then unknown, not zero."""
    wrong: dict[str, object] = {"gpus": "8", "affinity": 1.5, "addresses": [], "ancestors": {}, "files": 1}
    for data in ({}, wrong):
        host = replay({"environ": {}, **data})
        assert (count_gpus(host), read_granted_cpus(host), host.affinity()) == (None, None, None)
        assert (host.addresses(), host.ancestors(), host.hostname()) == ({}, (), "recorded")
        assert host.list_folder("/sys/class/infiniband") == ()
    assert count_gpus(replay({"environ": {}, "gpus": [{}, {}]})) == 2


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{}", '{"environ": []}', '{"environ": {}, "version": 1}', '{"version": 2}'),
        *('{"environ": {"A\\ud800": ""}}', '{"environ": {}, "hostname": "\\ud800"}'),
    ],
)
def test_what_is_no_snapshot_is_refused_by_name(text: str, tmp_path: Path) -> None:
    """A version we do not know is not guessed at."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_snapshot(str(tmp_path / "x.json"))
    assert caught.value.problems[0].code == "bad-snapshot"
    with pytest.raises(UsageError):
        read_snapshot(str(tmp_path / "missing.json"))


def test_refusals_and_findings_quote_a_limited_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who gets a snapshot from somebody else finds the beginning of a value in the log, not all of it."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"environ": {}, "version": "x" * (1 << 20)}))
    assert main(["plan", "--replay", str(path)]) == EXIT_USAGE
    assert "bad-snapshot" in (told := capsys.readouterr().err)
    assert len(told) < 1 << 16
    # The same of what the checks find in it.
    finding = Finding("mpi", WARNING, "mpiruns on PATH", "one", "/opt/mpi/" + "x" * (1 << 20), "a fix")
    assert "/opt/mpi/" in (told := render_finding(finding))
    assert len(told) < 1 << 16


@pytest.mark.slow
def test_a_snapshot_of_no_machine_is_not_believed(tmp_path: Path) -> None:
    """Who gets one from somebody else waits for it no longer than for a real one."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"environ": {}, "files": {f"/sys/class/x/{n}": "" for n in range(1 << 16)}}))
    with pytest.raises(UsageError, match="entries"):
        read_snapshot(str(path))
    nodes = {f"/sys/devices/system/node/node{n}/cpulist": "0-65535" for n in range(5000)}
    cpus = {f"/sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": "0-65535" for n in range(5000)}
    ports = {f"/sys/class/infiniband/mlx5_{n}/ports/1/state": "4: ACTIVE" for n in range(20_000)}
    groups = "".join(f"0::{'/a' * 2000}{n}\n" for n in range(2000))
    files: dict[str, str | None] = {**nodes, **cpus, **ports, "/proc/self/cgroup": groups}
    path.write_text(json.dumps({"environ": {}, "affinity": "0-65535", "files": files}))
    host = read_snapshot(str(path))
    assert read_granted_cpus(host) is None
    assert len(read_layout(host).cores) == 1
    assert len(read_ports(host)) == PORTS_LIMIT
    assert host.list_folder("/sys/class/infiniband/mlx5_7/ports") == ("1",)
    assert host.list_folder("/sys/class/infiniband/mlx5_7/ports/1/state") == host.list_folder("/x") == ()


def test_folders_in_a_path_cost_no_more_than_their_names(tmp_path: Path) -> None:
    """A path of 400 KB once took 40 GB: each folder in it was kept with the whole path to it."""
    path = tmp_path / "node.json"
    deep = "/a" * (FOLDERS_LIMIT // 3)
    path.write_text(json.dumps({"environ": {}, "files": {f"{deep}/b": "text"}}))
    tracemalloc.start()
    host = read_snapshot(str(path))
    assert host.list_folder(deep) == ("b",)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 << 20
    path.write_text(json.dumps({"environ": {}, "files": {deep * 4: "text"}}))
    with pytest.raises(UsageError, match="folders"):
        read_snapshot(str(path))


def test_a_snapshot_is_written_in_one_step(tmp_path: Path) -> None:
    """A reader sees the old file or the whole new one; nothing is left beside it."""
    path = tmp_path / "node.json"
    path.write_text("old")
    write_to(str(path), '{"environ": {}}\n')
    assert path.read_text() == '{"environ": {}}\n'
    assert os.listdir(tmp_path) == ["node.json"]
    assert stat.S_ISREG(path.stat().st_mode)
    with pytest.raises(NotReady):
        write_to(str(tmp_path / "no" / "folder.json"), "x")


def test_the_command_writes_what_replay_reads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """launcher snapshot, to a file or to standard output, then launcher env --replay."""
    environ = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": "1234", "HOME": "/root"}
    path = tmp_path / "node.json"
    assert main(["snapshot", "-o", str(path)], environ) == 0
    assert main(["snapshot"], environ) == 0
    printed, written = json.loads(capfd.readouterr().out), json.loads(path.read_text())
    assert printed.pop("space").keys() == written.pop("space").keys()  # others fill the disk meanwhile
    assert printed == written
    assert printed["version"] == 2 and printed["launcher"] == __version__
    assert printed["environ"] == {name: value for name, value in environ.items() if name != "HOME"}
    assert main(["env", "--replay", str(path), "--format", "json"], {"RANK": "7"}) == 0
    replayed = json.loads(capfd.readouterr().out)
    assert (replayed["RANK"], replayed["MASTER_PORT"]) == ("0", "1234")


def test_bytes_that_are_not_utf_8_survive_a_snapshot(tmp_path: Path) -> None:
    """Bug reports come with what was really there."""
    environ = {"SLURM_JOB_NAME": os.fsdecode(b"na\xffme\n")}
    write_to(str(tmp_path / "x"), render_snapshot(take_snapshot(replay({"environ": {}}), environ)))
    assert read_snapshot(str(tmp_path / "x")).environ == environ


def test_a_snapshot_never_replaces_what_is_no_file(tmp_path: Path) -> None:
    """-o /dev/null writes to the device; a link stays a link, and its target gets the text."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_to(str(pipe), "{}\n")
    assert (os.read(reader, 10), pipe.is_fifo()) == (b"{}\n", True)
    os.close(reader)
    link.symlink_to(target)
    write_to(str(link), "{}\n")
    assert (link.is_symlink(), target.read_text()) == (True, "{}\n")
