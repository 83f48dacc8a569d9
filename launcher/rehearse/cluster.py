"""A cluster of simulated nodes on this machine, for rehearsals and tests.

::

    with Cluster(2) as cluster:
        first, second = cluster.nodes
        subprocess.run(cluster.argv(first, ["hostname"]), check=True)          # prints node0
        line = ["mpirun", "--mca", "plm_rsh_agent", cluster.agent, "--host", "node0,node1", "id"]
        subprocess.run(cluster.argv(first, line), check=True)                  # on both nodes

A node has its own network (eth0, 10.77.0.10 + index, connected by a bridge), hostname, mounts, process IDs,
/dev/shm, TMPDIR and /etc/hosts. The nodes of a cluster share a /run of their own. Other files are those of
the machine. Four nodes start in 0.1 s.

Nothing has a name outside of the cluster: there is no ``ip netns add``, and no bridge or file on the machine.
A holder process keeps each set of namespaces open, and reads from a pipe that only we hold. When we end, even
by SIGKILL, the pipes and so the holders end, and the kernel removes the rest. So there is nothing to clean
up, and clusters can run side by side with the same host names and addresses. The switch is a holder as well.
It owns the bridge, so that no frame reaches the machine's own interfaces, and a tmpfs on /run that its nodes
share, with the sockets of the agent, the agent itself and /etc/hosts.

Root is not needed if the kernel allows user namespaces, as it mostly does, less often in containers. The user
is then root on the nodes only, and its files belong to root there.

If the kernel refuses namespaces, or with ``loopback=True``, a node is only an address, 127.0.77.10 + index.
The nodes then share one hostname and one process table. Processes that are left running survive a SIGKILL of
their owner.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass

from launcher.core.environ import REHEARSED
from launcher.core.errors import LauncherError, make_error
from launcher.core.files import PRIVATE_FOLDER, create_file, make_folder, make_private_folder, remove_tree
from launcher.machine.process import find_children
from launcher.machine.pythons import own_program
from launcher.rehearse import node as program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST, NODE_COUNT_LIMIT = 10, 200
"""Nodes have addresses 10..209 of one /24."""
START_TIMEOUT_S = 20.0
FOLDER, TMPDIR = "/run/cluster", "/run/tmp"
RUNNING = "/tmp"  # noqa: S108 - the directory in it is made for our user alone
PLACE_BYTES = 60
"""Length of a directory in which a socket of ours has a path that the kernel takes (107 bytes)."""
HERE = os.path.dirname(os.path.abspath(__file__))
AGENT = """\
#!/bin/sh
# Stands in for ssh between simulated nodes.
exec {line} "$@"
"""
KINDS = ("--net", "--uts", "--mount", "--pid", "--ipc")
ENV = "/usr/bin/env"
"""By its path: PATH may be empty, and the command may not need it."""


@dataclass(frozen=True)
class SimulatedNode:
    """One simulated node.

    Attributes:
        index: Its index, 0..N-1.
        name: Its name for labels, e.g. ``"node0"``; also its host name if nodes can have one.
        address: Its own IPv4 address.
        hostname: The host by which other nodes reach it: its name, or its address if nodes have no names.
    """

    index: int
    name: str
    address: str
    hostname: str


def find_fallback_reason() -> str:
    """Return why nodes cannot be namespaces, with the fix; empty if they can.

    Root in a container often may not create them; other users often may.
    """
    missing = [program for program in ("unshare", "nsenter", "ip", "mount") if not shutil.which(program)]
    if missing:
        return f"not on PATH: {', '.join(missing)}; apt-get install iproute2 util-linux mount"
    trial = ["unshare", *_as_root_of_its_own(), *KINDS, "--fork", "--mount-proc", "true"]
    if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
        return ""
    if os.geteuid() == 0:
        return "this container may not create namespaces: docker run --privileged"
    return "this user may not create namespaces; root may"


class Cluster:
    """N simulated nodes, which run inside a ``with`` block.

    Attributes:
        nodes: The nodes, in order.
        isolated: Whether nodes are namespaces, and not loopback addresses.
        fallback_reason: Why they cannot be namespaces, and the fix; empty if they can, or with ``loopback``.
        agent: Path, valid on every node, of an executable that replaces ssh. ``agent HOST COMMAND...`` runs
            the words by a shell on the node with that name or address. Whatever the environment of the
            caller, they get only PATH, HOME and TMPDIR, much as from a stock sshd. Use it as ``--mca
            plm_rsh_agent`` (Open MPI 4), ``--prtemca plm_ssh_agent`` (5), ``-launcher-exec`` (MPICH) or
            ``-bootstrap-exec`` (Intel MPI).
    """

    def __init__(
        self, node_count: int, *, loopback: bool = False, stem: str = "node", domain: str = ""
    ) -> None:
        """Create a cluster without starting it.

        Args:
            node_count: Number of nodes.
            loopback: Whether to use loopback addresses even if namespaces are possible.
            stem: Beginning of the nodes' names, before the index.
            domain: What follows the name in the full name of a node; empty for no full name.

        Raises:
            UsageError: The number of nodes is not in 1..200.
        """
        if not 1 <= node_count <= NODE_COUNT_LIMIT:
            raise make_error("node-count", count=node_count, limit=NODE_COUNT_LIMIT)
        self.fallback_reason = "" if loopback else find_fallback_reason()
        self.isolated = not loopback and not self.fallback_reason
        network = "10.77.0." if self.isolated else REHEARSED
        named = [(f"{stem}{index}", f"{network}{FIRST + index}") for index in range(node_count)]
        self.nodes = tuple(
            SimulatedNode(index, name, address, name if self.isolated else address)
            for index, (name, address) in enumerate(named)
        )
        self._domain = domain
        self._folder = self.agent = ""
        self._switch: _Holder | None = None
        self._holders: list[_Holder] = []

    def argv(self, node: SimulatedNode, argv: Sequence[str], *, cwd: str | None = None) -> list[str]:
        """Return the full command line that runs ``argv`` on a node.

        Start it in any way: environment, pipes and exit status, also by a signal, pass through. Only TMPDIR
        is the node's own, because nodes share /tmp with the machine and with each other. Open MPI creates a
        directory there that is named after host and user. Send signals by `kill`: the process that you start
        may be nsenter, which only waits.

        It uses `env` and not a shell, which would drop variables with names that it does not allow, such as
        ``com.nvidia.cuda.version``.

        Args:
            node: One of `nodes`.
            argv: The command, which is searched on the PATH of its environment.
            cwd: Its working directory; the current one by default.
        """
        enter = _enter(self._holders[node.index].pid, *KINDS) if self.isolated else []
        return [*enter, ENV, f"--chdir={cwd or os.getcwd()}", f"TMPDIR={self._tmpdir(node)}", *argv]

    def kill(self, pid: int, signum: int) -> None:
        """Send a signal to the command of a process that was started from `argv`, if it still runs."""
        below = find_children(pid) if self.isolated else []
        with contextlib.suppress(ProcessLookupError):
            os.kill(below[0] if below else pid, signum)
            if below and signum == signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)  # nsenter stops when its command does, and would never reap it

    def crash(self, node: SimulatedNode) -> None:
        """End a node with everything on it, as a power cut would; it stays down."""
        self._holders[node.index].end()

    def disconnect(self, node: SimulatedNode) -> None:
        """Cut a node's network at the switch: packets are dropped without an error."""
        self._ip_of_switch([f"link set p{node.index} down"])

    def reconnect(self, node: SimulatedNode) -> None:
        """Restore a node's network."""
        self._ip_of_switch([f"link set p{node.index} up"])

    def close(self) -> None:
        """End all nodes and everything on them; return when nothing is left."""
        for holder in (*self._holders, *([self._switch] if self._switch else [])):
            holder.end()
        if self._folder and not self.isolated:
            remove_tree(self._folder)

    def __enter__(self) -> Cluster:
        try:
            self._start(time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, deadline: float) -> None:
        """Start the switch, or make the directory that replaces it; then all nodes together."""
        asked = os.environ.get("TMPDIR") or RUNNING
        places = (asked if len(os.fsencode(asked)) <= PLACE_BYTES else RUNNING, RUNNING)
        folder = self._folder = FOLDER if self.isolated else make_private_folder(places)
        self.agent = f"{folder}/agent"
        line = shlex.join([*own_program(program.__file__), "agent", f"{folder}/nodes"])
        agent = AGENT.format(line=line)
        if self.isolated:
            before = self._start_switch(agent, deadline)
        else:
            before = []
            create_file(agent, self.agent, 0o700)
            for path in (f"{folder}/nodes", *map(self._tmpdir, self.nodes)):
                os.close(make_folder(path, PRIVATE_FOLDER, new=True))
            for node in self.nodes:
                os.symlink(node.name, f"{folder}/nodes/{node.address}")
        for node in self.nodes:
            name = [node.name] if self.isolated else []
            path = f"{folder}/nodes/{node.name}"
            words = ("init", "".join(name), path, os.path.expanduser("~"), self._tmpdir(node))
            self._holders.append(_Holder([*before, *name, *own_program(program.__file__, *words)]))
        for holder in self._holders:
            holder.await_ready(deadline)
        for node, holder in zip(self.nodes, self._holders, strict=True):
            if self.isolated:
                (holder.pid,) = find_children(holder.pid)  # unshare forks
                self._connect(f"p{node.index}", node, holder)

    def _start_switch(self, agent: str, deadline: float) -> list[str]:
        """Start the switch; return the words that start a node, before its name."""
        hosts, links = ["127.0.0.1 localhost"], []
        for node in self.nodes:
            # The full name comes first, as the kubelet writes a pod's own.
            hosts.append(
                f"{node.address} {f'{node.name}.{self._domain} ' if self._domain else ''}{node.name}"
            )
            # torch looks up the clients of its IPv6 socket, and warns if one has no name. The name differs
            # from the node's, so that node0 still has one address only.
            hosts.append(f"::ffff:{node.address} {node.name}.mapped")
            links += [node.name, node.address]
        script = ["sh", f"{HERE}/switch.sh", FOLDER, "\n".join(hosts), agent, *links]
        self._switch = _Holder(["unshare", *_as_root_of_its_own(), "--net", "--mount", *script])
        self._switch.await_ready(deadline)
        before = [*_enter(self._switch.pid, "--mount"), "unshare", *KINDS, "--mount-proc", "--fork"]
        return [*before, "--kill-child=KILL", "--", "sh", f"{HERE}/node.sh", FOLDER]

    def _connect(self, port: str, node: SimulatedNode, holder: _Holder) -> None:
        link = f"link add {port} type veth peer name eth0 netns {holder.pid}"
        self._ip_of_switch([link, f"link set {port} master br0 up"])
        _ip(holder.pid, ["link set lo up", f"addr add {node.address}/24 dev eth0", "link set eth0 up"])

    def _ip_of_switch(self, commands: Sequence[str]) -> None:
        assert self._switch is not None  # noqa: S101 - the cluster was started
        _ip(self._switch.pid, commands)

    def _tmpdir(self, node: SimulatedNode) -> str:
        return TMPDIR if self.isolated else f"{self._folder}/{node.name}"


