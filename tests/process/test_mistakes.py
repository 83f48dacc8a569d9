"""Twelve mistakes, typed: each is answered by what, where and the fix, in under 15 lines of the launcher."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tools.mistakes import MISTAKES, Mistake, commit, own_words

LINES_MAX = 15


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what.replace(" ", "-"))
def test_a_mistake_is_answered(mistake: Mistake, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, said = commit(mistake, (sys.executable, "-m", "launcher", "run"), tmp_path, port)
    ours = own_words(said)
    assert status == mistake.expected, said
    assert all(word in "\n".join(ours) for word in mistake.says), said
    assert len(ours) < LINES_MAX, said


def test_each_mistake_is_on_its_page() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "mistakes.md").read_text(encoding="utf-8")
    assert all(f"| {mistake.what} |" in page for mistake in MISTAKES)
