"""Consequences: error messages of a process that has only lost another one."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

LOST_PEER = "this rank lost a peer: look for the first failure elsewhere"
NETWORK_FIX = "see the other ranks' logs for what happened before; `NCCL_DEBUG=INFO` tells more"
OTHERS_FIX = (
    "see the other ranks' logs for what happened before: `launcher run --log-dir logs -- python train.py` "
    "keeps one for each"
)


def lost_peer(code: str, patterns: tuple[str, ...], fix: str = OTHERS_FIX, *, loud: bool = False) -> Symptom:
    """Return a symptom of a process that has lost another rank."""
    return Symptom(code, patterns, LOST_PEER, fix, True, consequence=True, loud=loud)


SYMPTOMS = (
    lost_peer(
        "nccl-peer-lost",
        (
            "ncclRemoteError",
            "remote process exited or there was a network error",
            "NCCL*Connection closed by remote peer",
            "NCCL communicator was aborted",
        ),
        NETWORK_FIX,
        loud=True,
    ),
    lost_peer(
        "horovod-peer-lost",
        (
            "Horovod has been shut down. This was caused by an exception on one of the ranks",
            "HorovodInternalError",
        ),
    ),
    lost_peer(
        "tensorflow-peer-lost",
        (
            "Collective ops is aborted by",
            "/job:worker*Connection reset by peer",
        ),
        loud=True,
    ),
    lost_peer(
        "jax-peer-lost",
        (
            "tasks are unhealthy (stopped sending heartbeats)",
            "JAX distributed service detected fatal errors",
            "The tasks have crashed. Check the task logs",
            "Failed to send RPC to coordination service",
            "coordination service*heartbeat timeout",
        ),
        loud=True,
    ),
    lost_peer(
        "gloo-peer-lost",
        (
            "gloo*Connection closed by peer",
            "gloo*Connection reset by peer",
            "gloo*Read error",
            "gloo*Write error",
            "gloo*Broken pipe",
            "Gloo connectFullMesh failed",
        ),
    ),
    Symptom(
        "store-lost",
        (
            "Did the remote server shutdown or crash?",
            "recvValue failed on",
            "recvValueWithTimeout failed on",
            "sendBytes failed on",
        ),
        "this rank lost the store on rank 0: look for the first failure elsewhere",
        "see rank 0's log for what happened before: `launcher run --log-dir logs -- python train.py` keeps "
        "one for each rank",
        True,
        consequence=True,
    ),
    Symptom(
        "connection-lost",
        (
            "Connection reset by peer",
            "Connection closed by peer",
            "ConnectionResetError",
            "BrokenPipeError",
            "Broken pipe",
            "RemoteDisconnected",
            "Socket closed",
        ),
        "the other side closed a connection: look for the first failure there",
        "the line says which connection, if it is known; `launcher status` and the other ranks' logs "
        "(`--log-dir logs`) say what ended there",
        True,
        consequence=True,
    ),
    Symptom(
        "connection-refused",
        ("Connection refused", "failed to connect to all addresses"),
        "nothing listened at that address: look for the first failure there",
        "is the other side running, is its address right, does a firewall close the port? `ss -ltnp` there "
        "shows what listens",
        None,
        consequence=True,
    ),
)
