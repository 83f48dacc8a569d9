"""Finds why a process ended: from kernel counters before and after, its signal, and its last output."""

from __future__ import annotations

import functools
import itertools

from launcher.core.errors import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_NOT_READY,
    EXIT_UNTRUSTED,
    EXIT_USAGE,
    say_size,
)
from launcher.core.frozen import replace
from launcher.core.signal import signal
from launcher.failure.counters import Counters, read_counters
from launcher.failure.model import OWN_LIMIT, Cause
from launcher.failure.stderr import (
    OF_AN_EXCEPTION,
    STILL_RUNS,
    TERMINATE,
    LastOutput,
    find_message,
    find_script,
    find_user_frame,
    is_own_error,
    read_root_cause,
    read_told_signal,
    read_words_of,
    read_words_of_others,
    unbox,
)
from launcher.failure.symptoms import find_symptoms, make_cause, read_signals, read_symptoms
from launcher.failure.text import compile_kind, quote, read_kind, read_pairs, say_apart
from launcher.machine.cgroup import read_memory_limit
from launcher.machine.kernel_log import read_kernel_log
from launcher.machine.xids import HARDWARE, NOTICE, PROGRAM, WORD, find_xids
from launcher.process.missing import WINDOWS_FIX, find_program, fix_missing, fix_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from typing import TypeVar

    from launcher.failure.model import ProcessExit
    from launcher.failure.symptoms import Symptom
    from launcher.machine.host import Host

    Explain = Callable[[str], tuple[str, str, str]]
    """Takes gloo or nccl, and returns what is wrong with its variables, the fix, and the interfaces."""
    Found = TypeVar("Found")


ERROR, FIX = "launcher: error: [", "launcher:   fix:  "
"""Prefixes of the first and the last line of an error of ours (`launcher.core.errors.print_problems`)."""


FRAMES_LINES = 24
"""Number of the last lines of a traceback that are searched for the place of an exception."""
AGENT = "torch/distributed/run.py"
SHM_DEFAULT_BYTES = 64 << 20
"""Docker's default size of a container's /dev/shm."""


class Faults:
    """Faults of our own during the search for a cause: kept once per finder, and never raised.

    Attributes:
        told: The message of each fault, by the name of the finder.
    """

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def guard(self, finder: str, find: Callable[[], Found], otherwise: Found) -> Found:
        """Return the result of a finder; ``otherwise`` if it fails."""
        try:
            return find()
        except Exception as error:
            what = quote(f"{type(error).__name__}: {error}")
            self.told.setdefault(finder, f"internal launcher error: could not examine {finder}: {what}")
            return otherwise


_LITERAL, _LITERAL_FIX = compile_kind("literal"), read_kind("literal").fields["fix"]


def find_causes(
    death: ProcessExit,
    before: Counters,
    host: Host,
    after: Counters | None = None,
    faults: Faults | None = None,
    others: Sequence[ProcessExit] = (),
    network: Explain = lambda library: ("", "", ""),
) -> tuple[Cause, ...]:
    """Return why a process ended, most certain cause first, consequences last. Never raises.

    Args:
        death: The process that failed first.
        before: The counters at the start.
        host: This node.
        after: The counters at the failure; read now if not given. They should be read soon, because a
            process's files in /dev/shm can vanish with it.
        faults: Collects our own faults meanwhile.
        others: The job's other processes on this node.
        network: Explains the network variables of a library.

    Returns:
        Empty if nothing is known. The kernel log is read to its end, so a second call for the same start does
        not see its messages again.
    """
    faults = faults or Faults()
    after = after or faults.guard("counters", lambda: read_counters(host, before), Counters())
    found: list[Cause] = []
    faults.guard(
        "causes", lambda: found.extend(_find(death, before, host, after, faults, others, network)), None
    )
    found = [replace(cause, fix=_LITERAL_FIX) if _LITERAL.search(cause.what) else cause for cause in found]
    return tuple(sorted(dict.fromkeys(found), key=lambda cause: cause.consequence))


