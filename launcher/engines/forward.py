"""Chooses the variables that ranks on all nodes get from the head.

Ranks get all variables that may have been set for the job, and none that belong to this node, to a login, or
to the program that started us (``forward.txt``). They get secrets only if the user names them, because values
travel unencrypted, and end in the environment of every process. Everything here is pure.
"""

from __future__ import annotations

import re

from launcher.core import mpi
from launcher.core.blocks import read_blocks
from launcher.core.redact import is_secret
from launcher.frameworks import starters
from launcher.machine.gpus import VISIBLE
from launcher.sources.rows import NODES, PLATFORMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_ROWS = {row.name: row for row in read_blocks("engines/forward.txt")}
OF_A_NODE = frozenset(
    (
        *_ROWS["node"].words("names"),
        *(*starters.CONTRACT, *starters.COUNTED),
        *(row.index for row in NODES),
        *(row.index for row in PLATFORMS.values()),
    )
)
OF_A_NODE_PREFIXES = (*_ROWS["node"].words("prefixes"), *mpi.OF_A_NODE)
STATE = ("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix")
"""Prefixes of what an mpirun above us has set for its processes."""
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"
_SERVICE = re.compile(r".*(_SERVICE_HOST|_SERVICE_PORT(_.*)?|_PORT_[0-9]+_(TCP|UDP)(_.*)?)", re.ASCII)
"""Variables of a pod for every service of its namespace; REDIS_PORT=tcp://10.0.0.11:6379 is another form."""


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
    environ: Mapping[str, str], forwarded: Collection[str], variables: Sequence[tuple[str, str]]
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
    kept = {*forwarded, *_ROWS["mpirun"].words("names")}
    for name, text in environ.items():
        is_state = name.startswith(STATE) or name in OF_A_NODE
        if name.startswith(mpi.SETTINGS) and not is_state and not is_secret(name, text):
            kept.add(name)
    return {**{name: text for name, text in environ.items() if name in kept}, **dict(variables)}


def _is_wanted(environ: Mapping[str, str], name: str, asked: Sequence[str]) -> bool:
    value = environ[name]
    if name in asked or any(one.endswith("*") and name.startswith(one[:-1]) for one in asked):
        return True
    login = _ROWS["login"]
    if name in login.words("names") or name.startswith(login.words("prefixes")) or _is_of_node(name, value):
        return False
    return not (IN_KUBERNETES in environ and _is_service(name, value))


def _is_of_node(name: str, value: str) -> bool:
    if name == VISIBLE:
        return any(item.strip().startswith(("GPU-", "MIG-")) for item in value.split(","))
    is_named = name in OF_A_NODE or name.startswith(OF_A_NODE_PREFIXES)
    return is_named and name not in _ROWS["job"].words("names")


def _is_service(name: str, value: str) -> bool:
    links = name.endswith("_PORT") and value.startswith(("tcp://", "udp://"))
    return links or _SERVICE.fullmatch(name) is not None
