"""The launcher's view of the template: the process that imports modules once, and forks the ranks.

What it does, and what it checks before it forks, is in `launcher.inprocess.template`. It is started while the
launcher still waits for other nodes. If it cannot be used, one line says why, and the ranks start as ever.

A request is JSON in a memory file, whose descriptor is sent over a socket with those that the ranks get. An
answer is a line of JSON.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time

from launcher.core.frozen import replace
from launcher.core.redact import printable, redact
from launcher.core.signal import signal
from launcher.output.folder import FILES, PYTHONPATH, put_first
from launcher.planning.preload import describe_times
from launcher.process.kernel import become_subreaper
from launcher.process.signal_file import ENDING_IDLE
from launcher.process.spawn import Child, ExecErrors, Inherited, Streams, change_environ, start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.core.supervision import Preload
    from launcher.output.folder import RunFolder
    from launcher.output.router import OutputRouter
    from launcher.process.helper import Helpers, Served
    from launcher.process.loop import Loop
    from launcher.process.signal_file import SignalFile

    Ready = tuple[Child, Streams]

TEMPLATE = "LAUNCHER_TEMPLATE"
"""Variable that makes a Python of the job a template, see `launcher.inprocess.site.sitecustomize`."""
NAME = "template"
INDEX = -1
"""Its number among the processes whose output is forwarded."""
NOT_READ = "its Python is older than 3.8, or does not read PYTHONPATH"
PROBE = f"""import os; os.write(0, b'{{"refused": "{NOT_READ}"}}\\n')"""
"""What a Python runs that does not come to our ``sitecustomize``: it must not run the script."""
IMPORT_LIMIT_S = 900.0
FORK_LIMIT_S = 5.0
"""The forks take milliseconds; meanwhile the launcher does nothing else."""
LOOK_S = 0.05
"""Seconds between two looks for a signal meanwhile: a module may have slow functions for forks."""
UNEXPECTED = "its answer is not what the launcher expects"
READ_BYTES = 1 << 16
ANSWER_LIMIT_BYTES = 1 << 18
OF_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "LAUNCHER_ATTEMPT")
"""Variables that are others in each attempt."""
THREADS, PORT = "OMP_NUM_THREADS", "MASTER_PORT"


class Template:
    """The process that becomes the ranks of this node.

    Attributes:
        is_settled: Whether it is ready, or cannot be used.
    """

    def __init__(
        self,
        preload: Preload,
        loop: Loop,
        helpers: Helpers,
        signals: SignalFile,
        output: OutputRouter,
        folder: RunFolder,
    ) -> None:
        """Prepare; start nothing.

        Args:
            preload: What to import.
            loop: Waits for its answers.
            helpers: Our children outside the job, of which it becomes one.
            signals: Holds the signal mask that processes get back.
            output: Shows what the imports print.
            folder: The run's directory.
        """
        self.is_settled = False
        self._preload = preload
        self._loop, self._helpers, self._signals = loop, helpers, signals
        self._output, self._folder = output, folder
        self._channel: socket.socket | None = None
        self._server: Served | None = None
        self._gate: int | None = None
        self._path = ""
        self._argv: tuple[str, ...] = ()
        self._first = 0
        self._common: dict[str, str] = {}
        self._varying: tuple[str, ...] = ()
        self._heard = b""
        self._is_ready = False
        self._began_s = time.monotonic()

    # --- start

    def start(self, children: Sequence[Child], path: str, settings: Mapping[str, str]) -> None:
        """Start the template and its imports; the result arrives as an event.

        Args:
            children: The processes of this node.
            path: The path of their program.
            settings: Variables that all of them get at their start.
        """
        ranks = [child for child in children if not child.called]
        if not ranks:
            self.is_settled = True  # other nodes have them
        elif not become_subreaper():
            self._give_up("the kernel refuses prctl, by which their forks become children of the launcher")
        elif len({child.argv for child in ranks}) > 1:
            self._give_up("the command lines of the ranks differ")
        elif any(child.cpus for child in ranks) and any(THREADS not in child.environ for child in ranks):
            self._give_up(f"the ranks are bound to CPUs without {THREADS}, and the import counts the CPUs")
        else:
            self._path, self._argv, self._first = path, ranks[0].argv, ranks[0].rank
            self._compare(ranks, settings)
            self._spawn()

    def _compare(self, ranks: Sequence[Child], settings: Mapping[str, str]) -> None:
        """Find what the environments of the ranks have in common, and the names of the rest."""
        common = dict(ranks[0].environ)
        for child in ranks[1:]:
            common = {name: value for name, value in common.items() if child.environ.get(name) == value}
        kept = (name for name in common if name not in OF_ATTEMPT and not _has_port(common[name], common))
        common = {name: common[name] for name in kept}
        names = {name for child in ranks for name in child.environ} - common.keys()
        self._varying = (*sorted(names | {*FILES}),)
        self._common = {**common, **settings, PYTHONPATH: put_first(common.get(PYTHONPATH, ""))}

    def _spawn(self) -> None:
        """Start the command of the ranks, and request the imports."""
        from launcher.command.words import read_flags

        place, _, _ = read_flags(self._argv)
        environ = {**self._common, TEMPLATE: json.dumps({"path": self._path, "argv": self._argv})}
        child = Child(INDEX, INDEX, (*self._argv[:place], "-c", PROBE), environ, called=NAME)
        errors, inherited = ExecErrors(), Inherited(os.environ)
        try:
            shown = self._output.open(INDEX, child, self._folder, 0)
            self._channel, theirs = socket.socketpair()
            change_environ(inherited.plan(environ))
            with theirs:
                streams = Streams(theirs.fileno(), shown.stdout, shown.stderr)
                pid = start(INDEX, child, self._path, streams, self._signals, errors)
            self._server = self._helpers.adopt(pid)
            self._loop.add(self._channel.fileno(), self._hear)
            given = {name: value for name, value in environ.items() if name != TEMPLATE}
            self._send({**vars(self._preload), "varying": self._varying, "environ": given})
        except OSError as error:
            self._give_up(str(error))
        finally:
            change_environ(inherited.plan_own())
            self._output.started()
            os.close(errors.fd)  # if its program cannot be executed, it ends at once
            errors.close_writing()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Turn the loop until the modules are imported, or something else matters more."""
        left_s = self._began_s + IMPORT_LIMIT_S - time.monotonic()
        self._loop.turn_until(lambda: self.is_settled or is_over(), left_s)
        if not self.is_settled and not is_over():
            self._give_up(f"not imported after {IMPORT_LIMIT_S:g} s")

    def _hear(self) -> None:
        """Take the answer to the request to import."""
        answer = self._read()
        if answer is None:
            return
        package = str(answer.get("package") or "")
        if "ready" in answer:
            took = answer.get("took")
            seconds = [one for one in took if isinstance(one, float)] if isinstance(took, list) else []
            size = answer.get("bytes")
            self._note_ready(size >> 20 if isinstance(size, int) else 0, seconds)
        elif self._preload.skips and package:
            self._leave_out(package, str(answer["refused"]))
        else:
            self._give_up(str(answer.get("refused") or "its Python has ended before everything was imported"))

    def _note_ready(self, size_mib: int, seconds: Sequence[float]) -> None:
        if self._channel is not None:
            self._loop.remove(self._channel.fileno())
        self.is_settled = self._is_ready = True
        names = describe_times(self._preload.modules, seconds)
        self._say(f"preload: {names} imported once, {size_mib} MiB", "preloaded")

    def _leave_out(self, package: str, why: str) -> None:
        """Begin again without a package that cannot be imported for all ranks."""
        self.close()
        left = [name for name in self._preload.modules if name.partition(".")[0] != package]
        if not left:
            self._give_up(why)
            return
        self._say(f"preload: without {package}: {printable(redact(why))}", "preload-without")
        self.is_settled = False
        self._preload = replace(self._preload, modules=tuple(left))
        self._spawn()

    @property
    def importing(self) -> tuple[int, int] | None:
        """The first rank that it will fork, and its own PID, while it imports."""
        server = self._server
        return None if self.is_settled or server is None or server.pid is None else (self._first, server.pid)

    # --- fork

    def takes(self, child: Child) -> bool:
        """Whether a process can be a fork."""
        return self._is_ready and not child.called and child.argv == self._argv

    def fork(self, ready: Sequence[Ready]) -> list[int]:
        """Return the pids of forks, which wait for `release`; none if they must be started as ever.

        Args:
            ready: The processes, complete, and their standard streams.
        """
        reading, self._gate = os.pipe()
        fds = [reading]
        ranks = []
        for child, streams in ready:
            places = []
            for number, fd in enumerate((streams.stdin, streams.stdout, streams.stderr)):
                fds.append(number if fd is None else fd)
                places.append(len(fds) - 1)
            group = os.getpgrp() if streams.has_terminal else 0
            ranks.append(
                {
                    "environ": dict(child.environ), "cpus": child.cpus, "group": group, "streams": places,
                    "ignored": streams.ignored,
                }
            )  # fmt: skip
        try:
            self._send({"ranks": ranks}, fds)
            pids = read_pids(self._await(time.monotonic() + FORK_LIMIT_S), len(ready))
        except (OSError, Unusable) as error:
            self._close_gate()
            is_gone = isinstance(error, (BrokenPipeError, ConnectionResetError))
            self._give_up("the process that has imported them has ended" if is_gone else str(error))
            return []
        finally:
            os.close(reading)
        return pids

    def release(self, count: int) -> None:
        """Let the forks run: they have been noted."""
        if self._gate is not None:
            os.write(self._gate, b"g" * count)
            self._close_gate()

    def _close_gate(self) -> None:
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None

    def close(self) -> None:
        """End the process."""
        self._is_ready, self.is_settled = False, True
        if self._channel is not None:
            if self._loop.watches(self._channel.fileno()):
                self._loop.remove(self._channel.fileno())
            self._channel.close()
            self._channel = None
        if self._server is not None:
            self._server.close()

    def _say(self, text: str, event: str) -> None:
        self._output.say(text, event)

    def _give_up(self, why: str) -> None:
        """Say why the ranks start as ever."""
        self._say(f"preload skipped: {printable(redact(why))}; ranks start normally", "no-preload")
        self.close()

    # --- the channel

    def _send(self, request: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        assert self._channel is not None  # noqa: S101 - it is there as long as the process can be used
        file = os.memfd_create(NAME)
        try:
            os.write(file, json.dumps(request).encode())
            self._channel.sendmsg(
                [b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (file, *fds)))]
            )
        finally:
            os.close(file)

    def _await(self, until: float) -> Mapping[str, object]:
        """Return the answer to a request; the forks take milliseconds.

        Raises:
            Unusable: They take too long, or a signal requests an end meanwhile.
        """
        assert self._channel is not None  # noqa: S101
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while (left_s := until - time.monotonic()) > 0:
            if poll.poll(min(left_s, LOOK_S) * 1000):
                answer = self._read()
                if answer is not None:
                    return answer
            elif not signal.sigpending().isdisjoint(ENDING_IDLE):
                raise Unusable("a signal has come before its forks")
        raise Unusable(f"no forks within {FORK_LIMIT_S:g} s")

    def _read(self) -> Mapping[str, object] | None:
        """Return the answer that has come; empty if the process has ended, None if it is not whole."""
        assert self._channel is not None  # noqa: S101
        try:
            data = os.read(self._channel.fileno(), READ_BYTES)
        except ConnectionResetError:
            data = b""
        self._heard += data
        if len(self._heard) > ANSWER_LIMIT_BYTES:
            return {"refused": f"its answer is longer than {ANSWER_LIMIT_BYTES} bytes"}
        if data and not self._heard.endswith(b"\n"):
            return None
        heard, self._heard = self._heard, b""
        if not data:
            return {}
        try:
            answer = json.loads(heard)
        except ValueError:
            return {"refused": UNEXPECTED}
        return answer if isinstance(answer, dict) else {}


def read_pids(answer: Mapping[str, object], count: int) -> list[int]:
    """Return the pids of all forks. An imported module may have written the answer.

    Raises:
        Unusable: There are none, or not all of them are children of ours, which we may signal and await.
    """
    found = answer.get("pids")
    if found is None:
        raise Unusable(str(answer.get("refused") or "the process that has imported them has ended"))
    pids = [pid for pid in found if type(pid) is int] if isinstance(found, list) else []
    if not len(set(pids)) == len(pids) == count or not all(map(_is_child, pids)):
        raise Unusable(UNEXPECTED)
    return pids


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, OverflowError):
        return False
    return pid > 0


def _has_port(value: str, environ: Mapping[str, str]) -> bool:
    """Whether the value of a variable is or ends with the port of the rendezvous, another in each attempt."""
    port = environ.get(PORT, "")
    return bool(port) and (value == port or value.endswith(f":{port}"))


class Unusable(Exception):
    """The processes cannot be forks; the text says why."""
