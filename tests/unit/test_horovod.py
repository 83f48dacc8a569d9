"""Which jobs are Horovod's, what they get, and how a rank waits for the rendezvous. No Horovod is needed."""

from __future__ import annotations

import ast
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_server, socket
from typing import Any

import pytest

from launcher.core.errors import LauncherError, NotReady, UsageError
from launcher.core.model import Mode, Plan
from launcher.frameworks.horovod import SERVE, SERVER, WAITER
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ
from launcher.servers import horovod_serve, horovod_wait
from launcher.servers.horovod_wait import wait
from tests.process.starting import clean_environ

IMPORTS = (
    "import horovod.torch as hvd",
    "from horovod import torch",
    "import sys, horovod",
    "  import horovod",
)
MENTIONS = (
    "# import horovod",
    "import horovodrun",
    "print('import horovod')",
    "from .horovod import x",
    "import",
)
NODES: dict[str, Any] = {"nnodes": "2", "master_addr": "10.0.0.4", "nproc_per_node": "2"}
SLOTS = "node0:2,node1:2"
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PER_RANK = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}


class Made(Host):
    """This machine, with a Python that has Horovod, built for some MPI, or has not."""

    def __init__(self, built_for: str | None) -> None:
        super().__init__()
        self.built_for = built_for

    def find_version(self, python: str | None, environ: Mapping[str, str], name: str) -> str | None:
        """Return the versions that it was made with."""
        return {"horovod": "" if self.built_for is None else "0.28.1", "keras": "3.15.0"}.get(name, "")

    def packages(self, python: str | None, environ: Mapping[str, str]) -> Any:
        """Return Horovod alone."""
        from launcher.machine.packages import Package

        return () if self.built_for is None else (Package("horovod", "0.28.1", "/site", self.built_for),)


class Only(Made):
    """This machine, where a single Python has Horovod."""

    def __init__(self, python: str) -> None:
        super().__init__("gloo")
        self.python = python

    def find_version(self, python: str | None, environ: Mapping[str, str], name: str) -> str | None:
        """Return the version of that Python's."""
        return "0.28.1" if (python, name) == (self.python, "horovod") else ""


def plan(
    *command: str, environ: Mapping[str, str] | None = None, built_for: str | None = None, **flags: str
) -> Plan:
    """Return the plan for a command on a machine."""
    given = dict(environ or {})
    return plan_job(given, Made(built_for), read_options(flags, given), command)


