"""What may leave a node in a snapshot, a plan or a log: which names, and which parts of values.

Two independent nets. Names: an allow-list, so that a variable nobody thought of stays at home.
Values: patterns of secrets, because a connection string or a signed address can hide in a
variable with an innocent name (AZ_BATCHAI_HOST_TOOLS_URL holds one). Where a pattern cannot be
sure it prefers to hide too much.
"""

from __future__ import annotations

from launcher.core import mpi

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from re import Pattern

MARKER = "<redacted>"

PUBLIC_PREFIXES = (
    # who started us
    *("AMLARC_", "AZUREML_CR_", "AZ_BATCHAI_", "AZ_BATCH_", "DLTS_", "FC_", "LSB_", "PET_", "POD_"),
    *("SKYPILOT_", "SLURM_", "SLURMD_", "TORCHELASTIC_", "VC_", "VK_", *mpi.PREFIXES),
    *("AWS_BATCH_JOB_", "DMLC_", "LSF_PM_", "MA_", "MLP_", "PBS_"),
    # what frameworks and fabrics read
    *("CUDA_", "FI_", "GLOO_", "GOMP_", "HCOLL_", "HOROVOD_", "KMP_", "MASTER_", "NCCL_"),
    *("NVIDIA_", "OMP_", "SHARP_", "TORCH_DISTRIBUTED_", "TORCH_NCCL_", "UCX_"),
    "LAUNCHER_",
)
PUBLIC_ENDS = (
    *("_NUM_NODES", "_NNODES", "_NODE_COUNT", "_NUM_HOSTS", "_WORLD_SIZE"),
    *("_NODE_RANK", "_NODE_INDEX", "_WORLD_RANK", "_GLOBAL_RANK"),
)
"""Numbers and indices of nodes, which `launcher.sources.signs` takes for signs."""
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
        *("_CONDOR_NPROCS", "_CONDOR_PROCNO"),
        *("DET_CHIEF_IP", "DET_KUBERNETES_JOB_PARALLELISM", "DET_SLOT_IDS", "INITIAL_CLUSTER_SIZE"),
        *("SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_TYPE", "SM_HOSTS"),
        *("SM_NETWORK_INTERFACE_NAME", "SM_NUM_CPUS", "SM_NUM_GPUS", "SM_RESOURCE_CONFIG", "SM_TRAINING_ENV"),
        *("GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        *("ZE_AFFINITY_MASK", "LD_LIBRARY_PATH", "PATH"),
    )
)

_HARMLESS_PART = "PRIVATE_IPV4_ADDRESS"
"""Of AWS Batch: an address inside of a network."""
# In capitals; a name that holds one of them anywhere is never public.
_SECRET_PARTS = (
    *("AUTH", "BEARER", "CONNECTIONSTRING", "CONNECTION_STRING", "COOKIE", "CREDENTIAL", "JWT"),
    *("PASSPHRASE", "PASSWD", "PASSWORD", "PRIVATE", "SAS", "SECRET", "SIGNATURE", "TOKEN"),
)
# These only as a whole word between underscores, dots or hyphens.
_SECRET_WORDS = frozenset(("CRED", "CREDS", "KEYS", "PASS", "PWD", "SIG"))
# A partition key says which InfiniBand partition a port is in; people put it in bug reports.
_HARMLESS_KEYS = frozenset(("PKEY",))

_NO_PUNCTUATION = dict.fromkeys(map(ord, "-_."))
_HARMLESS_VALUES = ("true", "false", "none", "null")

# A name that ends in one of these has a secret value, whatever the value looks like. Only the end
# counts: "tokenizer=gpt2", "max_tokens=8" and "SharedAccessKeyName=reader" are not secret.
_STRONG = (
    r"(?i:pass(?:word|wd|phrase)|secret|token|jwt|authorization|shared[-_]?access[-_]?signature"
    r"|(?:api|access|account|encryption|instrumentation|private|secret|signing|subscription)"
    r"[-_. ]?key(?:[-_]?id)?|(?<=;)pwd)"
)
# After one of these a value is secret if it looks like one: "sort_key=name" does not.
_WEAK = r"(?i:auth|code|cookie|credentials?|creds?|key|pass|pwd|sas|session)"
_BLOB = (
    r"(?:(?=[\w+/=-]{0,200}[0-9])(?=[\w+/=-]{0,200}[a-z])(?=[\w+/=-]{0,200}[A-Z])"
    r"[\w+=-][\w+/=-]{19,}|[0-9a-fA-F]{32,}[\w+/=-]{0,200})"
)

