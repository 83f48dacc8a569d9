"""What a process of JAX gets: its place by names that JAX reads, and the GPUs that are its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.frameworks.jax import MPIRUN_4
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import render_environ

MPIRUN = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1;tcp://10.0.0.4:1",
    "MASTER_ADDR": "10.0.0.4",
}
DEVICES = "JAX_LOCAL_DEVICE_IDS"
WORDS: list[str] = []
OF_MPI = ("RANK", "SIZE", "LOCAL_RANK")


def environs(
    gpus: int | None, environ: dict[str, str] | None = None, **given: object
) -> list[dict[str, str]]:
    """Return the environment of every process that one launcher plans, on a node with so many GPUs."""
    host = replay({"hostname": "node", "gpus": gpus, "environ": environ or {}})
    plan = plan_job(
        host.environ,
        host,
        read_options({key: str(value) for key, value in given.items()}, host.environ),
        ["train.py", *WORDS],
    )
    return [render_environ(plan, process, host.environ) for process in plan.processes]


def devices(gpus: int | None, environ: dict[str, str] | None = None, **given: object) -> list[str | None]:
    """Return the GPUs of each process, as JAX is told them."""
    return [one.get(DEVICES) for one in environs(gpus, environ, **given)]


def of_mpirun(rank: int, **more: str) -> dict[str, str]:
    """Return what a rank of a 2x2 job of Open MPI 4 inherits."""
    place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 2)}
    return {**MPIRUN, **place, **more}


def test_every_job_gets_jax_names() -> None:
    """Where process 0 listens, how many there are, and which one this is; the user's own stays."""
    # Where process 0 listens, how many there are, and which one this is; and none of Open MPI's.
    given = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.4", "nproc_per_node": 2}
    first, second = environs(0, {}, **given)
    for rank, environ in ((2, first), (3, second)):
        assert environ["JAX_COORDINATOR_ADDRESS"] == "10.0.0.4:" + environ["MASTER_PORT"]
        assert (environ["JAX_NUM_PROCESSES"], environ["JAX_PROCESS_ID"]) == ("4", str(rank))
        assert not [name for name in environ if name.startswith("OMPI_")]
    # Otherwise its last group would be the port.
    given = {"nnodes": 2, "node_rank": 0, "master_addr": "fd00::4", "nproc_per_node": 1}
    (environ,) = environs(0, {}, **given)
    assert environ["JAX_COORDINATOR_ADDRESS"].startswith("[fd00::4]:")
    # A process may have its coordinator elsewhere, where the user says that it is the only one here.
    (environ,) = environs(0, {"JAX_COORDINATOR_ADDRESS": "other:1"}, nproc_per_node=1, nnodes=1)
    assert environ["JAX_COORDINATOR_ADDRESS"] == "other:1"
    # JAX reads the number of processes, and which one it is, from a scheduler's names alone.
    for rank, environ in enumerate(environs(0, nproc_per_node=2, framework="jax")):
        assert environ["OMPI_MCA_orte_hnp_uri"] == "launcher"
        assert [environ[f"OMPI_COMM_WORLD_{name}"] for name in OF_MPI] == [str(rank), "2", str(rank)]


@pytest.mark.parametrize(
    ("text", "is_jax"),
    [
        ("import jax\njax.distributed.initialize()\n", True),
        ("from jax import distributed\nimport jax.distributed\n", True),
        ("import jax\n", False),  # on one device; nothing to be told
        ("# not import jax: jax.distributed is for others\n", False),
        ("import jaxtyping\n'jax.distributed'\n", False),
    ],
)
def test_a_script_that_uses_jax_on_several_processes_names_it(
    tmp_path: Path, text: str, is_jax: bool
) -> None:
    """Its text is read and never run; the plan says why, and no other engine takes the job."""
    script = tmp_path / "train.py"
    script.write_text(text)
    typed = {"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.4", "nproc_per_node": "1"}
    plan = plan_job({}, Host(), read_options(dict(typed), {}), [sys.executable, str(script)])
    (process,) = plan.processes
    assert (MPIRUN_4 in {setting.name for setting in process.settings}) is is_jax
    assert any("uses jax.distributed" in note for note in plan.notes) is is_jax


def test_what_a_platform_has_set_for_jax_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubeflow's JAXJob need not be named; mpirun's ranks and ITP's have their names."""
    # Its variables say what it is; without this JAX would ask Kubernetes about a Job that is none.
    job = {
        "PROCESS_ID": "1",
        "NUM_PROCESSES": "2",
        "COORDINATOR_ADDRESS": "job-0",
        "KUBERNETES_SERVICE_HOST": "k",
    }
    (environ,) = environs(0, job)
    assert [environ[f"OMPI_COMM_WORLD_{name}"] for name in OF_MPI] == ["1", "2", "0"]
    assert environ["OMPI_MCA_orte_hnp_uri"] == "launcher"
    # A rank of mpirun has them already, and may call MPI_Init.
    (environ,) = environs(0, of_mpirun(3), framework="jax")
    assert {name: environ[name] for name in MPIRUN} == MPIRUN
    assert environ["OMPI_COMM_WORLD_RANK"] == "3"
    # MAE and its like read nothing else with --dist_on_itp; nothing says that mpirun is there.
    monkeypatch.setitem(globals(), "WORDS", ["--dist_on_itp"])
    for rank, environ in enumerate(environs(0, nproc_per_node=2)):
        assert [environ[f"OMPI_COMM_WORLD_{name}"] for name in OF_MPI] == [str(rank), "2", str(rank)]
        assert "OMPI_MCA_orte_hnp_uri" not in environ


@pytest.mark.parametrize(
    ("gpus", "processes", "expected"),
    [
        (4, 4, ["0", "1", "2", "3"]),  # one each, as with torch
        (8, 2, ["0,1,2,3", "4,5,6,7"]),  # JAX drives several GPUs from one process
        (8, 1, ["0,1,2,3,4,5,6,7"]),  # not the first alone, as under Slurm or mpirun
        (3, 2, ["0", "1"]),  # nobody gets another's
        (1, 2, ["0", "0"]),  # shared, and the user's wish
        (2, 3, ["0", "1", "0"]),
        (0, 2, [None, None]),
        (None, 2, [None, None]),
    ],
)
def test_gpus_are_divided(gpus: int | None, processes: int, expected: list[str | None]) -> None:
    """Processes that we start share the GPUs of the node evenly."""
    assert devices(gpus, nproc_per_node=processes) == expected


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [(2, None, "1"), (8, None, "4,5,6,7"), (1, None, "0"), (8, "3", "0"), (8, "5,6", "1")],
)
def test_gpus_of_a_rank_of_mpirun(gpus: int, visible: str | None, expected: str) -> None:
    """Rank 3 is local rank 1 of 2; JAX by itself would take GPU 1, which is not there for who sees one."""
    more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices(gpus, of_mpirun(3, **more)) == [expected]


def test_devices_of_the_user_and_of_ours_stay() -> None:
    """Who has divided the GPUs otherwise has said so; those of --gpus-per-process are a process's own."""
    # --gpus-per-process sets CUDA_VISIBLE_DEVICES, and JAX counts from there.
    assert devices(4, gpus_per_process=2, nproc_per_node=2) == ["0,1", "0,1"]
    # Whoever has divided the GPUs otherwise has said so.
    assert devices(4, {DEVICES: "3"}, nproc_per_node=2) == ["3", "3"]
