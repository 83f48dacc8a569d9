"""Imports the modules of a job once, and becomes each of its ranks by a fork.

The launcher starts this process as it starts a rank: the same Python, the same command line, the variables
that all ranks of the node have in common. `launcher.inprocess.site.sitecustomize` comes here before Python
looks at the script. `serve` imports modules, checks whether a fork of this process is as good as a new one,
and forks the ranks when it is asked to. It returns only in a rank, where Python goes on to run the script as
ever. So the script is ``__main__``, and ``sys.argv``, tracebacks, statuses and threads are Python's affair.

The ranks are children of the launcher and not of this process: an intermediate child forks them and ends, and
the launcher, as the nearest subreaper, becomes their parent. They wait at a pipe until it has noted them.

Python 3.8 and newer. Nothing of the launcher is imported: its package need not be there.

Source: prctl(2), PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG; docs.python.org, "os.fork".
"""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

CHANNEL = 0
"""The descriptor of the connection with the launcher: standard input, which is empty afterwards."""
FDS_MAX = 250
"""Maximum number of descriptors that come with a message (the kernel's SCM_MAX_FD is 253)."""
GO = b"g"
SERVES = "serves"
"""Value of the variable that brings this process here, once its command is that of the ranks."""
FAILED = 126
NATIVE = (
    *("LD_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "MALLOC_", "GLIBC_", "PYTHON", "TORCH_"),
    *("CUDA_", "ROCR_", "HIP_"),
)
"""Beginnings of variables that libraries read when they are loaded, which Python does not see."""
LATER = ("TORCH_NCCL_", "TORCH_FR_")
"""Beginnings of those that torch reads only when it makes a process group."""
NEVER = {"mpi4py": "its import calls MPI_Init, which is for one process"}
QUIET_FILES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/infiniband/")
PR_SET_PDEATHSIG, PR_GET_CHILD_SUBREAPER, SIGKILL = 1, 37, 9
KMP = "/dev/shm/__KMP_REGISTERED_LIB"  # noqa: S108 - a name in /proc/self/maps
"""Shared memory in which Intel's OpenMP notes that it is there; each process looks for its own."""
OF_ENVIRON = ("os", "collections.abc", "_collections_abc")
"""Modules of `os.environ` itself."""


class ForkRefused(Exception):
    """A fork of this process would differ from a new process; the message says why.

    ``package``: the package that is the reason; empty if that is not known.
    """

    def __init__(self, text: str, package: str = "") -> None:
        super().__init__(text)
        self.package = package


class Reads:
    """The variables that Python code reads from `os.environ`, each with the place that read it first.

    A walk over all variables reads none of them: tqdm looks for names with a prefix, subprocess copies all.
    """

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        self._kind: Any = type(os.environ)
        self._get, self._iter = self._kind.__getitem__, self._kind.__iter__

    def begin(self) -> None:
        """Note what is read from now on."""
        get, walk, places = self._get, self._iter, self.places
        passed: set[str] = set()

        def read(environ: Any, name: Any) -> object:
            text = os.fsdecode(name)  # os.environb has the same class
            if text in passed:
                passed.discard(text)
            elif text not in places:
                places[text] = _find_reader()
            return get(environ, name)

        def iterate(environ: Any) -> Iterator[object]:
            for name in walk(environ):
                passed.add(os.fsdecode(name))
                yield name

        self._kind.__getitem__, self._kind.__iter__ = read, iterate

    def end(self) -> None:
        """Note nothing more."""
        self._kind.__getitem__, self._kind.__iter__ = self._get, self._iter


def _find_reader() -> str:
    """Return the place of the code that reads a variable: ``FILE:LINE``."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in OF_ENVIRON:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def begin(variable: str, job: str, path: Sequence[str]) -> None:
    """Become the command of the ranks, or, if this process is that already, see `serve`.

    The launcher first starts this Python with other code, so that the script does not run in a Python that
    does not come here. A process that has inherited the variable from elsewhere has no connection, and
    nothing happens.

    Args:
        variable: The variable that brings a process here.
        job: Its value: the command of the ranks as JSON, or `SERVES`.
        path: Where a rank imports from.
    """
    if not _is_connected():
        sys.path[:] = path
        return
    try:
        if job != SERVES:
            called = json.loads(job)
            os.execve(called["path"], called["argv"], {**os.environ, variable: SERVES})
        serve(path)
    except Exception:
        os._exit(FAILED)  # this process has no rank, and must not run the script


def _is_connected() -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(CHANNEL).st_mode)
    except OSError:
        return False  # it is closed


def serve(path: Sequence[str]) -> None:
    """Import, check and fork as the launcher asks; return in each rank, and never in the template itself."""
    channel = socket.socket(fileno=os.dup(CHANNEL))
    channel.set_inheritable(False)
    empty = os.open("/dev/null", os.O_RDONLY)  # a module may read standard input
    os.dup2(empty, CHANNEL)
    os.close(empty)
    reads, start, environ = Reads(), StateBefore(channel.fileno()), {}
    while True:
        try:
            request, fds = _receive(channel)
        except (EOFError, OSError):
            os._exit(0)  # not needed any more: what the modules registered for the exit is the ranks'
        try:
            if "modules" in request:
                environ = request["environ"]
                took = _prepare(request, reads, start, path)
                with open("/proc/self/statm") as file:
                    size = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                answer: dict[str, object] = {"ready": True, "bytes": size, "took": took}
            else:
                _compare(request["ranks"], reads.places, environ)
                pids = _fork_ranks(channel, request["ranks"], fds, environ, start)
                if not pids:
                    return
                answer = {"pids": pids}
        except ForkRefused as error:
            answer = {"refused": str(error), "package": error.package}
        for fd in fds:
            _close(fd)
        channel.sendall(json.dumps(answer).encode() + b"\n")


class StateBefore:
    """What this process is like before the imports, to see what they change.

    Attributes:
        opened: The open descriptors.
        streams: The files of the standard streams.
        shared: The memory that is shared with other processes.
        folder: The working directory.
        is_line_buffered: Whether standard output is written line by line.
    """

    def __init__(self, channel: int) -> None:
        """Look; ``channel``: a descriptor of ours."""
        self.opened = {*_list_fds(), channel}
        self.streams = [_describe_fd(fd) for fd in range(3)]
        self.shared = _list_shared()
        self.folder = _find_folder()
        self.is_line_buffered = getattr(sys.stdout, "line_buffering", None)


def _find_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request, which is in a memory file, and the descriptors that came with it."""
    import array

    fds = array.array("i")
    data, more, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(FDS_MAX * fds.itemsize))
    for level, kind, content in more:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data or not fds:
        raise EOFError
    with open(fds[0], "rb") as file:
        file.seek(0)
        return json.loads(file.read().decode()), list(fds[1:])


