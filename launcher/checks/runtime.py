"""Detects the runtime that started our container, and phrases fixes in its terms.

Source: Docker "docker run" reference; Azure ML "CLI (v2) command job YAML schema" (resources.shm_size,
resources.docker_args); Azure Batch "TaskContainerSettings" (containerRunOptions); Kubernetes "Volumes"
(emptyDir), "Set capabilities for a Container".
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

AZURE_ML, BATCH, KUBERNETES, DOCKER, MACHINE = "Azure ML", "Azure Batch", "Kubernetes", "container", "machine"
RUNTIMES = (AZURE_ML, BATCH, KUBERNETES, DOCKER, MACHINE)
MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman create in a container."""


def find_runtime(host: Host, environ: Mapping[str, str]) -> str:
    """Return the runtime that started our container, of `RUNTIMES`; `MACHINE` if no container is detected."""
    if any(name.startswith("AZUREML_") for name in environ):
        return AZURE_ML
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return KUBERNETES
    if any(host.read_text(path) is not None for path in MARKS) or environ.get("container"):
        return BATCH if environ.get("AZ_BATCH_TASK_ID") else DOCKER
    return MACHINE


def option(runtime: str, words: str, *, kubernetes: str, machine: str) -> str:
    """Return how to give a container an option of ``docker run``.

    Args:
        runtime: The runtime, of `RUNTIMES`.
        words: The option as ``docker run`` takes it, e.g. ``"--ulimit memlock=-1"``.
        kubernetes: What to write in a pod instead.
        machine: What to do without a container.
    """
    return {
        AZURE_ML: f'resources: {{docker_args: "{words}"}} in the YAML of the job',
        BATCH: f'containerRunOptions: "{words}" in the containerSettings of the task',
        KUBERNETES: kubernetes,
        DOCKER: f"docker run {words}",
        MACHINE: machine,
    }[runtime]
