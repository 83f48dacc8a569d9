"""Error messages of ranks that do not find each other, or cannot continue together."""

from __future__ import annotations

from launcher.failure.symptoms.symptom import Symptom

NOT_ALL_TOOK_PART = "a collective timed out: some rank did not take part (hung, slow or gone)"

SYMPTOMS = (
    Symptom(
        "keras-3-strategy",
        ("Attempt to convert a value (PerReplica",),
        "model.fit of Keras 3 cannot take what a strategy of several workers gives it",
        "Keras 2: `pip install tf_keras` and `TF_USE_LEGACY_KERAS=1`; or a loop of your own with "
        "`strategy.run`",
        False,
    ),
    Symptom(
        "nccl-timeout",
        (
            "Watchdog caught collective operation timeout",
            "watchdog got stuck for",
            "timed out in blocking wait (",
            "aught collective operation timeout",
            "NCCL operations have failed or timed out",
            "Timeout at NCCL work",
        ),
        NOT_ALL_TOOK_PART,
        "run `launcher stacks` while it hangs again to find the rank that does something else "
        "(`--stall-timeout 300` does so automatically); if it was only slow, "
        "`init_process_group(timeout=datetime.timedelta(hours=1))`",
        None,
        loud=True,
    ),
    Symptom(
        "gloo-timeout",
        (
            "Timed out waiting*operation to complete",
            "Application timeout caused pair closure",
            "monitoredBarrier",
        ),
        NOT_ALL_TOOK_PART,
        "run `launcher stacks` while it hangs again to find the rank that does something else "
        "(`--stall-timeout 300` does so automatically); if it was only slow, "
        "`init_process_group(timeout=datetime.timedelta(hours=1))`",
        None,
    ),
    Symptom(
        "horovod-rendezvous",
        ("http_store.cc*request failed too many times", "what():*HTTP request failed."),
        "hvd.init() found no rendezvous server",
        "Horovod without mpirun: `launcher run --framework horovod -- python train.py`; otherwise see in "
        "node 0's log why its server ended",
        None,
        loud=True,
    ),
    Symptom(
        "horovod-peer-missing",
        ("http_store.cc*Wait timeout after*key(s)", "memory_store.cc*Wait timeout after*key(s)"),
        "a rank did not join Horovod's rendezvous in time (the key is its rank)",
        "check that rank's log, and whether its node is running; more time: "
        "`HOROVOD_GLOO_TIMEOUT_SECONDS=300`",
        None,
        loud=True,
    ),
    Symptom(
        "local-ranks-differ",
        ("LOCAL_RANK (*) != OMPI_COMM_WORLD_LOCAL_RANK (",),
        "LOCAL_RANK is not what mpirun says",
        "let the launcher set both (`launcher run -- python train.py`), and LOCAL_RANK nowhere else: "
        "`launcher plan -- python train.py` shows what sets it",
        False,
    ),
    Symptom(
        "variables-missing",
        ("rendezvous: environment variable*expected, but not set", "coordinator_address should be defined"),
        "this process has no rank in its environment",
        "`launcher run -- python train.py`; inside of a script that starts processes by itself, pass the "
        "environment on: `env={**os.environ, ...}`",
        False,
    ),
    Symptom(
        "mpi-slots",
        ("There are not enough slots available in the system",),
        "mpirun was asked for more ranks than its hosts have slots",
        "`launcher run --engine mpirun` counts by itself; else `slots=N` in the hostfile, or `mpirun "
        "--oversubscribe`",
        False,
        loud=True,
    ),
    Symptom(
        "mpi-as-root",
        ("has detected an attempt to run as root",),
        "mpirun refuses to run as root by default",
        "`launcher run --engine mpirun` asks for it; else `mpirun --allow-run-as-root`, or another user",
        False,
        loud=True,
    ),
    Symptom(
        "mpi-daemons",
        ("was unable to reliably start one or more daemons",),
        "mpirun could not start its daemons on the other nodes",
        "`launcher run --engine mpirun` brings its own ssh; else: does `ssh HOST hostname` work from here "
        "without a question, and is the same MPI installed there?",
        None,
        loud=True,
    ),
    Symptom(
        "ssh-refused",
        (
            "Permission denied (publickey",
            "Host key verification failed",
            "Permission denied, please try again",
        ),
        "ssh login was refused, or the host key is unknown",
        "keys of the job: `launcher keygen`, `--ssh-key`; `launcher run --engine mpirun` needs no other",
        False,
    ),
    Symptom(
        "ranks-missing",
        (
            "waiting for clients*clients joined",
            "waiting for workers*workers joined",
            "wait timeout after*keys:",
            "Barrier timed out*Wait_for_all_tasks_to_register",
            "cluster registration failed",
            "!CoordinationService/RegisterTask",
            "registration timed out",
            "Barrier timed out*PjRT_Client_Connect",
            "in store based barrier",
            "RendezvousTimeoutError",
            "RuntimeError: Socket Timeout",
            "got error: Socket Timeout",
            "got error: wait timeout",
        ),
        "not all ranks joined the rendezvous",
        "`launcher plan` on each node, with the flags of the job, shows whether WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT are the same; did every node start?",
        None,
    ),
    Symptom(
        "host-unknown",
        (
            "Name or service not known",
            "name resolution",
            "getaddrinfo failed",
            "!cannot be retrieved (gai error",
            "Could not resolve host",
            "nodename nor servname",
            "No address associated with hostname",
        ),
        "a host name does not resolve here",
        "`getent hosts NAME` in this container; an address for the name (`--master-addr 10.0.0.4`), or "
        "correct DNS and /etc/hosts; Kubernetes: a headless service",
        None,
    ),
    Symptom(
        "master-unreachable",
        (
            "client socket has timed out*while trying to connect",
            "client socket has failed to connect",
            "The client socket*has failed*to connect",
            "The connection to the C10d store has failed",
            "client socket cannot be initialized to connect",
        ),
        "rank 0 did not answer at its address",
        "is rank 0 running, and MASTER_PORT open to this node? `launcher check`, with the flags of the job, "
        "looks where MASTER_ADDR leads",
        None,
    ),
    Symptom(
        "port-in-use",
        (
            "EADDRINUSE",
            "Address already in use",
            "address already in use",
            "!Failed to add port to server: ",
            "errno: 98",
            "ort * is already in use",
            "ort is already allocated",
        ),
        "another process listens on this port",
        "another `--master-port` (one node: leave it out), or end the leftover of an earlier job (`ss "
        "-ltnp`)",
        None,
    ),
    Symptom(
        "infiniband-error",
        (
            "NET/IB*Got completion",
            "NET/IB*Got async event",
            "NET/IB*Async event",
            "Call to ibv_modify_qp*failed",
            "ibv_poll_cq*failed",
            "Transport retry count exceeded",
            "IBV_WC_RETRY_EXC_ERR",
            "ibv_open_device failed",
        ),
        "an InfiniBand or RoCE connection between two nodes failed",
        "`launcher bandwidth --pairs` finds the link, `ibstat` its port, `ibdev2netdev` its card; RoCE: "
        "`NCCL_IB_GID_INDEX=3`; over TCP to go on: `NCCL_IB_DISABLE=1`; a longer wait: `NCCL_IB_TIMEOUT=22`",
        True,
        loud=True,
    ),
    Symptom(
        "nccl-no-interface",
        ("no socket interface found", "NET/Socket*no interface found"),
        "NCCL finds none of the network interfaces that it should use",
        "correct or unset `NCCL_SOCKET_IFNAME`: `ip -br address` lists the interfaces of this node",
        False,
        loud=True,
    ),
    Symptom(
        "nccl-system-error",
        ("ncclSystemError", "NCCL*unhandled system error"),
        "a system call of NCCL failed",
        "`NCCL_DEBUG=WARN` names the call; `launcher check` looks at the usual reasons: interfaces, "
        "/dev/shm, the limit of locked memory; the wrong interface: `NCCL_SOCKET_IFNAME=eth0`",
        None,
    ),
    Symptom(
        "nccl-cuda-error",
        ("ncclUnhandledCudaError", "NCCL*unhandled cuda error"),
        "a CUDA call of NCCL failed",
        "`NCCL_DEBUG=WARN` names the call; compare the versions of the driver, CUDA and NCCL: `python -m "
        "torch.utils.collect_env`",
        None,
    ),
    Symptom(
        "nccl-misused",
        (
            "ncclInvalidUsage",
            "ncclInvalidArgument",
            "NCCL*invalid usage",
            "NCCL*invalid argument",
        ),
        "NCCL was called in a way that it does not allow",
        "`NCCL_DEBUG=WARN` says why; usually ranks disagree about sizes, devices or the order of calls: "
        "`TORCH_DISTRIBUTED_DEBUG=DETAIL` names them",
        False,
    ),
    Symptom(
        "nccl-internal-error",
        (
            "ncclInternalError",
            "NCCL*internal error",
        ),
        "NCCL reported an internal error",
        "`NCCL_DEBUG=WARN` says where; another NCCL version may help: `pip install -U nvidia-nccl-cu12`",
        None,
    ),
)