# --- import and check


def _prepare(
    request: Mapping[str, Any], reads: Reads, start: StateBefore, path: Sequence[str]
) -> list[float]:
    """Import the modules, and return the seconds of each; refuse if a fork would differ from a new process.

    Raises:
        ForkRefused: It would.
    """
    folders = [os.path.realpath(folder) for folder in request["folders"]]  # as Python itself finds the script
    sys.path[:] = [*folders, *path]
    _require_same()
    front = list(sys.path)
    reads.begin()
    took = []
    try:
        for name in request["modules"]:
            began_s = time.monotonic()
            _import(name, skips=request["skips"])
            took.append(time.monotonic() - began_s)
            for read in request["varying"]:
                if read in reads.places:
                    raise _read_too_early(read, reads.places[read], name)
    finally:
        reads.end()
        is_behind = sys.path[: len(front)] == front
        for folder in folders:
            if folder in sys.path:
                sys.path.remove(folder)
    if not is_behind:
        raise ForkRefused("the import has changed sys.path, and the script's directory comes before it")
    _check(start)
    return took


def _require_same() -> None:
    """Require that a rank would import the modules that are loaded already.

    Raises:
        ForkRefused: The user has another module of such a name.
    """
    from _frozen_importlib_external import PathFinder

    for name, module in list(sys.modules.items()):
        ours = getattr(module, "__spec__", None)
        if ours is not None and ours.has_location and "." not in name:
            theirs = PathFinder.find_spec(name, sys.path)
            if theirs is not None and theirs.origin != ours.origin:
                raise ForkRefused(f"{theirs.origin} comes before Python's own module {name}")


def _import(name: str, *, skips: bool) -> None:
    """Import a module, or what ``from a import b`` means by ``a.b``.

    Raises:
        ForkRefused: The import fails; ``skips``: a module that is not there is left out.
    """
    from importlib import import_module

    package = name.partition(".")[0]
    if package in NEVER:
        raise ForkRefused(f"{name}: {NEVER[package]}", package)
    parent, _, last = name.rpartition(".")
    try:
        if not (parent and hasattr(sys.modules.get(parent), last)):
            import_module(name)
    except BaseException as error:  # a rank would end by SystemExit, too
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        if not (skips and missing and f"{name}.".startswith(f"{missing}.")):
            raise ForkRefused(f"import {name}: {type(error).__name__}: {error}", package) from None


