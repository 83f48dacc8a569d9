"""DeepSpeed's own command: the hostfile that it reads, and its autotuner. Loaded only for these.

The autotuner runs only on node 0, and starts experiments on all nodes by "ssh". The other nodes serve until
it ends, as for mpirun.

Source: deepspeed/launcher/runner.py, fetch_hostfile; autotuning/scheduler.py, launcher/multinode_runner.py
(0.19).
"""

from __future__ import annotations

import os
from contextlib import suppress

from launcher.core.environ import Malformed, parse_int
from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import replace
from launcher.engines import wrapped
from launcher.engines.mpirun import HOSTFILE, plan_fleet, plan_server
from launcher.machine.own_names import own_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.command.launchers import Command
    from launcher.core.model import Machine, NodeCommand, Topology
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host

WHO = "the autotuner"
VISIBLE = "CUDA_VISIBLE_DEVICES"
DEFAULT = "/job/hostfile"
EXPERIMENTS = 64
"""Ports from the master port on that experiments may use, one after the other: none may be a control port."""
FILTERS = ("include", "i", "exclude", "e", "num_nodes", "num_gpus", "num_accelerators")
"""Its flags that choose among the nodes and GPUs of the hostfile."""


def check_hostfile(own: Command, topology: Topology, machine: Machine, host: Host) -> None:
    """Check the hostfile that DeepSpeed's command reads.

    Raises:
        UsageError: It names other nodes than the job has, or more processes than this node has GPUs.
    """
    path, nodes = own.value("hostfile", "H"), topology.node_count or 1
    if nodes == 1:  # with a file of the user's DeepSpeed itself starts its nodes from here
        found = [] if path else _read(host.read_text(DEFAULT))
        foreign = [name for name, _ in found if name != "localhost" and not own_places(host, (name,))]
        if foreign:
            raise UsageError(_starts_others(foreign))
        return
    text = host.read_text(os.path.abspath(path)) if path else None
    if path is None or (text is None and host.is_recorded()) or own.has(*FILTERS):
        return
    entries = _read(text)
    if len(entries) != nodes:
        what = f"{len(entries)} nodes that DeepSpeed can read, and the job has {nodes}"
        raise UsageError(_misfit(path, what, "one line NAME slots=N for each node, node 0 first"))
    name, slots = entries[topology.node_rank or 0]
    if topology.node_rank is not None and slots > (machine.gpu_count or slots):
        what = f"{name} slots={slots}, and this node has {machine.gpu_count} GPUs"
        raise UsageError(_misfit(path, what, f"slots={machine.gpu_count}"))


def _read(text: str | None) -> list[tuple[str, int]]:
    """Return the nodes and slots that DeepSpeed understands; it stops by itself at any other line."""
    entries = []
    for words in (line.split() for line in (text or "").splitlines()):
        if len(words) > 1 and not words[0].startswith("#"):
            with suppress(Malformed):
                entries.append((words[0], parse_int(words[1].removeprefix("slots="))))
    return entries


def _starts_others(foreign: list[str]) -> Problem:
    return Problem(
        "default-hostfile",
        f"{DEFAULT} exists, and deepspeed reads it by default: it would start processes on "
        f"{', '.join(foreign[:4])}, by ssh, in a job of one node",
        "this node",
        f"for a job of these nodes start the launcher on each with --hostfile {DEFAULT}; for this node alone "
        "pass deepspeed a hostfile of its own, or none: deepspeed --hostfile=none ...",
    )


def _misfit(path: str, what: str, right: str) -> Problem:
    fix = f"{right}; or leave it out: the launcher writes one"
    where = "command line and this node"
    return Problem("hostfile-mismatch", f"deepspeed --hostfile {path}: {what}", where, fix)


def plan_tuner(job: Case, own: Command) -> NodeCommand:
    """Return the autotuner for node 0, and for every other node the program that starts its experiments.

    A single node needs no hostfile; one that the command names takes precedence.

    Raises:
        UsageError: The hosts are unknown, there is no token, experiments would run on GPUs that
            the job does not have, or restarts were requested.
    """
    if job.options.number("restarts", 0):
        raise UsageError(_no_restarts(job))
    visible = job.environ.get(VISIBLE, "").split(",")
    if visible != [""] and visible != [str(number) for number in range(len(visible))]:
        raise UsageError(_other_gpus(",".join(visible)))
    fleet = plan_fleet(job, WHO)
    if job.allocation.node_rank:
        return plan_server(fleet)
    agent = replace(wrapped.plan_agent(job, own), fleet=fleet)
    if job.nodes == 1:
        return agent
    hostfile = () if own.has("hostfile", "H") else (f"--hostfile={HOSTFILE}",)
    port = job.allocation.master_port
    if port < min(fleet.ports) < port + EXPERIMENTS:
        port = max(fleet.ports) + 1
    master = (f"--master_addr={job.allocation.master_addr}", f"--master_port={port}")
    return replace(
        agent,
        argv=(*job.argv[: own.head], *hostfile, *master, *job.argv[own.head :]),
        files=((HOSTFILE, wrapped.render_hostfile(fleet.hosts, fleet.per_node)),),
    )


def _other_gpus(visible: str) -> Problem:
    what = f"{VISIBLE}={visible!r}, and the autotuner's experiments run on GPUs counted from 0"
    fix = "give the container these GPUs alone (docker run --gpus), or tune on the first ones"
    return Problem("autotuner-gpus", what, "environment", fix)


def _no_restarts(job: Case) -> Problem:
    goes_on = "starts its experiments by itself, and goes on after one that has failed"
    what = f"{job.options.origins('restarts')[0]}: the command is DeepSpeed's autotuner, which {goes_on}"
    fix = "leave out --restarts, and let the platform start the job again"
    return Problem("engine-conflict", what, "command line and environment", fix)