# What can stand between a name and its value. JSON may be quoted inside other JSON, and an
# address may be percent-encoded inside another one. A bare colon is not enough: "secret:2222"
# is a host and its port.
_COLON = r"""\\{0,8}["'][ \t]{0,8}:[ \t]{0,8}"""
_EQUALS = r"(?:[ \t]{0,8}=[ \t]{0,8}|%3[Dd]|[ \t]{0,8}:[ \t]{1,8})"
_FLAG = r"""(?<![^\s"'=])--?[\w.-]{0,64}?"""
# "--password X" on a command line, "--password", "X" in a list; not "--use-token --lr".
_NEXT = r"""(?:[ \t]{1,8}(?!-)|\\{0,8}["'],[ \t]{0,8}(?=\\{0,8}["'](?!-)))"""
_PLAIN = rf"(?:{_STRONG}{_EQUALS}|{_FLAG}{_STRONG}{_NEXT})"
_NAMED = rf"(?:{_STRONG}{_COLON}|{_PLAIN})"
_MAYBE = rf"(?:{_WEAK}(?:{_COLON}|{_EQUALS})|{_FLAG}{_WEAK}{_NEXT})"
_SIGNED = rf"(?i:signature|(?:(?<![a-z])|(?<=%3f))sig)(?:{_COLON}|{_EQUALS})"
_SIGNATURE = r"[\w%+/=-]{16,}"
_SCHEME = r"(?:(?i:basic|bearer|digest|negotiate|token)[ \t]{1,8})?"
_NOT_YET = rf"(?!{_SCHEME}{MARKER})"
_NOT_HARMLESS = rf"""(?!(?i:{"|".join(_HARMLESS_VALUES)})(?:[\s"'&;,}}\]]|\Z))"""
# A backslash belongs to a value unless it escapes the quote that ends it.
_BARE = r"""(?:[^\s"'&;\\]|\\(?!\\{0,8}["']))+"""

# (pattern, replacement), in this order: the rule that knows best where a secret ends comes first.
# No rule may take more than linear time, logs are long: what repeats inside is bounded, or cannot
# match the text that must follow it.
_PATTERNS = (
    # private keys, also when the end is cut off
    (
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"
        r"[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----|\Z)",
        MARKER,
    ),
    # http://token@host, anything://user:password@host; not Open MPI's "tcp://10.0.0.4:5;job@0.1"
    (rf"""((?:(?<=http)|(?<=https))://){_NOT_YET}[^\s/?#"'<>]+(?=@)""", rf"\1{MARKER}"),
    (
        r"((?<!tcp)(?<!tcp4)(?<!tcp6)://)"
        rf"""{_NOT_YET}[^\s/?#"'<>:@]*:[^\s/?#"']+(?=@)""",
        rf"\1{MARKER}",
    ),
    # "password": "...", "password": 1234, password='...', password=..., --password ...
    (rf'({_NAMED}{_SCHEME}"){_NOT_YET}(?:[^"\\]|\\[\s\S])+', rf"\1{MARKER}"),
    (rf"({_NAMED}{_SCHEME}'){_NOT_YET}(?:[^'\\]|\\[\s\S])+", rf"\1{MARKER}"),
    (rf'({_NAMED}{_SCHEME}(\\{{1,8}})"){_NOT_YET}(?:[^"\\]|(?!\2")\\+[^\\])+', rf"\1{MARKER}"),
    (rf"""({_STRONG}{_COLON}){_NOT_YET}{_NOT_HARMLESS}[^\s"',{{}}\[\]\\]+""", rf"\1{MARKER}"),
    (rf"({_PLAIN}{_NOT_YET}{_SCHEME}){_NOT_HARMLESS}{_BARE}", rf"\1{MARKER}"),
    # key=0123..., "auth": "...", sig=...
    (rf"""({_MAYBE}\\{{0,8}}["']?){_BLOB}""", rf"\1{MARKER}"),
    (rf"""({_SIGNED}\\{{0,8}}["']?){_SIGNATURE}""", rf"\1{MARKER}"),
    (rf"""((?i:\bcookie:[ \t]{{0,8}})){_NOT_YET}[^\s"'][^\r\n"']*""", rf"\1{MARKER}"),
    (r"((?i:\bbearer)(?:[ \t]{1,8}|%20))(?=[^\s]{0,200}[0-9])[\w.~+/=%-]{16,}", rf"\1{MARKER}"),
    # secrets that tell what they are: JSON web tokens; AWS; GitHub, Hugging Face; GitLab, NVIDIA,
    # PyPI; OpenAI and its likes; Slack, Google, Databricks
    (r"(?:(?<![\w-])|(?<=%20)|(?<=%3D))eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}", MARKER),
    (r"(?<![A-Za-z])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])", MARKER),
    (r"(?<![A-Za-z])(?:gh[pousr]_|github_pat_|hf_|npm_|r8_|dop_v1_|[rs]k_live_)\w{20,}", MARKER),
    # HashiCorp Vault, SendGrid, Google OAuth, Tailscale, age
    (r"(?<![A-Za-z])(?:hvs\.|SG\.|ya29\.|tskey-|GOCSPX-|AGE-SECRET-KEY-)[\w.-]{20,}", MARKER),
    (r"(?<![A-Za-z])(?:glpat-|nvapi-|pypi-Ag)[\w-]{20,}", MARKER),
    (r"(?<![A-Za-z])sk-(?:(?:admin|ant|lf|or|proj|svcacct)-[\w-]{16,}|[A-Za-z0-9]{20,})", MARKER),
    (r"(?<![A-Za-z])(?:xox[abeprs]-[\w-]{10,}|AIza[\w-]{35}|dapi[0-9a-f]{32})", MARKER),
)
_PASSES_MAX = 6