def _read_too_early(variable: str, place: str, module: str) -> ForkRefused:
    text = f"{variable} is not the same in all ranks, and the import of {module} reads it ({place})"
    return ForkRefused(text, module.partition(".")[0])


def _check(start: StateBefore) -> None:
    """Check what a fork does not inherit, and what ranks must not share.

    Raises:
        ForkRefused: The imports have left such things behind.
    """
    import gc
    import signal

    if _find_folder() != start.folder:
        raise ForkRefused("the import has changed the working directory")
    for fd, path in enumerate(start.streams):
        if _describe_fd(fd) != path:
            raise ForkRefused(f"the import has replaced a standard stream (descriptor {fd})")
    opened = (_describe_fd(fd) for fd in _list_fds() if fd not in start.opened)
    for path in sorted(opened, key=lambda path: not path.startswith(GPUS)):  # CUDA also opens an eventfd
        if path.startswith(GPUS):
            raise ForkRefused(f"the import has opened {path}: the context of a GPU does not survive a fork")
        if path and path not in QUIET_FILES:
            raise ForkRefused(f"the import has opened {path}, which all ranks would share")
    shared = sorted(_list_shared() - start.shared)
    if shared:
        text = "the import has made memory that all ranks would share, such as a lock of multiprocessing"
        raise ForkRefused(f"{text} ({shared[0]})")
    if _adopts():
        raise ForkRefused("the import has made this process a subreaper, which would adopt the ranks")
    children = _read_line(f"/proc/self/task/{os.getpid()}/children")  # some kernels lack this file
    if children:
        raise ForkRefused(f"the import has started a process ({children})")
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    if any(signal.getitimer(timer) != (0.0, 0.0) for timer in timers):
        raise ForkRefused("the import has set a timer (setitimer), which a fork does not inherit")
    gc.collect()
    gc.freeze()  # collections in a rank do not write to what is there already, so it stays shared
    _try_fork()
    threads = _list_threads()
    if threads:
        raise ForkRefused(
            f"the import has started threads, which do not survive a fork: {', '.join(threads)}"
        )


