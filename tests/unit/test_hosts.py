"""The nodes that a user lists, and the place of this one among them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.core.errors import EnvironmentUntrusted, UsageError
from launcher.core.redact import printable, redact
from launcher.identity.hosts import read_hostfile
from launcher.machine import names
from launcher.machine.host import Host
from launcher.machine.names import resolve_names
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job


class Node(Host):
    """A node with a name and addresses of its own: no machine of tests has these."""

    def __init__(self, name: str, *addresses: str) -> None:
        super().__init__()
        self._name, self._addresses = name, addresses

    def hostname(self) -> str:
        return self._name

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return {"eth0": self._addresses}

    def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
        return {name: frozenset({"b-alias": {"10.0.0.5"}}.get(name, ())) for name in names}


@pytest.mark.parametrize(
    ("hosts", "node", "index"),
    [
        ("10.0.0.4,10.0.0.5", Node("x", "10.0.0.5"), 1),
        ("a,b", Node("b", "10.0.0.5"), 1),
        ("a,b", Node("b.cluster.local", "10.0.0.5"), 1),
        ("a,b-alias", Node("x", "10.0.0.5"), 1),
    ],
)
def test_the_place_in_the_list_is_the_node_rank(hosts: str, node: Node, index: int) -> None:
    """By address, by name, by the short form of a long name, by what a name resolves to."""
    plan = plan_job({}, node, read_options({"hosts": hosts}, {}), ["true"])
    found = plan.allocation
    assert (found.node_rank, found.node_count, found.master_addr) == (index, 2, hosts.split(",")[0])


@pytest.mark.parametrize(
    "text",
    [
        *("a\nb\n", "# nodes\na slots=4\nb slots=4\n\n", "a:4\nb:4\n", "a 4\nb 4 # last\n"),
        *("a  slots=4 max_slots=8\nb slots=4", "a\tslots=4\nb\t4\n"),
        *("a slots = 4\nb max_slots=8 slots= 4\n", "a cpu=4\nb count=4\n", "a:4 binding=core:1\nb:4\n"),
        *("a:4:mlx5_0\nb:4:mlx5_1\n", "\ufeffa\r\nb\r\n"),
    ],
)
def test_hostfiles_of_any_mpirun(text: str, tmp_path: Path) -> None:
    """One host per line, with or without slots, comments and blank lines."""
    (tmp_path / "hosts").write_text(text)
    listed = read_hostfile(str(tmp_path / "hosts"), "--hostfile hosts", Host())
    assert listed.hosts == ("a", "b")
    assert listed.per_node == (4 if "4" in text else None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a slots=2\nb slots=4\n", "a\na\n", "a;rm -rf\n", "a slots=x\nb\n-oProxy=x", "a slots=\nb\n"),
        *("a\n=\n", "a,b\n", "a b\nc:x:mlx5_0\n", "fd00::12345\n", "a:\nb:\n"),
    ],
)
def test_a_hostfile_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    """Empty, uneven, a host twice, what no host is called."""
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError):
        read_hostfile(str(tmp_path / "hosts"), "--hostfile hosts", Host())


def test_a_list_is_needed_once_and_this_node_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lists are one too many; who is in neither must say who it is."""
    # Never node 0 by default; --node-rank settles it.
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan_job({}, Node("x", "10.0.0.9"), read_options({"hosts": "a,b"}, {}), ["true"])
    fix = caught.value.problems[0].fix
    assert "--node-rank" in fix and "has none of this node's names and addresses (10.0.0.9, x)" in fix
    asked = read_options({"hosts": "a,b", "node_rank": "1"}, {})
    assert plan_job({}, Node("x", "10.0.0.9"), asked, ["true"]).allocation.node_rank == 1
    # --hosts and --hostfile exclude each other.
    with pytest.raises(UsageError, match="two-host-lists"):
        plan_job({}, Host(), read_options({"hosts": "a", "hostfile": "/f"}, {}), ["true"])
    # A relative path is one from the working directory.
    (tmp_path / "hosts").write_text("one\ntwo\n")
    monkeypatch.chdir(tmp_path)
    assert read_hostfile("hosts", "--hostfile hosts", Host()).hosts == ("one", "two")