def horovod_of(job: Plan, local_rank: int = 0, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what Horovod's names are in one process."""
    found = render_environ(job, job.processes[local_rank], dict(environ or {}))
    return {name[8:]: value for name, value in found.items() if name.startswith("HOROVOD_")}


def script(folder: Path, line: str) -> str:
    """Write a script with such a line."""
    path = folder / "train.py"
    path.write_text(f"import sys\n{line}\n")
    return str(path)


@pytest.mark.parametrize("line", IMPORTS)
def test_a_script_that_imports_horovod_makes_a_job_of_it(tmp_path: Path, line: str) -> None:
    """The plan says so where its variables come from."""
    job = plan("python", script(tmp_path, line), **NODES, node_rank="0", built_for="")
    assert horovod_of(job)["CONTROLLER"] == "gloo"
    assert any("imports horovod" in setting.origin for setting in (*job.settings, *job.processes[0].settings))


@pytest.mark.parametrize("line", MENTIONS)
def test_a_script_that_only_speaks_of_it_does_not(tmp_path: Path, line: str) -> None:
    """Without Horovod nothing is set."""
    assert horovod_of(plan("python", script(tmp_path, line), nproc_per_node="2")) == {}


@pytest.mark.parametrize("line", [*IMPORTS, "import horovod.tensorflow.keras; x.DistributedOptimizer"])
def test_a_script_that_imports_what_is_not_there_is_no_job_of_it(tmp_path: Path, line: str) -> None:
    """It imports it where there is one (``except ImportError``), or only speaks of it: the job runs."""
    job = plan("python", script(tmp_path, line), nproc_per_node="2", built_for=None)
    assert horovod_of(job) == {} and job.companions == () and job.processes[0].argv[0] == "python"


WRAPPED = (("bash", "run.sh"), ("env", "A=1", "/opt/bin/python3", "train.py"), ("./train",))


@pytest.mark.parametrize("command", WRAPPED)
def test_horovod_behind_a_wrapper_fails(command: tuple[str, ...]) -> None:
    """What such a command starts is not known; a Python that it may be has Horovod."""
    job = plan(*command, nproc_per_node="2", built_for="Open MPI")
    assert horovod_of(job)["GLOO_RENDEZVOUS_PORT"] == "1" and job.companions == ()
    assert horovod_of(plan(*command, nproc_per_node="2", built_for=None)) == {}


def test_the_python_of_a_first_line_is_one_that_may_have_horovod(tmp_path: Path) -> None:
    """A script that is executed names its Python itself."""
    path = tmp_path / "hv"
    path.write_text("#!/opt/own/bin/python3 -u\n")
    path.chmod(0o755)
    for words, environ, named in (
        ((str(path),), {}, "/opt/own/bin/python3"),
        (("bash", "-c", "python3.11 x.py", "python3.11"), {}, "python3.11"),
        (("./x",), {"PYTHON_EXEC": "/p/python"}, "/p/python"),
        (("./x",), {}, "python3"),
    ):
        host = Only(named)
        job = plan_job(environ, host, read_options({"nproc_per_node": "2"}, environ), words)
        assert horovod_of(job)["GLOO_RENDEZVOUS_PORT"] == "1", words


def test_what_every_process_of_two_nodes_gets() -> None:
    """On node 1, local rank 1: all that gloo reads; the node's name is its own; the port is derived."""
    job = plan("python", "-m", "train", framework="horovod", node_rank="1", **NODES)
    seen = horovod_of(job, 1)
    seen.pop("GLOO_IFACE", None)  # as this machine's network is
    assert seen == {
        "RANK": "3",
        "SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_SIZE": "2",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
        "HOSTNAME": "node1",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": "10.0.0.4",
        "GLOO_RENDEZVOUS_PORT": "6106",
        "GLOO_TIMEOUT_SECONDS": "600",
    }
    assert job.companions == ()
    assert job.processes[1].argv[3:] == (WAITER, "10.0.0.4:6106", SLOTS, "python", "-m", "train")


def test_node_0_serves() -> None:
    """The server is run by the Python of the command, knows all nodes, and has no rank's variables."""
    job = plan("/opt/bin/python", "-m", "train", framework="horovod", node_rank="0", **NODES)
    (server,) = job.companions
    finder = (sys.executable, "-I", "-S", SERVE, "10.0.0.4", "")
    assert server.argv == (*finder, "/opt/bin/python", SERVER, "6106", SLOTS)
    assert not any(setting.name.startswith("HOROVOD_") for setting in server.settings)


@pytest.mark.parametrize("master", ["10.0.0.4", "fd00::4", "node0"])
def test_a_job_on_one_node_meets_at_the_loopback(master: str) -> None:
    """Nothing outside of the node has to reach its rendezvous."""
    flags: dict[str, Any] = {"framework": "horovod", "nnodes": "1", "nproc_per_node": "2"}
    flags |= {"master_addr": master, "master_port": "6105"}
    job = plan("python", "-m", "train", node_rank="0", **flags)
    assert horovod_of(job)["GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1"
    assert job.processes[0].argv[4] == "127.0.0.1:6106"
    assert job.companions[0].argv == ("python", SERVER, "6106", "node0:2", "127.0.0.1")


class Node(Host):
    """A node with addresses, and a name for it."""

    def __init__(self, own: Sequence[str], found: Sequence[str], towards: str | None = None) -> None:
        super().__init__()
        self._own, self._found, self._towards = own, found, towards

    def own_addresses(self) -> frozenset[str]:
        """Return those that it was made with."""
        return frozenset({"127.0.0.1", "::1", *self._own})

    def resolve(self, name: str) -> frozenset[str]:
        """Return what the name means here."""
        return frozenset(self._found)

    def ask_source(self, target: str) -> str | None:
        """Return the address that leads to the others."""
        return self._towards


@pytest.mark.parametrize(
    ("own", "found", "towards", "expected"),
    [
        (["10.0.0.4", "10.9.0.4"], ["10.0.0.4"], "10.9.0.4", ("10.0.0.4",)),
        (["10.0.0.4", "10.9.0.4"], ["127.0.1.1"], "10.0.0.4", ("10.0.0.4", "127.0.1.1")),
        (["10.0.0.4", "10.9.0.4"], ["172.20.0.1"], "10.0.0.4", ("10.0.0.4",)),  # a service in front
        (["10.0.0.4", "10.9.0.4"], [], "10.0.0.4", ("10.0.0.4",)),  # no such name yet
        (["10.0.0.4", "fd00::4"], ["fd00::4", "10.0.0.4"], "fd00::4", ("10.0.0.4",)),
        (["10.0.0.4", "fd00::4"], ["127.0.1.1"], "fd00::4", ("10.0.0.4", "127.0.1.1")),
        ([], ["127.0.0.1"], None, ("127.0.0.1",)),
    ],
)
def test_the_rendezvous_listens_where_ranks_ask_and_nowhere_else(
    own: list[str], found: list[str], towards: str, expected: tuple[str, ...]
) -> None:
    """Ranks of node 0 by what its name means there, the others by the cluster's network."""
    assert horovod_serve.find_addresses("node0", ("node0", "node1"), Node(own, found, towards)) == expected


def test_a_node_without_ipv4_serves_no_rendezvous() -> None:
    """Horovod asks by IPv4 only: said, and not served at all addresses instead."""
    with pytest.raises(NotReady, match="no IPv4 address"):
        horovod_serve.find_addresses("node0", (), Node(["fd00::4"], ["fd00::4"], "fd00::4"))


def test_the_server_is_started_with_the_addresses() -> None:
    """As its last word; the rest of its command line stands in the plan."""
    line = [sys.executable, "-I", "-S", SERVE, "127.0.77.1", "", "echo", "6106", SLOTS]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, f"6106 {SLOTS} 127.0.77.1\n"), done.stderr


@pytest.mark.parametrize(("rank", "serves"), [("0", True), ("1", False)])
def test_where_each_process_has_a_launcher_that_of_rank_0_stays(rank: str, serves: bool) -> None:
    """The others become their command, once the server is there."""
    environ = {**PER_RANK, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "10.0.0.4"}
    flags = {"framework": "horovod", "nnodes": "2", "scope": "process"}
    job = plan("python", "-m", "train", environ=environ, **flags)
    assert (job.mode is Mode.SUPERVISE, len(job.companions)) == (serves, int(serves))
    assert job.processes[0].argv[3] == WAITER


@pytest.mark.parametrize(
    ("flags", "built_for", "expected"),
    [
        ({}, "Open MPI", {}),
        ({}, "", {}),  # nothing says that it is a job of Horovod, and mpirun's jobs are left alone
        ({"framework": "horovod"}, "Open MPI", {}),
        ({"framework": "horovod"}, None, {}),
        ({"framework": "horovod"}, "", {"CONTROLLER": "gloo", "RANK": "0"}),
        ({"framework": "horovod"}, "MPICH", {"CONTROLLER": "gloo", "RANK": "0"}),
    ],
)
def test_under_mpirun_horovod_asks_mpi(
    flags: dict[str, Any], built_for: str | None, expected: dict[str, str]
) -> None:
    """Unless it was built for another MPI, or for none, and somebody has said that this is its job."""
    job = plan("python", "-m", "train", environ=MPIRUN, built_for=built_for, nnodes="1", **flags)
    seen = horovod_of(job)
    assert {name: seen.get(name) for name in expected} == expected and bool(seen) == bool(expected)


def test_what_may_be_horovod_fails() -> None:
    """Installed, several processes, no mpirun: a controller without a rendezvous, and no rank."""
    job = plan("python", "-m", "train", nproc_per_node="2", built_for="Open MPI")
    assert horovod_of(job) == {
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "GLOO_RENDEZVOUS_PORT": "1",
    }
    assert job.companions == () and job.processes[0].argv == ("python", "-m", "train")


HOROVODRUN = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "0",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.9",
}


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({"nproc_per_node": "1"}, {}),
        ({"nproc_per_node": "2", "framework": "torch"}, {}),
        ({"nproc_per_node": "2"}, {"HOROVOD_CONTROLLER": "mpi"}),
        ({"nproc_per_node": "2"}, HOROVODRUN),
        ({"nproc_per_node": "1", "framework": "horovod"}, {}),
    ],
)
def test_where_nothing_is_set(flags: dict[str, Any], environ: dict[str, str]) -> None:
    """One process, another framework, MPI by the user's word, processes of horovodrun."""
    job = plan("python", "-m", "train", environ=environ, built_for="", **flags)
    assert horovod_of(job) == {} and job.companions == ()