def _try_fork() -> None:
    """Fork once. Libraries that are made for it end their threads now, and start others when needed.

    Raises:
        ForkRefused: A function that is registered for forks fails.
    """
    import warnings

    reading, writing = os.pipe()
    failed: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: failed.append(str(told.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which are looked at afterwards
        pid = os.fork()
        if not pid:
            os.write(writing, "; ".join(failed).encode())
            os._exit(0)
    sys.unraisablehook = hook
    os.close(writing)
    with open(reading, "rb") as file:
        failed.append(file.read().decode())
    _, status = os.waitpid(pid, 0)
    text = "; ".join(filter(None, failed))
    if text or status:
        raise ForkRefused(f"a fork fails: {text or f'status {status}'}")


def _compare(
    ranks: Sequence[Mapping[str, Any]], places: Mapping[str, str], before: Mapping[str, str]
) -> None:
    """Compare the variables of the ranks with those that this process was given.

    Raises:
        ForkRefused: One that was read has another value in a rank.
    """
    for rank in ranks:
        environ = rank["environ"]
        for name in sorted({*environ, *before}):
            if environ.get(name) == before.get(name):
                continue
            if name in places:
                raise _read_too_early(name, places[name], "the modules")
            if name.startswith(NATIVE) and not name.startswith(LATER):
                text = f"{name} is not the same in all ranks, and libraries read it when they are loaded"
                raise ForkRefused(text)


# --- fork


def _fork_ranks(
    channel: socket.socket,
    ranks: Sequence[Mapping[str, Any]],
    fds: Sequence[int],
    before: Mapping[str, str],
    start: StateBefore,
) -> list[int]:
    """Fork ranks; return their pids, and none in each of them once the launcher has noted it.

    Raises:
        ForkRefused: Not all could be forked; those that were end by themselves: nothing releases them.
    """
    launcher = os.getppid()
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - avoids an import in the user's process
            stream.flush()  # what it still holds would be written by each rank
        except Exception:  # noqa: S110 - a module has put an object of its own there
            pass
    reading, writing = os.pipe()
    middle = os.fork()
    if not middle:
        try:
            for rank in ranks:
                pid = os.fork()
                if not pid:
                    for fd in (channel.detach(), reading, writing):
                        os.close(fd)
                    _become(rank, fds, launcher, before, start)
                    return []
                os.write(writing, b"%d\n" % pid)
        except OSError as error:
            os.write(writing, f"{error}\n".encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        lines = file.read().decode().splitlines()
    os.waitpid(middle, 0)  # from now on the launcher is the parent of the ranks
    if len(lines) != len(ranks) or not lines[-1].isdecimal():
        raise ForkRefused(f"cannot fork: {lines[-1] if lines else 'no process'}")
    return [int(line) for line in lines]


def _become(
    rank: Mapping[str, Any], fds: Sequence[int], launcher: int, before: Mapping[str, str], start: StateBefore
) -> None:
    """Wait until the launcher has noted this fork, and make it what the launcher makes of a new process.

    Args:
        rank: The rank: its group, streams, CPUs, variables, and the signals that it ignores.
        fds: The pipe at which it waits, and the descriptors for the streams of all ranks.
        launcher: The launcher's pid.
        before: The variables that this process was given.
        start: What it was like before the imports.
    """
    import signal

    try:
        os.setpgid(0, rank["group"])
        for number, place in enumerate(rank["streams"]):
            os.dup2(fds[place], number)
        gate, *others = fds
        for fd in others:
            _close(fd)
        if os.read(gate, 1) != GO:
            os._exit(FAILED)
        os.close(gate)
        _die_with(launcher)
        _keep_to(rank["cpus"])
        _set_environ(rank["environ"], before)
        for number in rank["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        _renew()
        _renew_streams(start)
    except BaseException as error:
        os.write(2, f"launcher: cannot start: {error}\n".encode())
        os._exit(FAILED)


def _die_with(launcher: int) -> None:
    """Have the kernel end this process with the launcher."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if 0 < os.getppid() != launcher:  # negative: refused by the kernel
        os._exit(FAILED)


def _keep_to(cpus: Sequence[int]) -> None:
    """Bind this process to CPUs; if the cpuset has changed since the plan, it runs unbound."""
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
    except OSError:
        pass


def _set_environ(wanted: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Set the variables of a rank, and on top of them what was set or removed in this process.

    Python's start (a ``.pth`` file, a wrapper in the shell) and the imports do so in a new process, too.
    """
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gone = before.keys() - os.environ.keys()
    after = {**{name: value for name, value in wanted.items() if name not in gone}, **changed}
    for name in os.environ.keys() - after.keys():
        del os.environ[name]
    for name, value in after.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _renew() -> None:
    """Give this process what a new one draws at random. Python itself seeds `random` in every fork."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if torch is not None:
        torch.default_generator.seed()  # of the CPU; a GPU has none before it is used
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _renew_streams(start: StateBefore) -> None:
    """Open standard input, and let standard output know whether it is a terminal; a module's own stay."""
    import io

    module: Any = sys
    told = module.stdin
    if told is not None and told is module.__stdin__:
        raw = io.FileIO(0, "r", closefd=False)
        raw.name = "<stdin>"
        read: Any = io.BufferedReader(raw)
        made: Any = io.TextIOWrapper(read, told.encoding, told.errors, line_buffering=os.isatty(0))
        made.mode = "r"
        module.stdin = module.__stdin__ = made
    out: Any = sys.stdout
    is_own = isinstance(out, io.TextIOWrapper) and out is sys.__stdout__
    if is_own and not out.write_through and out.line_buffering == start.is_line_buffered:
        out.reconfigure(line_buffering=os.isatty(1))


# --- what /proc says of this process


def _list_fds() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if _describe_fd(int(name))]


def _describe_fd(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""  # it was that of the listing


def _list_shared() -> set[str]:
    """Return the writable memory that is shared with other processes: its place, and its file."""
    with open("/proc/self/maps") as file:
        parts = [line.rstrip().split(None, 5) for line in file]
    shared = (part for part in parts if part[1].startswith("rw") and part[1].endswith("s"))
    return {f"{part[0]} {' '.join(part[5:])}" for part in shared if not " ".join(part[5:]).startswith(KMP)}


def _adopts() -> bool:
    """Whether orphans below this process become its children."""
    import ctypes

    found = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def _list_threads() -> list[str]:
    """Return the names of the threads besides this one."""
    found: list[str] = []
    threading = sys.modules.get("threading")
    named = {} if threading is None else {one.native_id: one.name for one in threading.enumerate()}
    for name in os.listdir("/proc/self/task"):
        if int(name) != os.getpid():
            called = _read_line(f"/proc/self/task/{name}/comm")  # empty: it has ended
            found += [named.get(int(name)) or called] if called else []
    return found


def _read_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _close(fd: int) -> None:
    try:  # noqa: SIM105 - avoids an import in the user's process
        os.close(fd)
    except OSError:
        pass
