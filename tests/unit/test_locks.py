"""The locks of docker/: each has versions and hashes, and covers what it is a lock of."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.process.starting import ROOT

DOCKER = Path(ROOT, "docker")
LOCKS = sorted(DOCKER.rglob("*.lock"))
EXTRAS = {
    "torch": "pytorch",
    "tensorflow": "tensorflow",
    "mpi": "mpi",
    "deepspeed": "deepspeed",
    "horovod": "horovod",
}
"""Extras of setup.cfg, and the environment that has the same version."""


def read_lock(path: Path) -> list[tuple[Requirement, int]]:
    """Return each line without its hashes, and how many it has."""
    found = []
    for entry in re.split(r"\n(?=\S)", path.read_text()):
        if not entry.startswith("#"):
            line, *hashes = re.split(r"\s+--hash=sha256:(?=[0-9a-f]{64}\b)", entry.replace("\\\n", ""))
            found.append((Requirement(line.strip()), len(hashes)))
    return found


def locked(path: Path) -> dict[str, Requirement]:
    """Return the lines by the normal names of their packages; of several for one, the last."""
    return {str(canonicalize_name(one.name)): one for one, _ in read_lock(path)}


def setup_cfg() -> configparser.ConfigParser:
    """Return the project's settings."""
    parsed = configparser.ConfigParser()
    parsed.read(Path(ROOT, "setup.cfg"))
    return parsed


def covers(lock: Path, wanted: str) -> bool:
    """Whether a lock has a version that a requirement takes."""
    requirement = Requirement(wanted)
    (exact,) = locked(lock)[canonicalize_name(requirement.name)].specifier
    return requirement.specifier.contains(exact.version)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: str(path.relative_to(DOCKER)))
def test_every_package_has_one_version_and_hashes(path: Path) -> None:
    """As pip's --require-hashes wants it; no index is named, so that any mirror does."""
    text = path.read_text()
    assert "--index-url" not in text and "--find-links" not in text and "://" not in text
    lines = read_lock(path)
    assert lines
    for requirement, hashes in lines:
        assert [clause.operator for clause in requirement.specifier] == ["=="], requirement
        assert hashes >= 1, requirement


def test_the_locks_cover_what_setup_cfg_needs() -> None:
    """A dependency that is added or raised there without ``make lock`` is found here."""
    needed = setup_cfg()["options"]["install_requires"].split()
    assert needed
    assert [one for one in needed if not covers(DOCKER / "requirements.lock", one)] == []
    observing = setup_cfg()["options.extras_require"]["observe"].split()
    assert len(observing) == 3
    assert [one for one in observing if not covers(DOCKER / "observe.lock", one)] == []


def test_the_tools_can_build_the_package() -> None:
    """What pyproject.toml asks of its build, and what writes the SBOM."""
    (wanted,) = re.findall(r'requires = \["(.*)"\]', Path(ROOT, "pyproject.toml").read_text())
    assert covers(DOCKER / "tools.lock", wanted)
    assert "cyclonedx-bom" in locked(DOCKER / "tools.lock")


@pytest.mark.parametrize("name", ["requirements", "tools"])
def test_the_locks_of_the_launcher_are_for_every_python(name: str) -> None:
    """No line depends on a Python or a platform: a context made here is for any other."""
    assert [str(line) for line in locked(DOCKER / f"{name}.lock").values() if line.marker] == []


@pytest.mark.parametrize(("extra", "environment"), EXTRAS.items())
def test_environments_have_the_versions_of_the_extras(extra: str, environment: str) -> None:
    """What ``pip install cluster-launcher[torch]`` brings is what the image has."""
    wanted = setup_cfg()["options.extras_require"][extra].replace("tensorflow-cpu", "tensorflow")
    assert covers(DOCKER / "environments" / f"{environment}.lock", wanted)


def test_every_lock_is_installed_with_its_hashes() -> None:
    """Each is named after --require-hashes in what installs it, and there is no pip without one of them."""
    texts = [path.read_text() for path in (*DOCKER.rglob("*.Dockerfile"), DOCKER / "install.sh")]
    used = set(re.findall(r"--require-hashes[^\n]*?([a-z0-9]+)\.lock", "\n".join(texts)))
    assert used == {path.stem for path in LOCKS}
