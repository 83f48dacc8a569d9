"""The launchers that are compared: how each starts N processes of a command on this machine.

All that are written in Python, ours too, run in the one environment that ``benchmarks/run`` has
made and names in ``LAUNCHER_BENCH_PEERS``; ours from this checkout. The MPIs are Debian's, and the
wheels in ``LAUNCHER_TEST_MPIS``. What is not installed stays in the table, with the reason.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOOP = "shell loop"
OURS = "launcher"
BEFORE = "launcher, before"
# What everything is compared with: it starts them, waits for all, and does nothing else.
SHELL_LOOP = 'i=0; while [ $i -lt "$0" ]; do "$@" & i=$((i+1)); done; wait'
TWO_NODES = r"""
eval "$0 --node-rank 0 \"\$@\"" & first=$!
eval "$0 --node-rank 1 \"\$@\"" & second=$!
wait $first; status=$?; wait $second || status=$?; exit $status
"""
"""The launcher of each node, one after the other, and the status of one that failed."""
NOT_HERE = "not installed: see what benchmarks/run says"
DEBIAN_MPIRUN = "/usr/bin/mpirun"
MPI_ENVIRON = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Peer(NamedTuple):
    """One launcher.

    Attributes:
        name: As it stands in the tables.
        words: The count of processes -> the launcher's own words, without ``end_of_options``.
        environ: What it needs beside PATH and HOME.
        version: What it says it is, or why it is not here.
        present: It can be started.
        quick: It starts in well under a second, so that it can be measured more often.
        end_of_options: The words between the launcher's options and the command.
    """

    name: str
    words: Callable[[int], list[str]]
    environ: dict[str, str]
    version: str
    present: bool = True
    quick: bool = False
    end_of_options: tuple[str, ...] = ()

    def argv(self, count: int, command: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """Return the command line that starts ``count`` times the command."""
        return [*self.words(count), *options, *self.end_of_options, *command]


def find_both(before: str) -> list[Peer]:
    """Return the shell loop, our launcher, and the one of another checkout."""
    folder = peers_folder()
    return [_loop(), _ours(folder, CHECKOUT), _ours(folder, before)._replace(name=BEFORE)]


def find_on_nodes() -> list[Peer]:
    """Return ours and torchrun on two nodes, which are both this machine: half of the processes on each."""
    folder = peers_folder()
    ours, torchrun = _ours(folder, CHECKOUT), _python(folder, "torchrun", "torch", lambda n: [], "torchrun")
    programs = [(ours, ours.words(1)[:-2]), (torchrun, [*torchrun.words(1), "--no-python"])]
    return [_loop(), *(_on_nodes(peer, program) for peer, program in programs)]


def _on_nodes(peer: Peer, program: Sequence[str]) -> Peer:
    def words(count: int) -> list[str]:
        flags = ["--nnodes", "2", "--nproc-per-node", str(count // 2), "--master-addr", "127.0.0.1"]
        flags += ["--master-port", str(free_port())]
        return ["/bin/sh", "-c", TWO_NODES, shlex.join([*program, *flags])]

    return peer._replace(name=f"{peer.name}, 2 nodes", words=words, end_of_options=())


def find_with_ranks() -> list[Peer]:
    """Return mpirun by itself, and with our launcher for each rank: which becomes the rank, or stays."""
    bare = _mpi("mpirun", "openmpi4", "mpirun", ["--oversubscribe", "-n"])
    own = _ours(peers_folder(), CHECKOUT)
    *words, _, _ = own.words(1)
    environ = {**bare.environ, **own.environ, "MASTER_ADDR": "127.0.0.1"}
    ways = [(f"{bare.name}, launcher run", ()), (f"{bare.name}, launcher run --stay", ("--stay",))]
    ours = [
        bare._replace(name=name, environ=environ, end_of_options=(*words, *flags, "--"))
        for name, flags in ways
    ]
    return [_loop(), bare, *ours]


def find_peers() -> list[Peer]:
    """Return all launchers, in the order of the tables."""
    folder = peers_folder()
    return [
        _loop(),
        _ours(folder, CHECKOUT),
        _python(
            folder, "torchrun", "torch", lambda n: [*_count(n), *_static()], "torchrun, static rendezvous"
        ),
        _python(folder, "torchrun", "torch", lambda n: ["--standalone", *_count(n)], "torchrun --standalone"),
        _python(folder, "accelerate", "accelerate", _accelerate, "accelerate launch"),
        _python(folder, "deepspeed", "deepspeed", _deepspeed, "deepspeed", {"DS_ACCELERATOR": "cpu"}),
        _python(folder, "horovodrun", "horovod", _horovod, "horovodrun --gloo"),
        _mpi("Open MPI 4.1 mpirun", "openmpi4", "mpirun", ["--oversubscribe", "-n"]),
        _mpi("Open MPI 5 mpirun", "openmpi5", "mpirun", ["--oversubscribe", "-n"]),
        _mpi("MPICH mpiexec", "mpich", "mpiexec", ["-n"]),
    ]


def _loop() -> Peer:
    words = ["/bin/sh", "-c", SHELL_LOOP]
    return Peer(LOOP, lambda n: [*words, str(n)], {}, os.path.realpath("/bin/sh"), quick=True)


def peers_folder() -> str:
    """Return the virtual environment of the launchers that are Python; "" where none was made."""
    folder = os.environ.get("LAUNCHER_BENCH_PEERS", "")
    return folder if os.access(os.path.join(folder, "bin", "python"), os.X_OK) else ""


def bare_python() -> str:
    """Return the interpreter that the measured processes run: the one below the environments."""
    folder = peers_folder()
    return os.path.realpath(os.path.join(folder, "bin", "python") if folder else sys.executable)


def free_port() -> int:
    """Return a TCP port that nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ours(folder: str, checkout: str) -> Peer:
    python = os.path.join(folder, "bin", "python") if folder else sys.executable
    said = _said([python, "-m", "launcher", "--version"], {"PYTHONPATH": checkout})
    commit = _said(["git", "-C", checkout, "describe", "--always", "--dirty"], {})

    def words(count: int) -> list[str]:
        # By its program, as every other launcher here: what pip installs is this file.
        return [python, os.path.join(checkout, "bin", "launcher"), "run", "--nproc-per-node", str(count)]

    version = f"{_number(said)}, commit {commit}" if commit else _number(said)
    return Peer(OURS, words, {"PYTHONPATH": checkout}, version, quick=True, end_of_options=("--",))


