"""Starts a planned head or serving node: prepares its folder, its keys and its command lines."""

from __future__ import annotations

import os
import shlex

from launcher.agent.agent import Agent, Place
from launcher.core.errors import NotReady, Problem, UsageError
from launcher.core.files import create_file, make_private_folder, remove_tree
from launcher.core.model import Agent as Starter
from launcher.core.model import Fact, Fleet, Plan, Setting, Supervision, Trust
from launcher.engines.mpirun import (
    FOLDER,
    KEY_VARIABLE,
    MPIRUN,
    ROLL_CALL_TIMEOUT_S,
    SERVE,
    SSH_PORT,
    fill_line,
    names_folder,
    plan_ssh,
    typed_path,
)
from launcher.frameworks.python import UNBUFFERED
from launcher.frameworks.starters import plan_agent_unset
from launcher.machine.host import Host
from launcher.machine.pythons import own_program
from launcher.mpi import session
from launcher.mpi.head import Head, Job
from launcher.mpi.link import plan_link
from launcher.mpi.node import Line
from launcher.mpi.serve import serve
from launcher.mpi.session_folder import FOLDERS
from launcher.planning.plan import plan_job
from launcher.planning.settings import apply_settings
from launcher.planning.supervision import plan_log
from launcher.process.execute import find_program
from launcher.process.limits import raise_limit
from launcher.process.spawn import Child
from launcher.process.watchdog import MARK, mark_of
from launcher.ssh.client import write_client
from launcher.ssh.keys import Keys, read_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.options.reading import Options

FILES_PER_NODE = 8
"""Open files per node, with a margin; mpirun inherits the limit.

The head has three for each session and three for each shared connection, mpirun four for each daemon. Ranks
have the limits of their own nodes.
"""
SERVE_FLAGS = (
    *("local_addr", "hosts", "hostfile", "node_rank", "nnodes", "ssh_key", "ssh_port"),
    *("roll_call_timeout", "grace", "source"),
)
"""Flags of ``launcher serve``."""


