"""An sshd of one job on a simulated node, and the ssh that reaches it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.cli.keygen import make_keys
from launcher.ssh.client import write_client
from launcher.ssh.keys import Keys

from launcher.rehearse.cluster import Cluster, Node
from tests.process.starting import clean_environ

PORT = 2222
USER, USER_ID = "trainer", 4242
NO_SUCH_NAME = ("unknown name", "its name is not in /etc/hosts, and no name server answers")
"""What is said of a name that nobody knows, with a name server and without one."""
SERVE = """
import os, sys
from launcher.ssh.keys import parse_keys
from launcher.ssh.server import write_server
folder, address, port = sys.argv[1:4]
os.makedirs(folder, mode=0o700, exist_ok=True)
argv = write_server(folder, parse_keys(sys.stdin.read(), "stdin"), address, int(port), os.environ)
os.execv(argv[0], argv)
"""
AS_USER = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups"]


def add_users(cluster: Cluster, node: Node, tmp_path: Path, *, sshd: bool = True) -> None:
    """Give a node an /etc/passwd of its own, with the user that sshd needs as root, and one more."""
    lines = Path("/etc/passwd").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("sshd:")]
    lines += ["sshd:x:4241:65534::/run/sshd:/usr/sbin/nologin"] if sshd else []
    replace(
        cluster, node, "/etc/passwd", [*lines, f"{USER}:x:{USER_ID}:{USER_ID}::/run/tmp:/bin/bash"], tmp_path
    )


def replace(cluster: Cluster, node: Node, path: str, lines: Sequence[str], tmp_path: Path) -> None:
    """Put a file of these lines in the place of one of the machine's, on one node."""
    file = tmp_path / f"{os.path.basename(path)}-{node.name}"
    file.write_text("\n".join((*lines, "")))
    subprocess.run(cluster.argv(node, ["mount", "--bind", str(file), path]), check=True)


@contextlib.contextmanager
def serving(
    cluster: Cluster,
    node: Node,
    tmp_path: Path,
    keys: Keys,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Run an sshd on a node until the end of the block; yields it when it listens.

    Args:
        cluster: Whose node.
        node: It listens on this node's address only.
        tmp_path: Where /etc/passwd of the node comes from.
        keys: The job's.
        environ: Variables of the process that writes its files and becomes it.
        prefix: What it is started by, e.g. `AS_USER`.
    """
    add_users(cluster, node, tmp_path)
    server = subprocess.Popen(
        cluster.argv(node, serve_line(node, prefix), cwd="/"),
        env=clean_environ(**(environ or {})),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stderr is not None
    with server:
        server.stdin.write(keys.client + keys.host)
        server.stdin.close()
        said = ""
        while "Server listening" not in said:
            line_read = server.stderr.readline()
            assert line_read, f"sshd did not start: {said}"
            said += line_read
        try:
            yield server
        finally:
            cluster.kill(server.pid, signal.SIGTERM)


def serve_line(node: Node, prefix: Sequence[str] = ()) -> list[str]:
    """Return the command that reads keys, and becomes sshd in a folder of the node's own."""
    python = public_python() if prefix else sys.executable
    return [*prefix, python, "-c", SERVE, "/dev/shm/launcher-ssh", node.address, str(PORT)]


def public_python() -> str:
    """Return a Python that every user can start: ours may lie in the home of one, closed to others."""
    ours = Path(sys.executable).resolve()
    open_to_all = all(parent.stat().st_mode & 0o001 for parent in ours.parents)
    return sys.executable if open_to_all else "/usr/bin/python3"


def new_keys() -> Keys:
    """Return keys that no other test has."""
    return make_keys(os.environ)


def client(tmp_path: Path, keys: Keys | None, name: str = "client", port: int = PORT) -> tuple[str, ...]:
    """Return the start of an ssh line of the head, its files in a folder of their own."""
    folder = tmp_path / name
    folder.mkdir(mode=0o700)
    return write_client(str(folder), keys, ("node0", "node1"), port)
