"""Decides whether and how the processes of a job connect by Horovod, and finds obstacles before the start.

Source: horovod/common/gloo/gloo_context.cc, utils/env_parser.cc (0.28.1): the variables read, and when gloo
is used.
"""

from __future__ import annotations

from launcher.command.line import is_python
from launcher.core.environ import PORT_LIMIT, Malformed, parse_int, shorten
from launcher.core.errors import EnvironmentUntrusted, Problem, Unavailable, UsageError
from launcher.core.frozen import frozen
from launcher.core.model import Scope, Topology
from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.frameworks.script import list_pythons

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.frameworks.script import Script
    from launcher.machine.host import Host
    from launcher.options.reading import Options

NAME = "horovod"
CONTROLLER, OPERATIONS = "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"
ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
MPI, GLOO = "mpi", "gloo"
TRAP = "trap"
"""It is unknown whether this is a Horovod job; if it is, ``hvd.init()`` must fail."""
STARTERS = {OPEN_MPI.rank[0]: OPEN_MPI.name, HYDRA.local_rank: HYDRA.name}
"""Variables that show that an mpirun started this process, with the MPI family that its library must have."""
KERAS = (
    "horovod.tensorflow.keras",
    "horovod.keras",
    "horovod.tensorflow import keras",
    "horovod import keras",
)


@frozen
class Meeting:
    """How the processes of a job connect by Horovod, if they do.

    Attributes:
        kind: `MPI` (Horovod asks MPI), `GLOO` (it needs all of our variables), `TRAP`; empty for no settings.
        why: The evidence for it.
        notes: Notes for the plan.
    """

    kind: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()


def find_meeting(
    argv: tuple[str, ...],
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    scope: Scope,
    topology: Topology,
    host: Host,
) -> Meeting:
    """Return how the processes of this job connect; reads the script, and the folders of its Python.

    ``argv`` is the command line of a process, empty if there is none; ``script`` is what it runs; ``scope``
    is how often the launcher was started.

    Raises:
        UsageError: Horovod is requested, and its processes cannot connect in such a job.
        Unavailable: The script does not work with its version of Keras.
        EnvironmentUntrusted: Horovod is requested, and the user's own variables contradict each other; or the
            rendezvous port is not a port.
    """
    asked = options.text("framework", "auto")
    if asked not in ("auto", NAME) or topology.world_size == 1 or options.text("engine") == "mpirun":
        return Meeting()
    if environ.get(ADDRESS) and environ.get("HOROVOD_RANK"):
        return Meeting(why="HOROVOD_* are complete: what set them serves the rendezvous")
    python = argv[0] if argv and is_python(argv[0]) else ""
    starter = next((name for name in STARTERS if name in environ), "") if scope is Scope.PROCESS else ""
    why = f"{script.path} imports horovod"
    if script.imports(NAME):
        if asked == "auto" and host.find_version(python, environ, NAME) == "":
            return Meeting(notes=(f"{why}, and {python} has none: taken for a job without it",))
        _check_keras(script, python, environ, host)
    elif asked == "auto":
        maybe = bool(argv) and not starter and not environ.get(CONTROLLER)
        return _trap(_find_python(argv, environ, host)) if maybe else Meeting()
    kind, notes = _choose_controller(python, environ, starter, host)
    if kind == GLOO and not _can_meet(topology, environ, is_asked=asked == NAME):
        return _trap(python)
    return Meeting(kind, options.origins("framework")[0] if asked == NAME else why, notes)


def _can_meet(topology: Topology, environ: Mapping[str, str], *, is_asked: bool) -> bool:
    """Whether gloo can connect these processes; if the user requests Horovod, it must.

    Raises:
        UsageError: Horovod is requested, and the job lacks what it needs.
        EnvironmentUntrusted: Horovod is requested, and a variable contradicts it; or the port is not a port.
    """
    _check_port(environ)
    problems = [*_find_gaps(topology), *_find_contradictions(environ)]
    if problems and is_asked:
        raise problems[0]
    return not problems


