"""Builds `Supervision` from the user's options for stopping, logs, failures and metrics."""

from __future__ import annotations

from launcher.command.words import reads_program
from launcher.core.errors import make_error
from launcher.core.model import TORCHRUN
from launcher.core.supervision import STDERR, STDOUT, Contact, LogStyle, Proof, Restarts, Route, Supervision
from launcher.options.flags import RESTART_RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.core.model import NodeCommand
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options
    from launcher.planning.parts import Parts

WITH_WORKERS = (TORCHRUN, "accelerate", "axolotl", "deepspeed", "llamafactory", "swift", "trl")
"""Engines whose processes we can identify: each has its own RANK in its environment."""
BOTH = STDOUT | STDERR
MEETING_TIMEOUT_S = 300.0
IDLE_TIMEOUT_S = 600.0
"""Without ``--stall-timeout``."""
OTEL_EXPORTER, OTEL_DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
OTEL_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OTEL_MODULE = "opentelemetry.sdk"


def plan_supervision(parts: Parts, proof: Proof | None, *, stays: bool) -> Supervision:
    """Return how the processes of this node are watched.

    Of an agent, which is the parent of the processes, we watch only itself: it has its own logs and restarts.

    Args:
        parts: The parts of the plan.
        proof: The network that rank 0's NCCL must confirm.
        stays: Whether the launcher stays with the job.

    Raises:
        LauncherError: Options exclude each other, or cannot be honoured here.
    """
    case, agent = parts.case, parts.agent
    options, topology, allocation = case.options, case.topology, case.allocation
    if options.get("metrics_port") and not _has_module(case.host, "prometheus_client"):
        raise make_error("no-prometheus-client")
    if agent is not None:
        refuse_rules(options, agent)
    of_agent, starts_again = agent is not None, agent is not None and agent.fleet is not None
    restarts = _plan_restarts(case, together=parts.peers is not None or starts_again)
    routes = tuple(plan_route(options, place.local_rank) for place in topology.places)
    stall_timeout_s, stall_limits = _plan_stall(options)
    # mpirun's ranks are on other nodes, too, and one that waits uses its core like one that works
    watches_idle = options.get("stall_timeout") is None and not starts_again
    count = 1 if of_agent else len(routes) + len(parts.beside.companions)
    is_alone = allocation.node_count == 1 and allocation.node_range is None
    return Supervision(
        grace_s=options.grace_s,
        routes=routes if not of_agent else (Route(),),
        prefix=options.switch("prefix", count > 1 or (case.joins_launchers and topology.world_size != 1)),
        log_dir=None if of_agent else options.text("log_dir") or None,
        stall_timeout_s=stall_timeout_s,
        stall_limits=stall_limits,
        on_stall=options.text("on_stall", "report") if stall_timeout_s else "report",
        idle_timeout_s=IDLE_TIMEOUT_S if watches_idle else 0.0,
        restarts=Restarts() if of_agent and not starts_again else restarts,
        stopped_status=int(stopped) if (stopped := options.text("stopped_status", "own")) != "own" else None,
        traces=stays and bool(find_tracing(case.environ)) and _has_module(case.host, OTEL_MODULE),
        proof=proof,
        preemption=parts.preemption,
        metrics_towards="" if is_alone else allocation.master_addr,
        contact=_plan_contact(parts),
        log=plan_log(options),
        stdin=_plan_stdin(case, starts=case.forks and not of_agent),
        **options.fields("watch"),
    )


def find_unseen(parts: Parts) -> str:
    """Return why the launcher does not check whether the processes connect; empty if it does.

    Raises:
        UsageError: The check is required, but the launcher cannot see the connections.
    """
    case, agent, given = parts.case, parts.agent, parts.case.options.get("meeting")
    world, blind = case.topology.world_size, ""
    if world == 1:
        return "the job has one process"
    if given is not None and not given.value:
        return f"the check is off ({given.origin})"
    if not case.forks and not case.stays:
        blind = "the platform has started the processes, one launcher for each"
    elif agent is not None and agent.engine not in WITH_WORKERS:
        blind = f"{agent.engine} starts the processes"
    if blind and world and case.options.switch("require_meeting"):
        asked = case.options.origins("require_meeting")[0]
        leave = f"leave out {asked}" if asked.startswith("-") else f"unset {asked.partition('=')[0]}"
        raise make_error(
            "cannot-look" if agent is None else "agent-cannot-look", asked=asked, blind=blind, leave=leave
        )
    return blind or ("" if world and case.topology.places else "the processes of this node are not known")


def _plan_contact(parts: Parts) -> Contact | None:
    """Return the check that the processes connect; None for no check."""
    case, options = parts.case, parts.case.options
    if find_unseen(parts):
        return None
    return Contact(
        options.number("meeting_timeout", MEETING_TIMEOUT_S),
        options.switch("require_meeting"),
        case.topology.spans_nodes,
        of_agent=parts.agent is not None,
        on_cpus=case.machine.gpu_count == 0 and not case.machine.has_others,
    )


