"""The limit of open files is raised as far as it may be, and never lowered."""

from __future__ import annotations

import resource

import pytest

from launcher.process.limits import raise_limit

MORE = 1000
INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, 1 << 20, 256 + MORE),
        (256, INFINITY, 256 + MORE),
        (256, 512, 512),
        (1 << 20, 1 << 20, None),
        (INFINITY, INFINITY, None),
    ],
)
def test_the_limit_is_raised_where_it_is_too_low(
    soft: int, hard: int, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: it stays as it is."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_limit(MORE)
    assert asked == ([] if expected is None else [(expected, hard)])
