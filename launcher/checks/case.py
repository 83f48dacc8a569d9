"""The input of all checks: the node, its environment, and the job as far as it is known.

Source: Docker "docker run" reference; Azure ML "CLI (v2) command job YAML schema" (resources.shm_size,
resources.docker_args); Azure Batch "TaskContainerSettings" (containerRunOptions); Kubernetes "Volumes"
(emptyDir), "Set capabilities for a Container".
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.core.model import Plan, Scope
from launcher.machine import count_visible
from launcher.machine.azure import Vm, ask_vm, is_azure, read_vm
from launcher.machine.gpus import count_gpus
from launcher.machine.infiniband import read_ports
from launcher.planning.parts import GLOO_INTERFACE, find_interface

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from launcher.machine.host import Host
    from launcher.machine.infiniband import Port
    from launcher.machine.packages import Package

AZURE_ML, BATCH, KUBERNETES, DOCKER, MACHINE = "Azure ML", "Azure Batch", "Kubernetes", "container", "machine"
RUNTIMES = (AZURE_ML, BATCH, KUBERNETES, DOCKER, MACHINE)
MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman create in a container."""
PYTHON = "python"
AMD = "MI"
"""Prefix of the names of AMD's GPUs."""


@frozen
class CheckedNode:
    """A node with a job on it.

    Attributes:
        host: The node, or a recorded one.
        environ: The environment that the launcher was started with.
        runtime: What started our container, of `RUNTIMES`.
        exposed_count: Number of GPUs whose device files we have; None if unknown.
        visible_count: Number of those that CUDA would find; None if unknown.
        ports: Ports of RDMA devices.
        packages: Packages of the Python that the job would run; None if unknown.
        process_count: Number of the job's processes on this node, at least 1.
        spans_nodes: Whether the job has, or may have, several nodes.
        node_rank: Rank of this node; None if unknown.
        is_master: Whether rank 0, which listens on the port of the rendezvous, is on this node.
        master_addr: Host of the rendezvous; empty if unknown, or if there is none.
        master_port: Port of the rendezvous; 0 without a host, and if any free port will do.
        gloo_interface: The interface that the plan sets for gloo; empty if it sets none.
        hosts: Hosts of the nodes; empty if they are not listed.
        planned: Names of the variables that the launcher sets for processes on this node.
        log_dir: Directory of log files; None without one.
        vm: The VM that we run in, by variables, a snapshot or Azure's metadata service; None if unknown.
        health_commands: The site's own checks.
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
    gloo_interface: str = ""
    hosts: tuple[str, ...] = ()
    planned: frozenset[str] = frozenset()
    log_dir: str | None = None
    vm: Vm | None = None
    health_commands: tuple[tuple[str, ...], ...] = ()

    @property
    def vm_gpu_counts(self) -> tuple[int | None, int | None]:
        """Numbers of NVIDIA's and AMD's GPUs of every VM of this size; None if unknown, or for a pod."""
        is_pod = bool(self.environ.get("KUBERNETES_SERVICE_HOST"))
        if self.vm is None or is_pod:
            return None, None
        is_amd = self.vm.kind is not None and (self.vm.kind.gpu or "").startswith(AMD)
        return (None, self.vm.gpu_count) if is_amd else (self.vm.gpu_count, None)

    @property
    def vm_port_count(self) -> int | None:
        """Number of InfiniBand ports of every VM of this size; None if unknown."""
        return self.vm.kind.port_count if self.vm and self.vm.kind and self.vm.size else None

    def option(self, words: str, *, kubernetes: str, machine: str, azure_ml: str = "") -> str:
        """Return how to give our container an option of ``docker run``.

        Args:
            words: The option as ``docker run`` takes it, e.g. ``"--ulimit memlock=-1"``.
            kubernetes: What to write in a pod instead.
            machine: What to do without a container.
            azure_ml: What to do in Azure ML, if it does not take the option.
        """
        return {
            AZURE_ML: azure_ml or f'resources: {{docker_args: "{words}"}} in the YAML of the job',
            BATCH: f'containerRunOptions: "{words}" in the containerSettings of the task',
            KUBERNETES: kubernetes,
            DOCKER: f"docker run {words}",
            MACHINE: machine,
        }[self.runtime]

    def version_of(self, *names: str) -> tuple[str, str]:
        """Return (name, version) of the first of these packages that is installed; else two empty texts."""
        found = (package for name in names for package in self.packages or () if package.name == name)
        package = next(found, None)
        return (package.name, package.version) if package else ("", "")


def find_runtime(host: Host, environ: Mapping[str, str]) -> str:
    """Return the runtime that started our container, of `RUNTIMES`; `MACHINE` if no container is detected."""
    if any(name.startswith("AZUREML_") for name in environ):
        return AZURE_ML
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return KUBERNETES
    if any(host.read_text(path) is not None for path in MARKS) or environ.get("container"):
        return BATCH if environ.get("AZ_BATCH_TASK_ID") else DOCKER
    return MACHINE


def read_case(
    host: Host,
    environ: Mapping[str, str],
    plan: Plan | None,
    command: Sequence[str],
    *,
    asks: bool = False,
    health_commands: tuple[tuple[str, ...], ...] = (),
) -> CheckedNode:
    """Read the facts that several checks need.

    Args:
        host: The node, or a recorded one.
        environ: Its environment.
        plan: Plan of the job; None if none could be made.
        command: Command line of the job, which names its Python; may be empty.
        asks: Whether Azure's metadata service may be asked for the size of the VM, if this is an Azure VM.
        health_commands: The site's own checks.
    """
    exposed, vm = count_gpus(host), read_vm(environ)
    if vm is None and (host.is_recorded() or (asks and is_azure(host, environ))):
        vm = ask_vm(host)  # takes up to a second
    return CheckedNode(
        host=host,
        environ=environ,
        runtime=find_runtime(host, environ),
        exposed_count=exposed,
        visible_count=count_visible(host, environ),
        ports=read_ports(host),
        packages=_read_packages(host, environ, command),
        vm=vm,
        health_commands=health_commands,
        **(_read_job(plan, environ) if plan else {}),
    )


def _read_packages(
    host: Host, environ: Mapping[str, str], command: Sequence[str]
) -> tuple[Package, ...] | None:
    """Return the packages of the command's Python; of any other command those of ``python``, or of ours."""
    name = command[0] if command else ""
    is_python = name.rpartition("/")[2].startswith(PYTHON)
    found = host.packages(name if is_python else PYTHON, environ)
    return host.packages(None, environ) if found is None and not is_python else found


def _read_job(plan: Plan, environ: Mapping[str, str]) -> dict[str, Any]:
    topology, allocation = plan.topology, plan.allocation
    settings = [
        *plan.settings,
        *(plan.agent.settings if plan.agent else ()),
        *(setting for process in plan.processes for setting in process.settings),
        *(setting for companion in plan.companions for setting in companion.settings),
    ]
    first = allocation.rank == 0 if allocation.scope is Scope.PROCESS else topology.node_rank == 0
    return {
        "process_count": max(1, topology.local_size or len(topology.places)),
        "spans_nodes": topology.spans_nodes,
        "node_rank": topology.node_rank,
        "is_master": first or not topology.spans_nodes,
        "master_addr": topology.master_addr,
        "master_port": topology.master_port if topology.master_addr and not plan.takes_free_port else 0,
        "gloo_interface": "" if environ.get(GLOO_INTERFACE) else find_interface(settings, environ),
        "hosts": allocation.hosts,
        "planned": frozenset(setting.name for setting in settings),
        "log_dir": plan.supervision.log_dir,
    }
