"""DeepSpeed's autotuner: its command runs only on node 0, and starts experiments on all nodes by "ssh".

The other nodes serve until it ends, as for mpirun.

Source: deepspeed/launcher/runner.py, autotuning/scheduler.py, launcher/multinode_runner.py (0.19).
"""

from __future__ import annotations

from launcher.core.errors import Problem, UsageError
from launcher.core.frozen import replace
from launcher.engines import wrapped
from launcher.engines.hostfile import render_hostfile
from launcher.engines.mpirun import FOLDER, plan_fleet, plan_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.command.launchers import Command
    from launcher.core.model import NodeCommand
    from launcher.frameworks.case import Case

HOSTFILE = f"{FOLDER}/hostfile"
WHO = "the autotuner"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def plan_agent(job: Case, own: Command) -> NodeCommand:
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
    master = (f"--master_addr={job.allocation.master_addr}", f"--master_port={job.allocation.master_port}")
    return replace(
        agent,
        argv=(*job.argv[: own.head], *hostfile, *master, *job.argv[own.head :]),
        files=((HOSTFILE, render_hostfile(fleet.hosts, fleet.per_node)),),
    )


def _other_gpus(visible: str) -> Problem:
    what = f"{VISIBLE}={visible!r}, and the autotuner's experiments run on GPUs counted from 0"
    fix = "give the container these GPUs alone (docker run --gpus), or tune on the first ones"
    return Problem("autotuner-gpus", what, "environment", fix)


def _no_restarts(job: Case) -> Problem:
    return Problem(
        "engine-conflict",
        f"{job.options.origins('restarts')[0]}: the command is DeepSpeed's autotuner, which starts its "
        "experiments by itself, and goes on after one that has failed",
        "command line and environment",
        "leave out --restarts, and let the platform start the job again",
    )
