"""``launcher run``: plans the job and carries out the plan.

Modules that only some jobs need are imported where they are used: a command must start in milliseconds.
"""

from __future__ import annotations

import os

from launcher.core.errors import CommandNotFound, EnvironmentUntrusted
from launcher.core.log import say, use_style
from launcher.core.model import Mode, Plan, PlannedProcess, Scope
from launcher.machine.host import Host
from launcher.options.reading import read_options, read_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from launcher.agent.agent import Agent
    from launcher.control.server import StatusServer
    from launcher.observers.stragglers import Numbers
    from launcher.options.reading import Options
    from launcher.process.spawn import Child

    Checks = Callable[[], Sequence[str]]


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exec the command, or start one process per GPU and wait.

    Args:
        argv: The words after ``launcher run``.
        environ: The environment that the launcher was started with.
    """
    if os.getpid() == 1:
        from launcher.process.signal_file import hold

        hold()
    typed, command, dry_run = read_words(argv, environ)
    if dry_run or not command:
        from launcher.cli.show import show_and_refuse, show_plan

        return show_plan(typed, environ, command) if dry_run else show_and_refuse(typed, environ)
    is_launcher = command[0].rpartition("/")[2] == "launcher" and len(command) > 1
    if not typed and is_launcher:
        from launcher.cli.help import COMMANDS
        from launcher.process.execute import execute

        if command[1] in COMMANDS:  # an image's entry point execs that instead
            execute(command, environ)
    host = Host()  # keep it until the end: it holds the port of a single-node job
    try:
        options = read_options(typed, environ, host, command)
        use_style(as_json=options.text("log_format") == "json", timestamps=options.switch("timestamps"))
        if options.switch("ssh"):
            from launcher.remote.ssh import run_on_all

            return run_on_all(typed, command, options, environ, host)
        plan, met = _plan_start(options, environ, command, host)
    except EnvironmentUntrusted as error:
        from launcher.cli.disabled import LAST_RESORT

        error.notes = (*error.notes, LAST_RESORT)
        raise
    checks = _plan_checks(plan, options, environ, command)

    def replan(port: int, seats: Mapping[int, int] | None = None, hosts: tuple[str, ...] = ()) -> Plan:
        from launcher.planning.plan import plan_job

        changed = read_options(_name_port(typed, options, port), environ, host, command)
        return plan_job(environ, host, changed, command, met=hosts or met, seats=seats)

    if plan.peers is not None:
        from launcher.agent.children import make_children
        from launcher.cluster.start import run_together

        def make(planned: Plan) -> Sequence[Child]:
            hold_ports(planned)  # after the roll call, so that the other nodes learn of a failure
            return make_children(planned, environ)

        return run_together(plan, plan.peers, command, make, replan, environ, checks, serve)
    named, allocation = plan, plan.allocation
    first = allocation.rank if allocation.scope is Scope.PROCESS else allocation.node_rank
    if first == 0 and not plan.takes_free_port:  # rank 0 listens here, at a port that may be taken
        from launcher.process.port_checks import settle_rendezvous

        plan = settle_rendezvous(plan, environ, replan, host)
    hold_ports(plan)

    def plan_again() -> Plan:
        """Return the plan of the next attempt, at another port, which is held until the job ends, too."""
        from launcher.planning.plan import plan_job

        port = host.renew_port()
        return plan_job(environ, host, options, command, met=met) if plan is named else replan(port)

    moves = plan.agent is None and (plan.takes_free_port or plan is not named)
    return _carry_out(plan, environ, checks, plan_again if moves else None)


def _plan_start(
    options: Options, environ: Mapping[str, str], command: Sequence[str], host: Host
) -> tuple[Plan, tuple[str, ...]]:
    """Plan the job and print the warnings; exchange the nodes' addresses if the plan needs them.

    Returns:
        The plan, and the exchanged addresses (empty without an exchange).

    Raises:
        LauncherError: The job cannot be planned, or its script is missing.
    """
    from launcher.planning.notes import name_unknown
    from launcher.planning.plan import plan_job

    met: tuple[str, ...] = ()
    plan = plan_job(environ, host, options, command)
    if plan.missing:
        from launcher.frameworks.script import describe_missing

        raise CommandNotFound(describe_missing(plan.missing))
    if plan.supervision.restarts.most and plan.supervision.restarts.health_argv:
        from launcher.recovery.health import require_command

        require_command(plan.supervision.restarts.health_argv, environ)
    if is_first_here(plan):
        for sentence in (*plan.warnings, *name_unknown(environ)):
            say(f"warning: {sentence}", "warning")
    if plan.meeting is not None and not plan.meeting.at_start:
        from launcher.cluster.address_exchange import meet

        met = meet(plan.meeting, environ)
        plan = plan_job(environ, host, options, command, met=met)
    return plan, met


def is_first_here(plan: Plan) -> bool:
    """Whether this launcher is the node's only one, or the one with local rank 0."""
    return plan.allocation.scope is Scope.NODE or plan.allocation.local_rank == 0


