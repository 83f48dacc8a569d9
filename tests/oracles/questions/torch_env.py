"""PyTorch: ``init_process_group()`` without arguments, and the local rank as it reads that."""

from __future__ import annotations

from typing import Any

from tests.oracles.questions import meeting


def answer() -> dict[str, Any]:
    """Rank 0 must be the one that listens, unless torchrun's agent does it for all."""
    meeting.begin()
    meeting.dist.init_process_group()
    agent_listens = meeting.rendezvous._torchelastic_use_agent_store()
    assert agent_listens or meeting.met["listens"] == (meeting.met["rank"] == 0)
    return {**meeting.result(), "local_rank": meeting.dist.get_node_local_rank()}
