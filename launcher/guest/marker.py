"""What the environment hook leaves behind: which launcher has acted, for which process, and what it has set.

``LAUNCHER_HOOKED=process/1.4,.,.,.../RANK:5d3c1a2b,...``: the scope; rank and size as each starter says
them (so that a process of another starter, inside of this one, is told apart); the names, each with a
checksum of its value, so that what was changed since is the user's.

Python 3.8 and newer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DISABLE = "LAUNCHER_DISABLE"
"""``1`` or ``true``: nothing of the launcher acts, in an entry point, ``launcher run`` or the hook."""
SWITCH = "LAUNCHER_HOOK"
"""``0`` or ``false``: the hook does nothing at all."""
HOOKED = "LAUNCHER_HOOKED"
LAUNCHED = "LAUNCHER_LAUNCHED"
AGENT, OF_AGENT = "TORCHELASTIC_RUN_ID", "GROUP_RANK"
"""Both: a worker of torchrun, which has the whole contract from it; one without the other is left over."""
AGENT_STORE, NO_STORE = "TORCHELASTIC_USE_AGENT_STORE", "False"
"""torchrun's agent serves the store of its workers; a launched process has rank 0 serve it."""
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
"""Starters whose processes may be inside of a process that has its contract already: rank and size."""
REFUSED = "refused"
TOKEN = "LAUNCHER_TOKEN"  # noqa: S105 - its name
"""The key to the launchers' own channel, which is no rank's."""


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether the user has switched the hook off, or all of the launcher."""
    return environ.get(DISABLE, "").lower() in ("1", "true") or environ.get(SWITCH, "").lower() in (
        "0",
        "false",
    )


def is_worker(environ: Mapping[str, str]) -> bool:
    """Whether torchrun, or a launcher that is one inside, has started this process as a rank.

    Processes of this launcher have the same variables: what it left there counts first, but for a torchrun
    inside of such a process.
    """
    is_ours = environ.get(LAUNCHED) and environ.get(AGENT_STORE) == NO_STORE
    return bool(environ.get(AGENT) and environ.get(OF_AGENT) and not is_ours)


def is_left_over(environ: Mapping[str, str]) -> bool:
    """Whether a starter inside of a launched process speaks of another rank or world."""
    if not environ.get(LAUNCHED):
        return False
    contract = tuple(environ.get(name) or None for name in CONTRACT)
    found = [tuple(environ.get(name) or None for name in pair) for pair in NEARER]
    return any(None not in pair and pair != contract for pair in found)


def identify(environ: Mapping[str, str]) -> str:
    """Return rank and size as the starters say them: ``"1.4,.,."``; a shell makes the same text."""
    return ",".join(".".join(environ.get(name, "") for name in pair) for pair in NEARER)


def render_marker(scope: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the marker of a hook that has made one environment of another.

    Args:
        scope: ``"process"``, ``"node"``, ``"torchrun"`` or `REFUSED`.
        before: The environment that it found.
        after: What it made of that.
    """
    names = [name for name, value in after.items() if before.get(name) != value]
    return f"{scope}/{identify(after)}/{','.join(f'{name}:{_sum(after[name])}' for name in sorted(names))}"


def has_acted(environ: Mapping[str, str]) -> bool:
    """Whether the hook has acted for this very process, or around it and it was not started anew since."""
    parts = environ.get(HOOKED, "").split("/")
    return len(parts) == 3 and parts[1] == identify(environ)


def list_set(environ: Mapping[str, str]) -> list[str]:
    """Return the names that the hook has set, unchanged since; none without a marker."""
    items = (item.partition(":") for item in environ.get(HOOKED, "").rpartition("/")[2].split(","))
    return [name for name, _, told in items if name in environ and _sum(environ[name]) == told]


def undo(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment less what the hook has set: as the platform and the user gave it."""
    gone = {*list_set(environ), HOOKED}
    return {name: value for name, value in environ.items() if name not in gone}


def leave_out(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `undo` with the marker itself: for a message that the hook has acted."""
    return {**undo(environ), HOOKED: environ[HOOKED]}


def describe_marker(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a plan says of the hook, as at most one sentence."""
    scope, _, rest = environ.get(HOOKED, "").partition("/")
    if not scope:
        return ()
    if scope == REFUSED:
        return ("the environment hook found in a process around this one what stands here, and set nothing",)
    names = [item.partition(":")[0] for item in rest.rpartition("/")[2].split(",")]
    return (
        f"the environment hook has acted in a process around this one (scope {scope}); what it set there "
        f"counts for nothing here: {', '.join(names)}",
    )


def needs_action(environ: Mapping[str, str], *, starts_workers: bool) -> bool:
    """Whether variables may be missing here.

    Args:
        environ: The environment of a process that has signs of a job.
        starts_workers: It is torchrun, which wants other variables than a script.
    """
    if is_worker(environ):
        return False
    if environ.get(HOOKED):
        return not has_acted(environ) or (
            starts_workers and environ[HOOKED].startswith(("process/", "node/"))
        )
    return not environ.get(LAUNCHED) or is_left_over(environ)


def _sum(value: str) -> str:
    """Return a checksum (FNV-1a): `binascii` and `zlib` may be files, which another can stand in front of."""
    found = 2166136261
    for byte in value.encode("utf-8", "surrogateescape"):
        found = (found ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{found:08x}"
