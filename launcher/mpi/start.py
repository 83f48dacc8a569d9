"""Starts a planned head or serving node: prepares its directory, key and command lines."""

from __future__ import annotations

import contextlib
import os
import shlex

from launcher.agent.agent import Agent
from launcher.agent.runtime import NodePlace
from launcher.channel.connection import open_listener
from launcher.channel.frames import TOKEN_VARIABLE, make_key, name_job, read_token
from launcher.cluster.join import Join
from launcher.cluster.settings import Shape
from launcher.core.errors import make_error
from launcher.core.files import create_file, remove_tree
from launcher.core.model import MPIRUN, Fact, Fleet, NodeCommand, Plan, Setting, Trust
from launcher.core.redact import quote
from launcher.core.supervision import Supervision
from launcher.core.version import __version__
from launcher.engines.mpirun import FOLDER, SERVE, fill_line, names_folder
from launcher.frameworks.starters import plan_agent_unset
from launcher.frameworks.torch import UNBUFFERED
from launcher.identity.rendezvous import plan_control_ports
from launcher.machine.host import Host
from launcher.mpi.folder import cannot_have_ranks, make_folder, remove_folder
from launcher.mpi.leftovers import end_job
from launcher.mpi.protocol import Briefing
from launcher.planning.plan import plan_job
from launcher.planning.settings import apply_settings
from launcher.planning.supervision import plan_log
from launcher.process.execute import find_program
from launcher.process.limits import raise_limit
from launcher.process.spawn import Child, cannot_start
from launcher.process.watchdog import MARK, Watchdog, mark_of
from launcher.remote.hub import Gate
from launcher.remote.protocol import LOST_AFTER_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.mpi.lead import Lead, ServedJob
    from launcher.options.reading import Options

FILES_PER_NODE = 8
"""Open files per node, with a margin; mpirun inherits the limit.

The head has one for its connection, mpirun four for each daemon. Ranks have the limits of their own nodes.
"""
SERVE_FLAGS = (
    *("master_addr", "hosts", "hostfile", "node_rank", "nnodes", "token_file", "control_port"),
    *("roll_call_timeout", "grace", "source"),
)
"""Flags of ``launcher serve``."""