_compiled: list[tuple[Pattern[str], str]] = []


def is_public_name(name: str) -> bool:
    """Return whether a variable of this name may appear in a snapshot (its value redacted).

    Args:
        name: Name of an environment variable; case matters, as it does to the system.

    Returns:
        True for a name that the launcher or a reader of a bug report needs, unless the name
        sounds like a secret's: ``OMPI_COMM_WORLD_RANK`` but neither ``HOME`` nor ``SLURM_JWT``.
    """
    if not name.isascii() or _sounds_secret(name.upper()):
        return False
    return name in PUBLIC_NAMES or name.startswith(PUBLIC_PREFIXES) or name.endswith(PUBLIC_ENDS)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name sounds like a secret's, or a secret hides in its value."""
    return _sounds_secret(name.upper()) or redact(value) != value


def redact(text: str) -> str:
    """Return a value with the secrets in it replaced by ``<redacted>``.

    Args:
        text: Value of a variable, a line of a log, or a command line as one text.

    Returns:
        The text with passwords, tokens, keys, signatures, private keys and the user part of
        addresses replaced; the rest, host names and paths included, as it was. Redacting the
        result again changes nothing.
    """
    for _ in range(_PASSES_MAX):
        before = text
        for pattern, replacement in _rules():
            text = pattern.sub(replacement, text)
        if text == before:
            return text
    # Only a text made for the purpose gets here.
    return MARKER


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line for display, without the values of secret options.

    Args:
        argv: Program and arguments, e.g. ``["train", "--token", "X", "--api-key=Y"]``.

    Returns:
        As many arguments as were given: ``["train", "--token", "<redacted>",
        "--api-key=<redacted>"]``. Other arguments went through `redact`.
    """
    return [_redact_argument(*pair) for pair in zip(["", *argv], argv, strict=False)]


def printable(text: str) -> str:
    r"""Return text that a terminal shows instead of obeying, on one line.

    Args:
        text: Anything, e.g. a value from the environment or a message from the network.

    Returns:
        The text with each character that is not printable as a backslash escape: control
        characters (``\n``, ``\x1b``), bidirectional overrides (``\u202e``), other invisible
        ones, and bytes that were not UTF-8 (``\udcff`` for byte FF). Backslashes are left alone,
        so that paths and patterns stay readable: this is for people, not for parsing back.
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
    """Return an argument for display; whether it is secret may depend on the one before it."""
    after_flag = previous.startswith("-") and "=" not in previous and not argument.startswith("-")
    if after_flag and _is_secret_option(previous, argument):
        return MARKER
    name, equals, value = argument.partition("=")
    if equals and _is_secret_option(name, value):
        # Unlike in a text we know where the value ends: it may hold spaces and quotes.
        return f"{name}={MARKER}"
    if after_flag and not equals:
        return redact(f"{previous}={argument}").removeprefix(f"{previous}=")
    return redact(argument)


def _is_secret_option(name: str, value: str) -> bool:
    """Return whether an option's name alone says that its value is secret."""
    is_word = name.translate(_NO_PUNCTUATION).isalnum()
    if not is_word or value == "" or value.lower() in _HARMLESS_VALUES:
        return False
    return redact(f"{name}=x") != f"{name}=x"


def _rules() -> Sequence[tuple[Pattern[str], str]]:
    """Return the patterns and their replacements, compiled when first needed."""
    if not _compiled:
        import re

        _compiled.extend((re.compile(pattern), text) for pattern, text in _PATTERNS)
    return _compiled
