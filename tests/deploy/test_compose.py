"""deploy/compose: the published schema. Real containers run it in tests/container/test_compose.py."""

from __future__ import annotations

from tests.deploy.schemas import DEPLOY, documents, problems

FILE = DEPLOY / "compose" / "compose.yaml"
SCHEMA = "compose-2026-06"


def test_the_file_is_one_of_the_specification() -> None:
    (document,) = documents(FILE)
    assert problems(SCHEMA, "file", document) == []
