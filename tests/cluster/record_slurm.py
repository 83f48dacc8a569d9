"""Record what a real Slurm puts into the environment of what it starts: ``tests/golden/recordings``.

    sudo python -m tests.cluster.record_slurm --out tests/golden/recordings

Slurm runs on simulated nodes (`tests.cluster.slurm`) in an environment of PATH, HOME and SLURM_CONF, so
that a recording holds what Slurm adds and nothing of this machine; the folder of its configuration, a
temporary one, is written as /etc/slurm. As with ``tools/record.py``, which does the same for mpirun, a
recording is never written by hand.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.slurm import SYSTEM_PATH, SlurmCluster

TIMEOUT_S = 60
FOLDER = "/etc/slurm"
# /proc and not os.environ, to which Python itself adds LC_CTYPE where no locale is set.
DUMP = """\
#!/usr/bin/python3
import json, os, socket, sys
with open("/proc/self/environ", "rb") as file:
    words = sorted(os.fsdecode(word) for word in file.read().split(b"\\0")[:-1])
record = {"node": socket.gethostname(), "env": dict(word.split("=", 1) for word in words)}
with open(f"{sys.argv[1]}/{socket.gethostname()}-{os.getpid()}.json", "w") as file:
    json.dump(record, file)
"""
HOSTS = "node1\nnode0\nnode1\n"


class Case(NamedTuple):
    """One recording: the command that starts the dump, and a file for SLURM_HOSTFILE."""

    name: str
    command: str
    hostfile: str = ""


CASES = (
    Case("srun_uneven-3+1", "srun -N2 -n4"),
    Case("srun_cyclic", "srun -N2 --ntasks-per-node=2 -m cyclic"),
    Case("srun_arbitrary", "srun -n3 -m arbitrary", "hosts"),
    Case("srun_pmi2", "srun --mpi=pmi2 -N2 --ntasks-per-node=2"),
    Case("sbatch-script", "sbatch --wait -o /dev/null -N2 --ntasks-per-node=2"),
    Case("salloc-shell", "salloc -N2 --ntasks-per-node=2"),
    Case("salloc-interactive-step", "salloc -N2 --ntasks-per-node=2 srun --interactive --preserve-env"),
)


def main(argv: Sequence[str]) -> int:
    """Record every case and say what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    options = parser.parse_args(argv)
    for case in CASES:
        recording = record(case)
        path = options.out / f"captured_{recording['name']}.json"
        path.write_text(json.dumps(recording, indent=1) + "\n")
        print(path)
    return 0


def record(case: Case) -> dict[str, Any]:
    """Run one case on a cluster of its own, as the first job there, and return the recording."""
    with SlurmCluster(2) as slurm:
        script = slurm.folder / "dump.py"
        script.write_text(DUMP)
        script.chmod(0o755)
        (slurm.folder / "hosts").write_text(HOSTS)
        out = slurm.folder / "out"
        out.mkdir()
        hostfile = {"SLURM_HOSTFILE": f"{slurm.folder}/{case.hostfile}"} if case.hostfile else {}
        run(slurm, *shlex.split(case.command), str(script), str(out), **hostfile)
        version = run(slurm, "srun", "--version").split()[-1]
        texts = [path.read_text() for path in out.iterdir()]
    processes = [json.loads(text.replace(str(slurm.folder), FOLDER)) for text in texts]
    today = datetime.date.today().isoformat()
    return {
        "name": f"slurm-{version.rpartition('.')[0]}_{case.name}",
        "provenance": f"captured live {today} with the real launcher (Slurm {version}), run on node0 by"
        " tests/cluster/record_slurm.py; nodes are simulated (node0=10.77.0.10, node1=10.77.0.11)",
        "command": case.command,
        "processes": sorted(processes, key=lambda process: int(process["env"].get("SLURM_PROCID", 0))),
    }


def run(slurm: SlurmCluster, *argv: str, **variables: str) -> str:
    """Run a command on the head node to its end, in a small environment, and return what it printed."""
    conf = {"SLURM_CONF": str(slurm.folder / "slurm.conf")}
    done = subprocess.run(
        slurm.cluster.argv(slurm.head, argv, cwd="/"),
        env={"PATH": SYSTEM_PATH, "HOME": "/root", **conf, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
