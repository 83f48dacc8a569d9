"""The pictures of terminal sessions: made by the program, fetching nothing, with no folder of their maker."""

from __future__ import annotations

import html
import os
import re

import pytest

from tools.screens import FOLDER, ROOT, SCREENS, draw


def words_of(picture: str) -> str:
    """Return the text of a picture."""
    return html.unescape(re.sub(r"<[^>]*>", " ", picture)).replace("\xa0", " ")


@pytest.mark.torch
def test_a_picture_is_a_session_of_the_program() -> None:
    shown = words_of(draw(SCREENS[0]))
    assert "$ launcher run --nproc-per-node 2 train.py" in shown and "on 2 processes" in shown


@pytest.mark.parametrize("name", [screen.name for screen in SCREENS])
def test_a_picture_of_the_pages(name: str) -> None:
    picture = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert "url(" not in re.sub(r"url\(#", "(", picture) and "@import" not in picture
    assert os.path.expanduser("~") + "/" not in picture and str(ROOT) not in picture
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    assert any(f"images/screens/{name}.svg" in page for page in pages)
