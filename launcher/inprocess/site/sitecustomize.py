"""Makes every Python of a job answer `STACK_SIGNAL` with its stacks, without an installation in that Python.

The launcher puts the directory of this file in front of PYTHONPATH, and Python's `site` imports the file at
the start. Afterwards the process is as it would be without it: the directory is no longer in `sys.path`, and
the next ``sitecustomize`` has run. Children inherit PYTHONPATH and with it the same. A Python with ``-I``,
``-E`` or ``-S`` does not come here.

It imports only what is built into Python, because it runs in every process of the job. It causes no error.
Python 2 runs it as well and is left alone.

Source: docs.python.org, "site - Site-specific configuration hook" and "faulthandler".
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401 - in comments

STACK_SIGNAL = 61
"""The signal that requests a stack dump from a process: ``SIGRTMAX-3``.

It is a real-time signal because the others are in use: SIGUSR1 and SIGUSR2 tell scripts to checkpoint
(Slurm's ``--signal``, submitit, Lightning), and torch, Kineto and the JVM use SIGUSR2 themselves. It is
counted from the end because the first real-time signal differs between C libraries (34 in glibc, 35 in musl)
and because profilers and .NET take the first ones. (systemd's SIGRTMIN+13 to SIGRTMIN+29 are meant for
process 1 only.) It is not the last one, which Valgrind uses. It is a number so that a process that is not
armed need not ``import signal``.
"""
TEMPLATE = "LAUNCHER_TEMPLATE"
"""Variable of a process that is to become all ranks by forks, see `launcher.inprocess.template`."""
_TYPE, _REGULAR, _OTHERS_WRITE = 0o170000, 0o100000, 0o002


def answer_signal(path):
    # type: (str) -> None
    """Write the stacks of all threads to a file at `STACK_SIGNAL`, unless the signal has a handler.

    At SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL they are written there, too, unless Python already writes
    them elsewhere. A program that handles these signals itself, or calls `faulthandler.enable`, takes over.

    Forked children (of a DataLoader) and children that arm themselves write to the same file. This is safe
    because the launcher sends one request at a time.

    Raises:
        OSError: The file cannot be made, or is not one that only we have made.
    """
    import faulthandler

    if not _is_free():
        return
    fd = _open_own(path)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=fd)


def _open_own(path):
    # type: (str) -> int
    """Open a file to append to it, by a path without links: another user can put anything in a directory.

    The rule is that of `launcher.core.files`, which is too large for every Python of a job.
    """
    own = (0, os.geteuid())
    safe = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    folders, _, name = path.rpartition("/")
    folder = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in filter(None, folders.split("/")):
        outer = folder
        try:
            folder = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=outer)
            if os.fstat(folder).st_uid not in own and os.fstat(outer).st_mode & _OTHERS_WRITE:
                os.close(folder)
                raise OSError("a directory of another user")
        finally:
            os.close(outer)
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | safe, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    found = os.fstat(fd)
    if found.st_mode & _TYPE != _REGULAR or found.st_uid not in own or found.st_nlink != 1:
        os.close(fd)
        raise OSError("not a regular file of this user")
    return fd


def _is_free():
    # type: () -> bool
    """Whether nothing handles or ignores the signal.

    A handler of the user stays: it was there first, and we do not know its purpose. Ours may be there too,
    from another copy of this module. The kernel knows both, and `signal` takes 2 ms to import.
    """
    with open("/proc/self/status", "rb") as file:
        masks = [line.split()[1] for line in file if line.startswith((b"SigCgt:", b"SigIgn:"))]
    return not any(int(mask, 16) >> (STACK_SIGNAL - 1) & 1 for mask in masks)


def _become_template(here, job):
    # type: (str, str) -> None
    """Become a template, see `launcher.inprocess.template`; return in each rank that is forked."""
    from _frozen_importlib_external import SourceFileLoader

    path = os.path.join(os.path.dirname(here), "template.py")
    loader = SourceFileLoader("launcher_template", path)
    scope = {"__name__": "launcher_template"}
    code = loader.get_code(loader.name)
    found, home = list(sys.path), os.path.dirname(os.__file__)
    # Its modules are Python's own, whatever PYTHONPATH has
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))
    exec(code, scope)  # type: ignore[arg-type]  # noqa: S102 - its package need not be there
    scope["begin"](TEMPLATE, job, found)  # type: ignore[operator]


def _start():
    # type: () -> None
    """Arm this process, then load the ``sitecustomize`` that this one shadows.

    Raises:
        ImportError: There is no other; `site` takes it for no ``sitecustomize`` at all.
    """
    here = os.path.dirname(__file__)  # as it stands in sys.path, whose paths `site` has made absolute
    sys.path[:] = [folder for folder in sys.path if folder != here]
    if sys.version_info < (3, 4):  # noqa: UP036 - a job may start any Python
        raise ImportError("no sitecustomize")
    job = os.environ.pop(TEMPLATE, None) if sys.version_info >= (3, 8) else None
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec(__name__, sys.path)
    is_first = job == "serves"  # what is in front of the script's imports comes in front of the template's
    if is_first:
        _go_on(spec, module_from_spec)
    if job:
        _become_template(here, job)
    try:
        path = os.environ.get("LAUNCHER_STACKS_FILE")
        if path:
            answer_signal(path)
    except Exception:  # noqa: S110 - not even a broken installation may end the job
        pass
    if spec is None or spec.loader is None:
        raise ImportError("no sitecustomize", name=__name__)
    if not is_first:
        _go_on(spec, module_from_spec)


def _go_on(spec, make):
    # type: (Any, Any) -> None
    """Run the next ``sitecustomize``, if there is one."""
    if spec is not None and spec.loader is not None:
        sys.modules[__name__] = module = make(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _start()
