"""A real Slurm on simulated nodes: munged and slurmd on every node, slurmctld on the first.

::

    with SlurmCluster(2) as slurm:
        done = slurm.run("srun", "-N2", "--ntasks-per-node=2", "hostname")

Each node has 64 CPUs and two GPUs (``--gres=gpu:2``), all made up: the machine needs neither. Slurm
sets CUDA_VISIBLE_DEVICES as it does for real ones, but no node shows any GPU, the machine's neither,
unless ``device_files`` gives it files named like NVIDIA's.

Sockets, ports and process ids are the nodes' own, so that these clusters can run side by side; what
is on the machine is one temporary directory. Two nodes start in 0.2 s. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import pytest

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.cluster.pyxis import install_pyxis
from tests.process.starting import clean_environ

START_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 60.0
CPUS_PER_NODE = 64
"""So many that no job waits for what another has left."""
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sbatch": "slurm-client",
    "salloc": "slurm-client",
    "sinfo": "slurm-client",
}
SYSTEM_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
"""Where daemons are, on the PATH of few users."""

# task/none and config_overrides: the CPUs need not exist. Job ids begin at 1 in every cluster. A job that is
# requeued waits until the credentials of its steps have expired, by default 2 minutes, and for a scheduler,
# which by default looks each 30 or 60 s.
SLURM_CONF = """\
ClusterName=simulated
SlurmctldHost={head}
AuthType=auth/munge
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS=/run/slurm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
AuthInfo=cred_expire=20
KillWait=5
GresTypes=gpu
NodeName={names} CPUs={cpus} Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# slurmd wants a cgroup plugin even where nothing uses it, and version 2 wants a systemd to talk to.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
GRES_CONF = "NodeName={names} Name=gpu File=/dev/null,/dev/zero\n"

# The daemons leave their starter when they are up, or say why not.
NODE = """\
set -e
folder=$1 head=$2 device_files=$3
for mine in munge slurm dev; do
    mkdir -p /run/$mine
    mount -t tmpfs -o mode=755 tmpfs /run/$mine
done
mount -t tmpfs tmpfs /sys/fs/cgroup

mkdir /run/dev/shm
mount --bind /dev/shm /run/dev/shm
for device in full null random tty urandom zero; do
    touch /run/dev/$device
    mount --bind /dev/$device /run/dev/$device
done
ln -s /proc/self/fd /run/dev/fd
for number in $device_files; do touch /run/dev/nvidia$number; done
mount --rbind /run/dev /dev

munged --key-file="$folder/munge.key" --socket=/run/munge/munge.socket.2 \\
    --pid-file=/run/munge/munged.pid --log-file=/run/munge/munged.log --seed-file=/run/munge/seed
if [ "$(hostname)" = "$head" ]; then slurmctld -i -f "$folder/slurm.conf"; fi
slurmd -f "$folder/slurm.conf" -N "$(hostname)"
"""


