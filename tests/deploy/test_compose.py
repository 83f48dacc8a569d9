"""deploy/compose: the published schema. Real containers run it in tests/container/test_compose.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deploy.schemas import DEPLOY, changed, documents, problems

FILE = DEPLOY / "compose" / "compose.yaml"
SCHEMA = "compose-2026-06"
WRONG: list[tuple[str, Any, str]] = [
    ("service", {}, "'service' does not match any"),
    ("services.node0.images", "i", "'images' does not match any"),
    ("services.node0.hostname", 0, "0 is not of type 'string'"),
    ("services.node0.stop_grace_period", 40, "40 is not of type 'string'"),
    ("services.node0.build.docker", "Dockerfile", "'docker' does not match any"),
    ("services.node1.volumes", "../examples", "is not of type 'array'"),
]


def test_the_file_is_one_of_the_specification() -> None:
    (document,) = documents(FILE)
    assert problems(SCHEMA, "file", document) == []


@pytest.mark.parametrize(("path", "value", "says"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_field_is_refused(path: str, value: Any, says: str) -> None:
    """So the test above can fail."""
    (document,) = documents(FILE)
    found = problems(SCHEMA, "file", changed(document, path, value))
    assert any(says in one for one in found), found
