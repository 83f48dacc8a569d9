"""Horovod: uses MPI if mpirun started the processes; otherwise gloo, with our rendezvous server.

Without mpirun, ``hvd.init()`` of a Horovod with MPI makes every process a world of its own, and N copies of a
training run end with success. So a Horovod job gets gloo's variables, and Horovod's own rendezvous server
beside rank 0. A job that only might use Horovod gets variables with which ``hvd.init()`` fails. We set
``HOROVOD_RANK`` only together with the server, because scripts and Lightning 1 take it for "horovodrun has
started me".

Source: horovod/common/gloo/gloo_context.cc and http_store.cc (which variables are read, and what is
tried how often), utils/env_parser.cc (controllers), runner/gloo_run.py (what horovodrun sets); 0.28.1.
"""

from __future__ import annotations

import os

from launcher.command.words import is_python, read_interpreter
from launcher.core.blocks import PACKAGE
from launcher.core.environ import PORT_LIMIT, Malformed, parse_int, shorten
from launcher.core.errors import LauncherError, make_error
from launcher.core.model import Companion, Place, Policy, Setting, Topology
from launcher.core.mpi import HYDRA, OPEN_MPI
from launcher.frameworks.case import Horovod
from launcher.frameworks.torch import FACTS
from launcher.identity.rendezvous import LOOPBACK
from launcher.machine.pythons import own_program, own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.frameworks.case import Case

NAME = "horovod"
CONTROLLER, OPERATIONS = "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"
ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
MPI, GLOO = "mpi", "gloo"
TRAP = "trap"
"""It is unknown whether this is a Horovod job; if it is, ``hvd.init()`` must fail."""
STARTERS = {OPEN_MPI.rank[0]: OPEN_MPI.name, HYDRA.local_rank: HYDRA.name}
"""Variables that show that an mpirun started this process, with the MPI family that its library must have."""
LEGACY = "TF_USE_LEGACY_KERAS"
KERAS = ("horovod.tensorflow.keras", "horovod.keras")
INTERFACE = "HOROVOD_GLOO_IFACE"
TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
TIMEOUT_S = 600
"""Seconds that ranks wait for each other.

Horovod's default of 30 s suits processes that one command has started. In a job of several nodes they start
when their node is ready.
"""
NOWHERE = (LOOPBACK, "1")
"""An address without a listener: if there is no server, the connection must be refused at once."""
WAITER = os.path.join(PACKAGE, "servers", "horovod_wait.py")
SERVER = os.path.join(PACKAGE, "servers", "horovod_server.py")
SERVE = os.path.join(PACKAGE, "servers", "horovod_serve.py")
HOSTS_NAMED = 4
"""Number of nodes that are named to find the address through which the others are reached."""


def find_meeting(case: Case) -> Horovod:
    """Return how the processes of a job connect; reads the directories of its Python.

    Raises:
        UsageError: Horovod is requested, and its processes cannot connect in such a job.
        Unavailable: The script does not work with its version of Keras.
        EnvironmentUntrusted: Horovod is requested, and the user's own variables contradict each other; or the
            rendezvous port is not a port.
    """
    argv, options, environ, script = case.argv, case.options, case.environ, case.script
    asked = options.text("framework", "auto")
    if asked not in ("auto", NAME) or case.topology.world_size == 1 or options.text("engine") == "mpirun":
        return Horovod()
    if environ.get(ADDRESS) and environ.get("HOROVOD_RANK"):
        return Horovod(why="HOROVOD_* are complete: what set them serves the rendezvous")
    python = argv[0] if argv and is_python(argv[0]) else ""
    starter = "" if case.forks else next((name for name in STARTERS if name in environ), "")
    why = options.origins("framework")[0] if asked == NAME else f"{script.path} imports horovod"
    if script.imports(NAME):
        if asked == "auto" and case.host.find_version(python, environ, NAME) == "":
            return Horovod()  # a job without it
        _check_keras(case, python)
    elif asked == "auto":
        maybe = bool(argv) and not starter and not environ.get(CONTROLLER)
        return _trap(_find_python(case)) if maybe else Horovod()
    meeting = _choose_controller(case, python, starter, why)
    if meeting.kind != GLOO:
        return meeting
    _read_port(environ)
    gap = _find_gap(case.topology, environ)
    if gap is not None and asked == NAME:
        raise gap
    return meeting if gap is None else _trap(python)


def _check_keras(case: Case, python: str) -> None:
    """Refuse a script whose ranks would train alone and succeed: Keras 3 ignores Horovod's optimizer."""
    script, is_legacy = case.script, case.environ.get(LEGACY, "").lower() in ("1", "true")
    is_legacy = is_legacy or any(word in script.text for word in ("tf_keras", LEGACY))
    if is_legacy or "DistributedOptimizer" not in script.text or not any(map(script.imports, KERAS)):
        return
    version = case.host.find_version(python, case.environ, "keras")
    if version and not version.startswith(("0.", "1.", "2.")):
        raise make_error("horovod-keras", script=script.path, python=python, version=version)


def _choose_controller(case: Case, python: str, starter: str, why: str) -> Horovod:
    """Return the controller that connects the processes; ``why`` it is a job of Horovod."""
    told = case.environ.get(CONTROLLER, "").lower()
    if told or not starter:
        return Horovod(told if told in (MPI, GLOO) else "" if told else GLOO, why)
    packages = case.host.packages(python or None, case.environ) or ()
    built = next((package.mpi for package in packages if package.name == NAME), STARTERS[starter])
    if built == STARTERS[starter]:
        return Horovod(MPI, why)
    what = f"is built for {built}" if built else "is built without MPI"
    return Horovod(GLOO, f"{why}; it {what}, and mpirun is of {STARTERS[starter]}")


