"""Load one module of a library without the library's other dependencies."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.oracles.folder import oracles_folder


class _Empty(MagicMock):
    """A module, and a package, with whatever is asked of it."""

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **named)
        self.__path__: list[str] = []
        self.__spec__ = None


def stand_in(*names: str) -> None:
    """Put something empty in the place of modules that are imported, and not used for the question."""
    for name in names:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), _Empty())


def load_alone(path: str, name: str = "") -> Any:
    """Return a module of the folder of libraries, loaded by its file and not through its package."""
    name = name or path.removesuffix(".py").replace("/", ".")
    file: Path = oracles_folder() / path
    spec = spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