def _python(
    folder: str,
    program: str,
    package: str,
    words: Callable[[int], list[str]],
    name: str,
    environ: dict[str, str] | None = None,
) -> Peer:
    path = os.path.join(folder, "bin", program)
    if not folder or not os.access(path, os.X_OK):
        return Peer(name, words, {}, NOT_HERE, present=False)
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    version = _said([os.path.join(folder, "bin", "python"), "-I", "-c", ask], {})
    return Peer(name, lambda count: [path, *words(count)], environ or {}, f"{package} {version}")


def _count(count: int) -> list[str]:
    return ["--no-python", "--nnodes", "1", "--nproc-per-node", str(count)]


def _static() -> list[str]:
    return ["--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]


def _accelerate(count: int) -> list[str]:
    # --multi_gpu is its one way to several processes on a machine; it refuses that flag for one process.
    several = ["--multi_gpu"] if count > 1 else ["--cpu"]
    told = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    port = ["--main_process_port", str(free_port())]
    return ["launch", *several, "--num_processes", str(count), *told, *port, "--no_python"]


def _deepspeed(count: int) -> list[str]:
    return ["--num_gpus", str(count), "--master_port", str(free_port()), "--no_python", "--no_local_rank"]


def _horovod(count: int) -> list[str]:
    return ["--gloo", "-np", str(count), "-H", f"localhost:{count}"]


def _mpi(name: str, family: str, program: str, words: Sequence[str]) -> Peer:
    folder = os.path.join(os.environ.get("LAUNCHER_TEST_MPIS", ""), family)
    path = os.path.join(folder, "bin", program)
    environ = MPI_ENVIRON | {"LD_LIBRARY_PATH": f"{folder}/lib"}
    if family == "openmpi4" and "(Open MPI) 4." in _said([DEBIAN_MPIRUN, "--version"], MPI_ENVIRON):
        path, environ = DEBIAN_MPIRUN, MPI_ENVIRON
    present = os.access(path, os.X_OK)
    version = _number(_said([path, "--version"], environ)) if present else NOT_HERE
    return Peer(name, lambda count: [path, *words, str(count)], environ, version, present, quick=True)


def _said(argv: Sequence[str], environ: dict[str, str]) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    told = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", **environ}
    said = subprocess.run(argv, env=told, capture_output=True, text=True, check=False)
    return said.stdout.strip()


def _number(said: str) -> str:
    found = re.search(r"\d+\.\d+[\w.]*", said)
    return found.group() if found else "unknown version"
