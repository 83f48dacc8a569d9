"""Command lines as they stand in the READMEs of public projects, behind ``launcher run --``.

Each is one job of all processes, or is refused or warned about: never N jobs of one without a word. The files
are stubs with the same calls.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from launcher.core.errors import LauncherError
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job
from tests.unit.test_worlds import Made

TRAIN = "import torch.distributed\ntorch.distributed.init_process_group()\n"
FILES = {
    "train.py": TRAIN,
    "fit.py": "import lightning\nlightning.Trainer().fit()\n",
    "sft.py": "from trl import SFTTrainer\nfrom accelerate import logging\n",
    "axolotl/cli/train.py": "from accelerate import Accelerator\nAccelerator()\n",
    "cifar10_deepspeed.py": "import deepspeed\ndeepspeed.init_distributed()\n",
    "run_train.sh": 'torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d --rdzv_endpoint="localhost:0" '
    "-m torchtitan.train\n",
    "run_ds.sh": "deepspeed --bind_cores_to_rank cifar10_deepspeed.py --deepspeed $@\n",
    "gpt3.sh": "MASTER_ADDR=localhost\nNUM_NODES=1\nARGS=(--nnodes $NUM_NODES --master_addr $MASTER_ADDR)\n"
    "torchrun ${ARGS[@]} train.py\n",
    "gpt3_default.sh": "MASTER_ADDR=${MASTER_ADDR:-localhost}\n"
    "torchrun --nnodes $GROUP_WORLD_SIZE --node-rank $NODE_RANK --master_addr $MASTER_ADDR train.py\n",
}
AGAIN, EACH = "and is started 2 times on this node", "and is started once on each node"
LINES: dict[str, tuple[str, str, str]] = {
    # a README's line: on one node with 2 processes, on two nodes with 2 each, on two nodes with 1 each:
    # "ENGINE WORLD", and a warning; or an error's code
    "torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py": (
        *("torchrun 8", "contradiction", "contradiction"),
    ),
    "torchrun --nproc_per_node=2 --nnodes=2 --node_rank=0 --master_addr=10.0.0.4 train.py": (
        *("torchrun 4", "torchrun 4", "torchrun 4"),
    ),
    "bash run_train.sh": (f"process 2 {AGAIN}", f"process 4 {AGAIN}", f"process 2 {EACH}"),
    "accelerate launch -m axolotl.cli.train lora.yml": ("accelerate 2", "accelerate 4", "accelerate 2"),
    "axolotl train lora.yml": ("axolotl 2", "axolotl 4", "axolotl 2"),
    "axolotl train lora.yml --launcher python": ("process 2", "process 4", "process 2"),
    "llamafactory-cli train sft.yaml": ("llamafactory 2", "llamafactory 4", "llamafactory 2"),
    "swift sft --model a --dataset b": ("swift 2", "swift 4", "swift 2"),
    "accelerate launch --config_file multi_gpu.yaml sft.py": (
        *("accelerate 2", "accelerate 4", "accelerate 2"),
    ),
    "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name stanfordnlp/imdb": (
        *("trl 2", "trl 4", "trl 2"),
    ),
    "trl dpo --bf16 --num_processes 8 --config dpo.yaml": ("trl 8", "trl 8", "trl 8"),
    "trl env": ("process 2", "process 4", "process 2"),
    "bash run_ds.sh": (f"process 2 {AGAIN}", f"process 4 {AGAIN}", f"process 2 {EACH}"),
    "fabric run --accelerator=cpu --devices 2 fit.py": ("fabric 2", "fabric 4", "fabric 4"),
    "bash gpt3.sh a b c d e": (f"process 2 {AGAIN}", f"process 4 {AGAIN}", f"process 2 {EACH}"),
    "bash gpt3_default.sh": (f"process 2 {AGAIN}", f"process 4 {AGAIN}", "process 2"),
    "torchrun --nproc_per_node 4 train.py -- --train-data x": ("torchrun 4", "torchrun 8", "torchrun 8"),
    "srun --cpu_bind=v --accel-bind=gn python -u train.py": ("job-per-node", "job-per-node", "job-per-node"),
    "python fit.py": ("process 2", "process 4", "process 2"),
}
TWO_NODES = {"nnodes": "2", "node_rank": "0", "master_addr": "10.0.0.4"}
SHAPES = ({"nproc_per_node": "2"}, {**TWO_NODES, "nproc_per_node": "2"}, {**TWO_NODES, "nproc_per_node": "1"})


def judge(line: str, flags: dict[str, str]) -> str:
    """Return the job of a line, with its warning, or the code with which it is refused."""
    try:
        job = plan_job({}, Made(), read_options(dict(flags), {}), shlex.split(line))
    except LauncherError as error:
        return error.problems[0].code
    warned = [said for words in job.warnings for said in (AGAIN, EACH) if said in words]
    return " ".join((job.engine, str(job.topology.world_size), *warned))


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_a_readme_is_one_job_or_is_spoken_of(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert tuple(judge(line, flags) for flags in SHAPES) == LINES[line]


def test_the_line_that_the_error_names_works() -> None:
    """Srun in front of the launcher, with its own flags; a shell that names it is warned about in any job."""
    with pytest.raises(LauncherError) as found:
        plan_job({}, Made(), read_options({}, {}), ("env", "A=1", "srun", "-N", "2", "python", "my train.py"))
    (problem,) = found.value.problems
    shell = ("bash", "-c", "MASTER_ADDR=a srun python x")
    (warning,) = plan_job({}, Made(), read_options({}, {}), shell).warnings
    assert "names srun" in warning and "srun ... launcher run -- python train.py" in warning
    assert problem.fix == "srun -N 2 launcher run -- python 'my train.py'"
