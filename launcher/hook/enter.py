"""The environment hook: what the line in site-packages runs where a job has left its signs.

It gives a Python that a platform has started by itself what ``launcher run`` would have given it. In a
process that has that already, or whose parent has, it only arms (`launcher.guest.arm`). It never raises,
and says something in one case: that it cannot tell what this process is, and why.

This file is run by its path, in any Python from 3.8 on, while that is about to start. The launcher's
package is found only while the hook is at work, and gone from `sys.modules` afterwards: what the user
imports is the user's.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import ModuleSpec  # loaded by every Python; what importlib itself is made of
from _frozen_importlib_external import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PACKAGE = "launcher"
ANSWER_TIMEOUT_S = 20.0
"""Longer than a start from a slow network file system; the job goes on without an answer then."""
PIECE_BYTES = 1 << 16
PLANS_FROM = (3, 10)
"""The Python that planning needs; an older one asks the launcher's own."""


class _Private:
    """Finds the launcher's modules in its own folder, and takes them away again."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before: dict[str, Any] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to load a module of the launcher; None for any other."""
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
    """Take the modules of that name out of `sys.modules`, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}


def enter(python: str, tag: str) -> None:
    """Act, if this is a process of a job that was not told so; arm it in any case.

    Nothing is done with rights that the user who has set the variables may not have.

    Args:
        python: The launcher's own Python.
        tag: Of that Python, `sys.implementation.cache_tag`: where it is ours too, the bytecode is at hand.
    """
    if sys.flags.isolated:
        return
    with _Private(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        from launcher.guest import arm, has_other_rights, marker, program

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
        # An observer wants the stacks of all; a tool that fails is not the job's failure.
        arm(errors=is_job)


def _act(python: str, tag: str, words: Sequence[str]) -> None:
    """Plan, here or by the launcher's own Python, and take over what is planned."""
    from launcher.guest.apply import apply_answer

    answer = None
    if sys.version_info >= PLANS_FROM and sys.implementation.cache_tag == tag:
        try:
            from launcher.hook.answer import answer_here

            answer = answer_here(words)
        except (Exception, SystemExit):  # a module of the user's in place of Python's own, for example
            answer = None
    if answer is None:
        answer = _ask(python, words)
    apply_answer(answer)


def _ask(python: str, words: Sequence[str]) -> dict[str, Any]:
    """Return what the launcher's own Python says, which finds neither PYTHONPATH nor site-packages."""
    import marshal  # what every Python has inside, and none of the user's modules can hide

    child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")
    try:
        text = _run([python, "-I", "-S", child, *words])
        answer: dict[str, Any] = marshal.loads(text)  # noqa: S302 - written by our own program
    except (OSError, ValueError, EOFError, TypeError) as error:
        return {"refused": f"{python} gives no answer: {error}"}
    return answer


def _run(argv: Sequence[str]) -> bytes:
    """Return what a program writes, without a word of its own on our standard error.

    Raises:
        OSError: It cannot be started, or does not begin to answer in time.
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
        try:  # noqa: SIM105 - one import less in the user's process
            os.waitpid(pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored: the kernel has reaped it
            pass


def _wait_for(fd: int) -> None:
    """Wait until there is something to read; the answer comes in one piece.

    Raises:
        TimeoutError: Nothing comes.
    """
    try:
        import select
    except (Exception, SystemExit):  # the user's, in place of Python's own: the program has an alarm, too
        return
    if not select.select([fd], [], [], ANSWER_TIMEOUT_S)[0]:
        raise TimeoutError(f"not within {ANSWER_TIMEOUT_S:g} s")
