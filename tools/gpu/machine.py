"""The machine as it is: what helps later, without it. And what the launcher shows of it."""

from __future__ import annotations

import os
import shutil
import sys

from part import LAUNCHER, Part

COMMANDS = {
    "nvidia-smi": ("nvidia-smi", "-q"),
    "nvidia-smi-xml": ("nvidia-smi", "-q", "-x"),
    "nvidia-smi-topo": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink": ("nvidia-smi", "nvlink", "--status"),
    "devices": (
        "sh",
        "-c",
        "ls -lR /dev/nvidia* /dev/dri /dev/kmsg /proc/driver/nvidia /sys/class/infiniband",
    ),
    "gpu-files": ("sh", "-c", "head -40 /proc/driver/nvidia/gpus/*/information /proc/driver/nvidia/version"),
    "kernel": ("sh", "-c", "uname -a; cat /proc/version /proc/cmdline /etc/os-release; id; ulimit -a"),
    "environment": ("sh", "-c", "env -0 | tr '\\0' '\\n' | cut -d= -f1,2 | sort"),
    "mounts": ("cat", "/proc/self/mountinfo"),
    "cgroup": ("sh", "-c", "cat /proc/self/cgroup; head -5 /sys/fs/cgroup/*.max /sys/fs/cgroup/cpu* 2>&1"),
    "cpus": ("sh", "-c", "lscpu; cat /proc/meminfo; ls -d /sys/devices/system/node/node*; df -h"),
    "network": ("sh", "-c", "ip address || cat /proc/net/dev; cat /etc/hosts"),
    "pci": ("sh", "-c", "ls -l /sys/bus/pci/devices; head -3 /sys/bus/pci/devices/*/numa_node"),
    "dmesg": ("sh", "-c", "dmesg | tail -200"),
    "pip": (sys.executable, "-m", "pip", "list"),
    "programs": (
        "sh",
        "-c",
        "for p in nvcc ptxas mpirun torchrun accelerate py-spy ip; do command -v $p; done",
    ),
    "libraries": ("sh", "-c", "ldconfig -p | grep -E 'cuda|nvidia|nccl'"),
}
SCREENS = {
    "plan": ("plan", "--", sys.executable, "examples/train_ddp.py"),
    "plan-two": ("plan", "--nproc-per-node", "2", "--", sys.executable, "examples/train_ddp.py"),
    "check": ("check",),
    "check-json": ("check", "--format", "json"),
    "topology": ("topology",),
    "topology-json": ("topology", "--format", "json"),
    "status": ("status",),
    "version": ("--version",),
}


def collect(part: Part) -> None:
    """Run all; only the launcher's own commands must work."""
    snapshot = os.path.join(part.logs, "snapshot.json")
    jobs = {name: part.start(f"screen-{name}", (*LAUNCHER, *words)) for name, words in SCREENS.items()}
    jobs["snapshot"] = part.start("screen-snapshot", (*LAUNCHER, "snapshot", "-o", snapshot))
    others = {
        name: part.start(name, words, dict(os.environ) if name == "environment" else None)
        for name, words in COMMANDS.items()
        if shutil.which(words[0])
    }
    for name, job in jobs.items():
        with part.step(f"launcher {name}"):
            done = job.wait(30)
            fine = (0, 1) if name.startswith("check") else (0,)
            if name != "status":  # there is no job, or there are several
                part.check(f"launcher {name}", fine, done.status, right=done.status in fine)
            part.check(f"launcher {name}: no traceback", False, "Traceback" in done.err)
            part.figure(f"launcher {name}: s", done.seconds)
    for job in others.values():
        with part.step("a command"):
            job.wait(15)
    part.check("the snapshot is there", True, os.path.exists(snapshot))
    part.figure("python", sys.version)