def ended_by(code: int) -> int | None:
    """Return the signal that ended a process or, as a shell reports, its command; otherwise None.

    Args:
        code: As from `os.waitstatus_to_exitcode`. A shell reports a command that SIGKILL ended as 137.
    """
    number = -code if code < 0 else code - 128
    return number if 0 < number < signal.NSIG else None


def _find(
    death: ProcessExit,
    before: Counters,
    host: Host,
    after: Counters,
    faults: Faults,
    others: Sequence[ProcessExit],
    network: Explain,
) -> Iterator[Cause]:
    guard, none = faults.guard, list[Cause]()
    death = guard("torchrun's report", lambda: read_root_cause(death), None) or death
    words = guard("last output", lambda: read_words_of(death), LastOutput())
    words = replace(words, lines=unbox(words.lines))
    number = ended_by(death.code)
    refused = guard("a refusal", lambda: _find_refusal(death.code, words), None)
    if refused is not None:
        yield refused
        return
    symptoms = guard("symptoms", lambda: _find_symptoms(death, words, after, network), none)
    if symptoms and all(cause.consequence for cause in symptoms):
        words, symptoms = guard(
            "other processes", lambda: _find_root(death, after, network), (words, symptoms)
        )
    own = [cause for cause in symptoms if not cause.consequence]
    killed = number == signal.SIGKILL or any(cause.code == "worker-killed" for cause in own)
    memory = guard("memory", lambda: _find_memory(before, after, host, killed), None)
    if memory is not None and (killed or not own):
        yield memory
    if number == signal.SIGBUS and number != death.asked:
        yield _explain_bus_error(after)
    if death.code == EXIT_NOT_EXECUTABLE and not words.exception:
        yield from _explain_exit(death.code, words)
    is_fault = any(cause.code == "gpu-program-fault" for cause in own)
    explained = not is_fault and bool(own or (words.exception and not symptoms))
    pids = {one.pid for one in others}
    nothing: tuple[list[Cause], ...] = ([], [], [])
    xids = guard(
        "the kernel's log", lambda: _find_xids(before, after, host, death.pid, pids, explained), nothing
    )
    yield from xids[0]
    if is_fault:
        yield from own  # says more than its Xid
    yield from xids[1]
    yield from symptoms
    yield from xids[2]
    if memory is not None:
        yield memory
    elif number == signal.SIGABRT and symptoms:
        pass  # C++ aborts after it has reported a lost peer
    elif not own and number is not None and number not in (death.asked, signal.SIGBUS):
        yield from _explain_signal(number, before, after, words)
    if not symptoms and memory is None:
        told = guard("a starter's words", lambda: _explain_told(death.code, before, after, words), none)
        message = [] if death.called or death.asked else list(_explain_message(death.code, words))
        yield from told or list(_explain_exit(death.code, words)) or message


def _find_symptoms(death: ProcessExit, words: LastOutput, after: Counters, network: Explain) -> list[Cause]:
    """Return the causes that the last output of a process matches."""
    killed = ended_by(death.code) not in (None, signal.SIGABRT)
    found = find_symptoms(words, killed=killed)
    symptoms = [_explain_symptom(symptom, line, after, network) for symptom, line in found]
    if all(cause.consequence for cause in symptoms):
        symptoms = _find_by_frames(words) or symptoms
    missing = find_program(words.lines, words.messages, words.traceback, death.code)
    if missing:  # says more than a missing file
        fix = fix_missing(missing)
        cause = make_cause("program-missing", fix=quote(fix) if fix else None, name=quote(missing))
        symptoms = [cause, *(one for one in symptoms if one.code != "file-missing")]
    if any(cause.code == "port-in-use" for cause in symptoms):
        frames = "\n".join(line for line in words.traceback if 'File "' in line)
        spawner = next((name for part, name in read_pairs("spawners").items() if part in frames), "")
        if AGENT in "\n".join(words.traceback) and not death.called:  # started without our knowledge
            symptoms.insert(0, make_cause("starter-per-process"))
        elif spawner:  # another port, which is the usual fix, cannot help
            script = find_script(words.traceback) or "train.py"
            others = [cause for cause in symptoms if cause.code != "port-in-use"]
            symptoms = [make_cause("script-spawns", spawner=spawner, script=script), *others]
    return symptoms


