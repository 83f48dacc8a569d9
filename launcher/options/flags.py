"""Table of the flags of ``launcher run``: name, meaning and LAUNCHER_* variable of each.

It has all of torchrun's flags, under torchrun's names. The command line parser, the variables and the
reference in docs/ come from this table. `launcher.options.flag_values` parses the values, and
`launcher.options.reading` combines what the user gave. One table is one file, even if it is long.
"""

from __future__ import annotations

from launcher.core.environ import parse_host, parse_hosts, parse_int, parse_nodes
from launcher.core.frozen import frozen
from launcher.core.model import Fact
from launcher.options.flag_values import (
    one_of,
    parse_command,
    parse_endpoint,
    parse_gpus_per_process,
    parse_key_values,
    parse_local_ranks,
    parse_lost_after,
    parse_master_port,
    parse_modules,
    parse_patterns,
    parse_port,
    parse_processes,
    parse_readers,
    parse_regex,
    parse_restarts,
    parse_roles,
    parse_seconds,
    parse_signal_map,
    parse_size,
    parse_spares,
    parse_statuses,
    parse_streams,
    parse_tasks,
    parse_word,
    parse_words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX = "LAUNCHER_"
FRAMEWORKS = ("torch", "tensorflow", "horovod", "deepspeed", "lightning", "accelerate", "jax")
OTHER_VARIABLES = (
    *("LAUNCHER_DRY_RUN", "LAUNCHER_REPLAY"),  # for commands
    *("LAUNCHER_DISABLE", "LAUNCHER_ENTRYPOINT"),  # for entry points
    "LAUNCHER_CONFIG",  # a file of defaults
    "LAUNCHER_TOKEN",  # authenticates the launchers of a job
    *("LAUNCHER_LAUNCHED", "LAUNCHER_RUN_ID", "LAUNCHER_STACKS_FILE"),  # set in the processes
    "LAUNCHER_STARTS_FILE",  # set in torchrun's agent
    "LAUNCHER_ATTEMPT",  # set in the processes from the first restart on
    "LAUNCHER_DEADLINE",  # set in the processes if the machine can be preempted
    *("LAUNCHER_HOOK", "LAUNCHER_HOOKED"),  # for the environment hook
    "LAUNCHER_REHEARSED",  # the node of a rehearsal
    "LAUNCHER_SERVE_SOCKET",  # between a serving node and its sessions
    "LAUNCHER_CACHE",  # for tools/setup.sh
    "LAUNCHER_PORT",  # set by Kubernetes for a Service named launcher
)
"""LAUNCHER_* variables that are neither flags of the table nor typing errors."""
OTHER_PREFIXES = ("LAUNCHER_TEST_", "LAUNCHER_BENCH_", "LAUNCHER_PORT_", "LAUNCHER_SERVICE_")
"""Prefixes of further variables: of the tests and benchmarks, and of Kubernetes for such a Service."""
ROLE_FLAGS = ("roles", "worker_count", "parameter_server_count", "chief", "evaluator")
"""Flags that set the number or the nodes of TensorFlow's tasks."""
TENSORFLOW = (*ROLE_FLAGS, "tf1", "tf_server", "tf_port")
"""Flags that only TensorFlow uses; each of them makes the job a TensorFlow job."""


@frozen
class Flag:
    """One flag: ``dest`` gives ``--dest-with-dashes`` and ``LAUNCHER_DEST``.

    ``parse`` turns text into the value and raises `Malformed`; None marks a switch. ``--no-dest`` turns a
    ``negatable`` switch off; its default is neither on nor off. ``pet``: torchrun's variable ``PET_DEST``
    also sets the flag, with the lowest priority. (Facts do not have this mark: for them
    `launcher.sources.torch_agent` reads PET_* as values of the platform and not of the user.)
    ``secret``: messages never quote the value.
    """

    dest: str
    metavar: str
    help: str
    parse: Callable[[str], object] | None
    fact: Fact | None = None
    short: str | None = None
    negatable: bool = False
    pet: bool = False
    group: str = "job"
    secret: bool = False

    @property
    def is_torchruns(self) -> bool:
        """Whether torchrun has this flag too."""
        return self.fact is not None or self.pet or self.group == "torchrun"

    @property
    def name(self) -> str:
        """The flag as typed, e.g. ``--node-rank``."""
        return "--" + self.dest.replace("_", "-")

    @property
    def variable(self) -> str:
        """The variable that sets the flag, e.g. ``LAUNCHER_NODE_RANK``."""
        return PREFIX + self.dest.upper()


RESTART_RULES = (
    *("restarts_per_cause", "restart_on", "no_restart_status", "restart_delay", "restart_delay_max"),
    *("restarts_reset_after", "progress_file", "progress_pattern", "attempts_file", "rejoin_timeout"),
    *("spares", "health_command"),
)
"""Flags about restarts."""
NEEDS = {
    **{dest: ("restarts", "") for dest in RESTART_RULES if dest != "progress_pattern"},
    "on_stall": ("stall_timeout", ""),
    "mpi_args": ("engine", "mpirun"),
    "forward": ("engine", "mpirun"),
}
"""Flags that do nothing unless another flag is given, or has this value."""
NEED_SSH = ("ssh_key", "ssh_port")
"""Flags that do nothing unless the job reaches the other nodes by ssh."""
EMPTY_IS_UNSET = ("rdzv_endpoint", "rdzv_conf", "local_ranks_filter", "local_addr")
"""Flags that torchrun ignores if the value is empty: ``--rdzv-conf "$CONF"``."""
EXCLUDES = (
    ("module", "no_python"),
    ("standalone", "hosts"),
    ("standalone", "hostfile"),
    ("restarts", "max_restarts"),
    ("restarts", "keep_going"),
)
"""Pairs of flags that exclude each other: one of them would be ignored."""
GROUPS = {
    "job": "the job",
    "command": "the command",
    "watch": "stopping and failures",
    "restarts": "restarts: the whole job starts again after a failure",
    "peers": "the launchers of several nodes: roll call and one verdict",
    "output": "output",
    "framework": "frameworks",
    "mpirun": "jobs that mpirun starts (--engine mpirun), and the hosts of any job",
    "torchrun": "torchrun's own: taken as torchrun takes them, for jobs that torchrun's agent starts",
}
"""The groups of flags, in the order of the documentation."""

FLAGS = (
    Flag(
        "nnodes",
        "N|MIN:MAX",
        "number of nodes in the job; a range for an elastic one",
        parse_nodes,
        Fact.NODE_COUNT,
    ),
    Flag("node_rank", "R", "index of this node, 0 is the master", parse_int, Fact.NODE_RANK),
    Flag(
        "nproc_per_node",
        "N|auto|gpu|cpu|xpu|...",
        "processes per node; without it one per GPU, or one",
        parse_processes,
        Fact.PROCESSES_PER_NODE,
    ),
    Flag("master_addr", "HOST", "host of node 0", parse_host, Fact.MASTER_ADDR),
    Flag(
        "master_port",
        "PORT",
        "port of the rendezvous on node 0 (6105; on one node any free port, as with 0)",
        parse_master_port,
        Fact.MASTER_PORT,
    ),
    Flag(
        "standalone",
        "",
        "one node, whatever the platform says, on a free port",
        None,
        pet=True,
    ),
    Flag(
        "engine",
        "auto|process|torchrun|mpirun",
        "what starts the processes: the launcher, torchrun's agent, or the mpirun on PATH",
        one_of("auto", "process", "torchrun", "mpirun"),
    ),
    Flag(
        "scope",
        "auto|node|process",
        "whether the launcher was started once per node or per process",
        one_of("auto", "node", "process"),
    ),
    Flag(
        "source",
        "NAME",
        "use only this source of ranks and nodes: its name, or module:function",
        str,
    ),
    Flag("role", "NAME", "name of the role, for ROLE_NAME (default)", str, pet=True),
    Flag(
        "gpus_per_process",
        "N",
        "give each process N GPUs of its own through CUDA_VISIBLE_DEVICES",
        parse_gpus_per_process,
    ),
    Flag(
        "bind",
        "none|numa|core",
        "keep each process to CPUs of its own: near its GPU, or an even share (numa if there are GPUs)",
        one_of("none", "numa", "core"),
    ),
    Flag(
        "fabric",
        "auto|ib|roce|efa|tcp",
        "network between nodes: the best one available (auto), or only this one",
        one_of("auto", "ib", "roce", "efa", "tcp"),
    ),
    Flag(
        "require_fabric",
        "ib|roce|efa",
        "stop with status 69 and the reason unless this network can be used",
        one_of("ib", "roce", "efa"),
    ),
    Flag(
        "verify_fabric",
        "",
        "after the start, compare the network that NCCL on rank 0 reports; with --require-fabric the job "
        "ends with status 69 if it is another one",
        None,
    ),
    Flag(
        "check",
        "",
        "print problems of this machine before the start (by default while the job runs, with GPUs or "
        "several nodes)",
        None,
        negatable=True,
        group="watch",
    ),
    Flag(
        "grace", "S", "seconds between SIGTERM and SIGKILL when stopping (25)", parse_seconds, group="watch"
    ),
    Flag(
        "signal_to",
        "leader|group",
        "whether a signal goes to the process only, or to its children too (leader)",
        one_of("leader", "group"),
        group="watch",
    ),
    Flag(
        "signal_map",
        "A=B,...",
        "send signal B where A arrives, such as TERM=USR1",
        parse_signal_map,
        group="watch",
    ),
    Flag(
        "init",
        "",
        "stay as init of the process, as process 1 of a container does",
        None,
        negatable=True,
        group="watch",
    ),
    Flag(
        "stay",
        "",
        "where the platform starts each rank by itself: stay as its parent, and end with the others",
        None,
        negatable=True,
        group="watch",
    ),
    Flag(
        "failure_file",
        "FILE",
        "where to write the failure record (where the platform looks)",
        str,
        group="watch",
    ),
    Flag(
        "events",
        "FILE",
        "append the launcher's events to this file as JSON lines; %n in it is the node's rank (no file)",
        str,
        group="watch",
    ),
    Flag(
        "evidence_dir",
        "DIR",
        "folder for evidence of a hang: dumps of the flight recorders (beside the failure record)",
        str,
        group="watch",
    ),
    Flag(
        "preload",
        "MODULES",
        "import these modules once and fork the processes, torch,transformers; auto: what the script imports "
        "(each process imports for itself)",
        parse_modules,
        group="watch",
    ),
    Flag(
        "timings",
        "",
        "say at the end where the time went: roll call, imports, first line, attempts, lost work",
        None,
        group="watch",
    ),
    Flag(
        "stall_timeout",
        "S",
        "seconds without any output and GPU work until --on-stall (a report after 600 s in which nothing "
        "moves); 0: never",
        parse_seconds,
        group="watch",
    ),
    Flag(
        "metrics_port",
        "PORT",
        "serve metrics of this node on this port (OpenMetrics), at its address among the nodes (never)",
        parse_port,
        group="watch",
    ),
    Flag(
        "on_stall",
        "report|stop",
        "what to do after --stall-timeout (report)",
        one_of("report", "stop"),
        group="watch",
    ),
    Flag(
        "meeting",
        "",
        "check whether the processes of the job connect to each other, and warn if they do not",
        None,
        negatable=True,
        group="watch",
    ),
    Flag(
        "meeting_timeout",
        "S",
        "seconds until the warning that processes do not connect (300)",
        parse_seconds,
        group="watch",
    ),
    Flag(
        "require_meeting",
        "",
        "end the job with status 78 instead of this warning, also if all end without having connected",
        None,
        group="watch",
    ),
    Flag(
        "preemption",
        "auto|azure|aws|gcp|off",
        "service that announces preemption of this machine (auto: the platform's, if it has one)",
        one_of("auto", "azure", "aws", "gcp", "off"),
        group="watch",
    ),
    Flag(
        "restarts",
        "N",
        "start all processes again, on all nodes, after a failure that a restart can help, N times (0)",
        parse_restarts,
        group="restarts",
    ),
    Flag(
        "restarts_per_cause",
        "N",
        "at most N restarts after failures with the same cause (no limit)",
        parse_restarts,
        group="restarts",
    ),
    Flag(
        "restart_on",
        "retryable|any",
        "restart unless the cause says that it does not help, or after any failure (retryable)",
        one_of("retryable", "any"),
        group="restarts",
    ),
    Flag(
        "no_restart_status",
        "N,...",
        "exit statuses of a rank after which the job ends",
        parse_statuses,
        group="restarts",
    ),
    Flag(
        "restart_delay",
        "S",
        "seconds to wait after the second failure in a row within a minute, doubled for each further one (1)",
        parse_seconds,
        group="restarts",
    ),
    Flag(
        "restart_delay_max",
        "S",
        "longest wait before a restart (60, or --restart-delay if that is longer)",
        parse_seconds,
        group="restarts",
    ),
    Flag(
        "restarts_reset_after",
        "S",
        "an attempt that ran for so long gives back all restarts (never)",
        parse_seconds,
        group="restarts",
    ),
    Flag(
        "progress_file",
        "FILE",
        "a file that changes as the job progresses, such as a checkpoint; after three attempts without "
        "progress the job ends",
        str,
        group="restarts",
    ),
    Flag(
        "progress_pattern",
        "REGEX",
        "the same for output: text that shows progress; a stall report names the ranks whose last number "
        "is behind",
        parse_regex,
        group="restarts",
    ),
    Flag(
        "attempts_file",
        "FILE",
        "where to add the record of failed attempts, one JSON object per line (nowhere)",
        str,
        group="restarts",
    ),
    Flag(
        "spares",
        "N",
        "N nodes more than --nnodes, the last ones, wait; each can take the place of a lost node (0)",
        parse_spares,
        group="restarts",
    ),
    Flag(
        "health_command",
        "CMD",
        "a command that checks this node before each attempt; a spare node takes the place of an unhealthy "
        "one (status not 0)",
        parse_command,
        group="restarts",
    ),
    Flag(
        "rejoin_timeout",
        "S",
        "how long the other nodes wait for a lost one to come back (300)",
        parse_seconds,
        group="restarts",
    ),
    Flag(
        "peers",
        "",
        "start only when the launchers of all nodes have met, and end together (on several nodes)",
        None,
        negatable=True,
        group="peers",
    ),
    Flag(
        "control_port",
        "PORT",
        "where node 0 listens for the launchers of the others (6106, or one of the 7 above it)",
        parse_port,
        group="peers",
    ),
    Flag(
        "token_file",
        "FILE",
        "the job's token, the same on every node: nodes without it are rejected (LAUNCHER_TOKEN)",
        str,
        group="peers",
    ),
    Flag(
        "roll_call_timeout",
        "S",
        "seconds that the nodes may take to answer (900)",
        parse_seconds,
        group="peers",
    ),
    Flag(
        "lost_after",
        "S",
        "seconds of silence or without a connection after which a node, or node 0, counts as lost (10)",
        parse_lost_after,
        group="peers",
    ),
    Flag(
        "keep_going",
        "",
        "if a node fails or is lost, report it and let the other nodes continue",
        None,
        group="peers",
    ),
    Flag(
        "log_dir", "DIR", "folder for the log files of --redirects and --tee", str, pet=True, group="output"
    ),
    Flag(
        "redirects",
        "N",
        "write to files only: 1 stdout, 2 stderr, 3 both, 0:3,1:2",
        parse_streams,
        short="-r",
        pet=True,
        group="output",
    ),
    Flag(
        "tee",
        "N",
        "write to files as well: 1 stdout, 2 stderr, 3 both, 0:3,1:2",
        parse_streams,
        short="-t",
        pet=True,
        group="output",
    ),
    Flag(
        "local_ranks_filter",
        "R,...",
        "show only the output of these local ranks",
        parse_local_ranks,
        pet=True,
        group="output",
    ),
    Flag(
        "prefix",
        "",
        "begin each line with its rank (if there are several processes)",
        None,
        negatable=True,
        group="output",
    ),
    Flag(
        "log_format",
        "text|json",
        "how the lines of the log look; json: an object per line, with time, node, rank and stream (text)",
        one_of("text", "json"),
        group="output",
    ),
    Flag(
        "timestamps",
        "",
        "begin each line with the time, in UTC",
        None,
        group="output",
    ),
    Flag(
        "dedupe",
        "",
        "show a line that several processes of this node write within a second once, with their ranks",
        None,
        group="output",
    ),
    Flag(
        "log_rotate",
        "SIZE",
        "begin a new file of --redirects or --tee at this size, 64K or more; keep the last 5 (one file)",
        parse_size,
        group="output",
    ),
    Flag(
        "stdin",
        "RANK|all|none",
        "the rank that reads standard input; all: each gets a copy (0; all for a program that comes from it)",
        parse_readers,
        group="output",
    ),
    Flag(
        "progress",
        "",
        "a status line (on a terminal, or where all is silent)",
        None,
        negatable=True,
        group="output",
    ),
    Flag(
        "module",
        "",
        "the command is a Python module, as in python -m",
        None,
        short="-m",
        pet=True,
        group="command",
    ),
    Flag(
        "no_python",
        "",
        "never put Python in front of the command, even if it ends in .py",
        None,
        pet=True,
        group="command",
    ),
    Flag(
        "expand_args",
        "",
        "in the arguments, replace $NAME and ${NAME} of variables that the launcher sets",
        None,
        group="command",
    ),
    Flag(
        "local_rank_arg",
        "",
        "give the script --local_rank=N in front of its own arguments",
        None,
        group="command",
    ),
    Flag(
        "framework",
        "auto|" + "|".join(FRAMEWORKS),
        "the framework, for its own variables, checks and servers (default: as the command and script show)",
        one_of("auto", *FRAMEWORKS),
        group="framework",
    ),
    Flag(
        "worker_count",
        "N",
        "tasks of TensorFlow that compute (one per node)",
        parse_tasks,
        group="framework",
    ),
    Flag(
        "parameter_server_count",
        "N",
        "tasks of TensorFlow that keep the variables (0)",
        parse_tasks,
        group="framework",
    ),
    Flag(
        "chief",
        "",
        "TensorFlow has a chief: the coordinator of parameter servers, otherwise the first worker",
        None,
        negatable=True,
        group="framework",
    ),
    Flag("evaluator", "", "a task of TensorFlow that evaluates checkpoints", None, group="framework"),
    Flag(
        "roles",
        "ROLE=NODES ...",
        "the tasks of TensorFlow by node, such as 'chief=0 ps=1-2 worker=3-6'",
        parse_roles,
        group="framework",
    ),
    Flag(
        "tf1",
        "",
        "parameter servers as in TensorFlow 1: every task runs the command, and no chief is added",
        None,
        group="framework",
    ),
    Flag(
        "tf_server",
        "auto|standard|script",
        "what workers and parameter servers of a coordinator run: TensorFlow's server, or the command (auto)",
        one_of("auto", "standard", "script"),
        group="framework",
    ),
    Flag(
        "tf_port",
        "PORT",
        "port of a node's first task of TensorFlow; the others have the next ones (2222)",
        parse_port,
        group="framework",
    ),
    Flag(
        "hosts",
        "HOST,...",
        "the nodes of the job, node 0 first; which one this is follows from its addresses",
        parse_hosts,
        group="mpirun",
    ),
    Flag("hostfile", "FILE", "the same from a file, in the dialect of any mpirun", str, group="mpirun"),
    Flag(
        "ssh_key",
        "FILE",
        "the job's keys, a file or folder (launcher keygen); the nodes then serve by themselves",
        str,
        group="mpirun",
        secret=True,
    ),
    Flag(
        "ssh_port",
        "PORT",
        "where sshd listens on the nodes (2222, with a key of the job)",
        parse_port,
        group="mpirun",
    ),
    Flag(
        "mpi_args",
        "WORDS",
        "more options for mpirun, quoted as in a shell; they go last and win",
        parse_words,
        group="mpirun",
    ),
    Flag(
        "forward",
        "NAME,PREFIX*,...",
        "additional variables of this node that the ranks get",
        parse_patterns,
        group="mpirun",
    ),
    Flag(
        "max_restarts",
        "N",
        "start all processes of all nodes again after a failure, N times (0)",
        parse_int,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "rdzv_backend",
        "NAME",
        "how the nodes meet: static, c10d, etcd-v2, ...",
        parse_word,
        pet=True,
        group="torchrun",
    ),
    Flag("rdzv_endpoint", "HOST[:PORT]", "where the nodes meet", parse_endpoint, pet=True, group="torchrun"),
    Flag("rdzv_id", "ID", "name of the job at the rendezvous (none)", str, pet=True, group="torchrun"),
    Flag(
        "rdzv_conf",
        "K=V,...",
        "settings of the rendezvous, such as timeout=600",
        parse_key_values,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "local_addr", "HOST", "address of this node, for the others", parse_host, pet=True, group="torchrun"
    ),
    Flag(
        "monitor_interval",
        "S",
        "how often the agent looks at its workers (0.1)",
        parse_seconds,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "shutdown_timeout",
        "S",
        "the same as --grace, which has precedence",
        parse_int,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "signals_to_handle",
        "A,...",
        "signals that end the job (SIGTERM,SIGINT,SIGHUP,SIGQUIT)",
        str,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "start_method",
        "spawn|fork|forkserver",
        "how --run-path makes its workers (spawn)",
        one_of("spawn", "fork", "forkserver"),
        pet=True,
        group="torchrun",
    ),
    Flag(
        "run_path",
        "",
        "run the script inside of the worker, by runpy.run_path",
        None,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "virtual_local_rank",
        "",
        "LOCAL_RANK 0 for all, each with one visible GPU",
        None,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "numa_binding",
        "node|socket|exclusive|core-complex",
        "how the agent binds its workers to CPUs",
        parse_word,
        group="torchrun",
    ),
    Flag("logs_specs", "NAME", "entry point of a package that arranges the logs", str, group="torchrun"),
    Flag("event_log_handler", "NAME", "where the agent's events go (null)", str, pet=True, group="torchrun"),
    Flag(
        "duplicate_stdout_filters",
        "A,...",
        "copy lines of stdout that hold A to one more file",
        str,
        pet=True,
        group="torchrun",
    ),
    Flag(
        "duplicate_stderr_filters",
        "A,...",
        "copy lines of stderr that hold A to one more file",
        str,
        pet=True,
        group="torchrun",
    ),
)


def find_unknown(names: Iterable[str]) -> list[str]:
    """Return the unknown LAUNCHER_* variables, sorted; they are likely typing errors."""
    ours = [name for name in names if name.startswith(PREFIX)]
    if not ours:
        return []
    known = {*OTHER_VARIABLES, *(flag.variable for flag in FLAGS)}
    return sorted(name for name in ours if name not in known and not name.startswith(OTHER_PREFIXES))
