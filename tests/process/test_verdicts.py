"""Real failures get the right verdict: out of memory, full shared memory, lost peers, ``@record``."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.failure.causes import find_causes
from launcher.failure.counters import Counters
from launcher.failure.model import Cause, ProcessExit
from launcher.machine.cgroup import cgroup_folders
from launcher.machine.host import Host
from tests.process.starting import clean_environ, launch

DEADLINE_S = 120.0
LIMIT_BYTES = 96 << 20
# Ends by itself at four times the limit, should nothing end it: a test must not eat a machine.
HUNGRY = f"""
import sys
print("epoch 1", file=sys.stderr, flush=True)
blocks = []
while len(blocks) < {4 * LIMIT_BYTES >> 20}:
    blocks.append(bytearray(b"x" * (1 << 20)))
"""
TOUCH_SHM = """
import mmap, os
with open("/dev/shm/block", "wb+") as file:
    os.ftruncate(file.fileno(), 8 << 20)
    block = mmap.mmap(file.fileno(), 8 << 20)
    for place in range(0, 8 << 20, 4096):
        block[place] = 1
"""
LOAD_BATCHES = """
import torch
from torch.utils.data import DataLoader, Dataset
class Large(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.ones(1 << 20)
for batch in DataLoader(Large(), num_workers=2, batch_size=4):
    pass
"""
TRAIN = """
import datetime, os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
numbers = torch.ones(1)
dist.all_reduce(numbers)
if os.environ["RANK"] == "1":
    if sys.argv[1] == "raise":
        raise ValueError("the first failure")
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    dist.all_reduce(numbers)
"""
RECORDED = """
import ctypes, sys
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if sys.argv[1] == "crash":
        ctypes.string_at(0)
    try:
        open("/nonexistent/data")
    except OSError as error:
        raise ValueError("no data, api_key=hunter2hunter2") from error
main()
"""


def judge(*command: str, prefix: tuple[str, ...] = (), **variables: str) -> dict[str, object]:
    """Run a command under the judging parent, and return its record."""
    line = [*prefix, sys.executable, "-m", "tests.process.judging", *command]
    done = subprocess.run(
        line,
        env=clean_environ(JUDGE="json", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", **variables),
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    record = json.loads(done.stdout)
    assert isinstance(record, dict)
    return record


def cause(record: dict[str, object]) -> dict[str, object]:
    """Return the first cause of a record."""
    causes = record["causes"]
    assert isinstance(causes, list) and causes
    first = causes[0]
    assert isinstance(first, dict)
    return first


@pytest.fixture
def small_cgroup() -> Iterator[str]:
    """Return the cgroup.procs of a cgroup with little memory, or skip where none can be made."""
    for folder in cgroup_folders(Host(), "memory"):
        path = f"{folder}/launcher-test-{os.getpid()}"
        try:
            os.mkdir(path)
        except OSError:
            continue
        try:
            if limit_memory(path):
                yield f"{path}/cgroup.procs"
                return
        finally:
            os.rmdir(path)
    pytest.skip("no cgroup with a memory limit can be made here (needs root and the memory controller)")


def limit_memory(path: str) -> bool:
    """Set the limit of a new cgroup, v1 or v2, without swap; False if it has no memory controller."""
    for name, value in (
        ("memory.swappiness", "0"),
        ("memory.swap.max", "0"),
        ("memory.limit_in_bytes", str(LIMIT_BYTES)),
        ("memory.max", str(LIMIT_BYTES)),
    ):
        try:
            with open(f"{path}/{name}", "w") as file:
                file.write(value)
        except OSError:
            continue
    return any(os.path.exists(f"{path}/{name}") for name in ("memory.limit_in_bytes", "memory.max"))


def need_mounts() -> tuple[str, ...]:
    """Return the words before a command that may mount for itself, or skip."""
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting needs root")
    script = 'mount -t tmpfs -o size="$SHM_SIZE" tmpfs /dev/shm && exec "$@"'
    return "unshare", "-m", "sh", "-c", script, "sh"


def need_torch() -> None:
    """Fail, rather than skip, where the framework environment is missing."""
    if importlib.util.find_spec("torch") is None:
        pytest.fail("torch is not installed: run bash tools/test.sh", pytrace=False)


@pytest.mark.root
def test_a_real_oom_kill(small_cgroup: str) -> None:
    """The kernel kills for the cgroup's limit: the verdict has the limit and the counter's two values."""
    record = judge(sys.executable, "-c", HUNGRY, JOIN=small_cgroup)
    assert (record["signal"], record["exit_status"], record["retryable"]) == ("SIGKILL", 137, True)
    file = "memory.oom_control" if "/memory/" in small_cgroup else "memory.events"
    what = f"the container's memory limit of 96 MiB was reached, oom_kill went from 0 to 1 in {file}"
    assert cause(record)["what"] == what
    assert record["verdict"] == f"rank 0 on node0 was killed by SIGKILL: {what}"
    assert record["stderr"] == "epoch 1"


@pytest.mark.root
def test_a_real_oom_kill_behind_a_shell(small_cgroup: str) -> None:
    """A wrapper script exits with 137, and the verdict is the same."""
    record = judge("sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, HUNGRY, JOIN=small_cgroup)
    assert (record["signal"], record["exit_status"]) == (None, 137)
    assert cause(record)["code"] == "out-of-memory"


@pytest.mark.root
def test_a_sigkill_in_the_same_cgroup_is_not_called_oom(small_cgroup: str) -> None:
    """The counter has not moved: somebody has sent it."""
    record = judge("sh", "-c", "kill -9 $$", JOIN=small_cgroup)
    assert cause(record)["code"] == "killed"
    assert "oom_kill stayed 0" in str(cause(record)["what"])


@pytest.mark.root
def test_an_oom_kill_of_an_earlier_attempt_does_not_count(small_cgroup: str, tmp_path: Path) -> None:
    """Memory runs out in attempt 0, and attempt 1 is killed from outside."""
    script = 'test "$LAUNCHER_ATTEMPT" && kill -9 $$; exec "$0" -c "$1"'
    rule = ("--restarts", "1", "--attempts-file", str(tmp_path / "attempts"))
    job = (sys.executable, "-m", "launcher", "run", *rule, "--", "sh", "-c", script, sys.executable, HUNGRY)
    enter = f'echo $$ > {small_cgroup}; exec "$@"'
    subprocess.run(("sh", "-c", enter, "sh", *job), env=clean_environ(), check=False, timeout=DEADLINE_S)
    lines = (tmp_path / "attempts").read_text().splitlines()
    assert [json.loads(line)["cause"] for line in lines] == ["out-of-memory", "killed"]


@pytest.mark.root
def test_a_real_bus_error_with_a_full_shm() -> None:
    """A process touches shared memory for which there is no room: SIGBUS, and the sizes."""
    record = judge(sys.executable, "-c", TOUCH_SHM, prefix=need_mounts(), SHM_SIZE="1m")
    assert (record["signal"], cause(record)["code"]) == ("SIGBUS", "shm-full")
    assert "it has 1 MiB and 0 B of it free now" in str(cause(record)["what"])
    assert record["status"] == "was ended by SIGBUS (bus error)"


@pytest.mark.root
@pytest.mark.torch
def test_a_real_dataloader_without_shared_memory(tmp_path: Path) -> None:
    """torch says so, in a traceback inside of a traceback; when it is over, /dev/shm is empty again."""
    need_torch()
    script = tmp_path / "train.py"
    script.write_text(LOAD_BATCHES.replace("for batch", "if __name__ == '__main__':\n  for batch"))
    record = judge(sys.executable, str(script), prefix=need_mounts(), SHM_SIZE="8m")
    assert record["exit_status"] == 1
    assert (cause(record)["code"], record["retryable"]) == ("shm-full", False)
    assert "it has 8 MiB" in str(cause(record)["what"])
    assert str(record["traceback"]).count("Traceback (most recent call last):") == 2


@pytest.mark.torch
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_real_lost_peer_of_gloo(how: str) -> None:
    """The rank that fails is blamed; those that only lost it say so, and point elsewhere."""
    need_torch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    group = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, how],
            env=clean_environ(RANK=str(rank), OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", **group),
            stderr=subprocess.PIPE,
        )
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=DEADLINE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    quiet = Counters(oom_kill=0, events_file="/sys/fs/cgroup/memory.events")
    found: list[tuple[Cause, ...]] = []
    for rank, (process, stderr) in enumerate(zip(processes, said, strict=True)):
        death = ProcessExit(rank, rank, process.pid, process.returncode, 0, stderr)
        found.append(find_causes(death, quiet, Host("/nonexistent"), quiet))
    for rank in (0, 2):
        assert [(one.code, one.consequence) for one in found[rank]] == [("gloo-peer-lost", True)], said[rank]
    assert [one.code for one in found[1]] == ["python-exception" if how == "raise" else "killed"]


# Rank 1 ends once rank 0 is gone: its exception was there before, and takes as long as its ``finally`` does.
LOSES_AND_ENDS = """
import os, sys
from pathlib import Path
folder, way = Path(sys.argv[1]), sys.argv[2]
if os.environ["RANK"] == "1":
    try:
        raise ValueError("the true cause")
    finally:
        while not (folder / "pid").exists():
            pass
        while Path("/proc", (folder / "pid").read_text()).exists():
            pass
print("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:3", file=sys.stderr)
(folder / "new").write_text(str(os.getpid()))
(folder / "new").rename(folder / "pid")
sys.exit(1) if way == "exits" else os.abort()
"""


@pytest.mark.parametrize("way", ["exits", "aborts"])
def test_a_rank_that_lost_its_peer_first_is_no_first_failure(tmp_path: Path, way: str) -> None:
    """Its connections close before the other has ended; gloo's and NCCL's threads abort after that."""
    words = ("--nproc-per-node", "2", "--", sys.executable, "-c", LOSES_AND_ENDS, str(tmp_path), way)
    done = launch("run", *words)
    assert done.returncode == 1, done.stderr
    assert "launcher: rank 1 of 2 failed first: it exited with code 1" in done.stderr
    assert "cause: [python-exception] ValueError: the true cause" in done.stderr


@pytest.mark.torch
def test_torchs_record_works_unchanged(tmp_path: Path) -> None:
    """What @record writes is the traceback of the verdict, whole, and without the secret in it."""
    need_torch()
    path = str(tmp_path / "error.json")
    record = judge(sys.executable, "-c", RECORDED, "raise", TORCHELASTIC_ERROR_FILE=path)
    assert json.loads(Path(path).read_text())["message"]["extraInfo"]
    assert record["traceback_from"] == "error file"
    assert str(record["traceback"]).count("Traceback (most recent call last):") == 2
    assert record["exception"] == "ValueError: no data, api_key=<redacted>"
    assert "hunter2" not in json.dumps(record)
    assert cause(record)["code"] == "file-missing"


@pytest.mark.torch
def test_a_crash_under_record_shows_its_stack(tmp_path: Path) -> None:
    """@record turns faulthandler on: the Python line of a segmentation fault."""
    need_torch()
    path = str(tmp_path / "error.json")
    record = judge(sys.executable, "-c", RECORDED, "crash", TORCHELASTIC_ERROR_FILE=path)
    assert (record["signal"], cause(record)["code"]) == ("SIGSEGV", "segmentation-fault")
    assert record["exception"] == "Fatal Python error: Segmentation fault"
    assert "string_at" in str(record["traceback"])
