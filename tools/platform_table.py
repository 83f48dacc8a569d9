"""Makes the table of platforms in docs/platforms.md: how each was verified, counted from the tests.

A row counts its own jobs in ``tests/golden/cases``, by the origin that the first note of each job states.
``tests/unit/test_docs.py`` checks that every job and every source has a row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "golden" / "cases"
HEAD = ("started by", "source", "real runs in", "recorded", "documented", "`rehearse --like`")
RECORDED = "Recorded"
DOCUMENTED = ("From documentation", "From source", "From a published pod", "From use in public scripts")


class Started(NamedTuple):
    """A row: what starts a job, the sources that read its variables, and where it is verified.

    ``cases`` are patterns of case names, ``real`` is a file in ``tests/`` that starts the real program, and
    ``like`` are its names in rehearsals.
    """

    by: str
    sources: tuple[str, ...]
    cases: tuple[str, ...]
    real: str = ""
    like: tuple[str, ...] = ()


ROWS = (
    Started(
        "Open MPI 4, 5 (`mpirun`)", ("open_mpi",), ("openmpi_*",), "cluster/test_mpirun.py", ("openmpi",)
    ),
    Started("MPICH (`mpiexec`)", ("hydra",), ("mpich_*",), "cluster/test_mpirun.py"),
    Started("Intel MPI (`mpiexec`) ¹", ("hydra",), ("intelmpi_*",), "cluster/test_mpirun.py"),
    Started("Slurm (`srun`)", ("slurm",), ("slurm_*",), "cluster/test_slurm.py", ("slurm",)),
    Started(
        "`torchrun`",
        ("torch_elastic", "torch_agent"),
        ("torchrun_[0-9]*",),
        "cluster/test_engines.py",
        ("torchrun",),
    ),
    Started(
        "Azure ML, PyTorch",
        ("torch_env", "azure_ml"),
        ("azureml_pytorch_*",),
        like=("azureml-pytorch",),
    ),
    Started(
        "Azure ML, MPI ²",
        ("open_mpi", "azure_ml"),
        ("azureml_mpi_*", "azureml_itp_*"),
        like=("azureml-mpi",),
    ),
    Started(
        "Azure ML, TensorFlow",
        ("tensorflow", "azure_ml"),
        ("azureml_tensorflow_*",),
        like=("azureml-tensorflow",),
    ),
    Started("Azure ML on Kubernetes", ("azure_ml",), ("azureml_common_runtime_*", "azureml_kubernetes_*")),
    Started("Azure Batch ²", ("azure_batch",), ("azure_batch_*",), like=("azure-batch",)),
    Started("Azure ML, variables of Batch AI", ("batch_ai",), ("batch_ai_*",)),
    Started("Kubeflow's jobs ²", ("kubeflow", "torch_agent", "tensorflow"), ("kubeflow_*",)),
    Started("SageMaker", ("sagemaker",), ("sagemaker_*",)),
    Started("SkyPilot", ("skypilot",), ("skypilot_*",)),
    Started(
        "LeaderWorkerSet, RunPod, Lepton, dstack, Beaker, BatchCompute",
        ("node_names",),
        ("leaderworkerset_*", "runpod_*", "lepton_*"),
    ),
    Started("Flux (`flux run`) ¹", ("flux",), ("flux_*",)),
    Started("Volcano, ModelArts", ("volcano",), ("volcano_*",)),
    Started("Vertex AI", ("vertex_ai",), ("vertex_ai_*",)),
    Started("Alibaba PAI, Baidu AIHC, TI-ONE", ("alibaba_pai",), ("alibaba_pai_*", "baidu_aihc_*")),
    Started("Volcengine", ("volcengine",), ("volcengine_*",)),
    Started("AWS Batch, multi-node", ("aws_batch",), ("aws_batch_*",)),
    Started("Indexed Job, JobSet ³", ("indexed_job",), ("indexed_job_*", "jobset_*"), like=("kubernetes",)),
    Started("`horovodrun` over gloo ¹", ("horovod",), ("horovodrun_*",)),
    Started("LSF (`blaunch`, `jsrun`)", ("lsf",), ("lsf_*",)),
    Started("MVAPICH2 (`mpirun_rsh`) ¹", ("mvapich",), ("mvapich_*",)),
    Started("PBS with PALS (`mpiexec`) ¹", ("pals",), ("pals_*", "pbs_*")),
    Started(
        "this launcher, inside a job", ("launched",), ("launcher_inside_launcher*",), "process/test_run.py"
    ),
    Started("you, with flags or `LAUNCHER_*`", (), ("flags_*",), "cluster/test_peers.py", ("plain",)),
    Started("you, on one machine", (), ("plain_*",), "process/test_output.py"),
)
OF_NO_PLATFORM = (
    "refused_*",
    "bind_*",
    "defaults_*",
    "module_command",
    "program_command",
    "mpirun_inside_launcher",
    "torchrun_left_over",
)
"""Patterns of cases about a mistake, or about behaviour that is the same on all platforms."""


def rows(tests: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table; ``tests`` is the path to that folder from the page."""
    kinds = {path.stem: kind_of(path) for path in sorted(CASES.glob("*.json"))}
    for row in ROWS:
        count = Counter(kind for name, kind in kinds.items() if matches(name, row.cases))
        yield (
            row.by,
            " + ".join(f"`{source}`" for source in row.sources),
            f"[{row.real.split('/')[1]}]({tests}/{row.real})" if row.real else "",
            _jobs(count[RECORDED]),
            _jobs(sum(count[kind] for kind in DOCUMENTED)),
            ", ".join(f"`{like}`" for like in row.like),
        )


def kind_of(case: Path) -> str:
    """Return the origin of a case, which begins its first note; ``By hand`` for any other note."""
    note: str = json.loads(case.read_text(encoding="utf-8"))["notes"][0]
    return next((kind for kind in (RECORDED, *DOCUMENTED) if note.startswith(kind)), "By hand")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the name of a case matches one of a row's patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _jobs(count: int) -> str:
    return f"{count} job{'s' if count > 1 else ''}" if count else ""
