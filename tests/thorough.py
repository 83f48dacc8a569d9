"""Long tables of which `make quick` runs a few rows; the others are marked as thorough."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

FEW_STARTERS = ("open-mpi-4", "slurm", "azure-batch")
"""Of the platforms in `tests.unit.platforms_model`: ranks by mpirun, tasks of a step, and nodes alone."""


def all_but(few: Collection[str], names: Iterable[str]) -> list[str | ParameterSet]:
    """Return the names as parameters of a test, those that are not among the few as thorough ones."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.thorough) for name in names]
