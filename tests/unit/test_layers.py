"""Imports point one way: the table of layers in docs/architecture.md is what the package keeps to."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "launcher"


def read_layers() -> dict[str, int]:
    """Return the row, from 0, of each package (``"agent/"``) and module (``"process/port_checks"``)."""
    table = PAGE.read_text().partition("| layer |")[2].partition("\n\n")[0]
    rows = [line.split("|")[3] for line in table.splitlines() if line.startswith("| ")]
    return {name: place for place, row in enumerate(rows) for name in row.split("`")[1::2]}


def name_module(path: Path) -> str:
    """Return the path of a module: ``inprocess/marker``; of a package's own, ``hook``."""
    name = path.relative_to(PACKAGE).with_suffix("").as_posix()
    return name.removesuffix("__init__").rstrip("/")


def package_of(module: str) -> str:
    """Return how the table names the package that a module is in."""
    return module.partition("/")[0] + "/"


LAYERS = read_layers()
MODULES = {name_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def find_layer(module: str) -> int:
    """Return the row of a module: its own, else its package's."""
    return LAYERS[module] if module in LAYERS else LAYERS[package_of(module)]


@cache
def read_imports(module: str) -> frozenset[str]:
    """Return the modules of the launcher that a module imports, also only for types."""
    return frozenset(find_imports(find_nodes(MODULES[module])[0])) - {""}


def find_imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules of the launcher that a tree imports, wherever in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            assert child.module and child.level == 0, "imports name the whole module"
            inside = child.module.partition(".")[2].replace(".", "/")
            for name in (alias.name for alias in child.names):
                full = f"{inside}/{name}".lstrip("/")
                if child.module.partition(".")[0] == "launcher":
                    yield full if full in MODULES else inside
        elif isinstance(child, ast.Import):
            for name in (alias.name for alias in child.names):
                if name.partition(".")[0] == "launcher":
                    yield name.partition(".")[2].replace(".", "/")
        else:
            yield from find_imports(child)


def test_every_module_has_a_row() -> None:
    """A new package, or a new module beside the packages, is given its place on the page."""
    missing = [
        name for name in MODULES if name and name not in LAYERS and f"{name.split('/')[0]}/" not in LAYERS
    ]
    assert missing == []


def test_every_room_is_a_package() -> None:
    """A folder without a file of its own is left out of what is installed."""
    rooms = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [str(room) for room in sorted(rooms) if not (room / "__init__.py").is_file()] == []


def test_every_name_of_the_table_is_a_module() -> None:
    """What has been moved or removed leaves the page."""
    packages = {package_of(name) for name in MODULES if "/" in name}
    assert sorted(set(LAYERS) - packages - set(MODULES)) == []


def test_no_module_imports_anything_of_a_later_layer() -> None:
    """Also not inside of a function: a module that is loaded late is needed all the same."""
    wrong = []
    for module in filter(None, MODULES):
        imported = read_imports(module)
        wrong += [f"{module} -> {name}" for name in sorted(imported) if find_layer(name) > find_layer(module)]
    assert wrong == []


def test_no_two_packages_import_each_other() -> None:
    """Nor do three in a circle: what a package needs can be read without what needs it."""
    needs: dict[str, set[str]] = {}
    for module in filter(None, MODULES):
        imported = {package_of(name) for name in read_imports(module)}
        needs.setdefault(package_of(module), set()).update(imported - {package_of(module)})
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    assert sorted(needs) == []


def test_no_two_classes_have_one_name() -> None:
    """A name is one thing wherever it is read."""
    nodes = (node for path in MODULES.values() for node in ast.walk(ast.parse(path.read_text())))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_the_table_is_read() -> None:
    """A table that is not found would let everything through."""
    assert LAYERS["core/"] < LAYERS["sources/"] < LAYERS["planning/"] < LAYERS["agent/"] < LAYERS["cli/"]


def test_no_modules_import_each_other() -> None:
    """Not even for types: a part gets values and callbacks, and never what owns it."""
    left = {name: read_imports(name) & set(MODULES) - {name} for name in MODULES}
    while free := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in free}
    assert sorted(left) == []  # what is left is in a circle, or imports one