def _explain_symptom(symptom: Symptom, line: str, after: Counters, network: Explain) -> Cause:
    """Return the cause that a line shows, with what else is known of it."""
    found = _explain_network(symptom, line, network) if symptom.of_network else None
    if found is not None:
        return found
    cause = symptom.explain(line)
    if symptom.code == "shm-full":
        return replace(cause, what=f"{symptom.meaning}{_say_shm(after)}: {quote(line)}")
    if symptom.code in ("file-missing", "syntax-error") and "\\r'" in line:
        return replace(cause, fix=WINDOWS_FIX)
    fix = fix_module(line) if symptom.code == "import-error" else ""
    return replace(cause, fix=fix) if fix else cause


def _explain_network(symptom: Symptom, line: str, network: Explain) -> Cause | None:
    """Return a cause that names the variable at fault, or else the interfaces; None for neither."""
    what, fix, interfaces = network(symptom.code.partition("-")[0])
    if not what and (symptom.consequence or not interfaces):
        return None
    what = f"{symptom.meaning}; {what or f'this node has {interfaces}'}: {quote(line)}"
    if symptom.consequence:
        return Cause("gloo-no-interface", what.removeprefix(f"{symptom.meaning}; "), fix, False)
    return Cause(symptom.code, what, fix or symptom.fix, symptom.retryable)


def _find_by_frames(words: LastOutput) -> list[Cause]:
    """Return the cause that the place of an exception tells."""
    place = "\n".join(words.traceback[-FRAMES_LINES:])
    found = (known for known in read_symptoms().values() if any(part in place for part in known.frames))
    return [known.explain(words.exception) for known in itertools.islice(found, 1)]


def _find_root(death: ProcessExit, after: Counters, network: Explain) -> tuple[LastOutput, list[Cause]]:
    """Return the newest words that are no consequence, if the output is of several processes."""
    last = read_words_of(death)
    for words in (last, *read_words_of_others(death.shared or death.stderr)):
        found = _find_symptoms(death, words, after, network)
        raised = words.exception and not found and not is_own_error(words.exception)
        if raised or not all(cause.consequence for cause in found):
            return words, found
    return last, _find_symptoms(death, last, after, network)


def _find_refusal(code: int, words: LastOutput) -> Cause | None:
    """Return the first error of ours that a process printed if it was a launcher, or a program of ours."""
    found = [index for index, line in enumerate(words.lines) if line.startswith(ERROR)]
    if not found or code <= 0 or words.exception:
        return None
    name, bracket, what = words.lines[found[0]].removeprefix(ERROR).partition("] ")
    if not bracket or not name.replace("-", "").isalnum():
        return None
    below = words.lines[found[0] : found[1] if len(found) > 1 else None]
    fix = next((line.removeprefix(FIX) for line in below if line.startswith(FIX)), "see docs/errors.md")
    retryable = {EXIT_NOT_READY: True, EXIT_USAGE: False, EXIT_UNTRUSTED: False}.get(code)
    return Cause(name, quote(what), quote(fix), retryable)


def _find_memory(before: Counters, after: Counters, host: Host, killed: bool) -> Cause | None:
    if before.oom_kill is not None and after.oom_kill is not None:
        if after.oom_kill <= before.oom_kill:
            return None
        fix = read_symptoms()["out-of-memory"].fix
        went = f"oom_kill went from {before.oom_kill} to {after.oom_kill} in {_base_name(after.events_file)}"
        limit = read_memory_limit(host)
        hit = before.limit_hits is None or (after.limit_hits or 0) > before.limit_hits
        what = "the pod or the node ran out of memory"
        if limit is not None and hit:
            what = f"{OWN_LIMIT} of {say_size(limit)} was reached"
        return Cause("out-of-memory", f"{what}, {went}", fix, True)
    counts = before.node_oom_kill, after.node_oom_kill
    if killed and counts[0] is not None and counts[1] is not None and counts[1] > counts[0]:
        went = f"oom_kill went from {counts[0]} to {counts[1]} in /proc/vmstat"
        return make_cause("node-out-of-memory", went=went)
    return None


