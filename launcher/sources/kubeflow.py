"""Pods of Kubeflow's PyTorchJob and of its JAX jobs: RANK and WORLD_SIZE count different units.

In a PyTorchJob, also of Run:ai, RANK is the index of the *pod*, but WORLD_SIZE is pods times processes per
pod. So RANK is no rank in that world. The Trainer (v2) sets PET_* for PyTorch (see `torch_agent`). An MPIJob
is recognized by its mpirun (`open_mpi`), and a TFJob by TF_CONFIG (`tensorflow`).

In a JAX job (JAXJob, Trainer v2) a pod is one process with all GPUs of the pod, so the launcher never starts
more than one there.

Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/{pytorch,jax}/envvar.go;
kubeflow/pytorch-operator pkg/controller.v1/pytorch/pod.go, setClusterSpec; kubeflow/trainer
pkg/runtime/framework/plugins/jax; docs.run.ai "Environment variables".
"""

from __future__ import annotations

from launcher.core.environ import Malformed, is_loopback, parse_int
from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader
from launcher.sources.signs import FLAGS
from launcher.sources.torch_env import KUBEFLOW, MASTER_ADDR, PODS, RANK, WORLD_SIZE, counts_nodes

NODES, KUBERNETES, GPUS, *_ = MARKERS["kubeflow"]
PROCESSES = "PET_NPROC_PER_NODE"
INDEX = "JOB_COMPLETION_INDEX"
COORDINATOR_PORT = "COORDINATOR_PORT"
JAXJOB = ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS")
TRAINER = ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS")  # JAX itself reads them too


def read(reader: Reader) -> None:
    """Claim a PyTorchJob's pod as a node with one launcher, and a JAX job's pod as one process."""
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, trust=Trust.DERIVED)
    if counts_nodes(reader) in (KUBEFLOW, *PODS) and reader.has(RANK):
        reader.starts = Scope.NODE
        node = reader.claim_int(Fact.NODE_RANK, RANK)
        _read_pods(reader)
        if node == 0 and is_loopback(reader.text(MASTER_ADDR) or ""):
            # The operator before PET_* sets localhost on the master pod, and the pod's name on all others
            reader.claim(Fact.MASTER_ADDR, reader.host.hostname(), "name of this pod, the master's own")
    for names, is_job in ((JAXJOB, True), (TRAINER, False)):
        index, count, coordinator = names
        named = (*names, COORDINATOR_PORT) if is_job else names
        if sum(map(reader.has, named)) > 1:  # a single one may be unrelated: its name is common
            _read_jax(reader, *names, is_pod=is_job or reader.has(KUBERNETES, INDEX))
            return
        reader.claim_host(Fact.MASTER_ADDR, coordinator)
        is_several = reader.has(count) and (reader.integer(count) or 2) > 1
        if is_several and reader.has(KUBERNETES, COORDINATOR_PORT):
            reader.sign(count, f"pass {index} and {coordinator} too, or {FLAGS}")


def _read_jax(reader: Reader, index: str, count: str, coordinator: str, *, is_pod: bool) -> None:
    reader.claim_process((index, count))
    reader.claim_host(Fact.MASTER_ADDR, coordinator)
    if is_pod:  # else set by a user, who may have started several on this node
        reader.starts = Scope.PROCESS
        reader.claim(Fact.LOCAL_RANK, 0, "one process per pod", Trust.DERIVED)
        reader.claim(Fact.LOCAL_SIZE, 1, "one process per pod", Trust.DERIVED)
        reader.claim_numbers(((Fact.NODE_RANK, index), (Fact.NODE_COUNT, count)), Trust.DERIVED)


def _read_pods(reader: Reader) -> None:
    others = reader.matching("PET_", "")
    if not others:  # the operator before PET_*: one process per pod
        reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE)
    elif not reader.has(NODES):
        reader.sign(others[0], f"pass {NODES} too, or {FLAGS}")  # WORLD_SIZE counts processes
    else:
        world = reader.integer(WORLD_SIZE, 1)
        try:
            expected = parse_int(reader.text(NODES) or "", 1) * parse_int(reader.text(PROCESSES) or "1", 1)
        except Malformed:
            return  # "auto" counts as 1 in WORLD_SIZE, so it cannot be compared
        if world not in (None, expected):
            reader.contradict(WORLD_SIZE, PROCESSES, f"{reader.origin(NODES)} x {reader.origin(PROCESSES)}")
