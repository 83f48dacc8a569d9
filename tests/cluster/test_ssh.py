"""A real sshd on one node, a real ssh on another: what is let in, what is not, and the words for why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher.ssh.client import explain
from launcher.ssh.keys import Keys
from launcher.ssh.server import is_routine

from launcher.rehearse.cluster import Cluster
from tests.process.starting import clean_environ

from .conftest import Run
from .sshing import (
    AS_USER,
    NO_SUCH_NAME,
    PORT,
    USER,
    USER_ID,
    add_users,
    client,
    new_keys,
    replace,
    serve_line,
    serving,
)

WEIRD = {
    "QUOTES": """it's "quoted" `and` \\"back\\" \\\\ \\n""",
    "EXPANDS": "$HOME ${PATH} $(id) %h %% ~ * ? ! #hash",
    "UTF8": "Übung ✓ 日本",
    "BYTES": os.fsdecode(bytes(range(1, 256))),
    "LINES": "one\ntwo\n\n  three \n",
    "BLANKS": "  both ends\t ",
    "EMPTY": "",
    "EQUALS": "=a=b=",
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}',
    "BASH_FUNC_hello%%": "() {  echo hello\n}",
    "UID": "77",
    "command": "lower",
    "LONG": "x" * 100_000,
    "LD_LIBRARY_PATH": "/opt/a b/$lib:/opt/%h/ü",
}
DUMP = "import json, os; print(json.dumps(dict(os.environ)))"

DEAF = """
import socket, sys
listener = socket.create_server((sys.argv[1], 2222))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def keys() -> Keys:
    """Return keys of this test's own."""
    return new_keys()