def test_the_users_server_is_the_server() -> None:
    """Whoever names a rendezvous serves it: no companion, nobody waits, all else is there."""
    environ = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.9", "HOROVOD_GLOO_RENDEZVOUS_PORT": "7777"}
    job = plan("python", "-m", "train", environ=environ, framework="horovod", nproc_per_node="2")
    seen = horovod_of(job, 1, environ)
    assert (seen["GLOO_RENDEZVOUS_ADDR"], seen["GLOO_RENDEZVOUS_PORT"]) == ("10.0.0.9", "7777")
    assert seen["RANK"] == "1" and job.companions == () and job.processes[0].argv[0] == "python"


def test_the_users_port_is_the_port() -> None:
    """Of the server, of the ranks that wait for it, and of gloo."""
    environ = {"HOROVOD_GLOO_RENDEZVOUS_PORT": "7777"}
    job = plan("python", "-m", "train", environ=environ, framework="horovod", nproc_per_node="2")
    assert job.companions[0].argv[2] == "7777" and job.processes[0].argv[4] == "127.0.0.1:7777"


@pytest.mark.parametrize(
    ("code", "status", "flags", "environ"),
    [
        ("horovod-address", 64, {**NODES, "node_rank": "0", "master_addr": "fd00::4"}, {}),
        ("horovod-operations", 78, {"nproc_per_node": "2"}, {"HOROVOD_CPU_OPERATIONS": "mpi"}),
        (
            "horovod-shape",
            64,
            {"nnodes": "3", "scope": "process"},
            {**PER_RANK, "WORLD_SIZE": "5", "MASTER_ADDR": "a"},
        ),
    ],
)
def test_what_gloo_cannot_do_is_an_error_by_name(
    code: str, status: int, flags: dict[str, Any], environ: dict[str, str]
) -> None:
    """If Horovod was asked for."""
    with pytest.raises(LauncherError) as caught:
        plan("python", "-m", "train", environ=environ, framework="horovod", **flags)
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_status) == (code, status)


