"""How the launcher watches, stops and reports processes: the part of a plan that matters only if it stays."""

from __future__ import annotations

from launcher.core.frozen import frozen


@frozen
class Network:
    """The planned network between this node and the other nodes.

    Attributes:
        fabric: Name of the fabric as in ``--fabric``.
        why: Evidence for the fabric.
        port_count: Number of ports that NCCL should use; None for TCP, and if a plugin decides.
        ports: Names of the ports, ``"mlx5_ib0:1"``; also empty if the user's own list is used.
        files: Files that settings name: the placeholder in the value, and the file's text.
    """

    fabric: str
    why: str
    port_count: int | None = None
    ports: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()


@frozen
class Proof:
    """The network that NCCL's log must confirm, if the launcher reads it.

    Attributes:
        network: The planned network.
        settings: Variables that make rank 0's NCCL log its network; the log file is chosen at the start.
        required: The flag that makes another network fatal; empty if the job continues.
    """

    network: Network
    settings: tuple[tuple[str, str], ...]
    required: str = ""


STDOUT, STDERR = 1, 2
"""Bits of a `Route`; torchrun's numbers for the standard streams, 3 is both."""


@frozen
class Route:
    """Destinations of one process's output: the streams for a file, and those for our own output."""

    to_file: int = 0
    to_console: int = STDOUT | STDERR


@frozen
class Preemption:
    """A metadata service that we ask whether this machine will be preempted.

    Attributes:
        service: ``"azure"``, ``"aws"`` or ``"gcp"``.
        why: The flag, or the platform's description of the machine.
        is_asked: Whether the user requested it.
    """

    service: str
    why: str
    is_asked: bool = False


@frozen
class Contact:
    """Check that the processes of the job connect to each other.

    Attributes:
        timeout_s: Time without a connection after which the launcher reports it.
        required: Whether a job without connections fails.
        spans_nodes: Whether the processes must also connect to another node.
        of_agent: Whether they are children of an agent, which is the only process that we start.
        on_cpus: Whether this node has no accelerator.
    """

    timeout_s: float
    required: bool = False
    spans_nodes: bool = False
    of_agent: bool = False
    on_cpus: bool = False


@frozen
class Restarts:
    """When the processes of a job start again after a failure; see `launcher.recovery.policy`.

    Attributes:
        most: Maximum number of restarts; 0 for none.
        per_cause: Maximum number of restarts after failures with the same cause; None for no limit.
        on_any: Whether to restart after a cause that a restart does not help.
        never_status: Exit statuses after which there is no restart.
        delay_s: Seconds to wait after the second quick failure in a row; doubled for each further one.
        delay_max_s: Longest wait, in seconds.
        reset_after_s: An attempt that ran for so many seconds resets both limits; 0 for never.
        progress_file: Path of a file that changes as the job progresses; empty for none.
        progress_pattern: Regular expression for a line of output that shows progress; empty for none.
        attempts_file: Path of the record of attempts; empty for none.
        rejoin_timeout_s: How long the other nodes wait for a node that was lost; 0 for not at all.
        health_argv: Command that checks this node before an attempt; empty for none.
    """

    most: int = 0
    per_cause: int | None = None
    on_any: bool = False
    never_status: tuple[int, ...] = ()
    delay_s: float = 1.0
    delay_max_s: float = 60.0
    reset_after_s: float = 0.0
    progress_file: str = ""
    progress_pattern: str = ""
    attempts_file: str = ""
    rejoin_timeout_s: float = 300.0
    health_argv: tuple[str, ...] = ()


@frozen
class Preload:
    """What one process imports for all processes of this node, which are then forks of it.

    Attributes:
        modules: The modules, in order; ``a.b`` may also be a name in the module ``a``.
        skips: Whether a module that is not installed is left out.
        folders: Directories that are searched first, because the script's Python does that too.
    """

    modules: tuple[str, ...]
    skips: bool = False
    folders: tuple[str, ...] = ()


