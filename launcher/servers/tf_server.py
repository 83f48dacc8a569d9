"""Runs a TensorFlow task while it is needed: the standard server, or a command.

    python tf_server.py                                        serve the task that TF_CONFIG names
    python tf_server.py --until HOST:PORT                      ... until nothing listens there anymore
    python tf_server.py --until HOST:PORT -- python train.py   run a command so long instead
    python tf_server.py --while HOST:PORT                      end as a failure when nothing listens there

``tf.distribute.Server.join()`` never returns, and nothing tells a server that its job is over. So this
program checks whether a process still listens at the address of the chief. It imports nothing of the
launcher, so that any Python with TensorFlow can run it (3.8 and newer), and imports tensorflow only to serve.

Source: tensorflow/python/training/server_lib.py and distribute/coordinator/cluster_coordinator.py (2.21; the
coordinator waits an hour for a worker to come back, and then again).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not sys.flags.isolated:
    del sys.path[0]  # this directory, not one of the user's
    # Python's own modules before those of PYTHONPATH
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))

import argparse
import contextlib
import errno
import json
import math
import signal
import socket
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

OPEN, REFUSED, SILENT = "open", "refused", "silent"
LOOK_S = 1.0
"""Seconds between two checks."""
CONNECT_S = 3.0
GONE_S = 5.0
"""Seconds without a listener after which the process has ended, and is not just starting again."""
LOST_S = 60.0
"""Seconds without any answer after which the node or the network is lost."""
WITHOUT_WORKERS_S = 30.0
"""Seconds in which workers must be back after a preemption, if none is left meanwhile."""
LOST_WORKER_S = 600.0
"""Seconds in which a worker must be back if others go on.

A coordinator that never gets a worker back cannot end: it waits in ``__del__``.
"""
KEPT = (
    *("KILL", "STOP", "CHLD", "PIPE", "TSTP", "TTIN", "TTOU", "CONT"),
    *("SEGV", "BUS", "FPE", "ILL", "ABRT", "TRAP", "SYS"),
)
"""Signals that are not for the command, or that cannot be passed on."""
REACHED: dict[str, tuple[str]] = {}
"""The address at which a host was reached last."""
USAGE, MISSING, NOT_READY, UNTRUSTED, NO_EXEC, NO_COMMAND = 64, 69, 75, 78, 126, 127


def main(words: Sequence[str]) -> int:
    """Run one task; return its exit status."""
    options = make_parser().parse_args(words)
    if options.peers:
        return watch_peers(options.peers, options.wait)
    watch = PortWatch(options.until, options.wait) if options.until else None
    if options.command:
        return run(options.command, watch, options.linger)
    return serve(watch)


class ServerParser(argparse.ArgumentParser):
    """argparse's parser, with our exit status for a wrong command line and a printable message."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        say(f"{message}; see launcher tf-server --help")
        sys.exit(USAGE)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = ServerParser(
        prog="launcher tf-server",
        usage="%(prog)s [--until HOST:PORT,... | --while HOST:PORT,...] [options] [-- COMMAND ...]",
        description="run TensorFlow's standard server for the task that TF_CONFIG names",
    )
    add = parser.add_argument
    until = "exit when nothing listens there anymore"
    add("--until", metavar="HOST:PORT,...", type=_addresses, help=until)
    peers = "serve nothing; exit with code 75 when nothing listens there anymore"
    add("--while", metavar="HOST:PORT,...", type=_addresses, dest="peers", help=peers)
    wait = "seconds to wait until a process listens there (900)"
    add("--wait", metavar="S", type=_seconds, default=900.0, help=wait)
    linger = "seconds that COMMAND may continue after that (0)"
    add("--linger", metavar="S", type=_seconds, default=0.0, help=linger)
    add("command", nargs="*", metavar="COMMAND", help="run this instead of the server")
    return parser


