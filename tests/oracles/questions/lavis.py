"""LAVIS: ``init_distributed_mode``, which DETR, DeiT, BLIP and many a repository have in the same words.

Loaded alone, without its registry and download helpers.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tests.oracles.questions import meeting
from tests.oracles.questions.alone import load_alone, stand_in

stand_in("timm.models.hub")
utils: Any = load_alone("lavis/common/dist_utils.py")
utils.setup_for_distributed = lambda is_master: None  # it would replace print


def answer() -> dict[str, Any]:
    """``--dist_url env://``, the default of them all."""
    meeting.begin()
    args = Namespace(dist_url="env://", distributed=True)
    utils.init_distributed_mode(args)
    return {**meeting.result(), "local_rank": meeting.met["device"]}
