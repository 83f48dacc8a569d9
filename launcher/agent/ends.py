"""Describes how a process of this node ended. Loaded only if one has failed, or seems to have."""

from __future__ import annotations

import re
import time

from launcher.command.fronts import look_behind
from launcher.command.words import may_be_shell
from launcher.core.signal import signal
from launcher.failure.model import Cause, ProcessExit
from launcher.failure.stderr import add_fatal_stacks, read_uncaught, read_words_of
from launcher.failure.symptoms import find_symptoms
from launcher.failure.text import quote
from launcher.inprocess import ERROR_FILE, STACKS_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.runtime import Runtime
    from launcher.process.spawn import Process

HIDDEN_MAX = 4
HIDDEN_FIX = (
    "`set -o pipefail` before a pipeline, `set -e` in a script, `wait $!` after `&`, `check=True` in "
    "Python's subprocess.run"
)
SAYS = re.compile(rb"\W*(?:error|fatal|usage|abort(?:ed|ing)?)\b", re.IGNORECASE)
CRASH = re.compile(
    r"(?:: line \d+: +\d+ )?(?:Segmentation fault|Bus error|Aborted|Killed|Illegal instruction)\b"
)
"""What a shell says last about a program that a signal has ended."""


def describe_exit(runtime: Runtime, process: Process) -> ProcessExit:
    """Return what is known about the exit of a process; one that still runs is about to be killed."""
    child = process.child
    index = runtime.group.processes.index(process)
    stderr = runtime.output.read_errors(index)
    runs = process.code is None
    code = -signal.SIGKILL if process.code is None else process.code
    if code > 0 and not stderr.strip():  # print("Error: ..."), then sys.exit(1)
        last = b"\n".join(runtime.output.read_tails(index)).strip().rpartition(b"\n")[2]
        stderr = last if SAYS.match(last) else stderr
    if code < 0:
        stderr = add_fatal_stacks(stderr, child.environ.get(STACKS_FILE), code)
    return ProcessExit(
        rank=child.rank,
        local_rank=child.local_rank,
        pid=process.pid,
        code=code,
        ended_ns=runtime.at_ns(time.monotonic_ns() if runs else process.ended_ns),
        stderr=stderr,
        error_file=child.environ.get(ERROR_FILE),
        asked=int(signal.SIGKILL) if runs else process.passed_on,
        called=child.called,
    )


def only_follows(runtime: Runtime, process: Process) -> bool:
    """Whether the last error output of a process reports only a failure elsewhere.

    Libraries abort after they have reported a lost peer: gloo's and NCCL's threads end the process that way.
    """
    code = process.code or 0
    if process.child.called or not (code > 0 or code == -signal.SIGABRT):
        return False
    symptoms = [symptom for symptom, _ in find_symptoms(read_words_of(describe_exit(runtime, process)))]
    return bool(symptoms) and all(symptom.consequence for symptom in symptoms)


def find_hidden(runtime: Runtime) -> list[Cause]:
    """Return a cause for each process that ended with 0, and whose last output is an uncaught exception.

    Or a shell's line about a program that crashed.
    """
    found = []
    for index, one in enumerate(runtime.group.processes):
        tails = runtime.output.read_tails(index) if one.code == 0 and not one.child.companion else []
        raised, kind = next(filter(None, map(read_uncaught, tails)), ""), "an uncaught exception"
        if not raised and may_be_shell(look_behind(one.child.argv, one.child.environ)):
            raised, kind = next(filter(None, map(_read_crash, tails)), ""), "a crash"
        if raised:
            what = f"{one.name} exited with code 0, but {kind} ends its output"
            found.append(Cause("hidden-failure", f"{what}: {quote(raised)}", HIDDEN_FIX, False))
    return found[:HIDDEN_MAX]


def _read_crash(tail: bytes) -> str:
    """Return a shell's line about a program that a signal has ended, if it ends an output; else nothing."""
    last = tail.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return last if CRASH.match(last) or CRASH.match(last[last.find(": line ") :]) else ""
