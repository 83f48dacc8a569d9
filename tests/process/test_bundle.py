"""A start takes its modules from one file of bytecode, where that says what the sources say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.starting import ROOT

SPY = """
import sys
sys.argv = ["launcher", "--version"]
from launcher import bundle
used = bundle.use()
import launcher.cli as module
import launcher.views as package
print(used, type(module.__spec__.loader).__name__, module.__file__, module.__cached__, sep="\\n")
print(package.__path__)
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a bundle."""
    folder = tmp_path_factory.mktemp("original") / "launcher"
    shutil.copytree(Path(ROOT) / "launcher", folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert python(folder, "-m", "launcher.bundle").stdout == f"{bundle_of(folder)}\n"
    return folder


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    """One that may be changed. What counts are the sources' times, which a copy keeps, as images do."""
    return Path(shutil.copytree(original, tmp_path / "launcher"))


def bundle_of(folder: Path) -> Path:
    """Return where the bundle of this Python stands."""
    return folder / "__pycache__" / f"launcher.{sys.implementation.cache_tag}.bundle"


def python(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a Python that has this copy of the package and no other, and writes no bytecode of its own."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, "-S", *words]
    return subprocess.run(
        line, env=environ | more, cwd=folder.parent, capture_output=True, text=True, timeout=60, check=False
    )


def test_modules_come_from_the_bundle_and_know_their_sources(package: Path) -> None:
    """Where a module and its package are, is what it is without; how it was found is not."""
    used, loader, file, cached, path = python(package, "-c", SPY).stdout.splitlines()
    assert (used, loader, cached) == ("True", "Bundled", str(bundle_of(package)))
    assert (file, path) == (str(package / "cli.py"), f"['{package / 'views'}']")


@pytest.mark.parametrize("program", [("-m", "launcher"), (str(Path(ROOT) / "bin" / "launcher"),)])
def test_both_programs_use_it(package: Path, program: tuple[str, ...]) -> None:
    """Without their sources' text, which Python would have to compile: its time and size are enough."""
    source = package / "cli.py"
    status = source.stat()
    source.write_bytes(b"#" * status.st_size)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert python(package, *program, "--version").stdout.startswith("launcher ")


def test_a_source_that_has_changed_is_what_runs(package: Path) -> None:
    """Of that module alone; the others still come from the bundle."""
    source = package / "cli.py"
    source.write_text(source.read_text() + "\nprint('changed')\n")
    lines = python(package, "-c", SPY).stdout.splitlines()
    assert lines[:3] == ["changed", "True", "SourceFileLoader"]


def test_a_module_that_is_gone_is_gone(package: Path) -> None:
    """Its code in the bundle does not outlive it."""
    (package / "cli.py").unlink()
    assert "No module named 'launcher.cli'" in python(package, "-c", SPY).stderr


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff" * len(data),
        lambda data: data[:8] + bytes(len(data) - 8),
        lambda data: data.replace(data[data.index(b"\r\n") - 2 : data.index(b"\r\n")], b"zz", 1),
    ],
    ids=["empty", "index cut", "code cut", "garbage", "zeros", "another Python's"],
)
def test_a_bundle_that_is_none_is_not_used(package: Path, spoil: Callable[[bytes], bytes]) -> None:
    """Python does what it always does."""
    bundle = bundle_of(package)
    bundle.write_bytes(spoil(bundle.read_bytes()))
    done = python(package, "-m", "launcher", "run", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_optimised_code_is_not_in_it(package: Path) -> None:
    """python -O compiles otherwise."""
    assert python(package, "-O", "-c", SPY).stdout.splitlines()[:2] == ["False", "SourceFileLoader"]


def test_a_traceback_shows_the_source(package: Path) -> None:
    """Lines and files are those of the sources."""
    code = (
        "from launcher import bundle; bundle.use(); from launcher.sources import _import; _import('nothing')"
    )
    err = python(package, "-c", code).stderr
    assert f'File "{package / "sources" / "__init__.py"}", line' in err and "__import__(path)" in err


def test_where_it_cannot_be_written_it_says_so(package: Path) -> None:
    """In three lines, status 75; nothing else needs it."""
    shutil.rmtree(package / "__pycache__")
    (package / "__pycache__").write_text("a file")
    done = python(package, "-m", "launcher.bundle")
    assert done.returncode == 75 and done.stderr.count("\n") == 3 and "[no-bundle]" in done.stderr
    assert python(package, "-m", "launcher", "run", "--", "true").returncode == 0
