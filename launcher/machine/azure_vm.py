"""The VM of Azure that we run in: how a container can know its size, and with that what it has.

The size stands in a variable (Azure ML's common runtime), its family in another (what Azure's images
call NCCL_TOPO_FAMILY), else only the instance metadata service knows it. That one is asked where a
caller wants it, never by `read_vm`: outside of Azure there is no answer, and in Kubernetes it is often
blocked.

Source: Microsoft Learn, "Azure Instance Metadata Service".
"""

from __future__ import annotations

from launcher.core.environ import shorten
from launcher.core.frozen import frozen
from launcher.machine.azure_sizes import KINDS, VmKind, bare_size, find_kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

CONTEXT = "AZUREML_CR_COMPUTE_CONTEXT"  # {"cluster_name": ..., "vm_size": "Standard_ND96isr_H100_v5", ...}
FAMILY = "NCCL_TOPO_FAMILY"  # ndv5
BATCH_NODE = "AZ_BATCH_NODE_ID"
ASSET_TAG_FILE = "/sys/class/dmi/id/chassis_asset_tag"
ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
"""What every Azure VM has there, and nothing else (cloud-init tells Azure by it too)."""
IMDS = "http://169.254.169.254"
SIZE_PATH = "/metadata/instance/compute/vmSize?api-version=2021-01-01&format=text"
IMDS_TIMEOUT_S = 1.0
SIZE_LIMIT = 64
"""Longer than any name of a size."""


@frozen
class Vm:
    """The VM that we run in, as far as it is known.

    Attributes:
        size: As told, e.g. ``Standard_ND96isr_H100_v5``; empty if only the family is known.
        kind: None for a size, or a family, that is not in the table.
        origin: What says so.
    """

    size: str
    kind: VmKind | None
    origin: str

    @property
    def name(self) -> str:
        """The size, or the family."""
        return self.size or (self.kind.family if self.kind else "")

    @property
    def gpu_count(self) -> int | None:
        """GPUs that a VM of this size has; None where the name does not tell."""
        counts = self.kind.gpu_counts if self.kind and self.size else ()
        if self.kind is None or len(counts) == 1:
            return counts[0] if counts else None
        found = [count for size, count in zip(self.kind.sizes, counts) if size == bare_size(self.size)]  # noqa: B905 - a pattern has fewer
        return found[0] if found else None


def read_vm(environ: Mapping[str, str]) -> Vm | None:
    """Return the VM that variables speak of; None if none does. No service is asked."""
    size = _read_context(environ.get(CONTEXT, ""))
    if size:
        return Vm(size, find_kind(size), f"{CONTEXT}: vm_size {shorten(size)!r}")
    family = environ.get(FAMILY, "")
    if family:
        wanted = family.strip().lower()
        kinds = [kind for kind in KINDS if kind.family == wanted]
        return Vm("", _in_common(kinds) if kinds else None, f"{FAMILY}={shorten(family)!r}")
    return None


def _in_common(kinds: list[VmKind]) -> VmKind:
    """Return what all members of a family have; ports only where the members agree."""
    first = kinds[0]
    if len({(kind.port_count, kind.rate_gbps, kind.gpu) for kind in kinds}) == 1:
        return first
    return VmKind(
        (),
        None,
        (),
        family=first.family,
        graph=first.graph,
        settings=first.settings,
        switches=first.switches,
        has_imex=first.has_imex,
    )


def _read_context(text: str) -> str:
    """Return ``vm_size`` of the common runtime's JSON; empty where it is null, missing or no name."""
    if "vm_size" not in text:
        return ""
    import json

    try:
        context = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return _as_size(context.get("vm_size") if isinstance(context, dict) else None)


def _as_size(value: object) -> str:
    """Return the name of a size; empty for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    plain = text.isascii() and text.replace("_", "a").replace("-", "a").isalnum()
    return text if plain and len(text) <= SIZE_LIMIT else ""


def is_azure(host: Host, environ: Mapping[str, str]) -> bool:
    """Whether this is certainly a VM of Azure: by its firmware, by Batch, or by a size of the table.

    AZUREML_* alone do not say so: Azure ML also runs jobs in Kubernetes elsewhere.
    """
    if environ.get(BATCH_NODE):
        return True
    vm = read_vm(environ)
    if vm is not None and vm.size and vm.kind is not None:
        return True
    return (host.read_text(ASSET_TAG_FILE) or "").strip() == ASSET_TAG


_asked: dict[str, str] = {}
"""What the service said in this process; a job's VM does not change."""


def ask_size(base_url: str = IMDS, timeout_s: float = IMDS_TIMEOUT_S) -> str:
    """Ask Azure's metadata service for the size of this VM; empty without an answer.

    The connection is direct: a proxy would tell us its own size. It takes at most about ``timeout_s``,
    and no time at all where there is no way to the address.
    """
    if base_url not in _asked:
        _asked[base_url] = _ask(base_url, timeout_s)
    return _asked[base_url]


def _ask(base_url: str, timeout_s: float) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(base_url.removeprefix("http://"), timeout=timeout_s)
    try:
        connection.request("GET", SIZE_PATH, headers={"Metadata": "true"})
        response = connection.getresponse()
        body = response.read(SIZE_LIMIT + 1)
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return _as_size(body.decode("ascii", "replace")) if response.status == 200 else ""


def ask_vm(base_url: str = IMDS) -> Vm | None:
    """Return the VM that the metadata service speaks of; None if it does not answer."""
    size = ask_size(base_url)
    return Vm(size, find_kind(size), "the instance metadata service") if size else None
