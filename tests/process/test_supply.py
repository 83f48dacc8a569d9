"""docker/install.sh, run for real outside of a container: what it refuses, and what it says is inside."""

from __future__ import annotations

import email.parser
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launcher import __version__
from tests.process.starting import ROOT, clean_environ
from tests.unit.test_locks import DOCKER, locked

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("supply")]

TIMEOUT_S = 300.0
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LEFT_OUT = {"lxml", "jsonschema", "referencing"}
"""As in tools/lock.sh: only the validation of CycloneDX imports them."""


def call(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; pip needs no network but what the variables say."""
    environ = {**clean_environ(**variables), "LAUNCHER_PYTHON": sys.executable}
    environ.pop("PYTHONPATH", None)
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)


def install(source: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh of a source."""
    return call("sh", source / "docker" / "install.sh", source, folder, **variables)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a context of Azure ML has of the launcher: all wheels of its locks, and its own."""
    contexts = tmp_path_factory.mktemp("contexts")
    environ = {**os.environ, "PYTHON": sys.executable}
    words = ("sh", str(DOCKER / "azureml" / "make_contexts.sh"), str(contexts))
    subprocess.run(words, env=environ, check=True, timeout=TIMEOUT_S)
    return contexts / "pytorch" / "launcher"


@pytest.fixture(scope="module")
def installed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that is /opt/launcher in an image."""
    folder = tmp_path_factory.mktemp("installed") / "launcher"
    done = install(context, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"launcher {__version__} (commit ")
    return folder


class Index(http.server.SimpleHTTPRequestHandler):
    """A mirror: the listing of a folder is what pip reads."""

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def mirror(context: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the wheels as an index of packages, without the launcher; return its address."""
    for wheel in (context / "wheels").glob("*.whl"):
        name = canonicalize_name(wheel.name.partition("-")[0])
        if name != "cluster-launcher":
            (tmp_path / "index" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(wheel, tmp_path / "index" / name)
    handler = functools.partial(Index, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def metadata(folder: Path) -> dict[str, Message]:
    """Return the metadata of what is installed in a folder of packages, by name."""
    parse = email.parser.Parser().parsestr
    read = [parse(path.read_text()) for path in folder.glob("*.dist-info/METADATA")]
    return {one["Name"]: one for one in read}


def read_sbom(path: Path) -> dict[str, Any]:
    """Return what an SBOM lists, by name, after a look at what a reader of CycloneDX needs."""
    sbom = json.loads(path.read_text())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert "serialNumber" not in sbom, "a random number: the same packages would not give the same file"
    listed = {one["name"]: one for one in sbom["components"]}
    references = {one["bom-ref"] for one in sbom["components"]}
    assert len(references) == len(sbom["components"]) == len(listed)
    assert {one["ref"] for one in sbom["dependencies"]} == references
    return listed


def test_no_folder_of_the_user_is_removed(context: Path, tmp_path: Path) -> None:
    """DIR may be a folder with a launcher/ or a pytorch/ of its own, such as the checkout."""
    assert [path.name for path in sorted(context.parents[1].iterdir())] == ["pytorch", "tensorflow"]
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "launcher").mkdir()
    kept = (tmp_path / "pytorch" / "own", tmp_path / "launcher" / "own")
    for path in kept:
        path.touch()
    done = call("sh", DOCKER / "azureml" / "make_contexts.sh", tmp_path)
    assert (done.returncode, f"error: {tmp_path}/pytorch exists" in done.stderr) == (64, True)
    assert all(path.exists() for path in kept)


def test_both_scripts_build_the_launcher_from_the_same_files() -> None:
    """A package that one of them leaves out is missing in its images: nothing else would notice."""
    scripts = (DOCKER / "install.sh", DOCKER / "azureml" / "make_contexts.sh")
    first, second = (re.findall(r"cp -R (bin .*) \"\$work/source\"", one.read_text()) for one in scripts)
    assert first == second and len(first) == 1


def test_the_sbom_lists_what_is_installed(installed: Path) -> None:
    """Every package with its version, its licence and a package URL, and the launcher with what it needs."""
    packages = metadata(installed / "lib")
    assert packages.keys() == {"cluster-launcher", "nvidia-ml-py", "prometheus_client", "psutil", "py-spy"}
    listed = read_sbom(installed / "share" / "launcher.cdx.json")
    assert {name: one["version"] for name, one in listed.items()} == {
        name: one["Version"] for name, one in packages.items()
    }
    for name, one in listed.items():
        assert one["purl"] == f"pkg:pypi/{canonicalize_name(name)}@{one['version']}"
        assert one["licenses"], name
    assert listed["cluster-launcher"]["licenses"][0]["license"]["id"] == "MIT"


def test_the_versions_are_those_of_the_lock(installed: Path) -> None:
    """Nothing else comes in beside the launcher."""
    packages = metadata(installed / "lib").items()
    found = {str(canonicalize_name(name)): one["Version"] for name, one in packages}
    del found["cluster-launcher"]
    lines = {**locked(DOCKER / "requirements.lock"), **locked(DOCKER / "observe.lock")}.items()
    assert found == {name: str(line.specifier).removeprefix("==") for name, line in lines}


def test_py_spy_is_where_the_launcher_looks(installed: Path) -> None:
    """Beside its packages: `launcher stacks --native` works in every image."""
    look = "from launcher.hang.ask import find_py_spy; print(find_py_spy())"
    words = ("-I", "-S", "-c", f"import sys; sys.path[:0] = [sys.argv[1]]; {look}", installed / "lib")
    done = call(os.path.realpath(sys.executable), *words)  # beside that of the tests is another one
    assert done.stdout.strip() == str(installed / "lib" / "bin" / "py-spy"), done.stderr


def test_the_licences_are_there_word_for_word(installed: Path) -> None:
    """One text for every package, also for the one that has it in its module alone."""
    text = (installed / "share" / "launcher.licenses.txt").read_text()
    parts = re.split(r"^={80}\n", text, flags=re.MULTILINE)[1:]
    by_name = {re.findall(r"^Name: (.*)$", part, flags=re.MULTILINE)[0]: part for part in parts}
    assert by_name.keys() == metadata(installed / "lib").keys()
    for name, part in by_name.items():
        assert "brings no text" not in part, name
        assert re.search(r"copyright", part, flags=re.IGNORECASE), name
    assert Path(ROOT, "LICENSE").read_text().strip() in by_name["cluster-launcher"]
    assert "Redistributions of source code must retain" in by_name["nvidia-ml-py"]


@pytest.mark.parametrize("name", ["nvidia_ml_py", "setuptools"])
def test_a_changed_file_is_refused(context: Path, tmp_path: Path, name: str) -> None:
    """One file more in a wheel of the launcher's packages, or of the tools that build it, and pip stops."""
    source = tmp_path / "source"
    shutil.copytree(context, source)
    (wheel,) = (source / "wheels").glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("sitecustomize.py", "raise SystemExit('this runs')\n")
    done = install(source, tmp_path / "launcher")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr and wheel.name in done.stderr, done.stderr
    assert not list((tmp_path / "launcher").rglob("sitecustomize.py"))
    assert not (tmp_path / "launcher" / "bin" / "launcher").exists()


def test_a_mirror_does(installed: Path, mirror: str, tmp_path: Path) -> None:
    """From a checkout, with an index of one's own and NVIDIA's PIP_CONSTRAINT: the same packages and SBOM."""
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("psutil==5.9.0\nsetuptools==70.0.0\n")
    ours = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": mirror, "PIP_CONSTRAINT": str(constraint)}
    done = install(Path(ROOT), tmp_path / "launcher", **ours)
    assert done.returncode == 0, done.stderr
    for name in ("launcher.cdx.json", "launcher.licenses.txt"):
        assert (tmp_path / "launcher/share" / name).read_bytes() == (installed / "share" / name).read_bytes()
    assert not Path(ROOT, "build", "lib").exists(), "setuptools has built in the checkout"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_locks_are_complete_for(context: Path, python: str) -> None:
    """What each wheel requires under a Python is in a lock: pip asks nobody else there."""
    have = {*LEFT_OUT}.union(
        *(locked(DOCKER / f"{name}.lock") for name in ("requirements", "observe", "tools"))
    )
    # With every extra that is asked for, as cyclonedx-bom asks for one.
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    missing = []
    for wheel in (context / "wheels").glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()  # setuptools has metadata of what it brings along, deeper
            (name,) = (name for name in names if re.fullmatch(r"[^/]*\.dist-info/METADATA", name))
            text = email.parser.Parser().parsestr(archive.read(name).decode())
        for line in text.get_all("Requires-Dist", []):
            required = Requirement(line)
            wanted = not required.marker or required.marker.evaluate({**environment, "extra": ""})
            if wanted and canonicalize_name(required.name) not in have:
                missing.append(f"{wheel.name}: {line}")
    assert missing == []
