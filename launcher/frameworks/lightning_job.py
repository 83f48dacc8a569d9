"""Checks before the start that a Lightning job fits its nodes and processes.

Trainer(num_nodes, devices) must match the job: otherwise processes wait for others that never start, or each
node trains alone. We read the numbers in the script's call of the Trainer, then those on its command line, or
in the variables of the Trainer:

    --trainer.num_nodes 2   --trainer.devices=8        LightningCLI
    trainer.num_nodes=2     +trainer.devices=[0,1]     Hydra
    --num_nodes 2           --devices=8                scripts with arguments of their own

The last kind may mean something else, so it counts only if Lightning was named. A mismatch is fatal if
Lightning was named or if it is in the script; otherwise it is a note.
"""

from __future__ import annotations

import ast
import warnings

from launcher.core.environ import Malformed, parse_int, shorten
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import frozen
from launcher.core.mpi import STARTED_BY_MPI
from launcher.frameworks.lightning import (
    DEVICES,
    FABRIC_DEVICES,
    FABRIC_NODES,
    NUM_NODES,
    TRAINER_PREFIX,
    count_nodes,
    is_script,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.frameworks.case import Case

ARGUMENTS = ("num_nodes", "devices")
TRAINER, FABRIC, CLI = "Trainer", "Fabric", "LightningCLI"
POSITIONS = {FABRIC: ("accelerator", "strategy", "devices", "num_nodes")}
"""Names of the positional arguments."""
STARTERS = ("spawn", "fork", "notebook")
"""Parts of the names of strategies that start the processes themselves, however the script was started."""


def check_job(case: Case, *, named: bool) -> tuple[str, ...]:
    """Return notes on a job.

    Args:
        case: The job.
        named: Whether it certainly uses Lightning: then a mismatch is an error.

    Raises:
        UsageError: All mismatches at once.
    """
    written = _compare_script(case)
    if written:
        raise UsageError(*written)
    problems = _compare(case, named)
    if not named:
        return tuple(f"{problem.what}; {problem.fix}" for problem in problems)
    problems += _check_shape(case)
    if problems:
        raise UsageError(*problems)
    return _explain(case)


def _compare(case: Case, named: bool) -> list[Problem]:
    given = list(read_arguments(case.script.words or case.argv, bare=named))
    variables = (("num_nodes", NUM_NODES), ("devices", DEVICES)) if named else ()
    given += [
        (name, f"{v}={case.environ[v]}", case.environ[v]) for name, v in variables if case.environ.get(v)
    ]
    problems = []
    for name, written, text in given:
        where = "environment" if written.startswith("PL_") else "command line"
        problems += _judge(case, name, shorten(written), count_devices(text), where)
    return problems


def _judge(case: Case, name: str, written: str, count: int | None, where: str) -> list[Problem]:
    """Return the problem of one argument of the Trainer; nothing if its value, or the job's, is unknown."""
    job, of_nodes = case.topology, name == "num_nodes"
    here, what = (count_nodes(job), "node") if of_nodes else (job.local_size, "process")
    if count is None or here is None or count == here:
        return []
    unit = what if here == 1 else f"{what}s" if of_nodes else f"{what}es"
    place = "" if of_nodes else " per node"
    said = f"{written}: the job has {here if here > 1 else 'one'} {unit}{place}"
    flag = "--nnodes" if of_nodes else "--nproc-per-node"
    fix = f"say {here} there, or start the job with {flag} {count}"
    return [Problem("lightning-mismatch", said, where, fix)]


def _compare_script(case: Case) -> list[Problem]:
    """Return the problems of a Trainer in the script, if none of the script's Trainers fits."""
    if not is_script(case):
        return []

    made = [trainer for trainer in read_trainers(case.script.text) if trainer.name != CLI]
    problems = [_judge_call(case, trainer) for trainer in made]
    return problems[0] if problems and all(problems) else []


def _judge_call(case: Case, trainer: Trainer) -> list[Problem]:
    """Return the problems of the numbers in one call; ``"auto"`` is known only without accelerators."""
    machine = case.machine
    every = 1 if machine.gpu_count == 0 and not machine.has_others else None
    return [
        problem
        for name, (text, count) in trainer.counts.items()
        for problem in _judge(
            case,
            name,
            f"{case.script.path}:{trainer.line}: {trainer.name}({text})",
            count or every,
            "the script",
        )
    ]


def choose_variables(case: Case, *, named: bool) -> list[tuple[str, str]]:
    """Return pairs of (variable, argument that it sets) for the Trainers and Fabrics in the script.

    The Trainer's variables fill arguments that a call does not give. Fabric's override its arguments, so they
    are only for scripts that give none, or the right ones.

    Args:
        case: The job.
        named: Whether the user names Lightning: then modules that the script imports may create them.
    """

    calls = read_trainers(case.script.text)
    trainers = [call for call in calls if call.name == TRAINER and not call.starts]
    fabrics = [call for call in calls if call.name == FABRIC and not call.starts]
    variables = []
    if named or (trainers and not any(_would_wait(case, call) for call in trainers)):
        variables += [(NUM_NODES, "num_nodes"), (DEVICES, "devices")]
    if fabrics or (named and not calls):
        others = {name for call in fabrics for name in {*call.given} - {*call.counts}}
        others |= {*ARGUMENTS} if any(_judge_call(case, call) for call in fabrics) else set()
        both = ((FABRIC_NODES, "num_nodes"), (FABRIC_DEVICES, "devices"))
        variables += [(variable, of) for variable, of in both if of not in others]
    return variables


def _would_wait(case: Case, call: Trainer) -> bool:
    """Whether a Trainer with fewer processes on purpose would wait for nodes if it got the variables."""
    return case.topology.spans_nodes and "num_nodes" not in call.given and bool(_judge_call(case, call))


def warn_job(case: Case, *, named: bool) -> tuple[str, ...]:
    """Return warnings about numbers that Lightning will not get, so that each process may train alone."""

    calls, words = read_trainers(case.script.text), [*(case.script.words or case.argv)]
    where, alone = case.script.path, "otherwise each process may run a job of its own"
    notes = []
    is_told = any(word.startswith(("-c", "--config", "--trainer=", "trainer=", "$")) for word in words[1:])
    if any(call.name == CLI for call in calls) and not is_told:
        counts = {"num_nodes": count_nodes(case.topology), "devices": case.topology.local_size}
        told = {name for name, _, _ in read_arguments(words, bare=False)}
        lacks = " ".join(
            f"--trainer.{n} {c}" for n, c in counts.items() if c not in (None, 1) and n not in told
        )
        notes += [f"{where}: LightningCLI does not read variables: add {lacks}, {alone}"] * bool(lacks)
    filled = {of for _, of in choose_variables(case, named=named)}
    lacking = [call for call in calls if call.name == TRAINER and not {*ARGUMENTS} <= {*call.given}]
    if lacking and not filled:
        line = f"{where}:{lacking[0].line}"
        notes.append(f"{line}: this Trainer has no num_nodes and devices: pass both, {alone}")
    return tuple(notes)


def read_arguments(argv: Sequence[str], *, bare: bool) -> Iterator[tuple[str, str, str]]:
    """Yield (argument of the Trainer, text as written, value) from a command line.

    Args:
        argv: The command line.
        bare: Whether ``--devices`` without ``trainer.`` counts, too.
    """
    for index, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-+").replace("-", "_")
        dashes = flag.startswith("--")
        plain = name.removeprefix(TRAINER_PREFIX)
        if plain not in ARGUMENTS or (plain == name and not (bare and dashes)):
            continue
        if equals:
            yield plain, word, value
        elif dashes and index + 1 < len(argv):
            yield plain, f"{word} {argv[index + 1]}", argv[index + 1]


def count_devices(text: str) -> int | None:
    """Return the number of devices in ``8``, ``0,1`` or ``[0,1]``; None for ``auto`` and ``-1``."""
    items = text.strip("[]'\" ").rstrip(",").split(",")
    try:
        numbers = [parse_int(item.strip()) for item in items]
    except Malformed:
        return None
    return numbers[0] if text.strip("'\"").isdecimal() else len(numbers)


def _check_shape(case: Case) -> list[Problem]:
    """Return the problems of a job that no Trainer can run, whatever its arguments."""
    job, problems = case.topology, []
    if job.world_size and job.local_size and (count_nodes(job) or 0) * job.local_size != job.world_size:
        problems.append(_uneven(job.world_size, job.local_size))
    if case.options.get("gpus_per_process") and (job.local_size or 1) > 1:
        problems.append(_own_gpus(case.options.origins("gpus_per_process")[0]))
    if job.spans_nodes and job.node_rank is None and job.places and "SLURM_NTASKS" not in case.environ:
        problems.append(_no_node())
    return problems


def _explain(case: Case) -> tuple[str, ...]:
    """Return notes on how Lightning will find its rank, if not by our variables."""
    notes = []
    if case.topology.world_size and case.topology.local_size is None:
        notes.append(
            "the number of processes per node is unknown: num_nodes and devices must be in the script"
        )
    if not case.forks and any(name in case.environ for name in STARTED_BY_MPI):
        notes.append(
            "where mpi4py is installed, for this MPI, Lightning asks MPI for its rank and meets at the name "
            "of rank 0's node, not at MASTER_ADDR: Trainer(plugins=[LightningEnvironment()]) does not"
        )
    return tuple(notes)


def _uneven(world: int, here: int) -> Problem:
    return Problem(
        "lightning-uneven",
        f"{here} of {world} processes are on this node: Lightning needs the same number on every node",
        "environment",
        "start the same number of processes on every node",
    )


def _own_gpus(origin: str) -> Problem:
    return Problem(
        "lightning-gpus",
        f"{origin}: a Lightning process uses the GPU numbered like its local rank, and would not see it",
        origin.partition(" ")[0].partition("=")[0],
        "leave it out: each process takes one of the GPUs that all of them see",
    )


def _no_node() -> Problem:
    return Problem(
        "lightning-no-node",
        "the rank of this node is unknown: Lightning counts ranks by node, and all would be node 0",
        "environment",
        "pass --node-rank, or start one launcher per node",
    )


@frozen
class Trainer:
    """One call of a Trainer, a Fabric or LightningCLI.

    Attributes:
        line: Its line number.
        name: The name called.
        counts: For each argument with a literal number: (text as written, count); a count of 0 is ``"auto"``.
        given: The arguments that are given, with any value.
        starts: Whether it starts the other processes itself, however the script was started.
    """

    line: int
    name: str
    counts: dict[str, tuple[str, int]]
    given: tuple[str, ...]
    starts: bool


def read_trainers(text: str) -> list[Trainer]:
    """Return the calls of Lightning's classes in a script; none if this Python cannot parse it."""
    calls = (TRAINER, FABRIC, CLI)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 3.10 takes no action here
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [_read(node) for node in nodes if isinstance(node, ast.Call) and _name(node) in calls]


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _read(call: ast.Call) -> Trainer:
    given = dict(zip(POSITIONS.get(_name(call), ()), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    strategy = getattr(given.get("strategy"), "value", None)
    starts = any(word in str(strategy) for word in STARTERS)
    found = {name: (given[name], _count(given[name])) for name in ARGUMENTS if name in given and not starts}
    counts = {
        name: (f"{name}={ast.unparse(value)}", count)
        for name, (value, count) in found.items()
        if count is not None
    }
    return Trainer(call.lineno, _name(call), counts, tuple(given), starts)


def _count(value: ast.expr) -> int | None:
    """Return the number of devices or nodes in a literal, 0 for "auto"; None for any other expression."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return len(value.elts)
    if isinstance(value, ast.Constant) and isinstance(value.value, (int, str)):
        return 0 if value.value == "auto" else count_devices(str(value.value))
    return None