def _plan_checks(
    plan: Plan, options: Options, environ: Mapping[str, str], command: Sequence[str]
) -> Checks | None:
    """Run the quick checks now with ``--check``; by default return a function that runs them after the start.

    By default they run beside the job, because they cost as much as the whole start. They run only for a
    job with GPUs or several nodes, only if the launcher stays with the job, and only in the first
    launcher of a node.
    """
    given = options.get("check")
    if not is_first_here(plan):
        return None
    if given is None:
        has_stakes = plan.topology.spans_nodes or bool(plan.machine.gpu_count)
        if plan.mode is not Mode.SUPERVISE or not has_stakes:
            return None
    elif not given.value:
        return None

    def find(*, started: bool) -> Sequence[str]:
        from launcher.cli.check import find_problems

        return find_problems(plan, environ, command, started=started)

    if given is None:
        return lambda: find(started=True)
    for line in find(started=False):
        say(line, "node-check")
    return None


def _name_port(typed: Mapping[str, str | bool], options: Options, port: int) -> dict[str, str | bool]:
    """Return the typed flags with another rendezvous port, in ``--master-port`` and ``--rdzv-endpoint``."""
    changed: dict[str, str | bool] = {**typed, "master_port": str(port)}
    endpoint = options.text("rdzv_endpoint")
    if endpoint:
        head, colon, tail = endpoint.rpartition(":")
        changed["rdzv_endpoint"] = f"{head if colon and tail.isdecimal() else endpoint}:{port}"
    return changed


def hold_ports(plan: Plan) -> None:
    """Check that the ports of this node's processes are free.

    Raises:
        NotReady: A port is taken.
    """
    if plan.ports:
        from launcher.process.port_checks import check_ports

        check_ports(plan.ports, Host())


def _carry_out(
    plan: Plan, environ: Mapping[str, str], checks: Checks | None, plan_again: Callable[[], Plan] | None
) -> int:
    """Exec the plan's only process, or start its processes and wait for them.

    ``plan_again`` returns the plan of another attempt; None if it is the same.
    """
    if plan.agent is not None and plan.agent.fleet is not None:
        from launcher.mpi.start import run_fleet

        return run_fleet(plan, plan.agent, plan.agent.fleet, environ, checks)
    if plan.agent is None and plan.mode is Mode.EXEC:
        from launcher.planning.settings import render_environ
        from launcher.process.execute import execute
        from launcher.process.memory_files import name_files

        (one,) = plan.companions or plan.processes
        cpus = one.cpus if isinstance(one, PlannedProcess) else None
        (environment,) = name_files(plan, [render_environ(plan, one, environ)], becomes=True)
        execute(one.argv, environment, cpus)
    from launcher.agent.children import make_children
    from launcher.agent.lone import run_processes
    from launcher.agent.runtime import NodePlace

    children = make_children(plan, environ)
    place = NodePlace(plan.topology.node_rank, plan.topology.world_size)
    widen, watch = plan.widen_cpus, plan.supervision
    renew = (lambda: make_children(plan_again(), environ)) if plan_again is not None else None
    status = run_processes(
        children, watch, place, environ, widen=widen, checks=checks, serve=serve, renew=renew
    )
    if plan.agent is None:
        return status
    from launcher.agent.starter import read_status

    return read_status(status, plan.agent.engine)


def serve(agent: Agent) -> StatusServer:
    """Return the status server of a job."""
    from launcher.control.server import StatusServer

    def read(numbers: Numbers) -> dict[str, object]:
        from launcher.control.node import read_node

        return read_node(agent.runtime, agent.describe(), agent.observers.read_paces(), numbers)

    return StatusServer(agent.runtime, agent.coordination, read)