class _Holder:
    """A process that keeps a node until its standard input closes, at the latest when we end.

    Attributes:
        pid: PID of the process in the namespaces: PID 1, if unshare forks.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": program.ENVIRON["PATH"]},
            cwd="/",
            start_new_session=True,  # Ctrl-C must reach us only: we stop them in our order
        )
        self.pid = self._process.pid

    def await_ready(self, deadline: float) -> None:
        """Wait until the holder prints ``ready``.

        Raises:
            NotReady: It has ended, or printed nothing by the deadline.
        """
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        waiting, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
        line = self._process.stdout.readline() if waiting else b"no answer in time"
        if line != b"ready\n":
            self._process.kill()
            raise _no_namespaces(line + self._process.stdout.read())

    def end(self) -> None:
        """End the namespaces and all that runs in them; return when nothing is left.

        We kill PID 1 and not its parent. The end of the parent then shows that PID 1 has ended, and the
        kernel lets PID 1 end only after all other processes in its namespace.
        """
        if self._process.poll() is None and self.pid != self._process.pid:
            os.kill(self.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def _as_root_of_its_own() -> list[str]:
    """Return the options of unshare that make us root of a user namespace; none if we are root."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def _enter(pid: int, *kinds: str) -> list[str]:
    """Return the start of a command line that enters these namespaces of a holder."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), *user, *kinds, "--"]


def _ip(pid: int, commands: Sequence[str]) -> None:
    argv = [*_enter(pid, "--net"), "ip", "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(commands).encode(), capture_output=True, check=False)
    if done.returncode:
        raise _no_namespaces(done.stderr)


def _no_namespaces(output: bytes) -> LauncherError:
    return make_error("no-namespaces", output=output.decode().strip() or "it exited without a message")
