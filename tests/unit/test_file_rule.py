"""One module writes: any other call that opens, makes, renames or removes a file is on a short list here."""

from __future__ import annotations

import ast
import inspect
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from launcher.core.files import create_file, remove_tree
from tools.reference import find_nodes

pytestmark = pytest.mark.xdist_group("source")
ROOT = Path(__file__).parents[2] / "launcher"
RULE = "core/files.py"
WRITING = {
    *("chmod", "chown", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "remove", "removedirs"),
    *("rename", "renames", "replace", "rmdir", "symlink", "truncate", "unlink", "utime", "setxattr"),
}
"""Functions of `os` that change what a path leads to."""
MODULES = {"shutil", "tempfile", "pathlib"}
"""Modules with ways of their own to write; `shutil.which` only reads."""
FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")
NO_PLANTS = ("os.devnull", "'/dev/null'", "'/proc/", "f'/proc/")
"""Beginnings of places in which no other user can make anything, and of our own descriptors there."""
ELSEWHERE = {
    # In every Python of a job, before any module: a copy of the rule for paths without links
    "inprocess/site/sitecustomize.py": {"os.open"},
    # A node's address as another name of it, in a folder that was made for the rehearsal
    "rehearse/cluster.py": {"os.symlink"},
}
"""Calls that may stay outside, by module, each with its reason."""


def find_writes(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each call that may write to a path; of imports that hide one, too."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in {"os", *MODULES}:
            names = {alias.name for alias in node.names}
            if node.module != "os" or names & (WRITING | {"open"}):
                yield node.lineno, f"from {node.module}"
        elif isinstance(node, ast.Call) and is_writing(node):
            yield node.lineno, ast.unparse(node.func)


def is_writing(call: ast.Call) -> bool:
    """Whether a call may write to a path that another user can have planted."""
    module, _, function = ast.unparse(call.func).rpartition(".")
    given = {str(place): ast.unparse(word) for place, word in enumerate(call.args)}
    given |= {word.arg or "**": ast.unparse(word.value) for word in call.keywords}
    if given.get("0", "").startswith(NO_PLANTS):
        return False
    if module == "os" and function == "open":
        flags = given.get("1", given.get("flags", ""))
        return "O_" not in flags or any(flag in flags for flag in FLAGS)
    if (module, function) in (("", "open"), ("io", "open")):
        mode = given.get("1", given.get("mode", "'r'"))
        return not given["0"].isdecimal() and (mode[0] not in "'\"" or any(one in mode for one in "wax+"))
    return (module == "os" and function in WRITING) or (module in MODULES and function != "which")


def test_one_module_writes() -> None:
    """What a user, a variable or a shared folder names is written through `launcher.core.files` alone."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).as_posix()
        calls = [*find_writes(find_nodes(path))] if module != RULE else []
        wrong = [f"{line}: {name}" for line, name in calls if name not in ELSEWHERE.get(module, ())]
        if wrong:
            found[module] = wrong
    assert found == {}


def test_what_is_searched_for_is_found() -> None:
    """In the rule's own module, and in each of these lines."""
    ours = {name for _, name in find_writes(find_nodes(ROOT / RULE))}
    assert ours == {"open", "os.mkdir", "os.open", "os.replace", "os.rmdir", "os.unlink"}
    writing = (
        *("open(path, 'w')", "open(path, mode='ab')", "open(path, mode)", "os.open(path, flags)"),
        *("os.open(path, os.O_RDWR)", "os.truncate(path, 0)", "tempfile.mkdtemp()", "shutil.rmtree(path)"),
        *("from pathlib import Path", "from os import mkdir"),
    )
    reading = (
        *("open(path)", "open(path, 'rb')", "open('/proc/self/comm', 'w')", "os.open(path, os.O_RDONLY)"),
        *("shutil.which('ssh')", "text.replace('a', 'b')"),
    )
    assert [line for line in writing + reading if [*find_writes(ast.walk(ast.parse(line)))]] == list(writing)


def test_no_part_of_a_new_file_stays(tmp_path: Path) -> None:
    """On a full disk: half of a key would be in the way of the next one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            create_file("x" * 100, str(tmp_path / "key"), 0o600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_folders_nested_too_deeply_stay(tmp_path: Path) -> None:
    """A job's own in the folder of its run: it ended with exit code 70, as if the launcher had failed."""
    tmp_path.joinpath(*["d"] * 100).mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        remove_tree(str(tmp_path / "d"))
    finally:
        sys.setrecursionlimit(limit)