def test_a_hostfile_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """20,000 nodes with long names are a list; what is too long for one is refused, not cut."""
    path = tmp_path / "hosts"
    names = [f"gpu-node-{number:05}.cluster.with-a-long-domain.example.internal" for number in range(20000)]
    path.write_text("".join(f"{name}  slots=8\n" for name in names))
    assert path.stat().st_size > 1 << 20
    assert read_hostfile(str(path), "--hostfile hosts", Host()).hosts == tuple(names)
    path.write_text("a\n" * (3 << 20))
    with pytest.raises(UsageError, match="expected at most 4 MiB"):
        read_hostfile(str(path), "--hostfile hosts", Host())
    with pytest.raises(UsageError, match="No such file"):
        read_hostfile(str(tmp_path / "none"), "--hostfile none", Host())


def test_nothing_is_resolved_where_the_own_name_stands_in_the_list() -> None:
    """A resolver that is down takes seconds for each name."""

    class Unresolved(Node):
        def look_up(self, names: Sequence[str]) -> Mapping[str, frozenset[str]]:
            raise AssertionError(f"asked for {names}")

    hosts = ",".join([*(f"x{number}" for number in range(500)), "me"])
    plan = plan_job({}, Unresolved("me", "10.0.0.5"), read_options({"hosts": hosts}, {}), ["true"])
    assert plan.allocation.node_rank == 500


def run_hook(**environ: str) -> tuple[float, str]:
    """Have the environment hook answer in a process of its own; return its seconds and its answer."""
    code = "import sys; from launcher.hook.answer import answer; print(answer(['python', 'x.py']))"
    line = [sys.executable, "-c", code]
    begun = time.monotonic()
    done = subprocess.run(
        line, env={**os.environ, **environ}, capture_output=True, text=True, timeout=30, check=True
    )
    return time.monotonic() - begun, done.stdout


def plan_with(*words: str, **environ: str) -> tuple[float, str]:
    """Run ``launcher plan``; return its seconds and what it says on standard error."""
    line = [sys.executable, "-m", "launcher", "plan", *words, "--", "true"]
    begun = time.monotonic()
    done = subprocess.run(
        line, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )
    return time.monotonic() - begun, done.stderr


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_hostfile_of_the_environment_must_be_a_regular_file(kind: str, tmp_path: Path) -> None:
    """A pipe that nothing writes to would hold every Python of the job, a device without an end too."""
    path = tmp_path / "hosts" if kind == "fifo" else Path("/dev/zero")
    if kind == "fifo":
        os.mkfifo(path)
    took_s, answer = run_hook(LAUNCHER_HOSTFILE=str(path))
    assert "[malformed-hostfile]" in answer and took_s < 5
    took_s, said = plan_with(LAUNCHER_HOSTFILE=str(path))
    assert "[malformed-hostfile]" in said and "not a regular file" in said and took_s < 5


def test_a_pipe_that_was_typed_is_waited_for_some_seconds(tmp_path: Path) -> None:
    """As of ``--hostfile <(command)``; a pipe that nothing is written to is an error."""
    path = tmp_path / "hosts"
    os.mkfifo(path)
    with pytest.raises(OSError, match="the pipe did not end within"):
        Host().read_whole(str(path), 100, pipe_s=0.2)
    words = "--node-rank 1 --hostfile <(sleep 0.3; echo a; echo b)"
    line = f"exec {sys.executable} -m launcher plan {words} -- true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and "a" in done.stdout, done.stderr