def _find_xids(
    before: Counters, after: Counters, host: Host, pid: int, others: AbstractSet[int], explained: bool
) -> tuple[list[Cause], ...]:
    """Return the Xids of hardware, of the process, and of others since the start.

    A fault of a program concerns only the process that the driver names: a neighbor on a shared GPU can have
    one while ours fails for a reason of its own.

    Args:
        before: The counters at the start, with the position in the kernel log.
        after: The counters at the failure, with the errors that NVML has reported.
        host: This node.
        pid: The process that failed first.
        others: PIDs of the job's other processes on this node.
        explained: Whether its output has a cause that is no fault of a kernel on a GPU.
    """
    found: tuple[list[Cause], list[Cause], list[Cause]] = [], [], []
    lines = [] if before.kernel_log is None else read_kernel_log(before.kernel_log, WORD)
    logged = find_xids(lines, host)
    xids = (*logged, *(xid for xid in after.xids if not any(map(xid.is_same, logged))))
    has_own = any(xid.pid == pid for xid in xids)
    for xid in xids:
        fault = xid.meaning.fault
        is_other = xid.pid is not None and xid.pid != pid
        is_foreign = is_other and xid.pid not in others and fault != HARDWARE
        if (is_foreign and (explained or has_own or fault == NOTICE)) or (
            xid.pid is None and explained and fault == PROGRAM
        ):
            continue
        what = f"GPU {xid.gpu}: Xid {xid.number}, {xid.meaning.words}: {xid.text}"
        if is_foreign:
            what = f"process {xid.pid}, which may belong to another job: {what}"
        fix = read_symptoms()["gpu-lost"].fix
        fix = "`compute-sanitizer python ...` names the kernel that did it" if fault == PROGRAM else fix
        retryable = None if is_foreign else {HARDWARE: True, PROGRAM: False}.get(fault)
        follows = fault == NOTICE or is_foreign or (is_other and explained and fault == PROGRAM)
        place = 0 if fault == HARDWARE else 1 if xid.pid == pid else 2
        found[place].append(Cause("gpu-xid", quote(what), fix, retryable, follows))
    return found


def _explain_exit(code: int, words: LastOutput) -> Iterator[Cause]:
    if code == EXIT_NOT_FOUND:
        yield make_cause("command-not-found")
    elif code == EXIT_NOT_EXECUTABLE:
        yield make_cause("command-not-executable")
    elif words.exception and code > 0:
        yield _explain_exception(words)


def _explain_exception(words: LastOutput, more: str = "") -> Cause:
    """Return the exception as a cause, with where it was raised in the user's code."""
    frame = find_user_frame(words.traceback)
    place = quote(frame) if frame else "the traceback"
    return make_cause("python-exception", exception=f"{quote(words.exception)}{more}", place=place)


def _explain_message(code: int, words: LastOutput) -> Iterator[Cause]:
    """Yield what a program says that ends without an exception."""
    found = None if words.exception else find_message(words.lines, code)
    if found is not None and found[1]:
        yield read_symptoms()["usage"].explain(found[0])
    elif found is not None:
        yield make_cause("program-message", message=quote(found[0]))


def _explain_signal(number: int, before: Counters, after: Counters, words: LastOutput) -> Iterator[Cause]:
    """Yield the meaning of a signal that the launcher has not sent, if no better cause is known."""
    if number == signal.SIGKILL:
        seen = "cannot tell whether memory ran out"
        if before.oom_kill is not None and after.oom_kill is not None:
            count = f"oom_kill stayed {after.oom_kill} in {_base_name(after.events_file)}"
            seen = f"memory did not run out, {count}"
        yield make_cause("killed", seen=seen)
    elif number == signal.SIGABRT and words.exception and words.was_ending:
        yield _explain_exception(words, f"; while Python ended, {_explain_abort(words)}")
    elif number == signal.SIGABRT:
        yield _explain_exit_abort(words) or make_cause("aborted", what=_explain_abort(words))
    elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        yield make_cause("ended-from-outside")
    else:
        yield from filter(None, [_find_signal(number)])


