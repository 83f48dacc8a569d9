"""What all checks look at: the machine, its environment, and the job as far as it is known."""

from __future__ import annotations

from launcher.checks.runtime import find_runtime
from launcher.frozen import frozen
from launcher.host import Host
from launcher.machine.gpus import count_visible_gpus
from launcher.machine.infiniband import Port
from launcher.machine.packages import Package
from launcher.model import Plan, Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PYTHON = "python"


@frozen
class Case:
    """A machine with a job on it.

    Attributes:
        host: The machine.
        environ: The environment that the launcher was started with.
        runtime: Who started our container; see `launcher.checks.runtime`.
        exposed_count: GPUs whose device files we have; None if unknown.
        visible_count: Those of them that CUDA would find; None if unknown.
        ports: Of RDMA devices.
        packages: Of the Python that the job would run; None if it cannot be told.
        process_count: Processes of the job on this node, at least 1.
        spans_nodes: Whether the job has several nodes, or may have.
        node_rank: Index of this node; None if unknown.
        is_master: Whether rank 0 is here: it listens on the port of the rendezvous.
        master_addr: Host of the rendezvous; empty if unknown, or if there is none.
        master_port: Its port; 0 with no address.
        hosts: The nodes, if somebody lists them.
        log_dir: Folder of log files, None without one.
        vm: Size of the VM as its cloud calls it; empty if unknown.
        vm_gpu_count: GPUs that a VM of this size has; None if unknown.
        vm_port_count: InfiniBand ports that it has; None if unknown.
    """

    host: Host
    environ: Mapping[str, str]
    runtime: str
    exposed_count: int | None = None
    visible_count: int | None = None
    ports: tuple[Port, ...] = ()
    packages: tuple[Package, ...] | None = None
    process_count: int = 1
    spans_nodes: bool = False
    node_rank: int | None = None
    is_master: bool = False
    master_addr: str = ""
    master_port: int = 0
    hosts: tuple[str, ...] = ()
    log_dir: str | None = None
    vm: str = ""
    vm_gpu_count: int | None = None
    vm_port_count: int | None = None

    def version_of(self, *names: str) -> tuple[str, str]:
        """Return (name, version) of the first of these packages that is installed, else two empty texts."""
        found = (package for name in names for package in self.packages or () if package.name == name)
        package = next(found, None)
        return (package.name, package.version) if package else ("", "")


def read_case(host: Host, environ: Mapping[str, str], plan: Plan | None, command: Sequence[str]) -> Case:
    """Read what several checks need.

    Args:
        host: The machine, or a recorded one.
        environ: Its environment.
        plan: Of the job; None if there is none that could be made.
        command: The command line of the job, for its Python; may be empty.
    """
    exposed = host.gpu_count()
    return Case(
        host=host,
        environ=environ,
        runtime=find_runtime(host, environ),
        exposed_count=exposed,
        visible_count=count_visible_gpus(exposed, environ.get("CUDA_VISIBLE_DEVICES")),
        ports=host.hca_ports(),
        packages=_read_packages(host, environ, command),
        **(_read_job(plan) if plan else {}),
    )


def _read_packages(
    host: Host, environ: Mapping[str, str], command: Sequence[str]
) -> tuple[Package, ...] | None:
    """Return the packages of the command's Python; of a command that is none, those of ``python``."""
    name = command[0] if command else ""
    is_python = name.rpartition("/")[2].startswith(PYTHON)
    found = host.packages(name if is_python else PYTHON, environ)
    return host.packages(None, environ) if found is None and not is_python else found


def _read_job(plan: Plan) -> dict[str, Any]:
    topology, allocation = plan.topology, plan.allocation
    nodes, world = topology.node_count, topology.world_size
    several = nodes > 1 if nodes is not None else world is None or world > (topology.local_size or 1)
    first = allocation.rank == 0 if allocation.scope is Scope.PROCESS else topology.node_rank == 0
    return {
        "process_count": max(1, topology.local_size or len(topology.places)),
        "spans_nodes": several,
        "node_rank": topology.node_rank,
        "is_master": first or not several,
        "master_addr": topology.master_addr,
        "master_port": topology.master_port if topology.master_addr else 0,
        "hosts": allocation.hosts,
        "log_dir": plan.supervision.log_dir,
    }
