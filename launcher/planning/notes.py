"""Notes and warnings about a job before it starts: sentences for ``launcher plan``."""

from __future__ import annotations

import os
import stat

from launcher.command.launchers import SRUN, list_names
from launcher.command.words import (
    STDIN,
    is_python,
    is_shell,
    may_be_shell,
    name_program,
    read_flags,
    read_shell_flags,
)
from launcher.core.environ import shorten
from launcher.core.model import MPIRUN, PROCESS, TORCHRUN, Fact
from launcher.frameworks.starters import CONTRACT
from launcher.identity.ledger import RULE, Ledger
from launcher.options.flags import OURS, PREFIX, RESTART_RULES, WORKING, find_unknown
from launcher.planning.supervision import find_unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.frameworks.case import Case
    from launcher.planning.parts import Parts

VERIFY = "--verify-fabric"
DISABLE, HOOKED = "LAUNCHER_DISABLE", "LAUNCHER_HOOKED"
OF_A_RANK = tuple(f"${mark}{name}" for name in ("RANK", "LOCAL_RANK", "NODE_RANK") for mark in ("", "{", "("))
"""How the variables of a rank are written in an argument."""
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
CLEARS = ("-", "-i", "--ignore-environment")
"""Flags of env that clear the environment."""
ABOUT_NODES = ("MASTER_ADDR", "rdzv", "nnodes", "num_machines", "num_nodes", "node_rank", "hostfile", "PET_")
"""Words of a shell's text that show that it is meant for several nodes."""
OF_STOP, OF_LOGS = WORKING["stop"], WORKING["logs"]
NOTHING = (False, 0, "", (), "none")
"""Values that ask for nothing."""


def note_job(parts: Parts, ledger: Ledger) -> Iterator[str]:
    """Yield the notes about frameworks, engine, port and options.

    Raises:
        LauncherError: The job's framework cannot work in this job.
    """
    case, choice, own = parts.case, parts.choice, parts.case.request.own
    if own is not None and own.name == "deepspeed":
        from launcher.engines.deepspeed import check_hostfile

        check_hostfile(own, case.topology, case.host)
    shown = case.options.get("framework")
    if shown is not None and not shown.is_typed and not shown.origin.startswith(PREFIX):
        yield f"this is a job of {shown.value}: {shown.origin}"
    yield f"engine {choice.engine}: {choice.why}"
    nodes, port = (ledger.findings.get(fact) for fact in (Fact.NODE_COUNT, Fact.MASTER_PORT))
    is_lone = nodes is not None and nodes.claim.value == 1 and nodes.claim.source == RULE
    if choice.engine == MPIRUN and is_lone:
        hosts = "--hosts HOST,... or --hostfile FILE"
        yield f"mpirun starts processes on this node only: no other nodes are named ({hosts})"
    if port is not None and port.claim.value == 0:
        shows = f"the plan shows {case.topology.master_port} in its place"
        yield f"MASTER_PORT is a free port, chosen when the job starts; {shows}"
    yield from case.options.files.notes
    yield from name_unknown(case.environ)
    disabled = case.environ.get(DISABLE, "")
    if disabled.lower() in ("1", "true"):
        yield f"{DISABLE}={disabled!r}: launcher run runs the command unchanged, and does none of this"
    if case.environ.get(HOOKED):
        from launcher.inprocess.marker import describe_marker

        yield from describe_marker(case.environ)
    yield from _note_pipeline(case)


def warn_job(parts: Parts) -> tuple[str, ...]:
    """Return the warnings that are also printed at the start: the job may not be what the user meant.

    Raises:
        LauncherError: Each process or node would certainly be a job of its own.
    """
    case, agent = parts.case, parts.agent
    if case.script.modules:
        from launcher.frameworks.worlds import check_worlds

        check_worlds(case)
    unverified = []
    if agent is not None and agent.fleet is None and case.options.switch("verify_fabric"):
        # We read NCCL's log only of our own processes and of our mpirun's
        what = f"{agent.engine} starts the processes, so nothing is verified"
        unverified = [f"{VERIFY}: {what}: see NCCL_DEBUG=INFO"]
    return (
        *case.options.files.warnings,
        *(note for note in parts.wiring.notes if note.startswith(VERIFY)),
        *_note_behind(case),
        *_note_env(case),
        *_note_literal(case),
        *_note_pipe(case),
        *_note_total(case),
        *unverified,
        *_note_shell(case),
    )


