"""Chooses the variables that ranks on all nodes get from the head.

Ranks get all variables that may have been set for the job, and none that belong to this node, to a login, or
to the program that started us. They get secrets only if the user names them, because values travel
unencrypted, and end in the environment of every process. Everything here is pure.
"""

from __future__ import annotations

import re

from launcher.core import mpi
from launcher.core.redact import is_secret
from launcher.frameworks import starters
from launcher.sources.rows import NODES, PLATFORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

OF_A_LOGIN = frozenset(
    (
        *("HOME", "HOST", "HOSTNAME", "HOSTTYPE", "LOGNAME", "MACHTYPE", "MAIL", "OSTYPE", "SHELL", "USER"),
        *("OLDPWD", "PWD", "SHLVL", "_", "TEMP", "TMP", "TMPDIR", "USERNAME", "KRB5CCNAME"),
        *("COLORTERM", "COLUMNS", "LINES", "STY", "TERM", "TERMCAP", "TERMINFO", "TMUX", "TMUX_PANE"),
        *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY"),
        *("HISTCONTROL", "HISTFILE", "HISTSIZE", "LESSCLOSE", "LESSOPEN", "LS_COLORS", "PS1", "PS2"),
        *("GPG_AGENT_INFO", "GPG_TTY", "INVOCATION_ID", "JOURNAL_STREAM", "MAINPID", "NOTIFY_SOCKET"),
        *("LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID", "PROMPT_COMMAND", "SYSTEMD_EXEC_PID"),
    )
)
OF_A_LOGIN_PREFIXES = ("SSH_", "SUDO_", "TERM_", "VSCODE_", "VTE_", "XDG_")
OF_A_NODE = frozenset(
    (
        *starters.CONTRACT,
        *starters.COUNTED,
        *("AZ_BATCH_CERTIFICATES_DIR", "AZ_BATCH_IS_CURRENT_NODE_MASTER", "AZ_BATCH_TASK_DIR"),
        *("AZ_BATCH_TASK_WORKING_DIR", "AZ_BATCHAI_TASK_INDEX", "AZUREML_CR_NODE_RANK"),
        *("DLTS_ROLE_INDEX", "FC_TASK_INDEX", "GPU_DEVICE_ORDINAL", "JOB_COMPLETION_INDEX"),
        *("NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
        *("SM_CURRENT_HOST", "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_TYPE", "TF_CONFIG"),
        *("VC_TASK_INDEX", "VK_TASK_INDEX"),
        *(row.index for row in NODES),
        *(row.index for row in PLATFORMS.values()),
        *("LAUNCHER_ENGINE", "LAUNCHER_LAUNCHED", "LAUNCHER_NODE_RANK"),
        "OMPI_MCA_mca_base_env_list",  # Open MPI 4 refuses it together with -x
    )
)
OF_A_NODE_PREFIXES = (
    *("AZ_BATCH_NODE_", "KUBERNETES_", "POD_"),
    *("LSB_", "PBS_", "SLURM_", "SLURMD_", "SRUN_", starters.ELASTIC_PREFIX, starters.AGENT_PREFIX),
    *mpi.OF_A_NODE,
)
OF_THE_JOB = frozenset(("AZ_BATCH_NODE_LIST",))
"""Variables of the job in spite of their prefix."""

IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
_SERVICE = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_.*)?|_PORT_[0-9]+_(TCP|UDP)(_.*)?)", re.ASCII)
"""Variables of a pod for every service of its namespace; REDIS_PORT=tcp://10.0.0.11:6379 is another form."""

STARTER_NEEDS = (
    *("PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "SSH_AUTH_SOCK"),
    *("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX", "I_MPI_ROOT"),
)


def choose_forwarded(environ: Mapping[str, str], asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the variables that ranks get from this environment, sorted.

    Args:
        environ: The environment of the head.
        asked: Names to forward in any case, ``"WANDB_API_KEY"``; and patterns, ``"SLURM_*"``, for variables
            that would stay here because they belong to this node, but are not secret.
    """
    wanted = (name for name in sorted(environ) if _is_wanted(environ, name, asked))
    return tuple(name for name in wanted if name in asked or not is_secret(name, environ[name]))


def list_withheld(environ: Mapping[str, str], asked: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of variables that are not forwarded only because they are secret, sorted."""
    wanted = (name for name in sorted(environ) if _is_wanted(environ, name, asked))
    return tuple(name for name in wanted if name not in asked and is_secret(name, environ[name]))


def plan_starter_environ(
    environ: Mapping[str, str],
    forwarded: Collection[str],
    variables: Sequence[tuple[str, str]],
) -> dict[str, str]:
    """Return the environment of mpirun itself: the variables that it needs, and those that ranks get.

    It does not get all of the head's. In all four families its own ranks inherit everything that mpirun has,
    so they would see variables that the other ranks do not. MPICH sends all of it to every node, whatever the
    list of names says. And an mpirun that sees SLURM_JOBID takes its hosts from there.

    Args:
        environ: The environment of the head.
        forwarded: From `choose_forwarded`.
        variables: From `launcher.engines.dialects.plan_variables`; they take precedence.
    """
    return {
        **{
            name: value
            for name, value in environ.items()
            if name in forwarded or name in STARTER_NEEDS or _configures_starter(name, value)
        },
        **dict(variables),
    }


def _is_wanted(environ: Mapping[str, str], name: str, asked: Sequence[str]) -> bool:
    value = environ[name]
    if name in asked or any(one.endswith("*") and name.startswith(one[:-1]) for one in asked):
        return True
    if name in OF_A_LOGIN or name.startswith(OF_A_LOGIN_PREFIXES) or _belongs_to_node(name, value):
        return False
    return not (IN_KUBERNETES in environ and _is_service(name, value))


def _belongs_to_node(name: str, value: str) -> bool:
    if name == "CUDA_VISIBLE_DEVICES":
        return any(item.strip().startswith(("GPU-", "MIG-")) for item in value.split(","))
    return name not in OF_THE_JOB and (name in OF_A_NODE or name.startswith(OF_A_NODE_PREFIXES))


def _is_service(name: str, value: str) -> bool:
    links = name.endswith("_PORT") and value.startswith(("tcp://", "udp://"))
    return links or _SERVICE.fullmatch(name) is not None


def _configures_starter(name: str, value: str) -> bool:
    state = name.startswith(("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix")) or name in OF_A_NODE
    return name.startswith(mpi.SETTINGS) and not state and not is_secret(name, value)