def _explain_told(code: int, before: Counters, after: Counters, words: LastOutput) -> list[Cause]:
    """Return the meaning of a signal that ended a child of the process, as the process says."""
    own = not words.exception or is_own_error(words.exception)
    told = read_told_signal(words.lines if own else [words.exception])
    if told is None or code <= 0:
        return []
    number, line = told
    if number == signal.SIGBUS:
        return [_explain_bus_error(after)]
    found = _explain_signal(number, before, after, words)
    return [replace(cause, what=f"{cause.what}: {quote(line)}") for cause in found]


def _explain_bus_error(after: Counters) -> Cause:
    size, free = after.shm or (0, 0)
    if size and free < max(1 << 20, size // 50):
        return make_cause("shm-is-full", sizes=_say_shm(after))
    if not 0 < size <= SHM_DEFAULT_BYTES:
        return make_cause("bus-error", small="")
    small = f"; /dev/shm may have been full{_say_shm(after)}"
    return make_cause("bus-error", fix=read_symptoms()["shm-full"].fix, small=small)


def _find_signal(number: int | None) -> Cause | None:
    """Return the cause that a signal shows on its own."""
    found = None if number is None else read_signals().get(number)
    return None if found is None else Cause(found.code, found.meaning, found.fix, found.retryable)


def _explain_exit_abort(words: LastOutput) -> Cause | None:
    """Return the cause of a program whose threads of C++ have not ended with it; None for another abort.

    Its own exit code is lost, and perhaps there was no failure but this one.
    """
    place = next((n for n, line in enumerate(words.lines) if line.startswith(STILL_RUNS)), None)
    if place is None or words.exception:
        return None
    message = find_message(words.lines[:place], OF_AN_EXCEPTION)
    said = f"; what it printed last: {quote(message[0])}" if message else ""
    return make_cause("aborted-at-exit", said=said)


def _explain_abort(words: LastOutput) -> str:
    """Return the message of C++ or glibc before it aborted."""
    for index in range(len(words.lines) - 1, -1, -1):
        if words.lines[index].startswith(TERMINATE):
            return "C++ code failed: " + quote(" ".join(words.lines[index : index + 2]))
    return "native code detected an error and aborted the process"


def _say_shm(counters: Counters) -> str:
    if counters.shm is None:
        return ""
    size, free = counters.shm
    return f", it has {say_size(size)} and {say_size(free)} of it free now"


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


OTHERS_MAX = 32
"""Number of processes whose last output is read if the first one has only lost a peer."""


def find_own_cause(
    others: Sequence[ProcessExit], first_ended_ns: int, faults: Faults | None = None
) -> Cause | None:
    """Return the cause of another process of this node, if the first one has only lost a peer. Never raises.

    A process that raises an exception may end later than those that lose it as a peer, because its
    connections are closed first.

    Args:
        others: The processes that ended after the first.
        first_ended_ns: When the first one ended.
        faults: Collects our own faults meanwhile.
    """
    faults = faults or Faults()
    for death in sorted(others, key=lambda death: death.ended_ns)[:OTHERS_MAX]:
        cause = faults.guard("other processes", functools.partial(_own_cause, death), None)
        if cause is not None:
            when = say_apart(death.ended_ns - first_ended_ns)
            rank = f"rank {death.rank} on this node, which ended {when}"
            what = f"{rank}, failed for another reason: {cause.what}"
            return replace(cause, what=what)
    return None


def _own_cause(death: ProcessExit) -> Cause | None:
    ended = None if death.asked is not None else _find_signal(ended_by(death.code))
    if ended is not None:
        return ended
    words = read_words_of(death)
    symptoms = list(find_symptoms(words))
    for symptom, line in symptoms:
        if not symptom.consequence and symptom.code != "interrupted":
            return symptom.explain(line)
    # A signal handler may raise an exception for the signal that stopped the process: that is not a cause.
    if not symptoms and death.asked is None and not words.exception:
        return next(_explain_message(death.code, replace(words, lines=unbox(words.lines))), None)
    if (
        symptoms
        or not words.exception
        or any(word in words.exception.lower() for word in ("signal", "sigterm"))
    ):
        return None
    return make_cause("exception-elsewhere", exception=quote(words.exception))
