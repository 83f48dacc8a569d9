"""Pods of Kubeflow's PyTorchJob and JAXJob: RANK and WORLD_SIZE count in two different units.

In a PyTorchJob RANK is the index of the *pod* while WORLD_SIZE is pods times processes per pod, so
the pair is not a rank in a world. The Trainer (v2) sets only PET_* (see `torch_agent`); an MPIJob
shows itself through mpirun (`open_mpi`); a TFJob through TF_CONFIG (`tensorflow`).

In a JAXJob a pod is one process of JAX with all GPUs of the pod, so the launcher never multiplies it.

Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/{pytorch,jax}/envvar.go;
kubeflow/pytorch-operator pkg/controller.v1/pytorch/pod.go, setClusterSpec.
"""

from __future__ import annotations

from launcher.environ import Malformed, Reader, is_loopback, parse_int
from launcher.model import Fact, Scope, Trust

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
PODS = "PET_NNODES"
PROCESSES = "PET_NPROC_PER_NODE"
KUBERNETES = "KUBERNETES_SERVICE_HOST"
MASTER_ADDR = "MASTER_ADDR"
PROCESS_ID = "PROCESS_ID"
NUM_PROCESSES = "NUM_PROCESSES"
COORDINATOR = "COORDINATOR_ADDRESS"


def counts_pods(reader: Reader) -> bool:
    """Whether RANK in this environment is the index of a pod: set, without a LOCAL_RANK."""
    in_pod = reader.has(PODS) or reader.has(KUBERNETES)
    return in_pod and reader.has(RANK) and not reader.has("LOCAL_RANK")


def read(reader: Reader) -> None:
    """One launcher per pod, and a pod is a node."""
    if counts_pods(reader):
        reader.starts = Scope.NODE
        node = reader.claim_int(Fact.NODE_RANK, RANK)
        _read_pods(reader)
        if node == 0 and is_loopback(reader.text(MASTER_ADDR) or ""):
            _claim_own_name(reader)
    elif reader.has(PROCESS_ID) and reader.has(COORDINATOR):
        reader.starts = Scope.PROCESS
        _read_jax(reader)


def _claim_own_name(reader: Reader) -> None:
    # The operator before PET_* says localhost on the master pod, and its name on all others
    reader.claim(Fact.MASTER_ADDR, reader.host.hostname(), "name of this pod, the master's own")
    reader.note(f"{reader.origin(MASTER_ADDR)} on the master pod is this pod: its name is used instead")


def _read_jax(reader: Reader) -> None:
    rank = reader.claim_int(Fact.RANK, PROCESS_ID)
    world = reader.claim_int(Fact.WORLD_SIZE, NUM_PROCESSES, 1)
    reader.claim(Fact.LOCAL_RANK, 0, "one process per pod", Trust.DERIVED)
    reader.claim(Fact.LOCAL_SIZE, 1, "one process per pod", Trust.DERIVED)
    if rank is not None:
        reader.claim(Fact.NODE_RANK, rank, PROCESS_ID, Trust.DERIVED)
    if world is not None:
        reader.claim(Fact.NODE_COUNT, world, NUM_PROCESSES, Trust.DERIVED)
    reader.claim_host(Fact.MASTER_ADDR, COORDINATOR)


def _read_pods(reader: Reader) -> None:
    if not reader.has(PODS):
        reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE, 1)  # the operator before PET_*: one each
        return
    pods, world = reader.text(PODS), reader.integer(WORLD_SIZE, 1)
    processes = reader.text(PROCESSES) or "1"
    try:
        expected = parse_int(pods or "", 1) * parse_int(processes, 1)
    except Malformed:
        return  # "auto" counts as 1 in WORLD_SIZE: nothing to compare with
    if world not in (None, expected):
        reader.note(f"{reader.origin(WORLD_SIZE)} is not {PODS} x {PROCESSES}: not used")