@frozen
class LogStyle:
    """How the log looks.

    Attributes:
        as_json: Whether each line is a JSON object.
        timestamps: Whether each line starts with the time.
        dedupe: Whether a line of several processes is shown once; None: a traceback, off a terminal.
        rotate_bytes: Size at which a new log file begins; 0 for never.
    """

    as_json: bool = False
    timestamps: bool = False
    dedupe: bool | None = None
    rotate_bytes: int = 0


GRACE_S = 25.0
"""Default grace, in seconds: Slurm and Kubernetes kill the launcher 30 s after SIGTERM; it reports before."""


@frozen
class Supervision:
    """How the launcher watches, stops and reports processes if it stays.

    Attributes:
        grace_s: Seconds between SIGTERM and SIGKILL.
        signal_to: ``"leader"``: a signal goes to the process itself, and to its children only after half
            of the grace period; ``"group"``: to all of them at once.
        signal_map: Pairs of signal numbers: (arriving, sent instead).
        routes: Destinations of the output, one per process.
        prefix: Whether lines begin with the rank.
        log_dir: Directory of log files, None for a temporary one (if any output goes to files).
        progress: Whether there is a status line; None if that depends on the terminal.
        stall_timeout_s: Seconds without output that count as a stall; 0 for never.
        stall_limits: The same in a phase of the attempt (``first``, ``save``), in pairs.
        on_stall: ``"report"`` or ``"stop"``.
        idle_timeout_s: Seconds without output, CPU time, GPU work and network traffic until a report, which
            has no other effect; 0 for never.
        restarts: When all processes start again after a failure.
        stopped_status: Exit code of a job that a signal told to stop; None for that of its processes.
        fatal_status: Exit code after a failure that no retry fixes; None for that of the process.
        failure_file: Path of the failure record; None for the platform's default.
        evidence_dir: Directory for evidence of a hang; None for that of the failure record.
        proof: The network that rank 0's NCCL must confirm; None if not requested, or if rank 0 is not here.
        preemption: The service that reports preemption of this machine; None for none.
        metrics_port: Port of this node's metrics; 0 for no metrics.
        metrics_towards: Address of node 0, whose network serves the metrics; empty for a single node.
        contact: The check that the processes connect; None for no check.
        timings: Whether the last lines say where the time went.
        stragglers: Whether a status names the rank that differs from the others.
        slow_below: A number in the output of a rank below which the rank is slow; None for no such rule.
        preload: What is imported once, before the processes are forked; None to start each by itself.
        events: Path of the file of events, with ``%n`` for the node's rank; None for no file.
        traces: Whether OpenTelemetry gets spans of the job.
        log: How the log looks.
        stdin: The rank that reads standard input; ``"all"``: each process gets a copy; ``"none"``; None for
            a process that keeps ours.
    """

    grace_s: float = GRACE_S
    signal_to: str = "leader"
    signal_map: tuple[tuple[int, int], ...] = ()
    routes: tuple[Route, ...] = (Route(),)
    prefix: bool = False
    log_dir: str | None = None
    progress: bool | None = None
    stall_timeout_s: float = 0.0
    stall_limits: tuple[tuple[str, float], ...] = ()
    on_stall: str = "report"
    idle_timeout_s: float = 0.0
    restarts: Restarts = Restarts()
    stopped_status: int | None = None
    fatal_status: int | None = None
    failure_file: str | None = None
    evidence_dir: str | None = None
    proof: Proof | None = None
    preemption: Preemption | None = None
    metrics_port: int = 0
    metrics_towards: str = ""
    contact: Contact | None = None
    timings: bool = False
    stragglers: bool = True
    slow_below: float | None = None
    preload: Preload | None = None
    events: str | None = None
    traces: bool = False
    log: LogStyle = LogStyle()
    stdin: int | str | None = None
