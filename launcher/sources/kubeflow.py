"""Pods of Kubeflow's PyTorchJob and JAXJob: RANK and WORLD_SIZE count in two different units.

In a PyTorchJob RANK is the index of the *pod* while WORLD_SIZE is pods times processes per pod, so
the pair is not a rank in a world. The Trainer (v2) sets only PET_* (see `torch_agent`); an MPIJob
shows itself through mpirun (`open_mpi`); a TFJob through TF_CONFIG (`tensorflow`).

Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/{pytorch,jax}/envvar.go.
"""

from __future__ import annotations

from launcher.environ import Reader
from launcher.model import Fact, Scope

RANK = "RANK"
WORLD_SIZE = "WORLD_SIZE"
PODS = "PET_NNODES"
PROCESSES = "PET_NPROC_PER_NODE"
KUBERNETES = "KUBERNETES_SERVICE_HOST"
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
        reader.claim_int(Fact.NODE_RANK, RANK)
        _read_pods(reader)
    elif reader.has(PROCESS_ID) and reader.has(COORDINATOR):
        reader.starts = Scope.NODE
        reader.claim_int(Fact.NODE_RANK, PROCESS_ID)
        reader.claim_int(Fact.NODE_COUNT, NUM_PROCESSES, 1)
        reader.claim_host(Fact.MASTER_ADDR, COORDINATOR)


def _read_pods(reader: Reader) -> None:
    if not reader.has(PODS):
        reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE, 1)  # the operator before PET_*: one each
        return
    pods, world = reader.text(PODS), reader.integer(WORLD_SIZE, 1)
    processes = reader.text(PROCESSES) or "1"
    if world is None or not (pods or "").isdecimal() or not processes.isdecimal():
        return  # "auto" counts as 1 in WORLD_SIZE: nothing to compare with
    if world != int(pods or "0") * int(processes):
        reader.note(f"{reader.origin(WORLD_SIZE)} is not {PODS} x {PROCESSES}: not used")