def _addresses(text: str) -> str:
    try:
        found = [split(address) for address in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(host and 0 < port < 65536 for host, port in found):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT,..., not {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, not {text!r}")
    return number


def serve(watch: PortWatch | None) -> int:
    """Serve until the job is over, then exit; without a watch, serve until this process is killed.

    Returns:
        An exit status if it cannot serve.
    """
    if not has_task(read_config()):
        say("TF_CONFIG names no task of its cluster: {cluster: {role: [host:port]}, task: {type, index}}")
        return UNTRUSTED
    try:
        import tensorflow as tf
    except ImportError as error:
        say(f"{sys.executable} cannot import tensorflow ({error}): name a Python that has it")
        return MISSING

    task = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        task.cluster_spec(),
        job_name=task.task_type,
        task_index=task.task_id,
        protocol=task.rpc_layer or "grpc",
        start=True,
    )
    if watch is None:
        server.join()
    while watch is not None and watch.end is None:
        time.sleep(LOOK_S)
        watch.look()
    status = 0 if watch is None else watch.tell()
    sys.stdout.flush()
    os._exit(status)  # a server cannot be stopped, and its threads would block the exit


def watch_peers(peers: str, wait_s: float) -> int:
    """Wait until no worker is left or one is lost for good; return a status of failure."""
    together = PortWatch(peers, wait_s, WITHOUT_WORKERS_S)
    each = [PortWatch(address, wait_s, LOST_WORKER_S) for address in peers.split(",")]
    while True:
        time.sleep(LOOK_S)
        for watch in (together, *each):
            watch.look()
            if watch.end is not None:
                lost = "no worker is left" if watch is together else "a worker is lost"
                say(f"{watch.reason}: {lost}, and the coordinator would wait forever")
                return NOT_READY


def run(command: Sequence[str], watch: PortWatch | None, linger_s: float) -> int:
    """Run a command until it ends or the job is over; return its status or the job's.

    Args:
        command: The command line.
        watch: Tells whether the job is over; None to wait for the command only.
        linger_s: Seconds that the command may go on after the job has ended well.
    """
    asked: list[int] = []
    for number in signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in KEPT}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: asked.append(number))
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        say(f"cannot run {command[0]}: {error.strerror}")
        return NO_COMMAND if isinstance(error, FileNotFoundError) else NO_EXEC
    due: float | None = None
    while child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)
        while asked:
            child.send_signal(asked.pop(0))
        if watch is None:
            continue
        if watch.end is None:
            watch.look()
        elif due is None:
            due = time.monotonic() + (linger_s if watch.end == 0 else 0.0)
        elif time.monotonic() >= due:
            child.terminate()  # if it does not obey, our parent kills it once we have ended
            break
    if watch is not None and due is not None:
        return watch.tell()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


class PortWatch:
    """Checks whether a process listens at one of some addresses.

    Attributes:
        addresses: The hosts and ports.
        names: The addresses as text.
        wait_s: Seconds until a process must listen for the first time.
        gone_s: Seconds without a listener after which the process has ended.
        end: None as long as there is a reason to go on, then the exit status.
        reason: The reason to end, in words.
    """

    def __init__(self, addresses: str, wait_s: float, gone_s: float = GONE_S) -> None:
        self.addresses = [split(text) for text in addresses.split(",")]
        self.names = addresses
        self.wait_s, self.gone_s = wait_s, gone_s
        self.end: int | None = None
        self.reason = ""
        self.began = self.seen = self.answered = time.monotonic()
        self.was_there = False

    def look(self) -> None:
        """Check once, and set `end` if there is no reason to go on."""
        found = [knock(host, port) for host, port in self.addresses]
        now = time.monotonic()
        if OPEN in found:
            self.was_there, self.seen, self.answered = True, now, now
        elif not self.was_there:
            if now - self.began >= self.wait_s:
                self.conclude(NOT_READY, f"nothing has listened at {self.names} for {self.wait_s:g} s")
        elif SILENT not in found and now - self.answered >= self.gone_s:
            self.conclude(0, f"nothing listens at {self.names} anymore")
        elif SILENT in found:
            self.answered = now
            if now - self.seen >= max(LOST_S, self.gone_s):
                self.conclude(NOT_READY, f"{self.names}: no answer for {now - self.seen:.0f} s")

    def conclude(self, status: int, reason: str) -> None:
        """Set the exit status and the reason."""
        self.end, self.reason = status, reason

    def tell(self) -> int:
        """Return the exit status, and print the reason if it is a failure."""
        if self.end:
            say(self.reason)
        return self.end or 0


def knock(host: str, port: int) -> str:
    """Return whether a process listens at an address: OPEN, REFUSED, or SILENT if that is unknown."""
    for name in (host, *REACHED.get(host, ())):
        try:
            with socket.create_connection((name, port), CONNECT_S) as connected:
                REACHED[host] = (connected.getpeername()[0],)
                return OPEN
        except socket.gaierror:
            pass  # the resolver fails, and not the task
        except UnicodeError:
            return SILENT  # an invalid name, which is not even looked up
        except OSError as error:
            return REFUSED if error.errno == errno.ECONNREFUSED else SILENT
    return SILENT


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def read_config() -> dict[str, Any]:
    """Return TF_CONFIG; empty if it is not a JSON object."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def has_task(config: dict[str, Any]) -> bool:
    """Whether the task of a TF_CONFIG is in its cluster."""
    try:
        index, peers = int(config["task"]["index"]), config["cluster"][config["task"]["type"]]
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    return isinstance(peers, list) and 0 <= index < len(peers)


def say(text: str) -> None:
    """Write a line to standard error, with the task's name; escape characters that are not printable."""
    task = read_config().get("task")
    name = f"{task.get('type')} {task.get('index')}: " if isinstance(task, dict) and "type" in task else ""
    line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name + text)
    sys.stderr.write(f"launcher: tf-server: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
