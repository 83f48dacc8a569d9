"""Facts of a node for the roll call: from files and metadata; no process is started, no package imported."""

from __future__ import annotations

import hashlib
import platform
import re
import shlex
import time
from collections import Counter

from launcher.core.environ import is_loopback
from launcher.core.redact import quote_command, redact_variable
from launcher.core.supervision import Restarts
from launcher.core.version import __version__
from launcher.machine.gpus import read_driver_version
from launcher.machine.libraries import find_library
from launcher.machine.packages import NCCLS
from launcher.recovery.bad_nodes import read_machine
from launcher.sources.launched import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Plan, Setting, Topology
    from launcher.machine.host import Host

GPU_FOLDER = "/proc/driver/nvidia/gpus"
MPI_LIBRARIES = {"libmpi.so.40": "Open MPI", "libmpi.so.12": "MPICH or a derivative"}
FABRIC_NOTE = "fabric "
COMMAND_LENGTH = 90
DIGEST_LENGTH = 8
ADDRESSES_MAX = 8
SETTINGS_MAX = 64
NODE_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "OMPI_", "FI_", "HCOLL_", "SHARP_", "TP_", "TENSORPIPE_")
"""Network settings name devices, whose names may differ between nodes; the fabric is compared instead."""
_OF_NODE = re.compile("RANK|LOCAL|HOST|NAME|IFACE|THREADS|VISIBLE|DEVICE")
"""Parts of the names of settings that may differ between nodes."""
RULES_OF_RESTARTS = {
    "per_cause": "--restarts-per-cause",
    "on_any": "--restart-on",
    "never_status": "--no-restart-status",
    "delay_s": "--restart-delay",
    "delay_max_s": "--restart-delay-max",
    "reset_after_s": "--restarts-reset-after",
    "rejoin_timeout_s": "--rejoin-timeout",
}
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def read_facts(
    plan: Plan, command: Sequence[str], host: Host, environ: Mapping[str, str]
) -> dict[str, object]:
    """Return this node's facts: texts and numbers, None if unknown.

    Args:
        plan: The plan of this node.
        command: The user's command, before it became that of each process.
        host: This node.
        environ: The environment that the launcher was started with.
    """
    job = plan.topology
    kinds = _find_gpu_kinds(host)
    return {
        "host": host.hostname(),
        "machine": read_machine(environ) or None,
        "addresses": _find_addresses(host),
        "launcher": __version__,
        "python": platform.python_version(),
        "driver": read_driver_version(host),
        **_find_libraries(plan, host, environ),
        "mpi": _find_mpi(host, environ),
        "gpu_count": plan.machine.gpu_count,
        "gpu_kind": kinds or None,
        "fabric": _find_fabric(plan),
        "node_count": job.node_count,
        "local_size": _find_local_size(job),
        "world_size": job.world_size,
        "engine": plan.engine,
        "restarts": plan.supervision.restarts.most,
        "spares": plan.peers.spare_count if plan.peers else 0,
        "restart_rules": describe_rules(plan.supervision.restarts),
        "command": describe_command(command),
        "settings": _find_settings(plan.settings),
        "wall_ns": time.time_ns(),
    }


def _find_local_size(job: Topology) -> int | None:
    """Return the number of processes per node; None if nodes may differ in it.

    TensorFlow's roles are distributed over the nodes, and torchrun itself counts the nodes that have joined.
    """
    if job.world_size is None or job.local_size is None or job.node_count is None:
        return None
    return job.local_size if job.local_size * job.node_count == job.world_size else None


def describe_rules(rules: Restarts) -> str:
    """Return the flags about restarts that are not the defaults; those with paths of a node are left out."""
    found = []
    for name, flag in RULES_OF_RESTARTS.items():
        value = getattr(rules, name)
        if value != getattr(Restarts(), name):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
            found.append(f"{flag} {'any' if value is True else text}")
    return ", ".join(found) or "the defaults"


def describe_command(argv: Sequence[str]) -> str:
    """Return a command line for people, without secrets, with a digest to compare it by."""
    digest = hashlib.sha256("\0".join(argv).encode("utf-8", "surrogateescape")).hexdigest()[:DIGEST_LENGTH]
    line = quote_command(argv, COMMAND_LENGTH + 1, shlex.join)
    return f"{line[:COMMAND_LENGTH]}{'...' if len(line) > COMMAND_LENGTH else ''} ({digest})"


def _find_addresses(host: Host) -> list[str]:
    found = [address for addresses in host.addresses().values() for address in addresses]
    return [address for address in found if not address.startswith(("127.", "::1", "fe80"))][:ADDRESSES_MAX]


def _find_libraries(plan: Plan, host: Host, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the versions of torch and NCCL that this job uses, as far as known."""
    argv = plan.processes[0].argv if plan.processes else ()
    python = argv[0] if argv else None
    packages = {item.name: item.version for item in host.packages(python, environ) or ()}
    nccl = next((packages[name] for name in NCCLS if name in packages), None)
    if nccl is None and "torch" not in packages:
        nccl = next((item.version for item in find_library(host, environ, "libnccl.so.2")), None) or None
    found: dict[str, object] = {"torch": packages.get("torch"), "nccl": nccl}
    if not plan.machine.gpu_count:
        found["nccl"] = None  # no process uses it
    if any(item.name == "TF_CONFIG" for process in plan.processes for item in process.settings):
        found["torch"] = None  # it may be installed, but does not train
    return found


def _find_mpi(host: Host, environ: Mapping[str, str]) -> str | None:
    for name, family in MPI_LIBRARIES.items():
        for library in find_library(host, environ, name):
            return f"{family}, {name} {library.version}".rstrip()
    return None


def _find_gpu_kinds(host: Host) -> str:
    """Return e.g. ``8 x NVIDIA H100``, from the driver's list of GPUs."""
    texts = [
        host.read_text(f"{GPU_FOLDER}/{name}/information") or "" for name in host.list_folder(GPU_FOLDER)
    ]
    kinds = Counter(match[1] for text in texts if (match := _MODEL.search(text)))
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def _find_fabric(plan: Plan) -> str | None:
    note = next((note for note in plan.notes if note.startswith(FABRIC_NOTE)), "")
    return note.removeprefix(FABRIC_NOTE).partition(":")[0] or None


def _find_settings(settings: tuple[Setting, ...]) -> dict[str, str]:
    """Return the variables that should be the same for the processes of all nodes."""
    common = {
        item.name: redact_variable(item.name, item.value)
        for item in settings
        if item.name != MARKER  # the version of the launcher, which is compared itself
        and not _OF_NODE.search(item.name)
        and not item.name.startswith(NODE_PREFIXES)
        and not is_loopback(item.value.rpartition(":")[0] or item.value)  # node 0 may call itself so
    }
    return dict(sorted(common.items())[:SETTINGS_MAX])