def _note_behind(case: Case) -> tuple[str, ...]:
    """Return a warning if flags about the shape of the job come after a script and may be meant for us.

    Or for torchrun, which has the same. Ignores flags that are also given to us, and flags that occur in the
    script's text: the script has them.
    """
    own = case.request.own
    if own is not None and own.name == TORCHRUN:
        starter, words = TORCHRUN, case.argv[own.inner + 1 :]
    elif case.forks and own is None and case.argv and is_python(case.command[0]):
        starter, words = "launcher run", case.command[read_flags(case.command)[2] :]
    else:
        return ()
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    behind = [
        name
        for name in dict.fromkeys(names)
        if (dest := _name_flag(name[2:].replace("-", "_")))
        and case.options.get(dest) is None
        and not any(spelling in case.script.text for spelling in (dest, name[2:]))
    ]
    if not behind:
        return ()
    come, them = ("comes", "it") if len(behind) == 1 else ("come", "them")
    said = f"{', '.join(behind)} {come} after the script, so the script receives {them}"
    return (f"{said}. Move {them} before the script: {starter} {behind[0]} ...",)


def _note_env(case: Case) -> tuple[str, ...]:
    """Return a warning if ``env`` in front of the command changes what differs between processes."""
    front = case.argv[: len(case.argv) - len(case.command)]
    place = next((n for n, word in enumerate(front) if name_program(word) == "env"), len(front))
    words = front[place:]
    changed = [word for word in words[1:] if word in CLEARS or not set(CONTRACT).isdisjoint(word.split("="))]
    if not changed or case.topology.world_size == 1:
        return ()
    what = f"`{' '.join(words)}` comes after the launcher, so {', '.join(changed)} changes what it sets"
    return (f"{what} for each process. Leave it out, or write it before: env ... launcher run",)


def _note_literal(case: Case) -> tuple[str, ...]:
    """Return a warning about a variable of a rank in a script's arguments that no shell has replaced."""
    if not case.argv or not is_python(case.command[0]) or case.options.switch("expand_args"):
        return ()
    words = [word for word in case.command[read_flags(case.command)[2] :] if "$" in word]
    found = next((word for word in words if any(form in word for form in OF_A_RANK)), "")
    told = (
        f"{shorten(found)}: no shell replaces it, so each rank gets it as it is; --expand-args replaces $NAME"
    )
    return (told,) if found and case.request.own is None and case.forks else ()


def _note_pipe(case: Case) -> tuple[str, ...]:
    """Return a warning about a pipe that all processes of this node would read: each byte reaches one.

    ``<(...)`` in a shell gives one; the processes that a launcher starts share standard input.
    """
    own, is_apart = case.request.own, case.topology.local_size == 1 or case.host.is_recorded()
    program = case.argv[own.inner : own.inner + 1] if own is not None else ()
    shared = [word for word in program if word in STDIN]
    shared += [word for word in case.argv if word.startswith(DESCRIPTORS) and _is_pipe(word)]
    if not shared or is_apart or not (case.forks or own):
        return ()
    return (
        f"{shared[0]}: only one of the processes can read it, and the others read nothing: save it as a file",
    )


def _is_pipe(path: str) -> bool:
    """Whether a path means a pipe; not our standard input."""
    try:
        return path not in STDIN and stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _note_total(case: Case) -> tuple[str, ...]:
    """Return a warning if the total on a launcher's own command line overrides our number per node."""
    own, given = case.request.own, case.options.get("nproc_per_node")
    if own is None or given is None or not given.is_typed or given.value == case.topology.local_size:
        return ()
    names = own.launcher.words("total")
    said = f"{own.name} --{names[0]} {own.value(*names)}" if own.has(*names) else ""
    return (f"{given.origin}: no effect, {said} is closer to the script",) if said else ()


def _name_flag(word: str) -> str:
    """Return the flag about the shape of the job that a word names or abbreviates; empty if none."""
    near = [dest for dest in OURS if dest == word or (len(word) > 4 and dest.startswith(word))]
    return min(near, default="")


def _note_shell(case: Case) -> tuple[str, ...]:
    """Return a warning if a shell names a launcher and may be started once for each of its processes.

    A file that is started once per node and mentions nodes may be right, but tasks of srun inherit our RANK.
    """
    each = case.topology.local_size or 1
    if case.is_wrapped or not may_be_shell(case.command):
        return ()
    path, text = _read_shell(case)
    lines = [line.partition("#")[0].split() for line in (*case.command[1:], *text.splitlines())]
    known = list_names() | {SRUN}
    name = next((name for words in lines for word in words if (name := name_program(word)) in known), "")
    may_be_right = case.topology.world_size == 1 or (
        each == 1 and _spans_nodes("\n".join((*case.command, text)))
    )
    if not name or (may_be_right and name != SRUN):
        return ()
    times = f"{each} times on this node" if each > 1 else "once on each node"
    fix = f"give the launcher that line (launcher run -- {name} ...), or what {name} starts (launcher run -- "
    fix = "start the launcher by it (srun ... launcher run -- " if name == SRUN else fix
    return (
        f"{path} names {name}, which may start all processes of a node, and is started {times}: {fix}"
        "python train.py)",
    )


