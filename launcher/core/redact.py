"""Redaction: decides which names and which parts of values may leave a node in a snapshot, plan or log.

It has two independent filters. Names: an allow-list, so that an unexpected variable never leaves the node.
Values: patterns of secrets, because a variable with a harmless name can contain a connection string or
a signed address (AZ_BATCHAI_HOST_TOOLS_URL does). In doubt a pattern hides too much.
"""

from __future__ import annotations

from launcher.core import mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARKER = "<redacted>"

PUBLIC_PREFIXES = (
    # platforms and other starters
    *("AMLARC_", "AZUREML_CR_", "AZ_BATCHAI_", "AZ_BATCH_", "DLTS_", "FC_", "LSB_", "PET_", "POD_"),
    *("SKYPILOT_", "SLURM_", "SLURMD_", "TORCHELASTIC_", "VC_", "VK_", *mpi.PREFIXES),
    *("AWS_BATCH_JOB_", "DMLC_", "LSF_PM_", "MA_", "MLP_", "PBS_"),
    # read by frameworks and fabrics
    *("CUDA_", "FI_", "GLOO_", "GOMP_", "HCOLL_", "HOROVOD_", "KMP_", "MASTER_", "NCCL_"),
    *("NVIDIA_", "OMP_", "SHARP_", "TORCH_DISTRIBUTED_", "TORCH_NCCL_", "UCX_"),
    "LAUNCHER_",
)
PUBLIC_ENDS = (
    *("_NUM_NODES", "_NNODES", "_NODE_COUNT", "_NUM_HOSTS", "_NUM_MACHINES", "_WORLD_SIZE"),
    *("_NODE_RANK", "_NODE_INDEX", "_MACHINE_RANK", "_WORLD_RANK", "_GLOBAL_RANK"),
)
"""Endings of node counts and indices, which `launcher.sources.signs` uses; also names without a prefix."""
PUBLIC_NAMES = frozenset(
    (
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NODE_ADDR"),
        *(
            "CROSS_RANK",
            "CROSS_SIZE",
            "GROUP_RANK",
            "GROUP_WORLD_SIZE",
            "ROLE_NAME",
            "ROLE_RANK",
            "ROLE_WORLD_SIZE",
        ),
        *("NNODES", "NODE_COUNT", "NUM_NODES", "NPROC_PER_NODE", "NUM_PROCESSES", "PROCESS_ID"),
        *(
            "GPU_NUM_PER_NODE",
            "HOST_NUM",
            "NODE_IP_LIST",
            "NODE_LIST",
            "NODE_NUM",
            "NUM_HOSTS",
            "NUM_TRAINERS",
        ),
        *("ARNOLD_ID", "ARNOLD_WORKER_NUM", "DSTACK_GPUS_PER_NODE", "MEGASCALE_NUM_SLICES"),
        *("MEGASCALE_SLICE_ID", "MF_PARALLEL_MAIN_IP", "MF_PARALLEL_NODE_INDEX", "MF_PARALLEL_NUM_NODES"),
        *("LEPTON_JOB_TOTAL_WORKERS", "LEPTON_JOB_WORKER_INDEX", "LEPTON_JOB_WORKER_PREFIX"),
        *("LEPTON_RESOURCE_ACCELERATOR_NUM", "LEPTON_SUBDOMAIN", "TRAINING_JOB_NAME"),
        *("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "JAX_COORDINATOR_ADDRESS"),
        *("JAX_COORDINATOR_PORT", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
        *("AML_JOB_ID", "AZUREML_COMMUNICATOR", "AZUREML_COMPUTE_USE_COMMON_RUNTIME"),
        *("AZUREML_EXPERIMENT_ID", "AZUREML_FRAMEWORK", "AZUREML_NODE_COUNT"),
        *("AZUREML_PROCESS_COUNT", "AZUREML_ROOT_RUN_ID", "AZUREML_RUN_ID"),
        *("AZUREML_TARGET_TYPE", "_AZUREML_CR_START_RAY", "CCP_NODES", "CLUSTER_SPEC"),
        *("HOSTNAME", "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
        *("KUBERNETES_SERVICE_PORT", "K_MPI_JOB_ROLE", "MPI_HOST", "RUNAI_NUM_OF_GPUS", "TF_CONFIG"),
        *("ALPS_APP_PE", "BEAKER_LEADER_REPLICA_HOSTNAME", "DSTACK_MASTER_NODE_IP"),
        *("BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "COBALT_JOBSIZE"),
        *("COBALT_NODEFILE", "DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "LOADL_PROCESSOR_LIST"),
        *("LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "MPIRUN_NPROCS", "MPIRUN_RANK"),
        *("MS_NODE_ID", "MS_WORKER_NUM", "NGC_ARRAY_INDEX", "NGC_ARRAY_SIZE", "NHOSTS", "OAR_NODEFILE"),
        *("PADDLE_NNODES", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID", "PE_HOSTFILE", "PJM_NODE"),
        *("RANK_ID", "RANK_SIZE", "TORCHX_RANK0_HOST", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"),
        *("_CONDOR_NPROCS", "_CONDOR_PROCNO", "DSTACK_NODES_IPS", "NOMAD_ALLOC_INDEX"),
        *("BATCH_HOSTS_FILE", "BATCH_TASK_COUNT", "BATCH_TASK_INDEX"),
        *("BATCH_TASK_INSTANCE_INDEX", "BATCH_TASK_INSTANCE_NUM", "GROVE_HEADLESS_SERVICE"),
        *("GROVE_PCLQ_POD_INDEX", "GROVE_PCSG_NAME", "GROVE_PCSG_TEMPLATE_NUM_PODS"),
        *("SM_CURRENT_INSTANCE_GROUP_HOSTS", "SM_DISTRIBUTION_INSTANCE_GROUPS", "SM_IS_HETERO"),
        *("DET_CHIEF_IP", "DET_KUBERNETES_JOB_PARALLELISM", "DET_SLOT_IDS", "INITIAL_CLUSTER_SIZE"),
        *("SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_TYPE", "SM_HOSTS"),
        *("SM_NETWORK_INTERFACE_NAME", "SM_NUM_CPUS", "SM_NUM_GPUS", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV"),
        *("GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        *("ZE_AFFINITY_MASK", "LD_LIBRARY_PATH", "PATH"),
    )
)

_HARMLESS_PART = "PRIVATE_IPV4_ADDRESS"
"""From AWS Batch: an address inside a private network."""
# In capitals; a name that contains one of them anywhere is never public.
_SECRET_PARTS = (
    *("AUTH", "BEARER", "CONNECTIONSTRING", "CONNECTION_STRING", "COOKIE", "CREDENTIAL", "JWT"),
    *("PASSPHRASE", "PASSWD", "PASSWORD", "PRIVATE", "SAS", "SECRET", "SIGNATURE", "TOKEN"),
)
# These only as a whole word between underscores, dots or hyphens.
_SECRET_WORDS = frozenset(("CRED", "CREDS", "HEADERS", "KEYS", "PASS", "PAT", "PSW", "PW", "PWD", "SIG"))
# A partition key is an InfiniBand port's partition; users put it in bug reports.
_HARMLESS_KEYS = frozenset(("PKEY",))

_NO_PUNCTUATION = dict.fromkeys(map(ord, "-_."))
_HARMLESS_VALUES = ("true", "false", "none", "null")

_PASSES_MAX = 6
_SECRET_MIN = 6
_QUOTED_MAX = 1 << 12
"""Number of characters that are searched if only the beginning of a text is shown."""
_HALF_MAX = 1 << 10
"""Number of characters that may be needed to recognize a secret."""


def is_public_name(name: str) -> bool:
    """Return whether a variable of this name may appear in a snapshot (its value redacted).

    Args:
        name: Name of an environment variable; case matters, as it does to the system.

    Returns:
        True for a name that the launcher or a reader of a bug report needs, unless the name
        looks like a secret's: ``OMPI_COMM_WORLD_RANK`` but neither ``HOME`` nor ``SLURM_JWT``.
    """
    if not name.isascii() or _sounds_secret(name.upper()):
        return False
    return name in PUBLIC_NAMES or name.startswith(PUBLIC_PREFIXES) or f"_{name}".endswith(PUBLIC_ENDS)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name looks like a secret's, or its value contains a secret."""
    return _sounds_secret(name.upper()) or redact(value) != value


def redact_variable(name: str, value: str) -> str:
    """Return a variable's value for display: nothing of it if its name looks like a secret's."""
    return MARKER if value and _sounds_secret(name.upper()) else redact(value)


def redact(text: str) -> str:
    """Return a value with the secrets in it replaced by ``<redacted>``.

    Args:
        text: Value of a variable, a line of a log, or a command line as one text.

    Returns:
        The text with passwords, tokens, keys, signatures, private keys and the user part of
        addresses replaced; the rest, including host names and paths, unchanged. Redacting the
        result again changes nothing.
    """
    if len(text) < _SECRET_MIN:
        return text
    from launcher.core.secret_shapes import find_secrets

    for _ in range(_PASSES_MAX):
        spans = find_secrets(text)
        if not spans:
            return text
        parts, last = [], 0
        for start, end in spans:
            parts += [text[last:start], MARKER]
            last = end
        text = "".join([*parts, text[last:]])
    # Only a text made to defeat redaction gets here.
    return MARKER


def shorten(text: str, limit: int) -> str:
    """Return the redacted beginning of a text: at most ``limit`` characters, not yet printable.

    Cut a text that is not redacted only with this function: `redact` does not recognize half a secret. If a
    text is far longer than the limit, only a part of it is searched.
    """
    most = max(_QUOTED_MAX, 2 * limit)
    if len(text) <= most:
        return redact(text)[:limit]
    kept = redact(text[:most])
    whole = len(kept) if kept.endswith(MARKER) else max(0, len(kept) - _HALF_MAX)
    return kept[: min(limit, whole)]


def quote(text: str, limit: int) -> str:
    """Return the redacted, printable beginning of a text: at most ``limit`` characters."""
    return printable(shorten(text, limit))[:limit]


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line for display, without the values of secret options.

    Args:
        argv: Program and arguments, e.g. ``["train", "--token", "X", "--api-key=Y"]``.

    Returns:
        The same number of arguments: ``["train", "--token", "<redacted>",
        "--api-key=<redacted>"]``. `redact` is applied to all others.
    """
    from launcher.core.secret_arguments import PROGRAMS, find_words

    shown = _redact_joined(argv)
    shown = [_redact_argument(*pair) for pair in zip(["", *argv], shown, strict=False)]
    for place, program in enumerate(argv):
        name = program.rpartition("/")[2]
        if name in PROGRAMS:
            for index, offset in find_words(name, argv[place + 1 :]):
                shown[place + 1 + index] = argv[place + 1 + index][:offset] + MARKER
    for _ in range(_PASSES_MAX):
        before, shown = shown, _redact_joined(shown)
        if before == shown:
            break
    return shown


def _redact_joined(argv: Sequence[str]) -> list[str]:
    """Return arguments without secrets that several of them make up: ``["setenv", "DB_PASS", "X"]``."""
    from launcher.core.secret_shapes import find_secrets

    shown, index, start = list(argv), 0, 0  # of the argument, and where it starts in the line
    cut = 0
    for first, last in find_secrets(" ".join(argv)):
        while first > start + len(argv[index]):
            start, index, cut = start + len(argv[index]) + 1, index + 1, 0
        found = argv[index][first - start : last - start]
        if found not in ("", MARKER):
            head = first - start + cut
            shown[index] = shown[index][:head] + MARKER + shown[index][head + len(found) :]
            cut += len(MARKER) - len(found)
    return shown


def redact_ends(text: str, limit: int) -> tuple[str, str]:
    """Return the redacted beginning and end of a text that is longer than ``limit``, not yet printable.

    Both are whole lines if possible; the beginning has a third of the limit. Of a text that is not longer,
    the first result is all of it, and the second one is empty. Only a part of a longer text is searched.
    """
    if len(text) <= limit:
        return redact(text), ""
    head, tail = shorten(text, limit // 3), redact(text[len(text) - 2 * limit // 3 - _HALF_MAX :])
    return head.rpartition("\n")[0] or head, drop_partial(tail[_HALF_MAX:]) or MARKER


def drop_partial(text: str) -> str:
    """Return a text whose beginning is lost without its first line or word, which may be half a secret."""
    edge = next((mark for mark in "\n\r " if mark in text), None)
    return text.partition(edge)[2] if edge else ""


def quote_command(argv: Sequence[str], limit: int, join: Callable[[Sequence[str]], str] = " ".join) -> str:
    """Return the redacted, printable beginning of a command line: at most ``limit`` characters.

    Like `shorten`, it searches only a part of a line that is far longer: its length is the program's choice.
    ``join`` makes a line of the words.
    """
    left, kept = max(_QUOTED_MAX, 2 * limit), []
    for word in argv:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word) + 1
    shown = join(redact_argv(kept))
    whole = len(shown) if left >= 0 or shown.endswith(MARKER) else max(0, len(shown) - _HALF_MAX)
    return printable(shown[: min(limit, whole)])[:limit]


def printable(text: str) -> str:
    r"""Return a text as one line without characters that control a terminal.

    Args:
        text: Any text, e.g. a value from the environment or a message from the network.

    Returns:
        The text with each unprintable character as a backslash escape: control
        characters (``\n``, ``\x1b``), bidirectional overrides (``\u202e``), other invisible
        characters, and bytes that were not UTF-8 (``\udcff`` for byte FF). Backslashes are unchanged,
        so that paths and patterns stay readable. The result is for display and cannot be parsed back.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _sounds_secret(upper_name: str) -> bool:
    upper_name = upper_name.replace(_HARMLESS_PART, "ADDRESS")
    words = upper_name.replace(".", "_").replace("-", "_").split("_")
    return (
        any(part in upper_name for part in _SECRET_PARTS)
        or not _SECRET_WORDS.isdisjoint(words)
        or any(word.endswith("KEY") and word not in _HARMLESS_KEYS for word in words)
    )


def _redact_argument(previous: str, argument: str) -> str:
    """Return an argument for display; the previous argument may make it secret."""
    after_flag = previous.startswith("-") and "=" not in previous and not argument.startswith("-")
    if after_flag and _is_secret_option(previous, argument):
        return MARKER
    name, equals, value = argument.partition("=")
    if equals and _is_secret_option(name, value):
        # Unlike in a text we know where the value ends: it may contain spaces and quotes.
        return f"{name}={MARKER}"
    if after_flag and not equals:
        before, equals, value = redact(f"{previous}={argument}").partition("=")
        return value if before == previous and equals else MARKER
    return redact(argument)


def _is_secret_option(name: str, value: str) -> bool:
    """Return whether an option's name alone says that its value is secret."""
    is_word = name.translate(_NO_PUNCTUATION).isalnum()
    if not is_word or value == "" or value.lower() in _HARMLESS_VALUES:
        return False
    return redact(f"{name}=x") != f"{name}=x"
