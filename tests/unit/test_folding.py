"""Values of several ranks in one, for a plan that fits on a screen."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.views.plan import fold
from tests.unit.test_engines import plan


@pytest.mark.parametrize(
    ("texts", "folded"),
    [
        *((["3", "4", "5", "6"], "3 ... 6"), (["0", "1"], "0, 1"), (["same", "same"], "same")),
        (["gpu:0", "gpu:2", "gpu:4"], "gpu:0, 2, 4"),
        ([f"{number}" for number in range(0, 32, 2)], "0, 2, 4 ... 30"),
        (['{"index": 0}', '{"index": 1}', '{"index": 2}'], '{"index": 0 ... 2}'),
        *((["worker 0", "chief 0"], None), (["1", "1 and 2"], None)),
    ],
)
def test_texts_that_differ_by_numbers_are_one(texts: list[str], folded: str | None) -> None:
    """Anything else stays apart."""
    assert fold(texts) == folded


def test_the_plan_of_eight_ranks_is_that_of_one() -> None:
    """One row for all, and one line for their command; what follows from these rows is only counted."""
    from launcher.views.plan import render_text

    made = plan("python", "train.py", nproc_per_node="8")
    eight, whole = render_text(made, {}), render_text(made, {}, whole=True)
    assert " LOCAL_RANK " in eight and "0 ... 7" in eight and "start ranks 0-7: python train.py" in eight
    assert eight.count(" LOCAL_RANK ") == whole.count(" LOCAL_RANK ") == 1
    assert "ROLE_RANK" not in eight and "ROLE_RANK" in whole
    assert "more that follow from these" in eight and "more that follow" not in whole
    assert len(eight.splitlines()) <= 30


def test_a_row_of_some_ranks_names_them() -> None:
    """Slurm's variables are right for rank 0, and corrected for the others."""
    from launcher.views.plan import render_text

    rank_0 = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_NODEID": "0"}
    environ = {**rank_0, "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1"}
    text = render_text(plan("python", "train.py", environ=environ, nproc_per_node="4"), environ, whole=True)
    (row,) = (line.split() for line in text.splitlines() if line.startswith(" SLURM_PROCID "))
    assert row[1:6] == ["1", "...", "3", "ranks", "1-3:"]


def test_what_cannot_be_one_is_said_of_each_rank() -> None:
    """Roles of TensorFlow, and commands with a rank of their own in them."""
    from launcher.views.plan import render_text

    roles: dict[str, Any] = {
        "worker_count": "1",
        "parameter_server_count": "1",
        "nnodes": "2",
        "node_rank": "1",
    }
    text = render_text(plan("python", "train.py", master_addr="10.0.0.4", **roles), {})
    assert "TF_CONFIG" in text
    own = render_text(plan("python", "train.py", "--local-rank=${local_rank}", nproc_per_node="2"), {})
    assert "start rank 0: python train.py --local-rank=0" in own and "start rank 1:" in own