def _plan_stall(options: Options) -> tuple[float, tuple[tuple[str, float], ...]]:
    """Return the seconds of silence that make a stall, and the phases' own limits.

    Raises:
        UsageError: The first progress has a limit, and nothing shows progress.
    """
    given = options.get("stall_timeout")
    if given is None or not isinstance(given.value, tuple):
        return options.number("stall_timeout", 0.0), ()
    (_, usual_s), *limits = given.value
    if "first" in dict(limits) and not (options.text("progress_pattern") or options.text("progress_file")):
        needed = "--progress-pattern REGEX"
        raise make_error("flag-needs", asked="first= of --stall-timeout", needed=needed, found="")
    return usual_s, tuple(limits)


def _plan_stdin(case: Case, *, starts: bool) -> int | str | None:
    """Return which rank reads standard input, or ``all`` if the program comes from it; None for our own."""
    given = case.options.get("stdin")
    if not starts or (case.topology.world_size == 1 and not given):
        return None
    value = given.value if given else "all" if reads_program(case.command) else 0
    return value if isinstance(value, (int, str)) else None


def plan_log(options: Options) -> LogStyle:
    """Return how the log looks."""
    return LogStyle(as_json=options.text("log_format") == "json", **options.fields("log"))


def find_tracing(environ: Mapping[str, str]) -> str:
    """Return the variable that asks for OpenTelemetry's traces; empty for none, or if one refuses them.

    Source:
        OpenTelemetry, "General SDK Configuration" and "OpenTelemetry Protocol Exporter".
    """
    exporters = [word.strip().lower() for word in environ.get(OTEL_EXPORTER, "").split(",")]
    if environ.get(OTEL_DISABLED, "").strip().lower() == "true":
        return ""
    if any(exporters):
        return OTEL_EXPORTER if "otlp" in exporters else ""
    return next((name for name in OTEL_ENDPOINTS if environ.get(name, "").strip()), "")


def _has_module(host: Host, name: str) -> bool:
    """Whether the launcher's own Python can find a module; does not import it. A replay starts nothing."""
    if host.is_recorded():
        return True
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it would be in
        return False


def note_traces(case: Case) -> tuple[str, ...]:
    """Return a note that traces are asked for, and that the SDK is missing."""
    name = find_tracing(case.environ)
    if not name or _has_module(case.host, OTEL_MODULE):
        return ()
    fix = "pip install cluster-launcher[otel]"
    return (f"{name}: no traces of the job, the launcher's own Python has no opentelemetry-sdk ({fix})",)


def plan_route(options: Options, local_rank: int | None) -> Route:
    """Return the destinations of one process's output, as torchrun defines them.

    ``local_rank`` is None for a process without a rank. ``--redirects`` sends output to a file instead of to
    us, ``--tee`` to both. The filter names the local ranks whose output we show at all.
    """
    redirected = _bits(options, "redirects", local_rank)
    teed = _bits(options, "tee", local_rank)
    shown = options.words("local_ranks_filter")
    visible = BOTH if not shown or local_rank is None or local_rank in shown else 0
    return Route(to_file=redirected | teed, to_console=(BOTH & ~redirected | teed) & visible)


def _bits(options: Options, dest: str, local_rank: int | None) -> int:
    return next((bits for rank, bits in options.words(dest) if rank in (None, local_rank)), 0)


def _plan_restarts(case: Case, *, together: bool) -> Restarts:
    """Return when the processes start again; ``together``: all nodes of this job can start again together.

    Raises:
        UsageError: Restarts were asked for, and the launchers of this job cannot restart together.
    """
    options, topology = case.options, case.topology
    most, given = int(options.number("restarts", 0)), options.get("restarts")
    if most and given and not case.forks and topology.world_size != 1:
        raise make_error(
            "restarts-of-one" if topology.local_size == 1 else "restarts-of-others", asked=given.origin
        )
    if most and given and topology.node_count != 1 and not together:
        nodes = topology.node_count or "several"
        raise make_error("restarts-need-channel", asked=given.origin, nodes=nodes)
    rules, default = options.fields("restarts"), Restarts()
    delay_s = rules.get("delay_s", default.delay_s)
    longest_s = rules.setdefault("delay_max_s", max(default.delay_max_s, delay_s))
    if delay_s > longest_s:
        raise make_error("restart-delay", delay_s=delay_s, longest_s=longest_s)
    return Restarts(most=most, on_any=options.text("restart_on") == "any", **rules)


def refuse_rules(options: Options, agent: NodeCommand) -> None:
    """Refuse typed rules of restarts that do nothing if another program starts the processes.

    Raises:
        UsageError: There are such flags.
    """
    # torchrun restarts them itself, and knows only their number. mpirun is started again by the launcher,
    # which runs no command on the other nodes.
    idle = RESTART_RULES if agent.fleet is None else ("health_command",)
    typed = [one.origin for dest in idle if (one := options.get(dest)) and one.is_typed]
    if not typed:
        return
    asked, other = options.get("engine"), f"start the script without {agent.engine}"
    if asked and asked.is_typed:
        other = f"leave out {asked.origin}"
    raise make_error("restart-rules", flags=", ".join(typed), engine=agent.engine, other=other)
