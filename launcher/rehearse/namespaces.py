"""Nodes as Linux namespaces: own network, hostname, mounts, process IDs and shared memory.

Nothing has a name outside of the cluster: there is no ``ip netns add``, and no bridge or file on the machine.
A holder process keeps each set of namespaces open, and reads from a pipe that only we hold. When we end, even
by SIGKILL, the pipes and so the holders end, and the kernel removes the rest. So there is nothing to clean
up, and clusters can run side by side with the same host names and addresses.

Root is not needed if the kernel allows user namespaces. The user is then root on the nodes only, and its
files belong to root there.

The switch is a holder as well. It owns the bridge, so that no frame reaches the machine's own interfaces, and
a tmpfs on /run that its nodes share, with the sockets of the agent, the agent itself and /etc/hosts.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import time

from launcher.core.errors import NotReady, Problem
from launcher.machine.pythons import own_program
from launcher.rehearse import node_agent, node_init
from launcher.rehearse.nodes import Node, on_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = "10.77.0.{}"
FIRST = 10
NODE_COUNT_LIMIT = 200
"""Maximum number of nodes: they have addresses 10..209 of one /24."""
START_TIMEOUT_S = 20.0
FOLDER = "/run/cluster"

SWITCH = f"""\
set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p {FOLDER}/nodes {node_init.TMPDIR}
$links
cat > {FOLDER}/hosts <<'END'
$hosts
END
cat > {FOLDER}/agent <<'END'
#!/bin/sh
# Stands in for ssh between simulated nodes.
exec {shlex.join(own_program(node_agent.__file__))} {FOLDER}/nodes "$@"
END
chmod 755 {FOLDER}/agent
ip link add br0 type bridge forward_delay 0
ip link set br0 up
echo ready
read -r _
"""

# A node gets a new /sys, because the old one still lists the machine's interfaces in /sys/class/net. The
# cgroup mounts below it are kept. A user that may not mount one keeps the old one.
NODE = """\
set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /run/tmp
mount --bind "$1/hosts" /etc/hosts
mkdir "$1/cgroup.$2"
if mount --rbind /sys/fs/cgroup "$1/cgroup.$2" 2>/dev/null; then
    if mount -t sysfs sysfs /sys 2>/dev/null; then mount --rbind "$1/cgroup.$2" /sys/fs/cgroup; fi
    umount -l "$1/cgroup.$2"
fi
shift 2
exec "$@"
"""
KINDS = ["--net", "--uts", "--mount", "--pid", "--ipc"]


def available() -> bool:
    """Whether nodes can be namespaces on this machine."""
    return not find_fallback_reason()


def find_fallback_reason() -> str:
    """Return why nodes cannot be namespaces, with the fix; empty if they can.

    Root in a container often may not create them; other users often may.
    """
    missing = [program for program in ("unshare", "nsenter", "ip") if not shutil.which(program)]
    if missing:
        return f"not on PATH: {', '.join(missing)}; apt-get install iproute2 util-linux"
    trial = ["unshare", *_as_root_of_its_own(), *KINDS, "--fork", "--mount-proc", "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
        return ""
    if os.geteuid() == 0:
        return "this container may not create namespaces: docker run --privileged"
    return "this user may not create namespaces; root may"


def _as_root_of_its_own() -> list[str]:
    """Return the options of unshare that make us root of a user namespace; none if we are root."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def _enter(pid: int, *kinds: str) -> list[str]:
    """Return the start of a command line that enters these namespaces of a holder."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), *user, *kinds, "--"]


class Holder:
    """A process that keeps namespaces open until its standard input closes, at the latest when we end.

    Attributes:
        process: The process that we have started.
        pid: PID of the process in the namespaces: after `await_ready` that of PID 1, if unshare forks.
    """

    def __init__(self, argv: Sequence[str], *, forks: bool) -> None:
        self._forks = forks
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": node_init.ENVIRON["PATH"]},
            cwd="/",
            start_new_session=True,  # Ctrl-C must reach us only: we stop them in our order
        )
        self.pid = self.process.pid

    def await_ready(self, deadline: float) -> None:
        """Wait until the holder prints ``ready``.

        Raises:
            NotReady: It has ended, or printed nothing by the deadline.
        """
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe, see __init__
        waiting, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
        line = self.process.stdout.readline() if waiting else b"no answer in time"
        if line != b"ready\n":
            self.process.kill()
            raise NotReady(_no_namespaces((line + self.process.stdout.read()).decode()))
        if self._forks:
            (self.pid,) = children(self.process.pid)

    def kill(self) -> None:
        """End the namespaces and all that runs in them; return when nothing is left.

        We kill PID 1 and not its parent. The end of the parent then shows that PID 1 has ended, and the
        kernel lets PID 1 end only after all other processes in its namespace.
        """
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Namespaces:
    """The backend of namespaces, see `launcher.rehearse.nodes.Backend`."""

    def __init__(self, node_count: int, stem: str, domain: str) -> None:
        self.nodes = tuple(_node(index, stem) for index in range(node_count))
        self._domain = domain
        self.agent = f"{FOLDER}/agent"
        self._switch: Holder | None = None
        self._holders: list[Holder] = []

    def start(self) -> None:
        """Start the switch, then all nodes at once, and connect them."""
        deadline = time.monotonic() + START_TIMEOUT_S
        self._switch = _start_switch(self.nodes, self._domain)
        self._switch.await_ready(deadline)
        for node in self.nodes:
            self._holders.append(_start_node(node, self._switch.pid))
        for holder in self._holders:
            holder.await_ready(deadline)
        self._join()

    def argv(self, node: Node, argv: Sequence[str], cwd: str) -> list[str]:
        """Return an nsenter command line; nsenter ends with the command's exit status, or by its signal."""
        return _enter(self._holders[node.index].pid, *KINDS) + on_node(node_init.TMPDIR, cwd, argv)

    def process_on_node(self, pid: int) -> int:
        """Return the child of nsenter, which itself stays outside of the node and only waits."""
        return next(iter(children(pid)), pid)

    def crash(self, node: Node) -> None:
        """Kill the node's PID 1, and with it everything on the node."""
        self._holders[node.index].kill()

    def set_link(self, node: Node, *, up: bool) -> None:
        """Set the node's port at the switch up or down; the node still has eth0, then without a carrier."""
        assert self._switch is not None, "the cluster has not been started"  # noqa: S101
        _ip(self._switch.pid, [f"link set p{node.index} {'up' if up else 'down'}"])

    def close(self) -> None:
        """End all nodes and the switch."""
        for holder in (*self._holders, *([self._switch] if self._switch else [])):
            holder.kill()

    def _join(self) -> None:
        assert self._switch is not None  # noqa: S101 - called by start only
        ports = []
        for node, holder in zip(self.nodes, self._holders, strict=True):
            port = f"p{node.index}"
            ports += [f"link add {port} type veth peer name eth0 netns {holder.pid}"]
            ports += [f"link set {port} master br0 up"]
        _ip(self._switch.pid, ports)
        for node, holder in zip(self.nodes, self._holders, strict=True):
            up = ["link set lo up", f"addr add {node.address}/24 dev eth0", "link set eth0 up"]
            _ip(holder.pid, up)


