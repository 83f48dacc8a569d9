"""Table of commands that are launchers themselves, with their calls and the flags that we must know.

`launcher.command.launchers` reads a command line by this table. The flags without a value tell where the
launcher's own flags end. The flags in ``facts`` state facts about the job.

Sources: torch/distributed/run.py (2.13); accelerate/commands/launch.py (1.15);
deepspeed/launcher/runner.py (0.19); lightning_fabric/cli.py (2.6); composer/cli/launcher.py (0.32);
horovod/runner/launch.py (0.28); orte/tools/orterun (4.1), prte schizo ompi (5.0), hydra (5.0).
"""

from __future__ import annotations

from launcher.core.frozen import frozen

NODE_FLAGS = ("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port")


@frozen
class Launcher:
    """One launcher.

    Attributes:
        name: Its name in plans and messages.
        calls: Words that start it on a command line; ``-m MODULE`` after a Python.
        switches: Its flags without a value, with underscores for dashes.
        pairs: Its flags with two values.
        facts: Its flags that mean the same as one of ours: (its name, our name).
        abbreviates: Whether it accepts abbreviated flags, as argparse does.
        scattered: Whether it accepts flags after the script too, as click does.
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
