"""Error messages of training loops: DDP, DeepSpeed, Horovod, MPI, worker processes, compilers."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

SYMPTOMS = (
    Symptom(
        "ddp-unused-parameters",
        (
            "Expected to have finished reduction in the prior iteration",
            "Expected to mark a variable ready only once",
            "parameters that were not used in producing the loss returned by training_step",
        ),
        "parameters got no gradient, or two, in one step of DistributedDataParallel",
        "none: `DistributedDataParallel(model, find_unused_parameters=True)` (Lightning: "
        "`strategy='ddp_find_unused_parameters_true'`); two: `static_graph=True`, or `checkpoint(..., "
        "use_reentrant=False)`; `TORCH_DISTRIBUTED_DEBUG=DETAIL` names them",
        False,
    ),
    Symptom(
        "collective-mismatch",
        (
            "Detected mismatch between collectives on ranks",
            "op.preamble.length <= op.nbytes",
            "Received data size doesn't match expected size",
            "DDP expects same model across all ranks",
            "appears not to match * of the same param in process",
            "Mismatched *: One rank",
            "MPI_ERR_TRUNCATE",
            "Message truncated",
            "Tensor list input to * must have the same",
            "invalid tensor size at index",
            "tensor list must have * size",
            "inconsistent tensor size",
        ),
        "ranks called a collective with other sizes, types or in another order",
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL` names the collective; the same model, batch and `if` on each "
        "rank; data of other lengths: `all_gather_object`, `drop_last=True`, `Join`",
        False,
    ),
    Symptom(
        "group-missing",
        (
            "Default process group has not been initialized",
            "trying to initialize the default process group twice",
            "torch.distributed is not initialized",
            "Default process group is not initialized",
        ),
        "torch.distributed was used before it was initialized, or initialized twice",
        "once, at the start of the script: `if not torch.distributed.is_initialized(): "
        "torch.distributed.init_process_group()`",
        False,
    ),
    Symptom(
        "horovod-not-initialized",
        ("Horovod has not been initialized",),
        "Horovod was used before it was initialized",
        "`hvd.init()` directly after the imports, before any other call of `hvd`",
        False,
    ),
    Symptom(
        "horovod-stall",
        (
            "!Shutdown will occur due to stall",
            "One or more rank (marked by *) is dead or has stalled",
            "!is stalled for longer than * seconds. Will shutdown",
            "Stalled tensor",
            "subset of ranks and are waiting for remainder of ranks",
        ),
        "some rank did not submit a tensor that the others wait for",
        "the same number of steps on each rank (`drop_last=True`), no `if hvd.rank() == 0` around a "
        "collective; `launcher stacks` while it hangs shows the line of each rank",
        None,
    ),
    Symptom(
        "deepspeed-config",
        (
            "Check batch related parameters",
            "DeepSpeedConfigError",
            "DeepSpeedConfig",
            "DeepSpeedZeroConfig",
            "validation error*for DeepSpeed",
            "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided",
            "Expected a string path to an existing deepspeed config",
            "DeepSpeed requires --deepspeed_config",
            "deepspeed config file path",
            "Duplicate keys in DeepSpeed config",
            "modes cannot be simultaneously enabled",
            "Please correct the following DeepSpeed config values",
            "not found in DeepSpeed",
            "zero stage * requires",
        ),
        "DeepSpeed's configuration is wrong",
        "`train_batch_size` = `train_micro_batch_size_per_gpu` * `gradient_accumulation_steps` * number of "
        "ranks: name two of the three and leave one out; `python -m json.tool ds_config.json` checks the "
        "file",
        False,
    ),
    Symptom(
        "cuda-after-fork",
        (
            "Cannot re-initialize CUDA in forked subprocess",
            "CUDA error: initialization error",
            "cuda runtime error (3)",
        ),
        "a forked process uses CUDA, which its parent has initialized",
        "`torch.multiprocessing.set_start_method('spawn')` under `if __name__ == '__main__':`, or "
        "`DataLoader(..., multiprocessing_context='spawn')`, or no `.cuda()` in the data set",
        False,
    ),
    Symptom(
        "main-guard-missing",
        ("!An attempt has been made to start a new process before the",),
        "the script starts processes while a process that was spawned imports it",
        "put what the script does under `if __name__ == '__main__':`",
        False,
    ),
    Symptom(
        "not-picklable",
        (
            "Can't pickle ",
            "Can't get local object",
            "cannot pickle ",
            "can't pickle ",
            "Can't get attribute '*' on <module",
            "PicklingError",
        ),
        "an object cannot be sent to another process, or saved",
        "a function or class at the top of a module instead of a lambda or a local one; open files, locks "
        "and clients made in the worker (`worker_init_fn`); `multiprocessing_context='fork'`; save "
        "`model.state_dict()`",
        False,
    ),
    Symptom(
        "dataloader-timeout",
        ("DataLoader timed out after",),
        "a DataLoader worker gave no batch in time",
        "a larger `DataLoader(timeout=...)`, faster storage, or `num_workers=0`, which shows where it hangs; "
        "`launcher stacks` shows the worker's line",
        None,
    ),
    Symptom(
        "build-failed",
        (
            "CUDA_HOME environment variable is not set",
            "Ninja is required to load C++ extensions",
            "Error building extension",
            "error: command '*gcc' failed",
            "error: command '*nvcc' failed",
            "InvalidCxxCompiler",
            "No working C++ compiler found",
            "Failed to find C compiler",
            "CppCompileError",
            "C++ compile error",
            "unsupported GNU version",
            "Error compiling objects for extension",
            "nvcc fatal",
            "fatal error: *.h: No such file",
            "ninja: build stopped",
            "Command '['ninja'",
        ),
        "code could not be compiled here",
        "the tools in the image: `apt-get install g++ ninja-build`, for CUDA an image of the kind devel and "
        "`CUDA_HOME=/usr/local/cuda`; or compile when the image is built; without a compiler "
        "`TORCH_COMPILE_DISABLE=1`",
        False,
    ),
    Symptom(
        "mpi-abort",
        ("MPI_ABORT was invoked on rank", "application called MPI_Abort("),
        "a rank called MPI_Abort",
        "the lines above that rank's call say why; to see each rank's own: `mpirun --output-filename logs "
        "...`, or `launcher run --engine mpirun --log-dir logs -- python train.py`",
        None,
        loud=True,
    ),
    Symptom(
        "mpi-error",
        ("MPI_ERR_", "MPI.Exception", "An error occurred in MPI_", "Fatal error in "),
        "a call of MPI failed",
        "the message names the call; sizes and ranks of it on each rank; `ompi_info` or `mpichversion`: "
        "mpi4py and mpirun of the same MPI?",
        None,
    ),
    Symptom(
        "cuda-library-error",
        ("CUBLAS_STATUS_", "CUDNN_STATUS_", "CUSOLVER_STATUS_", "CUFFT_", "cuDNN error"),
        "a library of CUDA failed",
        "often memory: a smaller batch; else `CUDA_LAUNCH_BLOCKING=1` shows the call, and "
        "`python -m torch.utils.collect_env` the versions; `unset LD_LIBRARY_PATH` where it has another CUDA",
        None,
    ),
)
