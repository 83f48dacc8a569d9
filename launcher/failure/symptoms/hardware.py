"""Error messages about GPUs, and about memory that processes or devices share."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

SHM_FIX = (
    "more shared memory: `docker run --shm-size 16g`; Kubernetes: an emptyDir with medium Memory, mounted "
    "at /dev/shm; Azure ML: `shm_size: 16g` in the job's resources; or fewer DataLoader workers"
)
GPU_FIX = (
    "start the job on another node; have this one's GPU reset and tested (`nvidia-smi -q`, `dcgmi diag -r 3`)"
)

MEMORY_FIX = (
    "a higher limit (`docker run --memory 64g`, Kubernetes resources.limits.memory) or a larger machine; or "
    "fewer DataLoader workers (`num_workers=2`), smaller batches, no second copy of the data in each process"
)

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
        "locked-memory",
        (
            "Call to ibv_reg_mr*Cannot allocate memory",
            "Call to ibv_create_*Cannot allocate memory",
            "NET/OFI Unable to register memory*Cannot allocate memory",
            "ibv_reg_mr*failed: Cannot allocate memory",
        ),
        "RDMA cannot lock as much memory as it needs",
        "no limit of locked memory: `docker run --ulimit memlock=-1` (or `--cap-add IPC_LOCK`); on a "
        "machine, memlock unlimited in /etc/security/limits.conf; `ulimit -l` shows it",
        False,
        loud=True,
    ),
    Symptom(
        "gpu-memory-error",
        (
            "uncorrectable ECC error",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "uncorrectable NVLink error",
            "!NVRM: Xid*: 48,",
            "!NVRM: Xid*: 64,",
            "!NVRM: Xid*: 74,",
            "!NVRM: Xid*: 94,",
            "!NVRM: Xid*: 95,",
            "double bit ECC error",
        ),
        "a GPU has a memory or link error that it could not correct",
        GPU_FIX,
        True,
        loud=True,
    ),
    Symptom(
        "gpu-lost",
        (
            "GPU is lost",
            "fallen off the bus",
            "Unable to determine the device handle for GPU",
            "!NVRM: Xid*: 79,",
            "!NVRM: Xid*: 119,",
            "!NVRM: Xid*: 120,",
        ),
        "a GPU no longer responds",
        GPU_FIX,
        True,
        loud=True,
    ),
    Symptom(
        "host-memory-refused",
        (
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
            "OOM when allocating tensor*device:CPU",
            "RESOURCE_EXHAUSTED: Out of memory allocating",
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
        "cuda-out-of-memory",
        (
            "CUDA out of memory",
            "CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "HIP out of memory",
            "OOM when allocating tensor",
            "RESOURCE_EXHAUSTED: Out of memory",
            "RESOURCE_EXHAUSTED: Failed to allocate",
            "ran out of memory trying to allocate",
            "cuda runtime error (2)",
            "Cuda failure*out of memory",
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "CUDNN_STATUS_ALLOC_FAILED",
            "XPU out of memory",
            "NPU out of memory",
            "MPS backend out of memory",
            "GPU*failed to allocate memory",
            "No available memory for the cache blocks",
        ),
        "the GPU's memory is full",
        "a smaller batch, activation checkpointing or sharding; "
        "`PYTORCH_ALLOC_CONF=expandable_segments:True` where much is reserved but unallocated; JAX: "
        "`XLA_PYTHON_CLIENT_MEM_FRACTION=0.9`; `nvidia-smi` shows the other processes on the GPU",
        False,
    ),
    Symptom(
        "gpu-program-fault",
        (
            "CUDA error: device-side assert",
            "cuda runtime error (*device-side assert",
            "cuda runtime error (*illegal memory access",
            "CUDA error: an illegal memory access",
            "CUDA error: an illegal instruction",
            "CUDA error: misaligned address",
            "CUDA error: unspecified launch failure",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "device-side assert triggered",
            "illegal memory access was encountered",
            "unspecified launch failure",
            "CUDA_ERROR_LAUNCH_FAILED",
            "cudaErrorIllegalAddress",
            ".cu:*Assertion `",
        ),
        "a kernel of the program failed on the GPU",
        "`CUDA_LAUNCH_BLOCKING=1` shows the call that failed, `compute-sanitizer python ...` the kernel; "
        "often an index outside of its range: `print(x.min(), x.max())` of labels and tokens",
        False,
    ),
    Symptom(
        "gpu-not-supported",
        (
            "no kernel image is available for execution",
            "CUDA driver version is insufficient",
            "NVIDIA driver on your system is too old",
            "is not compatible with the current PyTorch installation",
            "unsupported display driver / cuda driver combination",
            "forward compatibility was attempted on non supported HW",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "PTX was compiled with an unsupported toolchain",
            "is not compatible with the current PyTorch",
        ),
        "the framework was built for another GPU or a newer driver",
        "a build of the framework for this GPU and driver: `nvidia-smi` shows the newest CUDA that the "
        "driver takes, `python -m torch.utils.collect_env` that of the build; `pip install torch "
        "--index-url https://download.pytorch.org/whl/cu126`",
        False,
    ),
    Symptom(
        "gpu-missing",
        (
            "Found no NVIDIA driver",
            "No CUDA GPUs are available",
            "no CUDA-capable device is detected",
            "invalid device ordinal",
            "Cannot access accelerator device when none is available",
            "Unknown backend: 'gpu' requested",
            "Unknown backend cuda",
            "Could not satisfy device specification*GPU",
            "No supported gpu backend found",
            "has no attribute '_cuda_",
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
            "Torch not compiled with CUDA enabled",
            "only supported with GPUs, no GPUs found",
            "libcuda.so.1: cannot open shared object file",
            "CUDA_ERROR_NO_DEVICE",
            "CUDA is not available",
            "CUDA unknown error",
            "Unexpected error from cudaGetDeviceCount",
            "But your machine only has",
            "couldn't communicate with the NVIDIA driver",
            "Invalid device id",
            "mixed precision requires a GPU",
            "can only be used on CUDA devices",
            "could not select device driver",
        ),
        "the process cannot see the GPU that it requests",
        "give the container its GPUs (`docker run --gpus all`); `launcher check` compares --nproc-per-node "
        "and CUDA_VISIBLE_DEVICES with the GPUs of this node; in the script `torch.device('cuda', "
        "int(os.environ['LOCAL_RANK']))`; on CPUs `torch.load(PATH, map_location='cpu')`",
        False,
    ),
    Symptom(
        "no-nccl",
        ("Distributed package doesn't have NCCL built in",),
        "this PyTorch is built without NCCL, like all CPU builds",
        "on CPUs `init_process_group('gloo')`, or without a backend's name; on GPUs a PyTorch with CUDA: "
        "`pip install torch --index-url https://download.pytorch.org/whl/cu126`",
        False,
    ),
    Symptom(
        "gpu-busy",
        ("CUDA-capable device(s) is/are busy or unavailable", "CUDA-capable devices are busy or unavailable"),
        "another process uses the GPU exclusively",
        "`nvidia-smi` shows the process that has it: end it, or start the job on another node; `nvidia-smi "
        "-c DEFAULT` lets several share a GPU",
        None,
    ),
    Symptom(
        "gpu-shared-by-ranks",
        ("Duplicate GPU detected",),
        "two ranks use the same GPU",
        "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))` before the first collective",
        False,
        loud=True,
    ),
)
