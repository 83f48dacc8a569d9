"""The environment hook: the line in site-packages runs it if the environment shows a job.

It gives a Python that a platform started directly the variables that ``launcher run`` would have set. In a
process that has them already, or whose parent has, it only arms (`launcher.inprocess.arm`). It never raises.
It prints a message only if it cannot tell which process of the job this is.

Python runs this file by its path while it starts, in any version from 3.8. The launcher's package can be
imported only while the hook runs, and is removed from `sys.modules` afterwards, so that the user's own
imports are not affected.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import ModuleSpec  # every Python has loaded it: importlib is built on it
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PACKAGE = "launcher"
ANSWER_TIMEOUT_S = 20.0
"""Longer than a start from a slow network file system takes; then the job continues without an answer."""
PIECE_BYTES = 1 << 16
PLANS_FROM = (3, 10)
"""Oldest Python that can plan; an older one asks the launcher's own."""


class _Private:
    """Import finder for the launcher's modules, which it removes from `sys.modules` on exit."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before: dict[str, Any] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the launcher; None for any other module."""
        if not _is_ours(name):
            return None
        place = os.path.join(self._folder, *name.split(".")[1:])
        is_package = os.path.isdir(place)
        file = os.path.join(place, "__init__.py") if is_package else f"{place}.py"
        spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [place]
        return spec

    def __enter__(self) -> None:
        self._before = _take_out()
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        _take_out()
        sys.modules.update(self._before)


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _take_out() -> dict[str, Any]:
    """Remove the launcher's modules from `sys.modules` and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}


def enter(python: str, tag: str) -> None:
    """Set the variables of a process of a job that has none; arm every process.

    Do nothing in an isolated Python, if the hook is switched off, or in a process with more rights than the
    user who set the variables (setuid, sudo).

    Args:
        python: The launcher's own Python.
        tag: Its `sys.implementation.cache_tag`. If ours is the same, the launcher's bytecode fits us too.
    """
    if sys.flags.isolated:
        return
    with _Private(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        from launcher.inprocess import arm, has_other_rights, marker, program

        if marker.is_off(os.environ) or has_other_rights(os.environ):
            return
        words = program.read_command_line()
        name = program.find_program(words)
        is_job = program.is_job(name)
        starts = program.starts_workers(name)
        if is_job and marker.needs_action(os.environ, starts_workers=starts):
            _act(python, tag, words)
        if is_job and marker.is_worker(os.environ):
            os.environ.pop(marker.TOKEN, None)
        # Stacks are useful for all processes; a tool's exception is not the job's failure.
        arm(errors=is_job)


def _act(python: str, tag: str, words: Sequence[str]) -> None:
    """Plan in this Python or in the launcher's own, and apply the plan."""
    from launcher.inprocess.apply import apply_answer

    found = None
    if sys.version_info >= PLANS_FROM and sys.implementation.cache_tag == tag:
        try:
            from launcher.hook.answer import answer

            found = answer(words)
        except (Exception, SystemExit):  # e.g. a user's module shadows one of Python's own
            found = None
    apply_answer(_ask(python, words) if found is None else found)


def _ask(python: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the answer of the launcher's own Python, run without PYTHONPATH and site-packages."""
    import marshal  # built into every Python, so that no user's module can shadow it

    child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
    try:
        text = _run([python, "-I", "-S", child, *words])
        answer: dict[str, Any] = marshal.loads(text)  # noqa: S302 - written by our own program
    except (OSError, ValueError, EOFError, TypeError) as error:
        return {"refused": f"{python} gives no answer: {error}"}
    return answer


def _run(argv: Sequence[str]) -> bytes:
    """Return the standard output of a program, with its standard error discarded.

    Raises:
        OSError: The program cannot be started, or does not begin to answer in time.
    """
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    actions = [
        (os.POSIX_SPAWN_DUP2, null, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, null, 2),
    ]
    try:
        pid = os.posix_spawn(argv[0], list(argv), os.environ, file_actions=actions)
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
        os.close(null)
    try:
        _wait_for(reading)
        return b"".join(iter(lambda: os.read(reading, PIECE_BYTES), b""))
    except OSError:
        os.kill(pid, 9)
        raise
    finally:
        os.close(reading)
        try:  # noqa: SIM105 - saves an import in the user's process
            os.waitpid(pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored: the kernel has reaped it
            pass


def _wait_for(fd: int) -> None:
    """Wait until there is something to read; the answer comes in one piece.

    Raises:
        TimeoutError: Nothing arrives within ANSWER_TIMEOUT_S.
    """
    try:
        import select
    except (Exception, SystemExit):  # a user's module shadows Python's; the program has its own alarm
        return
    if not select.select([fd], [], [], ANSWER_TIMEOUT_S)[0]:
        raise TimeoutError(f"not within {ANSWER_TIMEOUT_S:g} s")
