"""Each example on each rehearsed platform: two nodes are one job, or it is refused by the right name.

In the default suite an example runs in the tests of its framework, and one of them here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from launcher.core.frozen import frozen
from launcher.rehearse.platforms import PLATFORMS
from tests.cluster.conftest import need_namespaces
from tests.cluster.frameworks import EXAMPLES, printed, rehearse
from tests.zero import deepspeed_environ

pytestmark = [pytest.mark.root, pytest.mark.torch, pytest.mark.mpi]


@frozen
class Example:
    """An example: its words, what rank 0 says of the job, and its variables."""

    words: tuple[str, ...]
    said: str
    environ: Mapping[str, str] = {}


SAME = r"the same in 2 processes"
HOROVOD = r"accuracy 0\.\d+ \(.*2.*, by (gloo|MPI)\)"
TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
ROLES = {"LAUNCHER_CHIEF": "1", "LAUNCHER_PARAMETER_SERVER_COUNT": "1", "LAUNCHER_WORKER_COUNT": "2"}
TABLE = {
    "accelerate_loop.py": Example((), SAME),
    "allreduce.py": Example((), r'"sum": 3\b'),
    "deepspeed_zero.py": Example(("--epochs", "1"), r"\(2 processes\)", deepspeed_environ()),
    "fsdp.py": Example((), SAME),
    "horovod_tensorflow.py": Example(("--epochs", "4"), HOROVOD, TENSORFLOW),
    "horovod_torch.py": Example(("--epochs", "2"), HOROVOD),
    "jax_data_parallel.py": Example((), r"processes 2, devices 2"),
    "lightning_fit.py": Example((), SAME),
    "tensorflow_multiworker.py": Example(("--steps", "5"), r'"workers": 2', TENSORFLOW),
    "tensorflow_parameter_server.py": Example(
        ("--checkpoints", "{folder}", "--steps", "20"), r'"scheduled": 20', {**TENSORFLOW, **ROLES}
    ),
    "train_checkpoint.py": Example(("--checkpoint", "{folder}", "--steps", "100"), r"step \d+: loss"),
    "train_ddp.py": Example(("--epochs", "1"), r"2 processes on 2 nodes"),
    "transformers_trainer.py": Example((), SAME),
}
REFUSED = {"tensorflow_parameter_server.py": {"azureml-tensorflow": "roles-and-config"}}
"""What makes no sense: roles are given out by the launcher, and a platform's TF_CONFIG has them already."""


def pairs() -> Iterator[tuple[str, str]]:
    """Yield the pairs of an example and a platform that are to run."""
    for name in TABLE:
        yield from ((name, like) for like in PLATFORMS)


def test_every_example_is_there() -> None:
    """A new one has to be put into the table."""
    assert sorted(TABLE) == sorted(path.name for path in Path(EXAMPLES).glob("*.py"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "like"),
    [
        pytest.param(name, like, marks=[pytest.mark.horovod] if TABLE[name].said == HOROVOD else [])
        for name, like in pairs()
    ],
)
def test_an_example_is_one_job(name: str, like: str, tmp_path: Path) -> None:
    """Typed as on its first page, with nothing but the roles named; nothing is warned about."""
    need_namespaces()
    example, refusal = TABLE[name], REFUSED.get(name, {}).get(like)
    words = (word.format(folder=tmp_path) for word in example.words)
    done = rehearse(like, "python", os.path.join(EXAMPLES, name), *words, environ=example.environ)
    if refusal is not None:
        assert done.returncode in (64, 78) and f"[{refusal}]" in done.stderr, done.stderr[-3000:]
        return
    found = re.findall(example.said, printed(done))
    assert found, done.stdout[-3000:]
    assert "launcher: warning: " not in done.stderr
