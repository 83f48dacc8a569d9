"""Error messages that any program may write: about memory, files, limits, its own errors."""

from __future__ import annotations

from launcher.failure.symptoms.hardware import MEMORY_FIX
from launcher.failure.symptoms.symptom import Symptom

WANTED = ("arguments are required", "Missing option")
RANK_FLAGS = (
    *("--rank", "--global_rank", "--global-rank", "--world_size", "--world-size", "--worldsize"),
    *("--dist_url", "--dist-url", "--init_method", "--init-method", "--dist_init", "--dist-init"),
    *("--node_rank", "--node-rank", "--machine_rank", "--machine-rank", "--num_machines", "--num-machines"),
    *("--master_addr", "--master-addr", "--master_port", "--master-port", "--nnodes", "--nproc"),
    *("--local_world_size", "--local-world-size", "--process_id", "--num_processes", "--coordinator_address"),
)
"""Arguments of scripts that are started on each node by hand or by their own launcher."""

SYMPTOMS = (
    Symptom(
        "preempted",
        ("DUE TO PREEMPTION", "DUE TO JOB REQUEUE"),
        "the scheduler took the nodes back",
        "start again from the last checkpoint; to save in time: `#SBATCH --signal=USR1@120 --requeue`",
        True,
        loud=True,
    ),
    Symptom(
        "time-limit",
        ("CANCELLED AT*DUE TO TIME LIMIT",),
        "the scheduler's time limit was reached",
        "a longer one: `sbatch --time=2-00:00:00`; or go on from the last checkpoint in a second job; to "
        "save in time: `#SBATCH --signal=USR1@120`",
        None,
        loud=True,
    ),
    Symptom(
        "ended-from-outside",
        ("SignalException: Process * got signal:", "slurmstepd*CANCELLED AT"),
        "the platform or a person ended the job",
        "the platform says why: `sacct -j JOB`, `kubectl describe pod POD`, its own log; or was it a `kill`?",
        None,
        loud=True,
    ),
    Symptom(
        "out-of-memory",
        (
            "oom_kill event",
            "oom-kill event",
            "Out of memory: Killed process",
            "Memory cgroup out of memory",
            "task*: Out Of Memory",
            "OOMKilled",
            "Out of memory: Kill process",
            "oom-killer",
            "cgroup out-of-memory handler",
            "Exceeded*memory limit",
            "due to the node running low on memory",
        ),
        "the kernel killed a process for lack of memory",
        MEMORY_FIX,
        True,
        loud=True,
    ),
    Symptom(
        "worker-killed",
        (
            "DataLoader worker (pid*is killed by signal",
            "process in the process pool was terminated abruptly",
            "worker process managed by the executor was unexpectedly terminated",
            "DataLoader worker (pid*exited unexpectedly",
            "BrokenProcessPool",
            "TerminatedWorkerError",
        ),
        "a worker process of this rank was killed or crashed",
        "if it was killed: memory (`free -h`, `docker stats`); `num_workers=0` shows an exception that it "
        "hides",
        None,
    ),
    Symptom(
        "disk-full",
        (
            "No space left on device",
            "Disk quota exceeded",
            "database or disk is full",
            "unexpected pos * vs ",
            "PytorchStreamWriter failed writing",
            "OSError: * requested and * written",
        ),
        "a file system is full",
        "`df -h` and `df -i` show the full one; free space, or write elsewhere: checkpoints, "
        "`TMPDIR=/mnt/tmp`, caches (`HF_HOME`, `TORCH_HOME`)",
        False,
    ),
    Symptom(
        "storage-lost",
        ("Stale file handle", "Transport endpoint is not connected", "Input/output error"),
        "a mounted storage no longer responds",
        "start again: the platform mounts it anew; `dmesg` and the mount's own log tell why",
        True,
    ),
    Symptom(
        "read-only",
        ("Read-only file system",),
        "the process writes to a read-only file system",
        "write to another folder, or mount this one writable: `docker run -v HOST:FOLDER:rw`",
        False,
    ),
    Symptom(
        "too-many-files",
        ("Too many open files", "received 0 items of ancdata"),
        "the limit of open files is reached",
        "`ulimit -n 1048576` (`docker run --ulimit nofile=1048576`), or "
        "`torch.multiprocessing.set_sharing_strategy('file_system')`",
        False,
    ),
    Symptom(
        "too-many-threads",
        (
            "can't start new thread",
            "Thread creation failed",
            "pthread_create failed",
            "^BlockingIOError: [Errno 11]",
            "fork: *Resource temporarily unavailable",
        ),
        "no more processes or threads are allowed",
        "a higher limit of processes (`docker run --pids-limit -1`, `ulimit -u unlimited`), or fewer "
        "workers and `OMP_NUM_THREADS=1`",
        False,
    ),
    Symptom(
        "module-hidden",
        ("most likely due to a circular import", "partially initialized module"),
        "modules import each other, or a file beside the script has the name of a library's module",
        "rename such a file (torch.py, cuda.py, random.py): the traceback has it among the library's lines; "
        "`python -c 'import torch; print(torch.__file__)'` shows which one is found",
        False,
    ),
    Symptom(
        "version-mismatch",
        (
            "version `GLIBC",
            "version `CXXABI",
            "numpy.dtype size changed",
            "may indicate binary incompatibility",
            "compiled using NumPy 1.x cannot be run in",
            "numpy.core.multiarray failed to import",
            "Descriptors cannot be created directly",
            "Descriptors cannot not be created directly",
            "If this call came from a _pb2.py file",
            "Detected incompatible Protobuf",
            "Detected mismatched Protobuf",
            "mismatches the version that was used to compile",
            "is newer than and incompatible with jax",
            "is required for a normal functioning of this module, but found",
            "module 'numpy' has no attribute",
            "was removed in the NumPy 2.0 release",
            "you should not try to import numpy from its source directory",
            "Error importing numpy:",
            "Importing the numpy C-extensions failed",
            "module compiled against API version",
            "module compiled against ABI version",
            "size changed, may indicate",
            "module 'distutils' has no attribute",
            "operator torchvision::nms does not exist",
            "RuntimeError: Numpy is not available",
            "VersionConflict:",
            "were compiled with different CUDA",
        ),
        "two packages, or a package and the system, do not fit together",
        "install the version that the message names: `pip install 'numpy<2'`, `pip install "
        "'protobuf==4.25.*'`; GLIBC: a newer base image, or build from source: `pip install --no-binary "
        "NAME NAME`; `pip check` lists what else does not fit",
        False,
    ),
    Symptom(
        "import-error",
        (
            "ModuleNotFoundError:",
            "ImportError:",
            "python*: No module named",
            "cannot open shared object file",
            "undefined symbol:",
            "Could not load library",
            "symbol lookup error",
        ),
        "something that the program needs is not installed, or is incompatible",
        "install it in the image: `pip install NAME`; which python does the command start? A library: `ldd "
        "FILE.so` shows what is missing; an undefined symbol: build the extension again for this PyTorch",
        False,
    ),
    Symptom(
        "command-not-found",
        ("unable to find the specified executable file", "execvp error on file*No such file"),
        "mpirun does not find the program",
        "its full path after `--`, the same on each node; `mpirun -np 1 which NAME` shows what a node has",
        False,
    ),
    Symptom(
        "syntax-error",
        ("SyntaxError:", "IndentationError:", "TabError:"),
        "the program is not valid Python, at least not for this version",
        "correct it; `python -m py_compile FILE` shows it without a job",
        False,
    ),
    Symptom(
        "input-missing",
        (
            "EOFError: EOF when reading a line",
            "bdb.BdbQuit",
            "termios.error: (25, ",
            "Aborted!",
            "^Aborted.",
        ),
        "the program reads standard input (a prompt, a debugger), and nothing is typed there",
        "`launcher run --stdin 1 -- python train.py` gives it to rank 1, `--stdin all` each a copy; at a "
        "terminal `--nproc-per-node 1`; or leave out `breakpoint()` and `input()`",
        False,
    ),
    Symptom(
        "local-rank-wanted",
        (
            "arguments are required*--local_rank",
            "arguments are required*--local-rank",
            "Missing option '--local",
            "missing 1 required*argument: 'local_rank'",
        ),
        "the script requires its local rank as an argument, "
        "as torch.distributed.launch and deepspeed give it",
        "`launcher run --local-rank-arg -- python train.py`, which adds --local_rank=N; or let the script "
        "read LOCAL_RANK",
        False,
    ),
    Symptom(
        "local-rank-unknown",
        ("unrecognized arguments*--local_rank=", "unrecognized arguments*--local-rank="),
        "the script does not know the argument --local_rank",
        "leave out `--local-rank-arg` (deepspeed: `--no_local_rank`): LOCAL_RANK says the same",
        False,
    ),
    Symptom(
        "rank-wanted",
        tuple(f"{said}*{flag}" for said in WANTED for flag in RANK_FLAGS),
        "the script requires as an argument what the launcher gives to each process as a variable",
        "`launcher run --expand-args -- python train.py --rank '$RANK' --world_size '$WORLD_SIZE' "
        "--dist-url 'tcp://$MASTER_ADDR:$MASTER_PORT'`: as the script calls them, in single quotes",
        False,
    ),
    Symptom(
        "usage",
        (
            "error: unrecognized arguments",
            "error: the following arguments are required",
            "error: argument ",
            "Flags parsing error",
            "Error: No such option",
            "Error: Missing option",
            "Missing argument '",
            "Error: Invalid value",
            "ERROR: The function received no value",
            "ERROR: Could not consume arg",
            "^Could not override '",
            "^Error parsing override '",
            "^Error merging override",
            "^Could not append to config",
            "^You must specify '",
            "^Cannot find primary config",
            "In '*: Could not find '",
            "LexerNoViableAltException: ",
            "Some specified arguments are not used by the HfArgumentParser",
            "ConfigCompositionException",
            "unknown option",
        ),
        "the program does not understand its arguments",
        "correct the command line after `--`; `python train.py --help` lists what the script takes",
        False,
    ),
    Symptom(
        "file-missing",
        (
            "FileNotFoundError:",
            "can't open file",
            "No such file or directory",
            "Failed to find any matching files",
            "Error no file named",
            "ValueError: File not found",
            "Error: File *not found",
            "Error: *ile *does not exist",
            "Error: *irectory *does not exist",
            "Error: *ath *does not exist",
            "no checkpoint found",
            "heckpoint *not found",
            "NotADirectoryError:",
            "HFValidationError",
        ),
        "a file does not exist",
        "`ls -l PATH` in this container, on this node: is the data mounted, is the working directory the "
        "right one?",
        False,
    ),
    Symptom(
        "permission-denied",
        (
            "PermissionError:",
            "Permission denied",
            "Operation not permitted",
        ),
        "the process lacks permission",
        "`ls -ld PATH` shows the owner, `id` the user of the container: `chown`, or `docker run --user $(id "
        "-u):$(id -g)`",
        False,
    ),
    Symptom(
        "wandb-login",
        (
            "api_key not configured (no-tty)",
            "wandb.errors.AuthenticationError",
            "wandb: ERROR*API key",
            "wandb*permission denied",
            "No API key configured",
        ),
        "Weights & Biases has no key here",
        "`wandb login` before the job, or the key in the variable `WANDB_API_KEY` of all ranks; without its "
        "server `WANDB_MODE=offline` (or `disabled`)",
        False,
    ),
    Symptom(
        "no-terminal",
        (
            "bdb.BdbQuit",
            "EOFError: EOF when reading a line",
            "No such device or address: '/dev/tty'",
            "click.exceptions.Abort",
        ),
        "a debugger or a prompt had no terminal, or was left",
        "at a terminal rank 0 can ask, and `--stdin RANK` chooses another rank; anywhere else use "
        "`launcher stacks`, or take the breakpoint out",
        False,
    ),
    Symptom(
        "interrupted",
        ("^KeyboardInterrupt",),
        "Ctrl-C was pressed, or SIGINT was sent",
        "no fix needed; to end a job without it: `launcher status`, then `kill PID` of the launcher",
        None,
    ),
)