def _find_python(case: Case) -> str:
    """Return a Python that has Horovod: the command's or, if unknown, one that the command may start."""
    argv, environ, host = case.argv, case.environ, case.host
    pythons = [argv[0]]
    if not is_python(argv[0]) or host.find_version(argv[0], environ, NAME) is None:
        named = filter(is_python, (*argv, *read_interpreter(argv[0])))
        pythons = [*named, own_python(environ), "python3", "python"]
    return next((python for python in pythons if host.find_version(python, environ, NAME)), "")


def _trap(python: str) -> Horovod:
    """Return the settings with which ``hvd.init()`` fails, if there is a Python that has Horovod."""
    why = "horovod is installed, but nothing shows whether this is a Horovod job"
    return Horovod(TRAP, why) if python else Horovod()


def _find_gap(topology: Topology, environ: Mapping[str, str]) -> LauncherError | None:
    """Return why gloo cannot connect the processes of this job; None if it can."""
    nodes, each, world = topology.node_count, topology.local_size, topology.world_size
    if ":" in topology.master_addr and topology.spans_nodes:
        return make_error("horovod-address", address=topology.master_addr)
    if None in (nodes, topology.node_rank, each, world) or world != (nodes or 0) * (each or 0):
        return make_error("horovod-shape", world=world, nodes=nodes, each=each, rank=topology.node_rank)
    return make_error("horovod-operations") if environ.get(OPERATIONS, "").lower() == MPI else None


def _read_port(environ: Mapping[str, str]) -> int | None:
    """Return the rendezvous port that the user gave; None if there is none.

    Raises:
        EnvironmentUntrusted: It is not a port: all ranks would wait for it.
    """
    if not environ.get(PORT):
        return None
    try:
        return parse_int(environ[PORT], 1, PORT_LIMIT)
    except Malformed as error:
        raise make_error("horovod-port", text=shorten(environ[PORT]), expected=error) from None


def plan_common(case: Case) -> list[Setting]:
    """Return the rendezvous address, the size of the job and of this node, and the rank of this node."""
    meeting, job = case.horovod, case.topology
    if meeting.kind not in (TRAP, GLOO):
        return []
    # Gloo does everything: with only one of these Horovod would ask MPI
    chosen = {CONTROLLER: (GLOO, meeting.why), OPERATIONS: (GLOO, meeting.why)}
    if meeting.kind == TRAP:
        chosen |= {ADDRESS: (NOWHERE[0], meeting.why), PORT: (NOWHERE[1], meeting.why)}
        return _prefer(chosen)
    chosen |= {
        ADDRESS: _find_address(case),
        PORT: (str(find_port(case)), "next to MASTER_PORT"),
        TIMEOUT: (str(TIMEOUT_S), "nodes start at their own time"),
        INTERFACE: (case.interface, "as gloo's") if job.spans_nodes else ("lo", "one node"),
    }
    return [
        *case.state(FACTS["horovod"]),
        # Ranks of one node find each other by this name: without it all nodes are "localhost"
        Setting("HOROVOD_HOSTNAME", f"node{job.node_rank}", case.origin("node_rank")),
        *_prefer(chosen),
    ]


def _prefer(chosen: Mapping[str, tuple[str, str]]) -> list[Setting]:
    """Return settings with these values and reasons, for variables that the user has not set."""
    return [Setting(name, text, why, Policy.IF_UNSET) for name, (text, why) in chosen.items() if text]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the rank and local rank of one process."""
    return case.state(FACTS["horovod process"], place) if case.horovod.kind == GLOO else []


def plan_argv(case: Case) -> tuple[str, ...]:
    """Return the command line of a process, which first waits for the rendezvous server if it is ours.

    Horovod tries to reach it for 1.5 seconds, then aborts; node 0 may start minutes later than the others.
    """
    if not _is_served(case) or not case.argv:
        return case.argv
    where = f"{_find_address(case)[0]}:{find_port(case)}"
    return own_program(WAITER, where, name_slots(case.topology), *case.argv)


def plan_companions(case: Case) -> tuple[Companion, ...]:
    """Return Horovod's rendezvous server, beside rank 0, run by the Python that has Horovod."""
    if not _is_served(case) or all(place.rank for place in case.topology.places):
        return ()
    line = (case.python, SERVER, str(find_port(case)), name_slots(case.topology))
    if not case.topology.spans_nodes:
        return (Companion("horovod server", (*line, LOOPBACK), serves=True),)
    hosts = ",".join(case.allocation.hosts[:HOSTS_NAMED])
    finder = own_program(SERVE, case.topology.master_addr, hosts)
    return (Companion("horovod server", (*finder, *line), serves=True),)


def _find_address(case: Case) -> tuple[str, str]:
    """Return the rendezvous address for ranks, and why; on one node nothing outside must reach it."""
    if not case.topology.spans_nodes:
        return LOOPBACK, "one node"
    return case.topology.master_addr, case.origin("master_addr")


def _is_served(case: Case) -> bool:
    return case.horovod.kind == GLOO and not case.environ.get(ADDRESS)


def find_port(case: Case) -> int:
    """Return the port of the rendezvous: the user's, or else the one above MASTER_PORT."""
    return _read_port(case.environ) or case.next_port


def name_slots(topology: Topology) -> str:
    """Return the nodes of a job in Horovod's notation, ``"node0:2,node1:2"``."""
    return ",".join(f"node{index}:{topology.local_size}" for index in range(topology.node_count or 0))