@pytest.mark.parametrize(
    ("line", "environ", "refused"),
    [
        ("import horovod.tensorflow.keras as hvd; hvd.DistributedOptimizer", {}, True),
        ("from horovod.tensorflow import keras as hvd; hvd.DistributedOptimizer", {}, True),
        ("import horovod.tensorflow.keras as hvd", {}, False),
        (
            "import horovod.tensorflow.keras as hvd; hvd.DistributedOptimizer",
            {"TF_USE_LEGACY_KERAS": "1"},
            False,
        ),
        ("import tf_keras, horovod.tensorflow.keras as hvd; hvd.DistributedOptimizer", {}, False),
        ("import horovod.torch as hvd; hvd.DistributedOptimizer", {}, False),
    ],
)
@pytest.mark.parametrize("under", [{}, MPIRUN])
def test_an_optimizer_that_would_average_nothing_is_refused(
    tmp_path: Path, line: str, environ: dict[str, str], refused: bool, under: dict[str, str]
) -> None:
    """Keras 3 with Horovod's Keras optimizer, under MPI as well: each rank would train alone."""
    flags = {} if under else {"nproc_per_node": "2"}
    words = ("python", script(tmp_path, line))
    if not refused:
        plan(*words, environ={**environ, **under}, built_for="", **flags)
        return
    with pytest.raises(LauncherError) as caught:
        plan(*words, environ={**environ, **under}, built_for="", nnodes="1", **flags)
    assert [problem.code for problem in caught.value.problems] == ["horovod-keras"]


