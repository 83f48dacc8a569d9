"""Lightning takes rank, world and master from what we plan: its own classes are asked, in every recorded job.

What needs a living MPI (MPIEnvironment) is in tests/cluster/test_torch_family.py: here there is none to ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from launcher.core.errors import LauncherError
from launcher.core.model import Plan
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.settings import render_environ
from tests.golden.jobs import case_names, plan_snapshot, read_case, snapshots
from tests.golden.truth import AT_START, TRUTH, Job

pytestmark = [
    pytest.mark.xdist_group("lightning"),  # its import takes seconds
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),
]
Ask = Callable[[Mapping[str, str], Mapping[str, int]], dict[str, Any]]


def recorded_jobs() -> list[str]:
    """Return the names of all jobs whose ranks are known before the start."""
    return [n for n in case_names() if isinstance(t := TRUTH.get(n), Job) and AT_START not in t.starts]


def plan_named(name: str, **flags: str) -> Iterator[tuple[Plan, Mapping[str, str]] | LauncherError]:
    """Yield the plan of each start of a recorded job with ``--framework lightning``, and what it inherits."""
    case = read_case(name)
    case["options"] = {**case.get("options", {}), "framework": "lightning", **flags}
    for place, snapshot in enumerate(snapshots(case)):
        try:
            yield plan_snapshot(case, place, snapshot)
        except LauncherError as error:
            yield error


def true_shape(name: str) -> dict[str, int]:
    """Return how many nodes and processes per node a job has, as written by hand."""
    truth = TRUTH[name]
    assert isinstance(truth, Job) and isinstance(truth.world, int)
    nodes = {place.partition(".")[0] for place in truth.starts.replace("|", " ").split() if "." in place}
    return {"num_nodes": len(nodes), "devices": truth.world // len(nodes)}


@pytest.fixture(scope="module")
def ask() -> Ask:
    """Return a function that asks the real Lightning where a process stands that has these variables."""
    from lightning.fabric.plugins.environments import mpi
    from lightning.pytorch import Trainer
    from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
    from lightning.pytorch.utilities.argparse import _parse_env_variables

    def answer(environ: Mapping[str, str], script: Mapping[str, int]) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mpi, "_MPI4PY_AVAILABLE", False)
            patch.setattr(os, "environ", os.environ.copy())
            os.environ.clear()
            os.environ.update(environ)
            shape = {**script, **vars(_parse_env_variables(Trainer))}
            strategy = _AcceleratorConnector(accelerator="cpu", strategy="ddp", **shape).strategy
            strategy.set_world_ranks()
            found = strategy.cluster_environment
            return {
                "kind": type(found).__name__,
                "external": found.creates_processes_externally,
                "rank": strategy.global_rank,
                "world": strategy.world_size,
                "local_rank": strategy.local_rank,
                "node": strategy.node_rank,
                "master": f"{found.main_address}:{found.main_port}",
            }

    return answer


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("name", sorted(recorded_jobs()))
def test_lightning_stands_where_we_say(name: str, ask: Ask) -> None:
    """World, place and master are the plan's, no process starts another, and each rank is there once.

    Without our defaults for the Trainer, where we do not know them, the script has to say the truth.
    """
    ranks: list[int] = []
    for start in plan_named(name):
        if isinstance(start, LauncherError):
            continue  # refused without Lightning, too
        plan, inherited = start
        if plan.allocation.spare is not None:
            continue  # it waits, and has no place in the job yet
        job = plan.topology
        known = job.local_size is not None
        script = {"num_nodes": 1, "devices": 1} if known else true_shape(name)
        for process in plan.processes:
            environ = render_environ(plan, process, inherited)
            if plan.engine == "torchrun":
                environ["TORCHELASTIC_RUN_ID"] = "none"
            got = ask(environ, script)
            assert got["external"] and got["kind"] == expected_kind(environ)
            assert (got["world"], got["local_rank"], got["node"]) == (
                job.world_size,
                process.local_rank,
                job.node_rank or 0,  # Lightning's own, if no variable states it
            )
            assert got["master"] == f"{job.master_addr}:{job.master_port}"
            by_node = (job.node_rank or 0) * (job.local_size or script["devices"]) + process.local_rank
            assert got["rank"] == (by_node if got["kind"] == "LightningEnvironment" else process.rank)
            ranks.append(got["rank"])
    assert len(set(ranks)) == len(ranks)


def expected_kind(environ: Mapping[str, str]) -> str:
    """Return which of Lightning's environments a process is in."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return "TorchElasticEnvironment"
    interactive = environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return "SLURMEnvironment" if "SLURM_NTASKS" in environ and not interactive else "LightningEnvironment"


SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}


def plan(
    *command: str, environ: Mapping[str, str] | None = None, **flags: str
) -> tuple[list[dict[str, str]], Plan]:
    """Return the environments of the processes of node 1 of 2, with 4 processes each, and their plan."""
    typed = {"nnodes": "2", "node_rank": "1", "nproc_per_node": "4", "master_addr": "10.0.0.4", **flags}
    typed |= {"engine": "process"}
    variables = {"PATH": "/usr/bin", **(environ or {})}
    made = plan_job(variables, Host("/nonexistent"), read_options(typed, {}), command or ("train.py",))
    return [render_environ(made, process, variables) for process in made.processes], made


def unmarked(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a Lightning sees that asks Slurm and LSF before torchrun's marks, as 1.x does."""
    return {name: value for name, value in environ.items() if name != "TORCHELASTIC_RUN_ID"}


@pytest.mark.thorough
@pytest.mark.torch
def test_what_an_allocation_of_slurm_left_behind_becomes_whole(ask: Ask) -> None:
    """SLURM_NTASKS of a batch script has no rank with it, and no --ntasks-per-node: Lightning would stop."""
    environs, _ = plan(environ=SLURM, framework="lightning")
    answers = [ask(unmarked(environ), {}) for environ in environs]
    assert {answer["kind"] for answer in answers} == {"SLURMEnvironment"}
    assert [(a["rank"], a["local_rank"], a["node"], a["world"]) for a in answers] == [
        (4 + local, local, 1, 8) for local in range(4)
    ]


@pytest.mark.thorough
@pytest.mark.torch
def test_what_jsrun_left_behind_is_dropped(ask: Ask) -> None:
    """One launcher per node under jsrun: its rank is the node's, and LSF would name another master."""
    jsrun = {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_LOCAL_RANK": "0"}
    lsf = {"LSB_JOBID": "77", "LSB_DJOB_RANKFILE": "/nonexistent"}
    environs, _ = plan(environ={**jsrun, **lsf}, framework="lightning")
    answers = [ask(unmarked(environ), {}) for environ in environs]
    assert [(a["kind"], a["rank"], a["world"]) for a in answers] == [
        ("LightningEnvironment", 4 + local, 8) for local in range(4)
    ]


def test_only_who_names_lightning_gets_defaults_for_the_trainer() -> None:
    """Another job's ``Trainer(devices=1)``, on one rank, would wait for the other nodes."""
    (environ, *_), _ = plan()
    assert not [name for name in environ if name.startswith("PL_")]
    (named, *_), _ = plan(framework="lightning")
    assert (named["PL_TRAINER_NUM_NODES"], named["PL_TRAINER_DEVICES"]) == ("2", "4")
    (kept, *_), _ = plan(framework="lightning", environ={"PL_TRAINER_DEVICES": "auto"})
    assert kept["PL_TRAINER_DEVICES"] == "auto"