@pytest.fixture
def mute_resolver(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A mount namespace whose name server takes questions and answers none, as words before a command."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind(("127.0.0.77", 53))
        except PermissionError:
            pytest.skip("port 53 is root's")
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.77\noptions timeout:30\n")
        (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
        mount = " && ".join(
            f"mount --bind {tmp_path}/{name}.conf /etc/{name}.conf" for name in ("resolv", "nsswitch")
        )
        words = ("unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "-")
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no mount namespace of our own")
        yield words


@pytest.mark.thorough
def test_one_deadline_for_all_names_of_a_list(mute_resolver: tuple[str, ...], tmp_path: Path) -> None:
    """The hook waits some seconds, ``launcher plan`` some more; the error says why."""
    path = tmp_path / "hosts"
    path.write_text("".join(f"nowhere-{number}.example\n" for number in range(15000)))
    environ = {**os.environ, "LAUNCHER_HOSTFILE": str(path)}
    code = "from launcher.hook.answer import answer; print(answer(['python', 'x.py']))"
    for line, limit_s in (
        ([sys.executable, "-c", code], 5),
        ([sys.executable, "-m", "launcher", "plan", "--", "true"], 15),
    ):
        begun = time.monotonic()
        done = subprocess.run(
            [*mute_resolver, *line], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        said = done.stdout + done.stderr
        assert "[resolver-silent]" in said, said
        assert line[-1] == code or ("15000 of 15000 names" in said and "--node-rank" in said), said
        assert time.monotonic() - begun < limit_s


def test_names_are_asked_for_at_once() -> None:
    """Those that are known have their addresses, those that are not have none; no child is left."""
    others = set(psutil.Process().children())
    found = resolve_names(["localhost", "10.0.0.4", "no-such-host.invalid", "::1", "a b"], 20)
    assert "127.0.0.1" in found["localhost"] or "::1" in found["localhost"]
    assert sorted(found["10.0.0.4"]) == ["10.0.0.4"] and not found["no-such-host.invalid"]
    assert set(psutil.Process().children()) <= others


def test_a_name_that_has_been_resolved_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second question would have no time limit, and a name server may answer the first one only."""
    look_up = socket.getaddrinfo

    def look_up_number(*words: Any, **more: Any) -> Any:
        assert more["flags"] == socket.AI_NUMERICHOST, words
        return look_up(*words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_number)
    known = {"ours": {"127.0.0.1"}, "no-route": {"fe80::7", "127.0.0.2"}, "bad": {"x"}}
    monkeypatch.setattr(Host, "look_up", lambda _, names: {one: known.get(one, set()) for one in names})
    names = ("ours", "no-route", "bad", "unknown", "127.0.0.3")
    assert list(map(Host().ask_source, names)) == ["127.0.0.1", "127.0.0.2", None, None, "127.0.0.3"]


def test_of_too_many_addresses_none_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of an address is one of another node: 10.0.0.1 of 10.0.0.12."""
    all_of_them = frozenset(f"10.0.{high}.{low}" for high in range(3) for low in range(200))
    monkeypatch.setattr(names, "ask_resolver", lambda name: all_of_them)
    found = resolve_names(["a-service"], 20)["a-service"]
    assert found < all_of_them and len(found) > 300


LONG = 100_000
SHAPES = {
    "one letter": "x",
    "dots": ".",
    "colons": ":",
    "a list": "gpu-0,",
    "ranges": "gpu[0-9],",
    "open brackets": "[",
    "digits": "9",
    "equals": "a=",
    "slots": "slots=",
    "words": "a b ",
    "key": "key=",
    "password": "password ",
    "token": "token: hunter2 ",
    "AKIA": "AKIA",
    "base64": "QUJD",
    "a link": "https://a:b@",
    "a connection": "AccountKey=",
    "a header": "Authorization: Bearer ",
    "a private key": "-----BEGIN ",
    "JWT": "eyJhbGciOi.",
    "dashes": "-",
    "flags": "--password ",
    "quotes": "'\"",
    "escapes": "\x1b[31m",
    "no text": "\0",
    "comments": "#",
    "tabs": "\t",
    "letters of others": "\u0434\u202e",
}


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("begin", ["", "gpu-0 slots="])
def test_a_long_line_of_a_hostfile_takes_no_time(
    shape: str, begin: str, is_typed: bool, tmp_path: Path
) -> None:
    """100 kB that are no hosts: the message is short, and quick to make whatever they look like."""
    path = tmp_path / "hosts"
    path.write_text(begin + (SHAPES[shape] * LONG)[:LONG] + "\n")
    begun = time.process_time()
    try:
        read_hostfile(str(path), "hosts", Host(), is_typed=is_typed)
    except UsageError as error:
        assert len(printable(redact(str(error)))) < 1000
    assert time.process_time() - begun < 1.0