def run_fleet(
    plan: Plan,
    agent: NodeCommand,
    fleet: Fleet,
    environ: Mapping[str, str],
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    """Run the job from here, or serve as one of its nodes; return the job's status.

    ``checks`` run meanwhile, see `launcher.agent.agent.Agent`.

    Raises:
        LauncherError: The token or mpirun cannot be used, or nodes do not answer.
    """
    if agent.engine == SERVE:
        return _serve(plan.supervision, fleet, environ, checks)
    name = os.urandom(8).hex()
    with contextlib.ExitStack() as opened:
        try:
            guard = Watchdog(None, lambda _: end_job(name, 0.0))  # until there is that of the agent
        except OSError as error:
            raise cannot_start(error) from error
        opened.callback(guard.dismiss)
        opened.callback(remove_folder, name)
        folder = prepare_folder(agent, name)
        raise_limit(FILES_PER_NODE * len(fleet.hosts))
        inherited = {key: value for key, value in environ.items() if key != TOKEN_VARIABLE}
        lead: Lead
        if agent.engine == MPIRUN:
            from launcher.mpi.head import Head

            job, child = plan_head(plan, agent, fleet, inherited, folder, name)
            path = find_program(child.argv[0], child.environ)
            lead = Head(job, guard, open_gate(fleet, environ, folder))
        else:
            from launcher.mpi.lead import ServedJob
            from launcher.mpi.tuner import Tuner, make_commands, plan_child

            commands = make_commands()
            opened.callback(remove_tree, commands)
            child, path = plan_child(agent, fleet, inherited, folder, commands)
            shape, checks = make_shape(fleet, plan.supervision), None
            job = ServedJob(shape, Briefing(job=name, grace_s=plan.supervision.grace_s))
            export = f"export {MARK}={shlex.quote(mark_of(name, inherited))}; "
            lead = Tuner(job, guard, open_gate(fleet, environ, folder, export))
        place = NodePlace(0, job.shape.world_size)
        running = Agent(plan.supervision, place, inherited, lead.coordinate(), run_id=name, checks=checks)
        lead.parts = running.parts
        running.take([child], [path])
        return running.run()


def serve_here(options: Options, environ: Mapping[str, str]) -> int:
    """Serve the head at ``--master-addr``, or from the list of hosts or the platform; return the status.

    Raises:
        LauncherError: The head's address or the token is missing; see `Serving`.
    """
    head = options.get("master_addr")
    if head is not None:
        if not options.text("token_file") and not environ.get(TOKEN_VARIABLE):
            raise make_error("no-token", program="the job's head")
        rank = options.get("node_rank")
        fleet = Fleet(
            hosts=(str(head.value),),
            per_node=0,
            ports=plan_control_ports(options, frozenset()),
            token_file=options.text("token_file"),
            index=None if rank is None else int(options.number("node_rank", 0)),
            timeout_s=options.roll_call_s,
        )
        watch = Supervision(grace_s=options.grace_s, log=plan_log(options))
    else:
        plan = plan_job(environ, Host(), options, ())
        if plan.agent is None or plan.agent.fleet is None or len(plan.agent.fleet.hosts) < 2:
            raise make_error("no-address")
        fleet, watch = plan.agent.fleet, plan.supervision
    return _serve(watch, fleet, environ)


def read_key(fleet: Fleet, environ: Mapping[str, str]) -> bytes:
    """Return the key of a job, from its token.

    Raises:
        UsageError: The token cannot be read, or is too short.
    """
    return make_key(read_token(fleet.token_file, environ), name_job(environ, fleet.ports[0]))


def open_gate(fleet: Fleet, environ: Mapping[str, str], folder: str, export: str = "") -> Gate:
    """Return where the other nodes join this one, and listen there.

    Args:
        fleet: The nodes.
        environ: The launcher's environment.
        folder: The job's private directory.
        export: Shell text before the command line of each program.

    Raises:
        LauncherError: The token cannot be used, two hosts are one node, or all ports are taken.
    """
    host = Host()
    known = host.look_up(fleet.hosts)
    addresses = tuple(min(known.get(name, ()), default=name) for name in fleet.hosts)
    twins = [address for address in addresses if addresses.count(address) > 1]
    if twins:
        pairs = zip(fleet.hosts, addresses, strict=True)
        one, other, *_ = (name for name, address in pairs if address == twins[0])
        raise make_error("same-node", one=one, other=other, name=quote(twins[0], 64))
    place: tuple[str, tuple[int, ...]] = ("127.0.0.1", (0,))
    key = os.urandom(32)  # no other node is to come
    if len(fleet.hosts) > 1:
        place, key = (fleet.address, fleet.ports), read_key(fleet, environ)
    listening, _ = open_listener(*place)
    return Gate(
        hosts=fleet.hosts,
        addresses=addresses,
        own=(fleet.hosts[0], fleet.address, host.hostname(), "localhost", "127.0.0.1"),
        path=os.path.join(folder, "rsh"),
        key=key,
        listening=listening,
        export=export,
    )


def make_shape(fleet: Fleet, watch: Supervision, world_size: int | None = None) -> Shape:
    """Return the job as its launchers see it."""
    hosts = fleet.hosts
    return Shape(
        fleet.index or 0, len(hosts), world_size, hosts[0], fleet.ports, hosts, fleet.timeout_s,
        LOST_AFTER_S, watch.grace_s, index=fleet.index or 0, serves=True,
    )  # fmt: skip


def _serve(
    watch: Supervision,
    fleet: Fleet,
    environ: Mapping[str, str],
    checks: Callable[[], Sequence[str]] | None = None,
) -> int:
    from launcher.mpi.serve import Serving

    known = (fleet.address,) if fleet.address else ()
    host, session = os.uname().nodename, os.urandom(8).hex()
    join = Join(fleet.index, session, host=host, launcher=__version__, addresses=known)
    # Ranks that mpirun starts here inherit this environment. Another starter's ranks are not theirs.
    unset = {TOKEN_VARIABLE, *plan_agent_unset(environ, torch=False, rewritten=True)}
    inherited = {name: value for name, value in environ.items() if name not in unset}
    # The rest is for ranks: a node without a job is no stall
    own = Supervision(grace_s=watch.grace_s, log=watch.log)
    rejoin_s = watch.restarts.rejoin_timeout_s if watch.restarts.most else 0.0
    shape, key = make_shape(fleet, own), read_key(fleet, environ)
    serving = Serving(key, shape, join, rejoin_s)
    agent = Agent(own, NodePlace(), inherited, serving.coordinate(), checks=checks)
    serving.parts = agent.parts
    agent.runtime.say(f"serving node 0 ({shape.address}) until it reports that the job is over", "serving")
    return agent.run()


def plan_head(
    plan: Plan,
    agent: NodeCommand,
    fleet: Fleet,
    inherited: Mapping[str, str],
    folder: str,
    name: str,
) -> tuple[ServedJob, Child]:
    """Return the job that mpirun starts from here, and mpirun's own process.

    Args:
        plan: The plan that contains this agent.
        agent: mpirun.
        fleet: The nodes.
        inherited: Our environment, without the token.
        folder: The job's private directory.
        name: Name of the job.
    """
    from launcher.mpi.head import find_stdin
    from launcher.mpi.lead import ServedJob

    argv = fill_line(agent.argv, folder, name)
    told = [Setting(item.name, item.value.replace(FOLDER, folder), item.origin) for item in agent.settings]
    environment = apply_settings(inherited, agent.unset, told)
    environment[MARK] = mark_of(name, inherited)
    briefing = Briefing(
        job=name, node_count=len(fleet.hosts), master_addr=plan.topology.master_addr,
        master_port=plan.topology.master_port, grace_s=plan.supervision.grace_s,
        colours=os.isatty(1) and not inherited.get("NO_COLOR"),
        cwd="" if names_folder(agent.argv) else os.getcwd(), stdin=find_stdin(),
    )  # fmt: skip
    variables = {
        **{key: inherited[key] for key in fleet.forward if key in inherited},
        **{key: inherited.get(key) for key in fleet.restored},
        **{item.name: item.value for item in plan.settings if item.name == UNBUFFERED},
        MARK: environment[MARK],
    }
    shape = make_shape(fleet, plan.supervision, len(fleet.hosts) * fleet.per_node)
    environment.setdefault("HOME", "/")  # Open MPI does not start without one
    job = ServedJob(shape, briefing, variables, moves_port=not _is_named(plan, Fact.MASTER_PORT))
    return job, Child(0, 0, argv, environment, called=agent.engine, outlives=True)


def _is_named(plan: Plan, fact: Fact) -> bool:
    """Whether the user or a variable states the fact exactly."""
    return any(found.claim.fact is fact and found.claim.trust <= Trust.STATED for found in plan.findings)


def prepare_folder(agent: NodeCommand, job: str) -> str:
    """Return the job's new directory, with the files that mpirun reads.

    Raises:
        NotReady: It cannot be made, or they cannot be written.
    """
    try:
        folder = make_folder(job)
    except OSError as error:
        raise cannot_have_ranks(error) from error
    write_files(agent, folder)
    return folder


def write_files(agent: NodeCommand, folder: str) -> None:
    """Write the files that mpirun reads into the job's directory.

    Raises:
        NotReady: They cannot be written.
    """
    try:
        for word, text in agent.files:
            create_file(text, word.replace(FOLDER, folder), 0o600)
    except OSError as error:  # a full disk
        raise make_error("no-job-folder", reason=error.strerror) from error
