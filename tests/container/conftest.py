"""Every test in this folder is held to leave no process behind; the engine is made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.container.containers import Container
from tests.container.podman import Podman, need_containers
from tests.leftovers import no_process_is_left

__all__ = ["no_process_is_left"]


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Return an engine of our own, and the image under test."""
    need_containers()
    engine = Podman()
    yield engine
    engine.close()


@pytest.fixture
def container(podman: Podman, tmp_path: Path) -> Iterator[Container]:
    """Return what runs the image with a folder of this test as /job."""
    made = Container(podman, tmp_path)
    yield made
    made.remove()