@pytest.fixture
def server(cluster: Cluster, keys: Keys, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return an sshd on node 1, whose environment is weird."""
    with serving(cluster, cluster.nodes[1], tmp_path, keys, WEIRD) as running:
        yield running


def environment(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return what a session that ran `DUMP` saw."""
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def hostile(tmp_path: Path, *options: str) -> list[str]:
    """Return an ssh line with the job's key, but none of the restraint of our own configuration."""
    known = f"UserKnownHostsFile={tmp_path}/client/known_hosts"
    line = ["ssh", "-F", "/dev/null", "-o", known, "-o", "HostKeyAlias=launcher-job", "-p", str(PORT)]
    return [*line, "-o", "BatchMode=yes", "-i", f"{tmp_path}/client/identity", *options]


@pytest.mark.root
def test_a_session_has_the_environment_of_its_node(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """Every value byte for byte, nothing of sshd's but who we are, nothing of the client's."""
    ssh = client(tmp_path, keys)
    line = [*ssh, "node1", f"{sys.executable} -I -S -c '{DUMP}'"]
    found = environment(on(cluster, cluster.nodes[0], line, env=clean_environ(CLIENTS="own")))
    shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    given = {**clean_environ(), "TMPDIR": "/run/tmp", **WEIRD}
    assert {name: value for name, value in found.items() if name not in shells} == {
        **given,
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": found["SHELL"],
        "LC_CTYPE": "C.UTF-8",  # of Python itself, in the C locale
    }


@pytest.mark.root
def test_a_session_passes_everything_on(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """Standard input and both outputs, the exit status, and SIGPIPE as a program expects it."""
    ssh = client(tmp_path, keys)
    line = [*ssh, "node1", "cat; hostname; echo err >&2; yes | head -1; exit 7"]
    done = on(cluster, cluster.nodes[0], line, input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "in\nnode1\ny\n", "err\n")
    done = on(cluster, cluster.nodes[0], [*ssh, "node1", "grep SigIgn /proc/self/status"])
    assert done.stdout.split() == ["SigIgn:", "0" * 16]


@pytest.mark.root
def test_who_is_not_let_in(cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path) -> None:
    """No key, another key, a password, another user: refused, and said in words."""
    first, stranger = cluster.nodes[0], new_keys()
    ssh = client(tmp_path, keys)
    other = client(tmp_path, Keys(stranger.client, keys.host), "other")
    passwords = "PreferredAuthentications=password,keyboard-interactive"
    lines = {
        "other key": [*other, "node1", "true"],
        "no key": hostile(tmp_path, "-o", "PubkeyAuthentication=no", "node1", "true"),
        "password": hostile(tmp_path, "-o", passwords, "node1", "true"),
        "other user": [*ssh, f"{USER}@node1", "true"],
        "no such user": [*ssh, "nobody-at-all@node1", "true"],
    }
    for name, line in lines.items():
        done = on(cluster, first, line)
        assert (name, done.returncode) == (name, 255)
        assert "Permission denied (publickey)." in done.stderr, name
        assert explain(done.stderr).startswith("it refuses our key"), name
    assert on(cluster, first, [*ssh, "node1", "true"]).returncode == 0


@pytest.mark.thorough
@pytest.mark.root
def test_a_node_that_shows_another_host_key_is_not_entered(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """The head stops before it says anything, however it calls the node."""
    ssh = client(tmp_path, Keys(keys.client, new_keys().host))
    for name in ("node1", cluster.nodes[1].address):
        done = on(cluster, cluster.nodes[0], [*ssh, name, "echo came in"])
        assert (done.returncode, done.stdout) == (255, "")
        assert explain(done.stderr).startswith("its host key is not the job's")


@pytest.mark.thorough
@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-W", "127.0.0.1:2222"], "administratively prohibited"),  # what -L and -D ask for, too
        (["-R", "9000:127.0.0.1:22"], "remote port forwarding failed"),
        (["-R", "/run/tmp/x.sock:127.0.0.1:22"], "remote port forwarding failed"),
        (["-w", "0:0"], "Tunnel forwarding failed"),
        (["-tt"], "PTY allocation request failed"),
    ],
    ids=["local", "remote", "socket", "tunnel", "terminal"],
)
def test_what_a_session_is_not_given(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path, options: list[str], words: str
) -> None:
    """With the right key: no way through the node to elsewhere, no terminal."""
    client(tmp_path, keys)
    line = hostile(tmp_path, "-o", "ExitOnForwardFailure=yes", *options, "node1")
    done = on(cluster, cluster.nodes[0], line if "-W" in options else [*line, "true"])
    assert done.returncode == 255
    assert words in done.stderr


@pytest.mark.thorough
@pytest.mark.root
def test_what_a_session_does_without(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """An agent, a display, variables of the client's: asked for, and not there."""
    client(tmp_path, keys)
    line = hostile(tmp_path, "-A", "-Y", "-o", "SetEnv=LD_PRELOAD=/evil.so OTHER=1", "node1")
    look = "echo [$SSH_AUTH_SOCK$DISPLAY$LD_PRELOAD$OTHER]"
    done = on(cluster, cluster.nodes[0], ["ssh-agent", *line, look], env={**clean_environ(), "DISPLAY": ":0"})
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert "X11 forwarding request failed" in done.stderr


@pytest.mark.root
def test_commands_and_nothing_else(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """No login shell, no sftp, no scp."""
    ssh = client(tmp_path, keys)
    done = on(cluster, cluster.nodes[0], [*ssh, "node1"], input="echo came in\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "launcher: this sshd belongs to a training job and only runs its commands"
    ]
    done = on(cluster, cluster.nodes[0], [*ssh, "-s", "node1", "sftp"])
    assert (done.returncode, "subsystem request failed" in done.stderr) == (255, True)


@pytest.mark.root
def test_only_the_address_of_the_cluster_is_open(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """Neither the node's loopback nor another address of its interface answers."""
    first, second = cluster.nodes
    added = on(cluster, second, ["ip", "addr", "add", "10.77.0.250/24", "dev", "eth0"])
    assert added.returncode == 0
    ssh = client(tmp_path, keys)
    for node, address in ((second, "127.0.0.1"), (first, "10.77.0.250"), (second, "::1")):
        done = on(cluster, node, [*ssh, address, "true"])
        assert (address, done.returncode) == (address, 255)
        assert explain(done.stderr).startswith(("nothing listens there", "its network cannot be reached"))


@pytest.mark.thorough
@pytest.mark.root
def test_why_a_node_is_not_reached(cluster: Cluster, on: Run, keys: Keys, tmp_path: Path) -> None:
    """Each way in which a network fails has words of its own."""
    first, second = cluster.nodes
    ssh = client(tmp_path, keys)
    expected: dict[str, str | tuple[str, ...]] = {
        "no-such-node.invalid": NO_SUCH_NAME,
        "node1": "nothing listens there",
        "10.77.0.99": "no route to it",
        "192.0.2.1": "its network cannot be reached",
    }
    for name, words in expected.items():
        done = on(cluster, first, [*ssh, name, "true"])
        assert (name, done.returncode) == (name, 255)
        assert explain(done.stderr).startswith(words), done.stderr
    cluster.disconnect(second)  # the switch drops what comes, and node 0 still knows where node 1 was
    assert explain(on(cluster, first, [*ssh, "node1", "true"]).stderr).startswith("no answer")


@pytest.mark.thorough
@pytest.mark.root
def test_a_node_that_takes_connections_and_says_nothing(
    cluster: Cluster, on: Run, keys: Keys, tmp_path: Path
) -> None:
    """Not waited for longer than for one that does not answer at all."""
    first, second = cluster.nodes
    line = cluster.argv(second, [sys.executable, "-c", DEAF, second.address])
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None and listener.stdin is not None
        assert listener.stdout.readline() == b"up\n"
        done = on(cluster, first, [*client(tmp_path, keys), "node1", "true"])
        assert explain(done.stderr) == "it accepts connections, but sshd does not answer: overloaded or hung"
        listener.stdin.close()


@pytest.mark.thorough
@pytest.mark.root
def test_both_sides_notice_that_the_other_is_gone(
    cluster: Cluster, server: subprocess.Popen[str], keys: Keys, tmp_path: Path
) -> None:
    """A cable is pulled: ssh says so and ends, and so does what it started on the node."""
    first, second = cluster.nodes
    line = [*client(tmp_path, keys), "node1", "echo up; cat; echo over > /dev/shm/over"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(cluster.argv(first, line), text=True, **pipes) as session:  # type: ignore[call-overload]
        assert session.stdout.readline() == "up\n"
        cluster.disconnect(second)
        assert session.wait(30) == 255
        assert explain(session.stderr.read()).startswith("the connection stopped responding")
    wait = "until [ -e /dev/shm/over ]; do sleep 0.1; done"
    subprocess.run(cluster.argv(second, ["sh", "-c", wait]), check=True, timeout=20)


@pytest.mark.thorough
@pytest.mark.root
def test_a_session_whose_sshd_is_killed(
    cluster: Cluster, on: Run, server: object, keys: Keys, tmp_path: Path
) -> None:
    """ssh ends at once, and says that the other side has ended."""
    done = on(cluster, cluster.nodes[0], [*client(tmp_path, keys), "node1", "kill -9 $PPID; sleep 20"])
    assert done.returncode == 255
    assert explain(done.stderr) == "the connection was closed: the node, or its sshd, has ended"


@pytest.mark.thorough
@pytest.mark.root
def test_the_log_tells_refusals_only(
    cluster: Cluster, on: Run, server: subprocess.Popen[str], keys: Keys, tmp_path: Path
) -> None:
    """A connection that goes well leaves lines that are routine; others name the address and the user."""
    ssh = client(tmp_path, keys)
    on(cluster, cluster.nodes[0], [*ssh, "node1", "true"])
    on(cluster, cluster.nodes[0], [*ssh, f"{USER}@node1", "true"])
    cluster.kill(server.pid, 15)
    assert server.stderr is not None
    lines = server.stderr.read().splitlines()
    assert any(line.startswith("Accepted publickey for root from 10.77.0.10") for line in lines)
    told = [line for line in lines if not is_routine(line)]
    assert told and all(f"{USER} " in line and "10.77.0.10" in line for line in told), lines


@pytest.mark.thorough
@pytest.mark.root
def test_unprivileged_it_serves_its_own_user(cluster: Cluster, on: Run, keys: Keys, tmp_path: Path) -> None:
    """No root anywhere; and what the user's .bashrc does stays out of the session."""
    noise = "echo 'echo NOISE; export SEEN=bashrc' > /run/tmp/.bashrc"
    on(cluster, cluster.nodes[1], ["sh", "-c", noise])
    ssh = client(tmp_path, keys)
    with serving(cluster, cluster.nodes[1], tmp_path, keys, {"SEEN": "ours"}, AS_USER):
        done = on(cluster, cluster.nodes[0], [*ssh, f"{USER}@node1", "id -u; echo $SEEN"])
        assert (done.returncode, done.stdout) == (0, f"{USER_ID}\nours\n"), done.stderr
        done = on(cluster, cluster.nodes[0], [*ssh, "root@node1", "true"])
        assert explain(done.stderr).startswith("it refuses our key")


@pytest.mark.thorough
@pytest.mark.root
@pytest.mark.parametrize(
    ("prefix", "words", "fix"),
    [
        (["setpriv", "--reuid=5555", "--clear-groups"], "user id 5555 has no entry in /etc/passwd", "echo"),
        (["setpriv", "--reuid=4243", "--clear-groups"], "its shell /usr/sbin/nologin", "usermod --shell"),
        (["setpriv", "--bounding-set=-sys_chroot"], "root lacks the capabilities SYS_CHROOT", "--cap-add"),
        ([], "user root is locked", "usermod --password"),
    ],
    ids=["no entry", "no shell", "no capability", "locked"],
)
def test_who_cannot_be_served_is_told_before(
    cluster: Cluster, on: Run, keys: Keys, tmp_path: Path, prefix: list[str], words: str, fix: str
) -> None:
    """What sshd would refuse without a word to the client is an error with a fix."""
    node = cluster.nodes[1]
    passwd = ["root:x:0:0:root:/root:/bin/sh", "sshd:x:4241:4241::/run/sshd:/usr/sbin/nologin"]
    replace(cluster, node, "/etc/passwd", [*passwd, "service:x:4243:4243::/:/usr/sbin/nologin"], tmp_path)
    if "locked" in words:
        replace(cluster, node, "/etc/shadow", ["root:!locked::0:99999:7:::"], tmp_path)
    done = on(cluster, node, serve_line(node, prefix), input=keys.client + keys.host, env=clean_environ())
    assert done.returncode != 0
    assert "[sshd-refuses]" in done.stderr and words in done.stderr
    assert fix in done.stderr.partition("fix:")[2]


@pytest.mark.thorough
@pytest.mark.root
def test_the_user_that_sshd_lacks_is_named(cluster: Cluster, on: Run, keys: Keys, tmp_path: Path) -> None:
    """As root sshd needs a user of its own, which only its package makes."""
    node = cluster.nodes[1]
    add_users(cluster, node, tmp_path, sshd=False)
    done = on(cluster, node, serve_line(node), input=keys.client + keys.host, env=clean_environ())
    assert "sshd needs the user sshd" in done.stderr
    assert "useradd --system --home-dir /run/sshd" in done.stderr


@pytest.mark.thorough
@pytest.mark.root
def test_a_key_in_another_format_serves(cluster: Cluster, on: Run, tmp_path: Path) -> None:
    """One RSA key in PEM, as old tools make it, as client and host key."""
    file = tmp_path / "rsa"
    line = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "", "-f", str(file)]
    subprocess.run(line, check=True)
    keys = Keys(file.read_text(), file.read_text())
    with serving(cluster, cluster.nodes[1], tmp_path, keys):
        done = on(cluster, cluster.nodes[0], [*client(tmp_path, keys), "node1", "echo in"])
        assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