def children(pid: int) -> list[int]:
    """Return the children of a process, oldest first; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _start_switch(nodes: Sequence[Node], domain: str) -> Holder:
    # The full name comes first, as the kubelet writes a pod's own.
    names = {node: f"{node.name}.{domain} {node.name}" if domain else node.name for node in nodes}
    lines = ["127.0.0.1 localhost", *(f"{node.address} {names[node]}" for node in nodes)]
    # torch looks up the clients of its IPv6 socket, and warns if one has no name. The name differs from the
    # node's, so that node0 still has one address only.
    lines += [f"::ffff:{node.address} {node.name}.mapped" for node in nodes]
    links = (f"ln -s {node.name} {FOLDER}/nodes/{node.address}" for node in nodes)
    script = SWITCH.replace("$hosts", "\n".join(lines)).replace("$links", "\n".join(links))
    own = ["unshare", *_as_root_of_its_own(), "--net", "--mount"]
    return Holder([*own, "/bin/sh", "-c", script], forks=False)


def _start_node(node: Node, switch_pid: int) -> Holder:
    in_switch = _enter(switch_pid, "--mount")
    own = ["unshare", *KINDS, "--mount-proc", "--fork", "--kill-child=KILL", "--"]
    setup = ["/bin/sh", "-c", NODE, "sh", FOLDER, node.name]
    socket_path = f"{FOLDER}/nodes/{node.name}"
    home = os.path.expanduser("~")
    init = own_program(node_init.__file__, node.name, socket_path, home)
    return Holder([*in_switch, *own, *setup, *init], forks=True)


def _ip(pid: int, commands: Sequence[str]) -> None:
    argv = [*_enter(pid, "--net"), "ip", "-batch", "-"]
    text = "\n".join(commands).encode()
    done = subprocess.run(argv, input=text, capture_output=True, check=False)
    if done.returncode:
        raise NotReady(_no_namespaces(done.stderr.decode()))


def _node(index: int, stem: str) -> Node:
    name = f"{stem}{index}"
    return Node(index, name, ADDRESS.format(FIRST + index), name)


def _no_namespaces(output: str) -> Problem:
    return Problem(
        "no-namespaces",
        f"a simulated node did not start: {output.strip() or 'it exited without a message'}",
        "rehearsal, nodes as network namespaces",
        "apt-get install iproute2 util-linux, or use loopback addresses (--loopback)",
    )
