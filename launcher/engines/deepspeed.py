"""DeepSpeed's own command: the hostfile that it reads, and its autotuner. Loaded only for these.

The autotuner runs only on node 0, and starts experiments on all nodes by "ssh". The other nodes serve until
it ends, as for mpirun.

Source: deepspeed/launcher/runner.py, fetch_hostfile; autotuning/scheduler.py, launcher/multinode_runner.py
(0.19).
"""

from __future__ import annotations

import os

from launcher.core.errors import make_error
from launcher.core.frozen import replace
from launcher.engines import wrapped
from launcher.engines.mpirun import HOSTFILE, plan_fleet, plan_server
from launcher.machine.gpus import VISIBLE
from launcher.machine.own_names import own_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.command.launchers import Command
    from launcher.core.model import NodeCommand, Topology
    from launcher.frameworks.case import Case
    from launcher.machine.host import Host

WHO = "the autotuner"
DEFAULT = "/job/hostfile"
EXPERIMENTS = 64
"""Ports from the master port on that experiments may use, one after the other: none may be a control port."""
FILTERS = ("include", "i", "exclude", "e", "num_nodes", "num_gpus", "num_accelerators")
"""Its flags that choose among the nodes and GPUs of the hostfile."""


def check_hostfile(own: Command, topology: Topology, host: Host) -> None:
    """Check the hostfile that DeepSpeed's command reads.

    Raises:
        UsageError: It names other nodes than the job has.
    """
    path, nodes = own.value("hostfile", "H"), topology.node_count or 1
    if nodes == 1:  # with a file of the user's DeepSpeed itself starts its nodes from here
        found = [] if path else _list_nodes(host.read_text(DEFAULT))
        foreign = [name for name in found if name != "localhost" and not own_places(host, (name,))]
        if foreign:
            raise make_error("default-hostfile", path=DEFAULT, nodes=", ".join(foreign[:4]))
        return
    text = host.read_text(os.path.abspath(path)) if path else None
    if path is None or (text is None and host.is_recorded()) or own.has(*FILTERS):
        return
    count = len(_list_nodes(text))
    if count != nodes:
        raise make_error("hostfile-mismatch", path=path, count=count, nodes=nodes)


def _list_nodes(text: str | None) -> list[str]:
    """Return the nodes whose lines DeepSpeed understands; it stops by itself at any other line."""
    lines = (line.partition("#")[0].split() for line in (text or "").splitlines())
    return [words[0] for words in lines if words[1:] and words[1].removeprefix("slots=").isdecimal()]


def plan_tuner(job: Case, own: Command) -> NodeCommand:
    """Return the autotuner for node 0, and for every other node the program that starts its experiments.

    A single node needs no hostfile; one that the command names takes precedence.

    Raises:
        UsageError: The hosts are unknown, there is no token, experiments would run on GPUs that
            the job does not have, or restarts were requested.
    """
    if job.options.number("restarts", 0):
        raise make_error("autotuner-restarts", asked=job.options.origins("restarts")[0])
    visible = job.environ.get(VISIBLE, "").split(",")
    if visible != [""] and visible != [str(number) for number in range(len(visible))]:
        raise make_error("autotuner-gpus", visible=",".join(visible))
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
