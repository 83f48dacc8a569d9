"""A loss that is NaN to the end of the output is seen, in the forms in which programs print it."""

from __future__ import annotations

import pytest

from launcher.observers.loss import describe_loss, find_nan

FORMS = {
    "print": "step 1 loss 0.5\nstep 2 loss nan\nstep 3 loss nan\n",
    "equals": "epoch=3 train_loss=0.5\nstep 2 train_loss=nan lr=0.1\n",
    "dict": "{'loss': 0.5, 'lr': 0.1}\nstep 2 {'loss': nan, 'grad_norm': nan}\n",
    "json": '{"step": 1, "loss": 0.25}\nstep 2 {"loss": NaN}\n',
    "tensor": "loss: tensor(0.5)\nstep 2 loss: tensor(nan, device='cuda:0')\n",
    "keras": "1/10 - loss: 0.5000\nstep 2 - loss: nan - accuracy: 0.1\n",
    "lightning": "Epoch 0: 10%| | 1/10 [v_num=0, train_loss=0.5]\nstep 2 [v_num=0, train_loss=nan.0]\n",
    "detectron": "total_loss: 1.733  loss_cls: 1.2\nstep 2 total_loss: nan  loss_cls: nan\n",
    "bar": "step 1 loss=0.5\rstep 2 loss=nan\rstep 2 loss=nan\n",
    "average": "Loss 0.5 (0.6)\nstep 2 Loss nan (nan)\n",
}
QUIET = {
    "recovered": "loss nan\nloss 0.5\n",
    "validation": "loss 0.5 val_loss nan\neval/loss: nan\n",
    "words": "no loss here\nnan\nloss: nanny\n",
    "scale": "loss 0.5\nloss_scale: 65536 nan\n",
    "another": "accuracy nan loss 0.5\n",
    "best": "best_loss=nan loss=0.5\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_that_is_nan_to_the_end_is_found(form: str) -> None:
    """With the line from which on it was."""
    found = find_nan(FORMS[form].encode())
    assert found is not None and found.startswith("step 2 ")


@pytest.mark.parametrize("form", QUIET)
def test_other_words_are_no_such_loss(form: str) -> None:
    """A wrong note is worse than none."""
    assert find_nan(QUIET[form].encode()) is None


def test_the_note_names_a_rank_and_the_line() -> None:
    """One line, however many ranks there are, with a fix and without secrets."""
    # One line, however many ranks there are, with a fix.
    nan = b"step 2 loss nan\n"
    tails = [("rank 0", b"loss 1\n"), ("rank 1", nan), ("rank 1", nan), ("rank 2", nan), ("rank 3", nan)]
    note = describe_loss(tails)
    assert note is not None
    expected = "note: [loss-nan] the loss of rank 1 and of 2 others has been NaN since "
    assert note.startswith(f"{expected}'step 2 loss nan'; fix: ")
    assert describe_loss(tails[:1]) is None
    assert "\n" not in note
    # The line is the program's.
    note = describe_loss([("rank 0", b"loss nan token=hf_abcdefghijklmnopqrstuvwxyz0123456789\n")])
    assert note is not None and "hf_abc" not in note
