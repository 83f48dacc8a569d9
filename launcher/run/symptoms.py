"""Words by which frameworks, CUDA, NCCL, gloo and Python say what went wrong, and what that means.

A table, in the order in which causes are named: what is certain and special before what is general,
consequences last. A line matches a row if it holds all parts of one of its patterns, in their order
(``*`` stands between parts, ``^`` for the beginning of the line). The words are those of real failures:
torch 2.13 and gloo were made to fail for the tests, NCCL's and CUDA's are from public bug reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from launcher.frozen import frozen
from launcher.run.last_words import LastWords

LOST_PEER = "this rank lost a peer: look for the first failure elsewhere"
NOT_ALL_TOOK_PART = "a collective did not end in time: some rank did not take part, hung, slow or gone"


@frozen
class Symptom:
    """What some words mean.

    Attributes:
        code: Stable name, see docs/failures.md.
        patterns: What a line must hold.
        meaning: In words; the line itself is quoted after it.
        fix: What to do.
        retryable: Whether the same command can succeed when started again; None if nobody knows.
        consequence: The process says only that another one has failed.
        loud: Nobody writes this unless the process is about to end because of it: it also counts
            outside of the last traceback.
    """

    code: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    retryable: bool | None = None
    consequence: bool = False
    loud: bool = False


SHM_FIX = (
    "more shared memory: docker run --shm-size 16g; Kubernetes: an emptyDir with medium Memory, mounted "
    "at /dev/shm; Azure ML: shm_size: 16g in the job's resources; or fewer DataLoader workers"
)
MEMORY_FIX = (
    "a higher limit (docker run --memory, Kubernetes resources.limits.memory) or a larger machine; or "
    "fewer DataLoader workers, smaller batches, no second copy of the data in each process"
)
GPU_FIX = "start the job on another node; have this one's GPU reset and tested (nvidia-smi -q, dcgmi diag)"
NETWORK_FIX = "look at the other ranks' logs for what happened before; NCCL_DEBUG=INFO tells more"

SYMPTOMS = (
    Symptom(
        "shm-full",
        (
            "unable to allocate shared memory(shm)",
            "insufficient shared memory (shm)",
            "workers are out of shared memory",
            "creating shared memory segment*nccl",
            "failed to extend /dev/shm/",
            "dev/shm*No space left on device",
            "No space left on device*/dev/shm",
            "posix_fallocate failed*No space left",
        ),
        "shared memory (/dev/shm) is too small",
        SHM_FIX,
        False,
        loud=True,
    ),
    Symptom(
        "gpu-memory-error",
        ("uncorrectable ECC error", "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable NVLink error"),
        "a GPU has a memory or link error that it could not correct",
        GPU_FIX,
        True,
        loud=True,
    ),
    Symptom(
        "gpu-lost",
        ("GPU is lost", "fallen off the bus", "Unable to determine the device handle for GPU"),
        "a GPU does not answer any more",
        GPU_FIX,
        True,
        loud=True,
    ),
    Symptom(
        "cuda-out-of-memory",
        (
            "CUDA out of memory",
            "CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "HIP out of memory",
            "OOM when allocating tensor",
            "RESOURCE_EXHAUSTED: Out of memory",
        ),
        "the GPU's memory is full",
        "a smaller batch, activation checkpointing or sharding; PYTORCH_ALLOC_CONF=expandable_segments:True "
        "where much is reserved but unallocated; nvidia-smi shows who else uses the GPU",
        False,
    ),
    Symptom(
        "gpu-program-fault",
        (
            "CUDA error: device-side assert",
            "CUDA error: an illegal memory access",
            "CUDA error: an illegal instruction",
            "CUDA error: misaligned address",
            "CUDA error: unspecified launch failure",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
        ),
        "a kernel of the program failed on the GPU",
        "CUDA_LAUNCH_BLOCKING=1 shows the call that failed; often an index outside of its range",
        False,
    ),
    Symptom(
        "gpu-not-supported",
        (
            "no kernel image is available for execution",
            "CUDA driver version is insufficient",
            "NVIDIA driver on your system is too old",
            "is not compatible with the current PyTorch installation",
        ),
        "the framework was built for another GPU or a newer driver",
        "a build of the framework for this GPU and driver, or a newer driver",
        False,
    ),
    Symptom(
        "gpu-missing",
        (
            "Found no NVIDIA driver",
            "No CUDA GPUs are available",
            "no CUDA-capable device is detected",
            "invalid device ordinal",
            "Torch not compiled with CUDA enabled",
            "only supported with GPUs, no GPUs found",
        ),
        "the process does not see the GPU that it wants",
        "give the container its GPUs (docker run --gpus all), and compare --nproc-per-node, "
        "CUDA_VISIBLE_DEVICES and the device that the script picks (LOCAL_RANK)",
        False,
    ),
    Symptom(
        "gpu-busy",
        ("CUDA-capable device(s) is/are busy or unavailable", "CUDA-capable devices are busy or unavailable"),
        "another process has the GPU for itself",
        "end it (nvidia-smi shows it), or start the job on another node",
        None,
    ),
    Symptom(
        "gpu-shared-by-ranks",
        ("Duplicate GPU detected",),
        "two ranks use the same GPU",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first collective",
        False,
        loud=True,
    ),
    Symptom(
        "nccl-timeout",
        (
            "Watchdog caught collective operation timeout",
            "watchdog got stuck for",
            "timed out in blocking wait (",
        ),
        NOT_ALL_TOOK_PART,
        "find the rank that does something else: py-spy dump, TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with "
        "TORCH_NCCL_DUMP_ON_TIMEOUT=1; a longer timeout in init_process_group if it was only slow",
        None,
        loud=True,
    ),
    Symptom(
        "gloo-timeout",
        (
            "Timed out waiting*operation to complete",
            "Application timeout caused pair closure",
            "monitoredBarrier",
        ),
        NOT_ALL_TOOK_PART,
        "find the rank that does something else (py-spy dump); a longer timeout in init_process_group if it "
        "was only slow",
        None,
    ),
    Symptom(
        "horovod-rendezvous",
        ("http_store.cc*request failed too many times", "what():*HTTP request failed."),
        "hvd.init() found no rendezvous server",
        "a job of Horovod that no mpirun starts: launcher run --framework horovod; else node 0's log "
        "says why its server has ended",
        None,
        loud=True,
    ),
    Symptom(
        "horovod-peer-missing",
        ("http_store.cc*Wait timeout after*key(s)", "memory_store.cc*Wait timeout after*key(s)"),
        "a rank did not come to Horovod's rendezvous in time (the key is its rank)",
        "look at that rank's log, and whether its node is there; more time: HOROVOD_GLOO_TIMEOUT_SECONDS",
        None,
        loud=True,
    ),
    Symptom(
        "ranks-missing",
        ("waiting for clients*clients joined", "wait timeout after*keys:"),
        "not all ranks came to the rendezvous",
        "look at those that did not come: did every node start, with the same WORLD_SIZE and MASTER_PORT?",
        None,
    ),
    Symptom(
        "master-unreachable",
        (
            "client socket has timed out*while trying to connect",
            "client socket has failed to connect",
            "The client socket*has failed*to connect",
        ),
        "rank 0 did not answer at its address",
        "is rank 0 running, is MASTER_ADDR its address, does a firewall close MASTER_PORT?",
        None,
    ),
    Symptom(
        "port-in-use",
        ("EADDRINUSE", "Address already in use", "address already in use"),
        "another process listens on this port",
        "another --master-port (one node: --standalone), or end what an earlier job has left (ss -ltnp)",
        None,
    ),
    Symptom(
        "nccl-system-error",
        ("ncclSystemError", "NCCL*unhandled system error"),
        "a system call of NCCL failed",
        "NCCL_DEBUG=WARN names the call; network interfaces (NCCL_SOCKET_IFNAME), /dev/shm and ulimit -l "
        "are the usual reasons",
        None,
    ),
    Symptom(
        "nccl-cuda-error",
        ("ncclUnhandledCudaError", "NCCL*unhandled cuda error"),
        "a CUDA call of NCCL failed",
        "NCCL_DEBUG=WARN names the call; compare the versions of the driver, CUDA and NCCL",
        None,
    ),
    Symptom(
        "nccl-misused",
        ("ncclInvalidUsage", "ncclInvalidArgument"),
        "NCCL was called in a way that it does not allow",
        "NCCL_DEBUG=WARN says why; usually ranks disagree about sizes, devices or the order of calls",
        False,
    ),
    Symptom(
        "nccl-internal-error",
        ("ncclInternalError",),
        "NCCL failed inside",
        "NCCL_DEBUG=WARN says where; another NCCL version may help",
        None,
    ),
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
        "the process was refused the memory it asked for",
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
        "a mounted storage does not answer any more",
        "start again: the platform mounts it anew; dmesg and the mount's own log tell why",
        True,
    ),
    Symptom(
        "read-only",
        ("Read-only file system",),
        "the process writes where it may only read",
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
        "a host name has no address here",
        "use an address, or correct DNS and /etc/hosts of this container",
        None,
    ),
    Symptom(
        "import-error",
        ("ModuleNotFoundError:", "ImportError:", "cannot open shared object file", "undefined symbol:"),
        "something that the program needs is not installed, or does not fit",
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
        "usage",
        ("error: unrecognized arguments", "error: the following arguments are required", "error: argument "),
        "the program does not understand its arguments",
        "correct the command line after --",
        False,
    ),
    Symptom(
        "file-missing",
        ("FileNotFoundError:", "can't open file", "No such file or directory"),
        "a file is not there",
        "is the data mounted on this node, is the working directory the right one?",
        False,
    ),
    Symptom(
        "permission-denied",
        ("PermissionError:", "Permission denied"),
        "the process may not do what it wants",
        "check the owner of the file and the user of the container",
        False,
    ),
    Symptom(
        "checkpoint-mismatch",
        ("Error(s) in loading state_dict", "size mismatch for "),
        "the checkpoint is not of this model",
        "the model and the checkpoint of the same configuration; resuming from the right folder?",
        False,
    ),
    Symptom(
        "interrupted",
        ("^KeyboardInterrupt",),
        "somebody pressed Ctrl-C, or sent SIGINT",
        "none is needed",
        None,
    ),
    Symptom(
        "nccl-peer-lost",
        (
            "ncclRemoteError",
            "remote process exited or there was a network error",
            "NCCL*Connection closed by remote peer",
            "NET/IB*Got completion from peer*with",
        ),
        LOST_PEER,
        NETWORK_FIX,
        True,
        consequence=True,
        loud=True,
    ),
    Symptom(
        "horovod-peer-lost",
        (
            "Horovod has been shut down. This was caused by an exception on one of the ranks",
            "HorovodInternalError",
        ),
        LOST_PEER,
        "look at the other ranks' logs for what happened before",
        True,
        consequence=True,
    ),
    Symptom(
        "gloo-peer-lost",
        (
            "gloo*Connection closed by peer",
            "gloo*Connection reset by peer",
            "gloo*Read error",
            "gloo*Write error",
            "gloo*Broken pipe",
            "Gloo connectFullMesh failed",
        ),
        LOST_PEER,
        "look at the other ranks' logs for what happened before",
        True,
        consequence=True,
    ),
    Symptom(
        "store-lost",
        (
            "Did the remote server shutdown or crash?",
            "recvValue failed on",
            "recvValueWithTimeout failed on",
            "sendBytes failed on",
        ),
        "this rank lost the store on rank 0: look for the first failure elsewhere",
        "look at rank 0's log for what happened before",
        True,
        consequence=True,
    ),
    Symptom(
        "connection-lost",
        (
            "Connection reset by peer",
            "Connection closed by peer",
            "ConnectionResetError",
            "BrokenPipeError",
            "Broken pipe",
            "RemoteDisconnected",
        ),
        "the other side closed a connection: look for the first failure there",
        "the line says which connection, if it is known",
        True,
        consequence=True,
    ),
    Symptom(
        "connection-refused",
        ("Connection refused",),
        "nobody listened at an address: look for the first failure there",
        "is the other side running, is its address right, does a firewall close the port?",
        None,
        consequence=True,
    ),
)


def find_symptoms(words: LastWords) -> Iterator[tuple[Symptom, str]]:
    """Yield what the last words mean with the line that says so, in the table's order.

    If there is a traceback, only what its exceptions say counts, and what is loud: a line about a
    connection that was lost and made again an hour ago is not why a process ended. A line is quoted
    once: what a special row has explained is not explained again by a general one. One consequence is
    enough.
    """
    said: set[str] = set()
    elsewhere = False
    for symptom in SYMPTOMS:
        if symptom.consequence and elsewhere:
            return
        line = _last_match(symptom, words.messages, said)
        if line is None and (symptom.loud or not words.messages):
            line = _last_match(symptom, words.lines, said)
        if line is not None:
            said.add(line)
            elsewhere = symptom.consequence
            yield symptom, line


def _last_match(symptom: Symptom, lines: Sequence[str], said: Container[str]) -> str | None:
    for line in reversed(lines):
        if line not in said and any(_holds(line, pattern) for pattern in symptom.patterns):
            return line
    return None


def _holds(line: str, pattern: str) -> bool:
    """Whether a line holds all parts of a pattern, in their order."""
    if pattern.startswith("^"):
        return line.startswith(pattern[1:])
    place = 0
    for part in pattern.split("*"):
        place = line.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True
