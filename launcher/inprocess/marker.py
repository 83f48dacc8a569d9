"""Marker of the environment hook: the scope and process for which it acted, and the variables that it set.

``LAUNCHER_HOOKED=process/1.4,.,.,.../RANK:5d3c1a2b,...`` has three parts: the scope; rank and size in the
variables of each starter, which distinguish the process of another starter inside this one; and the names of
the variables, each with a checksum of its value, so that a variable that was changed later counts as the
user's.

Python 3.8 and newer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DISABLE = "LAUNCHER_DISABLE"
"""``1`` or ``true``: the launcher does nothing, in an entry point, in ``launcher run`` and in the hook."""
SWITCH = "LAUNCHER_HOOK"
"""``0`` or ``false``: the hook does nothing at all."""
HOOKED = "LAUNCHER_HOOKED"
LAUNCHED = "LAUNCHER_LAUNCHED"
AGENT, OF_AGENT = "TORCHELASTIC_RUN_ID", "GROUP_RANK"
"""Both are set in a process of torchrun, which gets all variables from it; one alone is left over."""
AGENT_STORE, NO_STORE = "TORCHELASTIC_USE_AGENT_STORE", "False"
"""torchrun's agent serves the store for its processes; for the launcher's processes rank 0 serves it."""
CONTRACT = ("RANK", "WORLD_SIZE")
NEARER = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("PALS_RANKID", "PMI_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
)
"""Rank and size variables of starters that may run inside a process that already has its `CONTRACT`."""
REFUSED = "refused"
TOKEN = "LAUNCHER_TOKEN"  # noqa: S105 - a variable's name, not a secret
"""Variable with the secret of the launchers' control channel, which ranks do not get."""


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched off the hook or the whole launcher."""
    return environ.get(DISABLE, "").lower() in ("1", "true") or environ.get(SWITCH, "").lower() in (
        "0",
        "false",
    )


def is_worker(environ: Mapping[str, str]) -> bool:
    """Whether torchrun, or a launcher built on it, has started this process as a rank.

    Processes that this launcher starts itself have the same variables. They are recognized by
    LAUNCHER_LAUNCHED and `NO_STORE`; a torchrun inside such a process sets the latter differently.
    """
    is_ours = environ.get(LAUNCHED) and environ.get(AGENT_STORE) == NO_STORE
    return bool(environ.get(AGENT) and environ.get(OF_AGENT) and not is_ours)


def is_left_over(environ: Mapping[str, str]) -> bool:
    """Whether a starter inside a launched process has set another rank or size than the `CONTRACT`."""
    if not environ.get(LAUNCHED):
        return False
    contract = tuple(environ.get(name) or None for name in CONTRACT)
    found = [tuple(environ.get(name) or None for name in pair) for pair in NEARER]
    return any(None not in pair and pair != contract for pair in found)


def identify(environ: Mapping[str, str]) -> str:
    """Return rank and size in each starter's variables: ``"1.4,.,."``; the hook's shell code makes it too."""
    return ",".join(".".join(environ.get(name, "") for name in pair) for pair in NEARER)


def render_marker(scope: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the marker for a change of the environment by the hook.

    Args:
        scope: ``"process"``, ``"node"``, ``"torchrun"`` or `REFUSED`.
        before: The environment before the change.
        after: The environment after the change.
    """
    names = [name for name, value in after.items() if before.get(name) != value]
    return f"{scope}/{identify(after)}/{','.join(f'{name}:{_sum(after[name])}' for name in sorted(names))}"


def list_set(environ: Mapping[str, str]) -> list[str]:
    """Return the names of variables that the hook has set and that are unchanged; none without a marker."""
    items = (item.partition(":") for item in environ.get(HOOKED, "").rpartition("/")[2].split(","))
    return [name for name, _, told in items if name in environ and _sum(environ[name]) == told]


def undo(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the hook's variables, as the platform and the user set it."""
    gone = {*list_set(environ), HOOKED}
    return {name: value for name, value in environ.items() if name not in gone}


def leave_out(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `undo` and the marker, so that a message can mention the hook."""
    return {**undo(environ), HOOKED: environ[HOOKED]}


def describe_marker(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the plan's note about the hook: at most one sentence."""
    scope, _, rest = environ.get(HOOKED, "").partition("/")
    if not scope:
        return ()
    if scope == REFUSED:
        return ("the environment hook ran in a parent process, found the same problem, and set nothing",)
    names = [item.partition(":")[0] for item in rest.rpartition("/")[2].split(",")]
    return (
        f"the environment hook has acted in a parent process (scope {scope}); the variables that it set "
        f"there are ignored here: {', '.join(names)}",
    )


def needs_action(environ: Mapping[str, str], *, starts_workers: bool) -> bool:
    """Whether variables may be missing in this process.

    Args:
        environ: The environment of a process with signs of a job.
        starts_workers: Whether it is torchrun, which needs other variables than a script.
    """
    if is_worker(environ):  # torchrun has set its variables; on one node alone the platform may have several
        return (environ.get("GROUP_WORLD_SIZE"), environ.get("LOCAL_RANK")) == ("1", "0") and not environ.get(
            HOOKED
        )
    if environ.get(HOOKED):
        scope, *parts = environ[HOOKED].split("/")
        if len(parts) != 2 or parts[0] != identify(environ):  # a starter has acted since
            return True
        return starts_workers and scope in ("process", "node")
    return not environ.get(LAUNCHED) or is_left_over(environ)


def _sum(value: str) -> str:
    """Return a checksum (FNV-1a), without `binascii` and `zlib`, which a file on the path may shadow."""
    found = 2166136261
    for byte in value.encode("utf-8", "surrogateescape"):
        found = (found ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{found:08x}"
