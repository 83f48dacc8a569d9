"""Which torch a Python has, told from made-up folders, and from the real ones of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.machine.host import Host
from launcher.machine.network import address_towards
from launcher.machine.pythons import UNNAMED, find_version, own_python
from tests.process.starting import ROOT

Make = Callable[..., Path]


def find_torch(python: str, environ: dict[str, str]) -> str | None:
    """Return the version of torch that an interpreter has."""
    return find_version(python, environ, "torch")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes an interpreter (an executable file, no more), or a folder with torch."""

    def program(path: str, to: Path | None = None) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if to is None:
            file.write_text("#!/bin/false\n")
            file.chmod(0o755)
        else:
            file.symlink_to(to)
        return file

    return program


def add_torch(folder: Path, version: str = "2.13.0+cpu") -> Path:
    """Put a torch into a folder of packages, as pip would."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    if version:
        (folder / f"torch-{version}.dist-info").mkdir()
    return folder


def add_venv(folder: Path, home: Path, **settings: str) -> None:
    """Write what makes a folder a virtual environment."""
    lines = {"home": str(home), "version": "3.11.7", **settings}
    (folder / "pyvenv.cfg").write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)


def test_a_virtual_environment_has_what_is_installed_in_it(make: Make, tmp_path: Path) -> None:
    """And not what its base has, unless it says that it takes that, too."""
    base = make("usr/bin/python3.11")
    add_torch(tmp_path / "usr/lib/python3.11/site-packages")
    venv = make("venv/bin/python", base)
    add_venv(tmp_path / "venv", base.parent)
    assert find_torch(str(venv), {}) == ""
    with (tmp_path / "venv" / "pyvenv.cfg").open("a") as file:
        file.write("include-system-site-packages = true\n")
    assert find_torch(str(venv), {}) == "2.13.0+cpu"
    add_torch(tmp_path / "venv/lib/python3.11/site-packages", "2.4.1")
    assert find_torch(str(venv), {}) == "2.4.1"


def test_the_environments_folders_count(make: Make, tmp_path: Path) -> None:
    """PYTHONPATH, the user's own packages, and what .pth files name."""
    python = str(make("opt/bin/python3.11"))
    site = tmp_path / "opt/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    add_torch(tmp_path / "extra", "2.1.0")
    assert find_torch(python, {"PYTHONPATH": f"/nowhere:{tmp_path / 'extra'}"}) == "2.1.0"
    (site / "more.pth").write_text(f"import sys\n{tmp_path / 'extra'}\n")
    assert find_torch(python, {}) == "2.1.0"
    (site / "more.pth").unlink()
    add_torch(tmp_path / "home/.local/lib/python3.11/site-packages", "2.2.0")
    assert find_torch(python, {"HOME": str(tmp_path / "home")}) == "2.2.0"
    assert find_torch(python, {"HOME": str(tmp_path / "home"), "PYTHONNOUSERSITE": "1"}) == ""


def test_what_cannot_be_told_is_unknown(make: Make, tmp_path: Path) -> None:
    """No such program, a wrapper script (pyenv's shims), a layout that is none of ours: never a guess."""
    assert find_torch("python3.11", {"PATH": str(tmp_path)}) is None
    assert find_torch(str(make("shims/python")), {}) is None
    make("odd/bin/python")
    for version in ("3.10", "3.11"):
        (tmp_path / f"odd/lib/python{version}/site-packages").mkdir(parents=True)
    assert find_torch(str(tmp_path / "odd/bin/python"), {}) is None


def test_packages_are_those_of_the_python(make: Make, tmp_path: Path) -> None:
    """Of a virtual environment, of its own version, of PATH, PYTHONPATH and .pth files."""
    # /usr has folders of several Pythons.
    python = make("usr/bin/python3", make("usr/bin/python3.11"))
    add_torch(tmp_path / "usr/lib/python3.9/site-packages")
    (tmp_path / "usr/lib/python3.11/site-packages").mkdir(parents=True)
    assert find_torch(str(python), {}) == ""
    add_torch(tmp_path / "usr/lib/python3.11/dist-packages")
    assert find_torch(str(python), {}) == "2.13.0+cpu"
    # The first executable of that name counts, as it will for the command.
    make("a/bin/python3.11")
    make("b/bin/python3.11")
    add_torch(tmp_path / "b/lib/python3.11/site-packages")
    (tmp_path / "a/lib/python3.11/site-packages").mkdir(parents=True)
    first, second = str(tmp_path / "a/bin"), str(tmp_path / "b/bin")
    assert find_torch("python3.11", {"PATH": f"{first}:{second}"}) == ""
    assert find_torch("python3.11", {"PATH": f"{second}:{first}"}) == "2.13.0+cpu"
    # A source checkout has no dist-info.
    python = make("opt/bin/python3.11")
    add_torch(tmp_path / "opt/lib/python3.11/site-packages", "")
    assert find_torch(str(python), {}) == UNNAMED


@pytest.mark.thorough
@pytest.mark.torch
def test_the_real_torch_is_found_where_python_finds_it() -> None:
    """Our own interpreter's, by our own path, and asked for by its name; without an import of torch."""
    code = "import torch; print(torch.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    environ = {"PATH": os.path.dirname(sys.executable)}
    assert Host().find_version(None, environ, "torch") == done.stdout.strip()
    assert Host().find_version("python", environ, "torch") == done.stdout.strip()
    assert Host().find_version(sys.executable, {}, "torch") == done.stdout.strip()


def test_a_hosts_own_address_and_port_are_real() -> None:
    """The address by which a host is reached is one of ours; a free port can be listened on."""
    import socket

    assert address_towards(Host(), "127.0.0.1") == "127.0.0.1"
    assert address_towards(Host(), "127.0.77.10") == "127.0.77.10"  # through the loopback: it is this machine
    assert address_towards(Host(), "no.such.host.invalid") is None
    outside = address_towards(Host(), "192.0.2.1")
    assert outside is None or outside in Host().own_addresses()
    with socket.create_server(("", Host().free_port())):
        pass


def test_scripts_run_under_the_python_of_the_job(make: Make, tmp_path: Path) -> None:
    """PYTHON_EXEC, else ours; in an image, where the launcher is apart from packages, the first on PATH."""
    env, system, _ = make("env/python"), make("usr/python3"), make("usr/python")
    path = {"PATH": f"{tmp_path / 'nowhere'}:{env.parent}:{system.parent}"}
    assert own_python({**path, "PYTHON_EXEC": "python3.8"}, apart=True) == "python3.8"
    assert own_python(path, apart=True) == "python"
    assert own_python({"PATH": str(system.parent)}, apart=True) == "python3"
    assert own_python({"PATH": "/nowhere"}, apart=True) == sys.executable
    assert own_python(path, apart=False) == sys.executable


def test_a_python_without_site_says_what_it_would_have_with_it() -> None:
    """The launcher in an image runs with -I -S; the same Python runs jobs with all its packages."""
    lines = (
        "import sys",
        f"sys.path.insert(0, {ROOT!r})",
        "from launcher.machine.pythons import find_version",
        "print(find_version(sys.executable, {}, 'torch'))",
    )
    words = [sys.executable, "-I", "-S", "-c", "\n".join(lines)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == Host().find_version(sys.executable, {}, "torch")