class SlurmCluster:
    """N simulated nodes with Slurm on them, up inside of a ``with`` block.

    Attributes:
        cluster: The nodes themselves; jobs are submitted on the first.
        folder: Configuration, key and logs, gone after the block.
    """

    def __init__(self, node_count: int, *, device_files: int = 0, pyxis: bool = False) -> None:
        """Describe a cluster, or fail the test if Slurm is not installed; nothing is started yet.

        Args:
            node_count: How many nodes.
            device_files: How many files of NVIDIA's GPUs each node shows.
            pyxis: Whether the stand-in for pyxis is installed (`tests.cluster.pyxis`).
        """
        require_packages()
        self.cluster = Cluster(node_count)
        self.folder = Path()
        self._device_files = " ".join(str(number) for number in range(device_files))
        self._has_pyxis = pyxis
        self._stack = contextlib.ExitStack()

    @property
    def head(self) -> SimulatedNode:
        """The node of slurmctld, on which jobs are submitted."""
        return self.cluster.nodes[0]

    def environ(self, **variables: str) -> dict[str, str]:
        """Return the environment of somebody who submits jobs on the head node."""
        path = os.environ.get("PATH", os.defpath) + ":" + SYSTEM_PATH
        return clean_environ(**{"PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf"), **variables})

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the head node, e.g. srun, to its end.

        Args:
            argv: The command.
            variables: Set in its environment, and so in the tasks that srun starts.
        """
        return self._run(self.head, argv, self.environ(**variables), RUN_TIMEOUT_S)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command on the head node, e.g. srun; what it says is in one pipe."""
        return subprocess.Popen(
            self.cluster.argv(self.head, argv),
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def on(self, node: SimulatedNode, *argv: str) -> None:
        """Run a command on a node, which has to succeed."""
        self._check(node, argv)

    def crash(self, node: SimulatedNode) -> None:
        """End a node with all that runs on it, and tell Slurm, which would notice after SlurmdTimeout."""
        self.cluster.crash(node)
        self._tell_down(node)

    def lose(self, node: SimulatedNode) -> None:
        """Cut a node's network and kill all that runs on it, as a machine that dies; tell Slurm."""
        self.cluster.disconnect(node)
        self._check(node, ("sh", "-c", "kill -9 -1"))
        self._tell_down(node)

    def boot(self, node: SimulatedNode) -> None:
        """Start a lost node again; Slurm takes it as soon as it reports for work."""
        self.cluster.reconnect(node)
        self._start_daemons(node)

    def _tell_down(self, node: SimulatedNode) -> None:
        done = self.run("scontrol", "update", f"nodename={node.name}", "state=down", "reason=crash")
        assert done.returncode == 0, done.stderr

    def run_script(self, text: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Submit a batch script, wait for its end, return its exit status and what it printed.

        Args:
            text: The script, for sh, without the ``#!`` line.
            options: Options of sbatch, e.g. ``-N2``.
            variables: Set in the environment of the script.
        """
        script, out, err, end = (self.folder / f"batch.{kind}" for kind in ("sh", "out", "err", "end"))
        script.write_text(f"#!/bin/sh\n(\n{text}\n)\nstatus=$?\necho $status > {end}\nexit $status\n")
        end.unlink(missing_ok=True)
        os.mkfifo(end)
        done = self.run("sbatch", f"--output={out}", f"--error={err}", *options, str(script), **variables)
        assert done.returncode == 0, done.stderr
        # Not `sbatch --wait`, which asks every 2 s at first and then every 8.
        status = self.run("cat", str(end)).stdout
        return subprocess.CompletedProcess(text, int(status), out.read_text(), err.read_text())

    def __enter__(self) -> SlurmCluster:
        with contextlib.ExitStack() as stack:
            prefix = f"launcher-slurm-{os.getpid()}-"
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            self._write_configuration()
            stack.enter_context(self.cluster)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _write_configuration(self) -> None:
        names = ",".join(node.name for node in self.cluster.nodes)
        values = {"folder": self.folder, "head": self.head.name, "names": names, "cpus": CPUS_PER_NODE}
        text = SLURM_CONF.format(**values)
        if self._has_pyxis:
            text += install_pyxis(self.folder)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)
        (self.folder / "gres.conf").write_text(GRES_CONF.format(**values))
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(64))

    def _start(self) -> None:
        """Start all daemons, and wait until every node has reported for work."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in self.cluster.nodes:
            self._start_daemons(node)
        ready = ["idle"] * len(self.cluster.nodes)
        states = None
        while states != ready:
            if time.monotonic() > deadline:
                pytest.fail(f"Slurm's nodes are {states} after {START_TIMEOUT_S} s\n{self.logs()}")
            states = self._check(self.head, ("sinfo", "--noheader", "--Node", "--format=%T")).split()

    def _start_daemons(self, node: SimulatedNode) -> None:
        words = ("sh", "-c", NODE, "sh", str(self.folder), self.head.name, self._device_files)
        self._check(node, words)

    def _check(self, node: SimulatedNode, argv: tuple[str, ...]) -> str:
        try:
            done = self._run(node, argv, self.environ(), START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"Slurm on {node.name}: no answer in {START_TIMEOUT_S} s\n{self.logs()}")
        if done.returncode:
            pytest.fail(f"Slurm on {node.name} did not start: {done.stderr}\n{self.logs()}")
        return done.stdout

    def logs(self) -> str:
        """Return what the daemons have logged, for the message of a test that fails."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in files)

    def _run(
        self, node: SimulatedNode, argv: tuple[str, ...], environ: dict[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.cluster.argv(node, argv),
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )


def require_packages() -> None:
    """Fail the test, and say what to run, unless everything is installed."""
    path = os.environ.get("PATH", os.defpath) + ":" + SYSTEM_PATH
    missing = [name for name in PACKAGES if shutil.which(name, path=path) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES[name] for name in missing}))
        pytest.fail(f"no {', '.join(missing)} ({packages}): run bash tools/test.sh", pytrace=False)