def test_the_server_is_python_3_8() -> None:
    """It runs in the Python of the command."""
    ast.parse(Path(SERVER).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_python_without_horovod_is_told_so() -> None:
    """By name, with 69."""
    line = [sys.executable, "-I", "-S", SERVER, "0", "node0:1", "127.0.0.1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 69 and "[horovod-missing]" in done.stderr


class Answer(http.server.BaseHTTPRequestHandler):
    """Says whose job it serves, as Horovod's server would be asked for it."""

    job = ""

    def do_GET(self) -> None:
        """Answer."""
        body = self.job.encode()
        self.send_response(200 if self.path == "/launcher/job" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Be quiet."""


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return where a server answers that it has the job of the parameter."""
    handler = type("Handler", (Answer,), {"job": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("served", [SLOTS], indirect=True)
def test_a_rank_becomes_its_command_when_the_server_answers(served: str) -> None:
    """At once, with its own status."""
    line = [sys.executable, "-I", "-S", WAITER, served, SLOTS, "sh", "-c", "echo here; exit 7"]
    done = subprocess.run(line, env=clean_environ(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "here\n", "")


@pytest.mark.parametrize("served", ["node0:8"], indirect=True)
def test_the_server_of_another_job_is_not_taken_for_ours(served: str) -> None:
    """After the timeout it is said what was found there."""
    with pytest.raises(NotReady, match="another program or job answers there: 'node0:8'"):
        wait(served, SLOTS, 2.0)


@pytest.mark.slow
def test_a_server_that_never_comes_is_a_named_end() -> None:
    """75, after as long as the user allows."""
    began = time.monotonic()
    line = [sys.executable, "-I", "-S", WAITER, "127.0.0.1:1", SLOTS, "true"]
    environ = clean_environ(HOROVOD_GLOO_TIMEOUT_SECONDS="1")
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 75 and "[horovod-rendezvous]" in done.stderr
    assert "Connection refused" in done.stderr and 1 <= time.monotonic() - began < 10


@contextmanager
def talking(text: bytes, *, byte_by_byte: bool = False) -> Iterator[str]:
    """Return where somebody says a text to whoever comes, all of it or a byte now and then."""
    done = threading.Event()

    def serve(server: socket) -> None:
        while not done.is_set():
            with suppress(OSError):
                peer, _ = server.accept()
                with peer:
                    peer.recv(1000)
                    for part in (text[i : i + 1] for i in range(len(text))) if byte_by_byte else [text]:
                        peer.sendall(part)
                        if byte_by_byte and done.wait(0.2):
                            break

    with create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


EVIL = "\x1b]0;PWNED\x07\x1b[2J\u202e"


@pytest.mark.parametrize(
    "text",
    [
        f"HTTP/1.0 200 OK\r\n\r\nit {EVIL} token=hunter2secret",
        f"HTTP/1.0 404 it {EVIL}\r\n\r\n",
        f"it {EVIL} token=hunter2secret",
    ],
)
def test_what_a_stranger_answers_reaches_no_terminal(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown, and it is not taken for words of ours: not while it is waited for, nor at the end."""
    monkeypatch.setattr(horovod_wait, "PATIENCE_S", 0.0)
    with talking(text.encode()) as where, pytest.raises(NotReady) as ended:
        wait(where, SLOTS, 0.3)
    for said in (capsys.readouterr().err.rstrip("\n"), ended.value.problems[0].what):
        assert "another program or job answers there: " in said
        assert said.isprintable() and "hunter2" not in said


@pytest.mark.slow
def test_one_who_answers_byte_by_byte_is_not_waited_for() -> None:
    """The time is over when it is over, whatever still comes."""
    began = time.monotonic()
    with talking(b"x" * 1000, byte_by_byte=True) as where, pytest.raises(NotReady, match="timed out"):
        wait(where, SLOTS, 1.0)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("port", ["9" * 5000, "99999", "0", "x", "-1"], ids=range(5))
@pytest.mark.parametrize("flags", [{"framework": "horovod"}, {}])
def test_a_port_that_is_none_is_named(tmp_path: Path, port: str, flags: dict[str, Any]) -> None:
    """Before anything starts, and shortly; in a job that only the script shows to be of Horovod, too."""
    environ = {"HOROVOD_GLOO_RENDEZVOUS_PORT": port}
    with pytest.raises(LauncherError) as refused:
        plan(
            "python", script(tmp_path, IMPORTS[0]), environ=environ, built_for="", nproc_per_node="2", **flags
        )
    (problem,) = refused.value.problems
    assert problem.code == "malformed-variable" and "1..65535" in problem.what and len(problem.what) < 300


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        ({"framework": "horovod"}, ("torchrun", "train.py")),
        ({"framework": "tensorflow"}, ("accelerate", "launch", "train.py")),
        ({"framework": "jax"}, ("deepspeed", "train.py")),
        ({"framework": "horovod", "engine": "torchrun"}, ("train.py",)),
    ],
)
def test_a_framework_is_not_named_for_processes_that_cannot_be_of_it(
    flags: dict[str, str | bool], command: tuple[str, ...]
) -> None:
    """Nobody would serve the rendezvous, or say who is who: N jobs of one process, or a wait for nobody."""
    given: dict[str, str | bool] = {**flags, "nnodes": "2", "node_rank": "0", "hosts": "10.0.0.4,10.0.0.5"}
    host = replay({"gpus": 0, "packages": {"": [{"name": "torch", "version": "2.13.0"}]}})
    with pytest.raises(UsageError) as refused:
        plan_job({}, host, read_options(given, {}), command)
    assert refused.value.problems[0].code == "engine-conflict"
