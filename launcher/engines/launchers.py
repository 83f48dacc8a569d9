"""Commands that are launchers themselves: they are run once per node, and told which node this is.

Each row of `TABLE` is one of them: how it is called, which of its flags have no value (to find the end
of its own flags), and which of them state facts of the job. Its own flags win over all that we know:
ours stand before them on the command line, or in variables that it reads where a flag is missing.

Sources: torch/distributed/run.py (2.13); accelerate/commands/launch.py (1.15);
deepspeed/launcher/runner.py (0.19); lightning_fabric/cli.py (2.6); composer/cli/launcher.py (0.32);
horovod/runner/launch.py (0.28); orte/tools/orterun (4.1), prte schizo ompi (5.0), hydra (5.0).
"""

from __future__ import annotations

from launcher.engines.process import is_python
from launcher.environ import Malformed, shorten
from launcher.flags import FLAGS
from launcher.frozen import frozen
from launcher.options import Given, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NODE_FLAGS = ("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port")


@frozen
class Launcher:
    """One launcher.

    Attributes:
        name: What it is called in plans and messages.
        calls: How it is called: words of a command line, ``-m MODULE`` for a Python's.
        switches: Its flags that take no value, dashes as underscores.
        pairs: Its flags that take two values.
        facts: Its flags that say what one of ours says: (its name, our name).
        abbreviates: Whether it takes abbreviations of its flags, as argparse does.
        scattered: Whether it takes its flags after the script as well, as click does.
        whole_job: Whether it starts the processes of all nodes.
    """

    name: str
    calls: tuple[str, ...]
    switches: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    abbreviates: bool = False
    scattered: bool = False
    whole_job: bool = False


@frozen
class Command:
    """A command that is a launcher.

    Attributes:
        launcher: Which one.
        head: How many words call it; its own flags come next.
        own: Its own flags, dashes as underscores, and their values; of a switch "1".
    """

    launcher: Launcher
    head: int
    own: tuple[tuple[str, str], ...]

    def has(self, *names: str) -> bool:
        """Whether one of these flags is there."""
        return any(name in names for name, _ in self.own)

    def value(self, name: str) -> str | None:
        """Return the last value of a flag."""
        return dict(self.own).get(name)


