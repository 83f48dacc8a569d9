"""Does a Lightning job fit the nodes and processes that it gets? Said before the start.

Trainer(num_nodes, devices) must be the job's: where they differ, processes wait for others that nobody
starts, or each node trains alone. What the script itself says is not known here; what stands on its
command line, or in the variables of the Trainer, is:

    --trainer.num_nodes 2   --trainer.devices=8        LightningCLI
    trainer.num_nodes=2     +trainer.devices=[0,1]     Hydra
    --num_nodes 2           --devices=8                scripts with arguments of their own

The last kind may mean something else, so it counts only where Lightning was named. A mismatch is fatal
where Lightning was named, else a note.
"""

from __future__ import annotations

from launcher.environ import MPI_STARTERS, Malformed, parse_int, shorten
from launcher.errors import Problem, UsageError
from launcher.frameworks.lightning import DEVICES, NUM_NODES, TRAINER, count_nodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.frameworks.case import Case

ARGUMENTS = ("num_nodes", "devices")


def check_job(case: Case, *, named: bool) -> tuple[str, ...]:
    """Return notes on a job.

    Args:
        case: The job.
        named: Whether it is Lightning's for certain: then what cannot work is an error.

    Raises:
        UsageError: All that cannot work, at once.
    """
    problems = _compare(case, named)
    if not named:
        return tuple(f"{problem.what}; {problem.fix}" for problem in problems)
    problems += _check_shape(case)
    if problems:
        raise UsageError(*problems)
    return _explain(case)


def _compare(case: Case, named: bool) -> list[Problem]:
    job = case.topology
    wanted = {"num_nodes": (count_nodes(job), "nodes"), "devices": (job.local_size, "processes per node")}
    given = list(read_arguments(case.argv, bare=named))
    variables = (("num_nodes", NUM_NODES), ("devices", DEVICES)) if named else ()
    given += [
        (name, f"{v}={case.environ[v]}", case.environ[v]) for name, v in variables if case.environ.get(v)
    ]
    problems = []
    for name, written, text in given:
        count, (here, what) = count_devices(text), wanted[name]
        if count is not None and here is not None and count != here:
            where = "environment" if written.startswith("PL_") else "command line"
            said = f"{shorten(written)}: the job has {here} {what}"
            flag = "--nnodes" if name == "num_nodes" else "--nproc-per-node"
            fix = f"say {here} there, or start the job with {flag} {count}"
            problems.append(Problem("lightning-mismatch", said, where, fix))
    return problems


def read_arguments(argv: Sequence[str], *, bare: bool) -> Iterator[tuple[str, str, str]]:
    """Yield (argument of the Trainer, as it is written, value) of a command line.

    Args:
        argv: The command line.
        bare: Whether ``--devices`` without ``trainer.`` counts, too.
    """
    for index, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-+").replace("-", "_")
        dashes = flag.startswith("--")
        plain = name.removeprefix(TRAINER)
        if plain not in ARGUMENTS or (plain == name and not (bare and dashes)):
            continue
        if equals:
            yield plain, word, value
        elif dashes and index + 1 < len(argv):
            yield plain, f"{word} {argv[index + 1]}", argv[index + 1]


def count_devices(text: str) -> int | None:
    """Return how many devices ``8``, ``0,1`` or ``[0,1]`` are; None for ``auto`` and ``-1``."""
    items = text.strip("[]'\" ").rstrip(",").split(",")
    try:
        numbers = [parse_int(item.strip()) for item in items]
    except Malformed:
        return None
    return numbers[0] if text.strip("'\"").isdecimal() else len(numbers)


def _check_shape(case: Case) -> list[Problem]:
    """Return what the Trainer cannot do, whatever it is told."""
    job, problems = case.topology, []
    if job.world_size and job.local_size and (count_nodes(job) or 0) * job.local_size != job.world_size:
        problems.append(_uneven(job.world_size, job.local_size))
    if case.options.get("gpus_per_process") and (job.local_size or 1) > 1:
        problems.append(_own_gpus(case.options.origins("gpus_per_process")[0]))
    if job.spans_nodes and job.node_rank is None and job.places and "SLURM_NTASKS" not in case.environ:
        problems.append(_no_node())
    return problems


def _explain(case: Case) -> tuple[str, ...]:
    """Return how Lightning will know its place, where that is not by our variables."""
    notes = []
    if case.topology.world_size and case.topology.local_size is None:
        notes.append(
            "nothing says how many processes a node has: num_nodes and devices must stand in the script"
        )
    if not case.forks and any(name in case.environ for name in MPI_STARTERS):
        notes.append(
            "where mpi4py is installed, for this MPI, Lightning asks MPI for its rank and meets at the name "
            "of rank 0's node, not at MASTER_ADDR: Trainer(plugins=[LightningEnvironment()]) does not"
        )
    return tuple(notes)


def _uneven(world: int, here: int) -> Problem:
    return Problem(
        "lightning-uneven",
        f"{here} of {world} processes are on this node, others on others: Lightning has as many on each",
        "environment",
        "start as many processes on each node",
    )


def _own_gpus(origin: str) -> Problem:
    return Problem(
        "lightning-gpus",
        f"{origin}: a process of Lightning takes the GPU of its local rank's number, and would not see it",
        origin.partition(" ")[0].partition("=")[0],
        "leave it out: each process takes one GPU of those that all of them see",
    )


def _no_node() -> Problem:
    return Problem(
        "lightning-no-node",
        "nothing says which node this is: Lightning counts ranks by node, and all would be node 0",
        "environment",
        "pass --node-rank, or start one launcher per node",
    )