def _check_keras(script: Script, python: str, environ: Mapping[str, str], host: Host) -> None:
    """Refuse a script whose ranks would train alone and succeed: Keras 3 ignores Horovod's optimizer."""
    text = script.text
    if not any(module in text for module in KERAS) or "DistributedOptimizer" not in text:
        return
    legacy = environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    if legacy or "tf_keras" in text or "TF_USE_LEGACY_KERAS" in text:
        return
    version = host.find_version(python, environ, "keras") or ""
    if version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) >= 3:
        what = f"{script.path} uses horovod.tensorflow.keras, and {python} has Keras {version}"
        raise Unavailable(
            Problem(
                "horovod-keras",
                f"{what}: its DistributedOptimizer does not average there, each rank would train alone",
                "command line and environment",
                "install tf_keras and set TF_USE_LEGACY_KERAS=1, or a loop with hvd.DistributedGradientTape",
            )
        )


def _choose_controller(
    python: str, environ: Mapping[str, str], starter: str, host: Host
) -> tuple[str, tuple[str, ...]]:
    """Return the controller that connects the processes, and a note if it is unexpected."""
    told = environ.get(CONTROLLER, "").lower()
    if told:
        return (told if told in (MPI, GLOO) else ""), ()
    if not starter:
        return GLOO, ()
    packages = host.packages(python or None, environ) or ()
    built = next((package.mpi for package in packages if package.name == NAME), STARTERS[starter])
    if built == STARTERS[starter]:
        return MPI, ()
    what = f"is built for {built}" if built else "is built without MPI"
    return GLOO, (f"Horovod {what}, and mpirun is of {STARTERS[starter]}: it meets by gloo",)


def _find_python(argv: tuple[str, ...], environ: Mapping[str, str], host: Host) -> str:
    """Return a Python that has Horovod: the command's or, if unknown, one that the command may start."""
    known = host.find_version(argv[0], environ, NAME) if is_python(argv[0]) else None
    pythons = list_pythons(argv, environ) if known is None else [argv[0]]
    return next((python for python in pythons if host.find_version(python, environ, NAME)), "")


def _trap(python: str) -> Meeting:
    """Return the settings with which ``hvd.init()`` fails, if there is a Python that has Horovod."""
    if not python:
        return Meeting()
    note = (
        f"{python} has horovod: a script that calls hvd.init() needs --framework horovod, or mpirun "
        "(otherwise hvd.init() fails, instead of making every process a job of its own)"
    )
    return Meeting(TRAP, "horovod is installed, but nothing shows whether this is a Horovod job", (note,))


def _find_gaps(topology: Topology) -> list[UsageError]:
    """Return what gloo needs and this job lacks or does not tell."""
    if ":" in topology.master_addr and topology.spans_nodes:
        what = f"master_addr is {topology.master_addr}, and Horovod asks its rendezvous by IPv4 only"
        fix = "--master-addr NAME or IPv4 address of node 0, or start the job with mpirun"
        return [UsageError(Problem("horovod-address", what, "command line and environment", fix))]
    sizes = (topology.node_count, topology.node_rank, topology.local_size)
    known = None not in (*sizes, topology.world_size)
    if known and topology.world_size == (topology.node_count or 0) * (topology.local_size or 0):
        return []
    shown = f"{topology.world_size} processes on {topology.node_count} nodes, {topology.local_size} on this"
    what = (
        "Horovod without mpirun needs the same number of processes on every node: "
        f"{shown} (node {topology.node_rank})"
    )
    fix = "start one launcher per node with --nproc-per-node N, or the job with mpirun"
    return [UsageError(Problem("horovod-shape", what, "command line and environment", fix))]


def _find_contradictions(environ: Mapping[str, str]) -> list[EnvironmentUntrusted]:
    if environ.get(OPERATIONS, "").lower() != MPI:
        return []
    told = f"{OPERATIONS}={environ[OPERATIONS]}"
    what = f"{told}, but mpirun does not start the processes: each would train alone"
    fix = f"unset {OPERATIONS}, or start the job with mpirun (launcher run --engine mpirun)"
    return [EnvironmentUntrusted(Problem("horovod-operations", what, "environment", fix))]


def _check_port(environ: Mapping[str, str]) -> None:
    """Check that the rendezvous port that the user gave is a port: otherwise all ranks would wait for it."""
    if not environ.get(PORT):
        return
    try:
        parse_int(environ[PORT], 1, PORT_LIMIT)
    except Malformed as error:
        what = f"{PORT}={shorten(environ[PORT])!r}: expected {error}"
        fix = "a port that is free on node 0, or unset it: the one above MASTER_PORT is agreed on"
        raise EnvironmentUntrusted(Problem("malformed-variable", what, "environment", fix)) from None
