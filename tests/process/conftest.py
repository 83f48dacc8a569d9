"""Every test in this folder is held to leave no process behind; some share environments with the hook."""

from __future__ import annotations

import pytest

from tests.leftovers import no_process_is_left
from tests.process.hooking import install, make_venv
from tests.pythons import need_python

__all__ = ["no_process_is_left"]


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the Python of an environment that has the hook: one like the launcher's own."""
    prefix = make_venv(tmp_path_factory.mktemp("hooked") / "venv")
    install(prefix)
    return str(prefix / "bin" / "python")


@pytest.fixture(scope="module")
def hooked_old(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the same of a Python in which planning cannot run."""
    prefix = make_venv(tmp_path_factory.mktemp("hooked_old") / "venv", need_python(8))
    install(prefix)
    return str(prefix / "bin" / "python")


@pytest.fixture(params=["hooked", "hooked_old"])
def each_hooked(request: pytest.FixtureRequest) -> str:
    """Return one after the other."""
    found: str = request.getfixturevalue(request.param)
    return found