_TORCH_FACTS = (
    *NODE_FLAGS,
    "standalone",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_conf",
    "max_restarts",
    "local_addr",
    "role",
)
_TORCH_SWITCHES = (
    "m",
    "h",
    "standalone",
    "module",
    "no_python",
    "run_path",
    "virtual_local_rank",
    "use_env",
    "help",
)
_ACCELERATE_SWITCHES = (
    *(
        "m",
        "h",
        "q",
        "help",
        "quiet",
        "cpu",
        "multi_gpu",
        "tpu",
        "enable_cpu_affinity",
        "dynamo_use_fullgraph",
    ),
    *("dynamo_use_dynamic", "dynamo_use_regional_compilation", "use_deepspeed", "use_fsdp"),
    *("use_parallelism_config", "use_megatron_lm", "same_network", "module", "no_python", "tpu_cluster"),
    *("no_tpu_cluster", "tpu_use_sudo", "downcast_bf16", "fp8_use_autocast_during_eval", "debug"),
)
_DEEPSPEED_SWITCHES = (
    *(
        "h",
        "q",
        "help",
        "module",
        "no_python",
        "no_local_rank",
        "no_ssh",
        "no_ssh_check",
        "force_multi",
        "save_pid",
    ),
    *("bind_cores_to_rank", "quiet"),
)
_FABRIC_SWITCHES = ("help",)
_FABRIC_FACTS = (
    ("num_nodes", "nnodes"),
    ("node_rank", "node_rank"),
    ("devices", "nproc_per_node"),
    ("main_address", "master_addr"),
    ("main_port", "master_port"),
)
_HOROVOD_SWITCHES = (
    *(
        "v",
        "h",
        "version",
        "check_build",
        "disable_cache",
        "verbose",
        "autotune",
        "tcp",
        "gloo",
        "mpi",
        "jsrun",
    ),
    *("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "timeline_mark_cycles"),
    *("stall_check", "no_stall_check", "mpi_threads_disable", "log_with_timestamp", "log_without_timestamp"),
    *("prefix_output_with_timestamp", "prefix_timestamp", "no_hierarchical_allreduce", "no_autotune", "cb"),
    *("no_hierarchical_allgather", "no_torus_allreduce", "no_timeline_mark_cycles"),
    *("no_mpi_threads_disable", "log_hide_timestamp", "no_log_hide_timestamp", "help"),
)
_MPI_SWITCHES = (
    # Open MPI
    *("allow_run_as_root", "oversubscribe", "nooversubscribe", "nolocal", "tag_output", "timestamp_output"),
    *(
        "xml",
        "q",
        "quiet",
        "v",
        "verbose",
        "V",
        "version",
        "h",
        "help",
        "bynode",
        "byslot",
        "bycore",
        "display_map",
    ),
    *("bysocket", "bind_to_core", "bind_to_socket", "bind_to_none", "report_bindings", "display_allocation"),
    *("use_hwthread_cpus", "use_hwthreads_as_cpus", "do_not_launch", "do_not_resolve", "enable_recovery"),
    *("disable_recovery", "continuous", "leave_session_attached", "debug_daemons", "debug_devel", "novm"),
    *(
        "nooversubscribe",
        "loadbalance",
        "pernode",
        "merge_stderr_to_stdout",
        "show_progress",
        "stream_buffering",
    ),
    # Hydra: MPICH, Intel MPI
    *(
        "genvall",
        "genvnone",
        "envall",
        "envnone",
        "l",
        "prepend_rank",
        "info",
        "print_all_exitcodes",
        "verbose",
    ),
    *("print_rank_map", "enable_x", "disable_x", "nolocal", "tune", "rr", "disable_auto_cleanup"),
)
TABLE = (
    Launcher(
        "torchrun",
        ("torchrun", "-m torch.distributed.run", "-m torch.distributed.launch"),
        switches=_TORCH_SWITCHES,
        facts=tuple((name, name) for name in _TORCH_FACTS),
        abbreviates=True,
    ),
    Launcher(
        "accelerate",
        ("accelerate launch", "accelerate-launch", "-m accelerate.commands.launch"),
        switches=_ACCELERATE_SWITCHES,
        facts=(
            ("num_machines", "nnodes"),
            ("machine_rank", "node_rank"),
            ("main_process_ip", "master_addr"),
            ("main_process_port", "master_port"),
        ),
    ),
    Launcher(
        "deepspeed",
        ("deepspeed", "deepspeed.pt", "ds", "-m deepspeed.launcher.runner"),
        switches=_DEEPSPEED_SWITCHES,
        facts=(
            ("num_nodes", "nnodes"),
            ("node_rank", "node_rank"),
            ("num_gpus", "nproc_per_node"),
            ("num_accelerators", "nproc_per_node"),
            ("master_addr", "master_addr"),
            ("master_port", "master_port"),
        ),
        abbreviates=True,
    ),
    Launcher(
        "fabric",
        ("fabric run", "-m lightning_fabric.cli run"),
        _FABRIC_SWITCHES,
        facts=_FABRIC_FACTS,
        scattered=True,
    ),
    Launcher("lightning", ("lightning run model",), _FABRIC_SWITCHES, facts=_FABRIC_FACTS, scattered=True),
    Launcher(
        "composer",
        ("composer", "-m composer.cli.launcher"),
        switches=("version", "verbose", "v", "module_mode", "m", "command_mode", "c", "help"),
        facts=(
            ("nproc", "nproc_per_node"),
            ("n", "nproc_per_node"),
            ("node_rank", "node_rank"),
            ("master_addr", "master_addr"),
            ("master_port", "master_port"),
        ),
        abbreviates=True,
    ),
    Launcher("horovodrun", ("horovodrun", "-m horovod.runner.launch"), _HOROVOD_SWITCHES, whole_job=True),
    Launcher(
        "mpirun",
        ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi"),
        switches=_MPI_SWITCHES,
        pairs=("mca", "gmca", "omca", "prtemca", "pmixmca", "env", "genv"),
        whole_job=True,
    ),
)


def find_launcher(argv: Sequence[str]) -> Command | None:
    """Return which launcher a command is, None for any other command. A shell's words are not looked into."""
    for launcher in TABLE:
        for call in launcher.calls:
            head = _match(argv, call.split())
            if head:
                return Command(launcher, head, tuple(_read_own(launcher, argv[head:])))
    return None


def _match(argv: Sequence[str], call: Sequence[str]) -> int:
    """Return how many words of a command line are this call, 0 if it is another."""
    start = find_script(argv) if argv and is_python(argv[0]) else 0
    if start is None:
        return 0
    words = list(argv[start : start + len(call)])
    if words and call[0] != "-m":
        words[0] = words[0].rpartition("/")[2]
    by_module = call[0] == "-m"
    return start + len(call) if words == list(call) and (start > 0 or not by_module) else 0


def find_script(argv: Sequence[str]) -> int | None:
    """Return where ``-m`` or the script stands in a Python's command line, None if there is neither."""
    place = 1
    while place < len(argv):
        word = argv[place]
        if word == "-m" or not word.startswith("-"):
            return place
        if word == "-c":
            return None
        place += 2 if word in ("-W", "-X") else 1
    return None


def _read_own(launcher: Launcher, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return a launcher's own flags: those before its script, or all of them if it takes them anywhere."""
    own: list[tuple[str, str]] = []
    place = 0
    while place < len(words) and words[place] != "--":
        word = words[place]
        place += 1
        if not word.startswith("-") or word == "-":
            if launcher.scattered:
                continue
            break
        flag, equals, value = word.partition("=")
        name = _full_name(launcher, flag)
        if _is_attached(launcher, flag, name):
            own.append((flag[1], word[2:]))
            continue
        if name in launcher.switches:
            own.append((name, "1"))
        elif equals:
            own.append((name, value))
        elif place < len(words):
            own.append((name, words[place]))
            place += 2 if name in launcher.pairs else 1
    return own


def _is_attached(launcher: Launcher, flag: str, name: str) -> bool:
    """Whether a word is a short flag and its value at once, ``-t3``. MPI's long flags have one dash, too."""
    one_dash = flag[1] != "-" and len(flag) > 2
    return one_dash and name not in launcher.switches and not launcher.whole_job


def _full_name(launcher: Launcher, flag: str) -> str:
    """Return a flag's name without dashes before and with underscores inside, abbreviations resolved."""
    name = flag.lstrip("-").replace("-", "_")
    known = {*launcher.switches, *(theirs for theirs, _ in launcher.facts)}
    if not launcher.abbreviates or name in known or not flag.startswith("--"):
        return name
    found = [full for full in known if full.startswith(name)]
    return found[0] if len(found) == 1 else name


def read_facts(command: Command) -> tuple[Options, list[str]]:
    """Return what a launcher's own flags say of the job, as our own flags would, and notes.

    What we cannot read is left to the launcher.
    """
    names = dict(command.launcher.facts)
    flags = {flag.dest: flag for flag in FLAGS}
    given: dict[str, Given] = {}
    notes: list[str] = []
    for theirs, text in command.own:
        if theirs not in names:
            continue
        flag = flags[names[theirs]]
        origin = f"{command.launcher.name} --{theirs}" + (f" {shorten(text)}" if flag.parse else "")
        try:
            given[flag.dest] = Given(flag.parse(text) if flag.parse else True, origin, text)
        except Malformed:
            notes.append(f"{origin} is for {command.launcher.name} to understand: the job may be another one")
    return Options(given), notes