def _spans_nodes(text: str) -> bool:
    """Whether a shell's text mentions nodes, and this machine as their master only as a default."""
    text = text.replace('"', "").replace(":-localhost", "").replace(":-127.0.0.1", "")
    lines = [line for line in text.splitlines() if any(word in line for word in ABOUT_NODES)]
    return bool(lines) and not any(here in line for line in lines for here in ("localhost", "127.0.0.1"))


def _read_shell(case: Case) -> tuple[str, str]:
    """Return the name and the text of what a shell runs: its file, or the words behind ``-c``."""
    command = case.command
    place, letters = read_shell_flags(command) if is_shell(command[0]) else (0, "")
    path = "".join(command[place : place + 1])
    if "c" in letters:
        return f"{command[0]} -c", path
    return path, case.host.read_text(os.path.abspath(path)) or ""


def _note_pipeline(case: Case) -> tuple[str, ...]:
    """Return a note if a shell's status is ``tee``'s instead of the training's."""
    if not may_be_shell(case.command):
        return ()
    path, text = _read_shell(case)
    for line in () if "pipefail" in f"{case.command}{text}" else text.splitlines():
        head, bar, tail = line.partition("#")[0].partition("|")
        names = [name_program(word) for word in head.split()]
        if bar and tail[:1] != "|" and any(is_python(name) or name in list_names() for name in names):
            said = (
                f"{path}: `{shorten(head.strip())} | ...` has the exit code of the last command in the pipe"
            )
            return (f"{said}, even if the first fails: put `set -o pipefail` before it",)
    return ()


def name_unknown(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each unknown LAUNCHER_* variable, which is most likely a typing error."""
    unknown = find_unknown(environ)
    if not unknown:
        return ()
    from launcher.options.unknown import describe_unknown

    return describe_unknown(unknown)


def note_idle(parts: Parts, *, stays: bool) -> tuple[str, ...]:
    """Return a sentence about the given flags that have no effect in this job, for each reason.

    A sentence about typed flags begins with a flag, so `launcher.planning.plan` makes it a warning.

    Args:
        parts: The parts of the plan.
        stays: Whether the launcher stays with the job.
    """
    case, agent = parts.case, parts.agent
    has_channel, meets, unseen = parts.peers is not None, parts.beside.meeting is not None, find_unseen(parts)
    engine = agent.engine if agent is not None else PROCESS
    by_mpirun = agent is not None and agent.fleet is not None
    is_ours, is_torchruns = agent is None or by_mpirun, engine == TORCHRUN
    told = {setting.origin for setting in agent.settings} if agent is not None else set()
    stops = not told.isdisjoint(case.options.origins(*OF_STOP))
    files = case.options.origins("redirects", "tee")
    gone = "the launcher becomes the command (--stay keeps it)"
    size = case.topology.world_size
    theirs, apart = f"{engine} starts the processes", "the launchers of this job have no control channel"
    rows = (
        (stays, WORKING["parent"], gone),
        (stays or stops, OF_STOP, gone),
        (stays, (*OF_LOGS, "restarts", *RESTART_RULES), gone),
        (is_ours or is_torchruns, (*OF_LOGS, "restarts"), theirs),
        (is_ours, ("log_rotate", *RESTART_RULES), theirs),
        (agent is None, ("stdin",), theirs),
        (case.forks, ("stdin",), "this launcher starts one process of the job"),
        (size is None or case.options.number("stdin", 0) < size, ("stdin",), f"the job has {size} ranks"),
        (not by_mpirun, WORKING["node"], theirs),
        (not case.is_wrapped, WORKING["processes"], theirs),
        (not case.is_wrapped or is_torchruns, WORKING["role"], theirs),
        (files, ("log_rotate",), "no output goes to a file (--redirects, --tee)"),
        (stays or not case.forks, ("stay",), "this launcher is the only one of its node (--init keeps it)"),
        (has_channel, WORKING["channel"], apart),
        (has_channel or by_mpirun, ("control_port",), apart),
        (has_channel or meets or by_mpirun, ("token_file", "roll_call_timeout"), apart),
        (not unseen, WORKING["meeting"], unseen),
        (is_torchruns, WORKING["torchrun"], "torchrun does not start the processes"),
    )
    notes, noted = list[str](), set[str]()
    for has_effect, dests, why in rows:
        if has_effect:
            continue
        found = [given for dest in dests if dest not in noted and (given := case.options.get(dest))]
        noted.update(dests)
        for is_typed in (True, False):
            asked = [one.origin for one in found if one.is_typed is is_typed and one.value not in NOTHING]
            if asked:
                notes.append(f"{', '.join(asked)}: no effect, {why}")
    return tuple(notes)
