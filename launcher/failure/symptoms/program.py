"""Error messages that any program may write: about memory, files, limits, its own errors."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

MEMORY_FIX = (
    "a higher limit (docker run --memory, Kubernetes resources.limits.memory) or a larger machine; or "
    "fewer DataLoader workers, smaller batches, no second copy of the data in each process"
)

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
        "host-memory-refused",
        (
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
            "std::bad_alloc",
            "Cannot allocate memory",
            "_ArrayMemoryError",
            "^MemoryError",
        ),
        "the process could not allocate memory",
        MEMORY_FIX,
        False,
    ),
    Symptom(
        "worker-killed",
        (
            "DataLoader worker (pid*is killed by signal",
            "DataLoader worker (pid(s)*exited unexpectedly",
            "process in the process pool was terminated abruptly",
        ),
        "a worker process of this rank was killed or crashed",
        "if it was killed: memory (free, docker stats); num_workers=0 shows an exception that it hides",
        None,
    ),
    Symptom(
        "disk-full",
        ("No space left on device", "Disk quota exceeded"),
        "a file system is full",
        "free space, or write elsewhere: checkpoints, TMPDIR, caches (HF_HOME, TORCH_HOME)",
        False,
    ),
    Symptom(
        "storage-lost",
        ("Stale file handle", "Transport endpoint is not connected", "Input/output error"),
        "a mounted storage no longer responds",
        "start again: the platform mounts it anew; dmesg and the mount's own log tell why",
        True,
    ),
    Symptom(
        "read-only",
        ("Read-only file system",),
        "the process writes to a read-only file system",
        "write to another folder, or mount this one writable",
        False,
    ),
    Symptom(
        "too-many-files",
        ("Too many open files",),
        "the limit of open files is reached",
        "ulimit -n (docker run --ulimit nofile=1048576), or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        False,
    ),
    Symptom(
        "too-many-threads",
        ("can't start new thread", "Thread creation failed", "pthread_create failed"),
        "no more processes or threads are allowed",
        "a higher pids limit (docker run --pids-limit, ulimit -u), or fewer workers and OMP_NUM_THREADS",
        False,
    ),
    Symptom(
        "host-unknown",
        ("Name or service not known", "name resolution", "getaddrinfo failed"),
        "a host name does not resolve here",
        "use an address, or correct DNS and /etc/hosts of this container",
        None,
    ),
    Symptom(
        "module-hidden",
        ("most likely due to a circular import", "partially initialized module"),
        "modules import each other, or a file beside the script has the name of a library's module",
        "rename such a file (torch.py, cuda.py, random.py): the traceback has it among the library's lines",
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
        ),
        "something that the program needs is not installed, or is incompatible",
        "install it in the image; which python does the command start?",
        False,
    ),
    Symptom(
        "syntax-error",
        ("SyntaxError:", "IndentationError:", "TabError:"),
        "the program is not valid Python, at least not for this version",
        "correct it; python -m py_compile FILE shows it without a job",
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
        "launcher run --local-rank-arg -- python train.py, which adds --local_rank=N; or let the script read "
        "LOCAL_RANK",
        False,
    ),
    Symptom(
        "local-rank-unknown",
        ("unrecognized arguments*--local_rank=", "unrecognized arguments*--local-rank="),
        "the script does not know the argument --local_rank",
        "leave out --local-rank-arg (deepspeed: --no_local_rank): LOCAL_RANK says the same",
        False,
    ),
    Symptom(
        "rank-wanted",
        tuple(f"{said}*{flag}" for said in WANTED for flag in RANK_FLAGS),
        "the script requires as an argument what the launcher gives to each process as a variable",
        "launcher run --expand-args -- python train.py --rank '$RANK' --world_size '$WORLD_SIZE' --dist-url "
        "'tcp://$MASTER_ADDR:$MASTER_PORT': as the script calls them, in single quotes",
        False,
    ),
    Symptom(
        "usage",
        ("error: unrecognized arguments", "error: the following arguments are required", "error: argument "),
        "the program does not understand its arguments",
        "correct the command line after --",
        False,
    ),
    Symptom(
        "file-missing",
        ("FileNotFoundError:", "can't open file", "No such file or directory"),
        "a file does not exist",
        "is the data mounted on this node, is the working directory the right one?",
        False,
    ),
    Symptom(
        "permission-denied",
        ("PermissionError:", "Permission denied"),
        "the process lacks permission",
        "check the owner of the file and the user of the container",
        False,
    ),
    Symptom(
        "checkpoint-mismatch",
        ("Error(s) in loading state_dict", "size mismatch for "),
        "the checkpoint does not belong to this model",
        "the model and the checkpoint of the same configuration; resuming from the right folder?",
        False,
    ),
    Symptom(
        "interrupted",
        ("^KeyboardInterrupt",),
        "Ctrl-C was pressed, or SIGINT was sent",
        "no fix needed",
        None,
    ),
)