def run_fleet(
    plan: Plan,
    agent: Starter,
    fleet: Fleet,
    environ: Mapping[str, str],
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Run the job from here, or serve as one of its nodes; return the job's status.

    ``checks`` run meanwhile, see `launcher.agent.agent.Agent`.

    Raises:
        LauncherError: The keys, sshd or mpirun cannot be used, or nodes do not answer.
    """
    folder = make_folder()
    try:
        if agent.engine == SERVE:
            return _serve(plan.supervision, fleet, environ, folder, checks)
        name = os.urandom(8).hex()
        lines = _reach_all(fleet, environ, folder, name)
        raise_limit(FILES_PER_NODE * len(fleet.hosts))
        _write_files(agent, folder)
        if agent.engine != MPIRUN:
            from launcher.mpi.tuner import run_tuner

            return run_tuner(plan, agent, fleet, environ, folder, lines, name)
        return _lead(plan, agent, fleet, environ, folder, lines, name, checks)
    finally:
        remove_tree(folder)


def serve_here(options: Options, environ: Mapping[str, str]) -> int:
    """Serve at ``--local-addr``, or at the address from the list of hosts or the platform; return the status.

    Raises:
        LauncherError: The address, the key or sshd is missing; see `serve`.
    """
    own = options.get("local_addr")
    if own is not None:
        key = options.get("ssh_key")
        fleet = Fleet(
            hosts=(),
            per_node=0,
            address=Host().address_of(str(own.value)),
            ssh_port=int(options.number("ssh_port", SSH_PORT)),
            ssh_key=typed_path(options),
            has_key=key is not None,
            timeout_s=options.number("roll_call_timeout", ROLL_CALL_TIMEOUT_S),
        )
        watch = Supervision(grace_s=options.grace_s, log=plan_log(options))
    else:
        plan = plan_job(environ, Host(), options, ())
        if plan.agent is None or plan.agent.fleet is None or not plan.agent.fleet.address:
            raise UsageError(_no_address())
        fleet, watch = plan.agent.fleet, plan.supervision
    if not fleet.has_key:
        raise UsageError(_no_key())
    folder = make_folder()
    try:
        return _serve(watch, fleet, environ, folder)
    finally:
        remove_tree(folder)


def _no_address() -> Problem:
    return Problem(
        "no-address",
        "the address at which other nodes reach this node is unknown; sshd would listen only there",
        "command line and environment",
        "pass --local-addr HOST, or --hosts HOST,... with this node in it",
    )


def _no_key() -> Problem:
    return Problem(
        "no-key",
        "the job has no key, and nodes accept no connection without one",
        "command line and environment",
        f"launcher keygen FILE, and --ssh-key FILE (or {KEY_VARIABLE}) on every node",
    )


def make_folder() -> str:
    """Return a new folder for keys and configuration that only our user can read.

    Raises:
        NotReady: No folder can be created in any of `FOLDERS`.
    """
    try:
        return make_private_folder(FOLDERS)
    except OSError as error:
        what = f"no folder for keys and configuration: {error.strerror}"
        fix = "mount a tmpfs at /tmp or /dev/shm (docker run --tmpfs /tmp)"
        raise NotReady(Problem("no-folder", what, "this node", fix)) from error


def _read_keys(fleet: Fleet, environ: Mapping[str, str]) -> Keys | None:
    if not fleet.has_key:
        return None
    return read_keys(fleet.ssh_key or environ[KEY_VARIABLE], host=Host())


def _serve(
    watch: Supervision,
    fleet: Fleet,
    environ: Mapping[str, str],
    folder: str,
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    keys = _read_keys(fleet, environ)
    assert keys is not None  # noqa: S101 - no plan serves without a key
    # Ranks that mpirun starts here inherit this environment. Another starter's ranks are not theirs.
    unset = {KEY_VARIABLE, *plan_agent_unset(environ, torch=False, rewritten=True)}
    inherited = {name: value for name, value in environ.items() if name not in unset}
    # The rest is for ranks: a silent sshd is no stall
    own = Supervision(grace_s=watch.grace_s, log=watch.log)
    rejoin_s = watch.restarts.rejoin_timeout_s if watch.restarts.most else 0.0
    return serve(
        keys, fleet.address, fleet.ssh_port, folder, own, inherited, fleet.timeout_s, rejoin_s, checks
    )


def _reach_all(fleet: Fleet, environ: Mapping[str, str], folder: str, name: str) -> tuple[Line, ...]:
    """Write ssh's files, and return how to reach each node, by node rank."""
    write_client(folder, _read_keys(fleet, environ), fleet.hosts, fleet.ssh_port)
    ssh = tuple(word.replace(FOLDER, folder) for word in plan_ssh(fleet))
    return tuple(_reach(ssh, host, index, name) for index, host in enumerate(fleet.hosts))


def _lead(
    plan: Plan,
    agent: Starter,
    fleet: Fleet,
    environ: Mapping[str, str],
    folder: str,
    lines: tuple[Line, ...],
    name: str,
    checks: Callable[[], Sequence[str]] | None,
) -> int:
    inherited = {key: value for key, value in environ.items() if key != KEY_VARIABLE}
    argv = fill_line(agent.argv, folder, name)
    told = [Setting(item.name, item.value.replace(FOLDER, folder), item.origin) for item in agent.settings]
    environment = apply_settings(inherited, agent.unset, told)
    environment[MARK] = mark_of(name, environ)
    job = Job(
        name=name,
        lines=lines,
        per_node=fleet.per_node,
        master_addr=plan.topology.master_addr,
        master_port=plan.topology.master_port,
        variables={
            **{key: inherited[key] for key in fleet.forward if key in inherited},
            **{key: inherited.get(key) for key in fleet.restored},
            **{item.name: item.value for item in plan.settings if item.name == UNBUFFERED},
            MARK: environment[MARK],
        },
        timeout_s=fleet.timeout_s,
        cwd="" if names_folder(agent.argv) else os.getcwd(),
        moves_port=not _is_named(plan, Fact.MASTER_PORT),
    )
    environment.setdefault("HOME", "/")  # Open MPI does not start without one
    child = Child(0, 0, argv, environment, called=agent.engine, outlives=True)
    path = find_program(argv[0], environment)
    place = Place(0, job.world_size)
    leading = Agent(plan.supervision, place, inherited, Head(job, folder), run_id=name, checks=checks)
    leading.take([child], [path])
    return leading.run()


def _is_named(plan: Plan, fact: Fact) -> bool:
    """Return whether the user or a variable says exactly what the fact is."""
    return any(found.claim.fact is fact and found.claim.trust <= Trust.STATED for found in plan.findings)


def _write_files(agent: Starter, folder: str) -> None:
    for word, text in agent.files:
        create_file(text, word.replace(FOLDER, folder), 0o600)


def _reach(ssh: tuple[str, ...], host: str, index: int, name: str) -> Line:
    """Return how to reach a node: by ssh, or without it if it is our own (index 0)."""
    words = own_program(session.__file__, name)
    if index == 0:
        return Line(host, words)
    return Line(host, (*ssh, host, f"exec {shlex.join(words)}"), plan_link(ssh, host))
