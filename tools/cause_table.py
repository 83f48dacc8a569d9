"""The table of docs/causes.md: each cause with a message of the corpus that shows it, and its fix."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.redact import shorten
from launcher.failure.model import ProcessExit
from launcher.failure.stderr import read_root_cause, read_words_of
from launcher.failure.symptoms import find_symptoms, read_signals, read_symptoms
from launcher.process.signal_file import name_signal
from tests.corpus.corpus import read_cases

HEAD = ("code", "a message", "what to do", "retry")
RETRY = {True: "yes", False: "no", None: "unknown"}
LINE_CHARS = 130
OTHERS = {
    "cuda-out-of-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "device-mismatch": "Expected all tensors to be on the same device, but found at least two devices, cpu "
    "and cuda:0!",
    "horovod-peer-lost": "Horovod has been shut down. This was caused by an exception on one of the ranks",
    "hub-access": "OSError: You are trying to access a gated repo.",
    "ranks-missing": "Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
    "usage": "train.py: error: unrecognized arguments: --epochz 3",
    "no-terminal": "EOFError: EOF when reading a line",
    "variables-missing": "ValueError: Error initializing torch.distributed using env:// rendezvous: "
    "environment variable RANK expected, but not set",
    "gpu-busy": "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "gpu-lost": "RuntimeError: CUDA error: GPU is lost. Reboot the system to recover this GPU",
    "local-ranks-differ": "AssertionError: LOCAL_RANK (0) != OMPI_COMM_WORLD_LOCAL_RANK (1)",
    "input-missing": "EOFError: EOF when reading a line",
    "locked-memory": "NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    "horovod-peer-missing": "gloo/http_store.cc:67] Wait timeout after 30000ms for key(s): 1",
    "nccl-cuda-error": "ncclUnhandledCudaError: Call to CUDA function failed.",
    "gloo-no-interface": "ifa != nullptr. Unable to find address for: eth9",
    "nccl-no-interface": "Bootstrap : no socket interface found",
    "nccl-misused": "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "nccl-internal-error": "ncclInternalError: Internal check failed.",
    "nccl-peer-lost": "ncclRemoteError: A call failed possibly due to a network error.",
    "cuda-library-error": "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
    "ssh-refused": "root@10.0.0.5: Permission denied (publickey,password).",
    "storage-lost": "OSError: [Errno 116] Stale file handle",
}
"""Messages of causes that no case of the corpus has, or only others than most see."""


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield (code, message, fix, retry) of each cause that the output or a signal tells, by code."""
    found = _messages()
    for symptom in sorted(read_symptoms().values(), key=lambda one: one.code):
        message = OTHERS.get(symptom.code) or found[symptom.code]
        yield _row(symptom.code, f"`{_plain(message)}`", symptom.fix, symptom.retryable)
    for number, cause in read_signals().items():
        yield _row(cause.code, name_signal(number), cause.fix, cause.retryable)


def _row(code: str, message: str, fix: str, retryable: bool | None) -> tuple[str, str, str, str]:
    return f"`{code}`", message, fix.replace("|", "\\|"), RETRY[retryable]


def _plain(line: str) -> str:
    return shorten(" ".join(line.replace("`", "'").replace("|", "/").split()), LINE_CHARS)


def _messages() -> dict[str, str]:
    """Return the shortest line of the corpus that shows each cause, from the parts that rules may see."""
    found: dict[str, str] = {}
    for case in (*read_cases("provoked"), *read_cases("public-rules")):
        death = ProcessExit(0, 0, 1, case.code, 0, case.stderr.encode())
        for symptom, line in find_symptoms(read_words_of(read_root_cause(death) or death)):
            if symptom.code == case.kind:
                found[case.kind] = min(found.get(case.kind, line), line, key=lambda one: (len(one), one))
    return found
