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
PINS = {"torch": "pytorch", "tensorflow": "tensorflow", "deepspeed": "deepspeed", "horovod": "horovod"}
"""Frameworks whose version the tests pin in tools/setup.sh, and the environment that has them."""
FRAMEWORKS = {*PINS, "mpi4py", "jax", "lightning", "accelerate", "transformers"}
USER_EXTRAS = {"metrics", "observe", "otel"}


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


@pytest.mark.parametrize("name", ["requirements", "tools"])
def test_the_locks_of_the_launcher_are_for_every_python(name: str) -> None:
    """No line depends on a Python or a platform: a context made here is for any other."""
    assert [str(line) for line in locked(DOCKER / f"{name}.lock").values() if line.marker] == []


@pytest.mark.parametrize(("framework", "environment"), PINS.items())
def test_environments_have_the_versions_that_tests_use(framework: str, environment: str) -> None:
    """What the images bring is what the tests have trained with."""
    pins = Path(ROOT, "tools", "setup.sh").read_text()
    (version,) = set(
        re.findall(rf'\b(?<!_){framework}(?:-cpu)?==([0-9.]+)[ )"\n]', pins.replace("TORCH=", "torch=="))
    )
    assert covers(DOCKER / "environments" / f"{environment}.lock", f"{framework}=={version}")


def test_no_extra_replaces_what_the_user_has() -> None:
    """An extra that names a framework, or an upper bound, would replace a build of the user's image."""
    extras = {name: text.split("\n") for name, text in setup_cfg()["options.extras_require"].items()}
    extras["install_requires"] = setup_cfg()["options"]["install_requires"].split("\n")
    assert extras.keys() == {*USER_EXTRAS, "test", "install_requires"}
    del extras["test"]  # of the developers
    for name, lines in extras.items():
        for requirement in map(Requirement, filter(None, lines)):
            assert {clause.operator for clause in requirement.specifier} <= {">="}, (name, requirement)
            assert requirement.name not in FRAMEWORKS and "tensorflow" not in requirement.name, (
                name,
                requirement,
            )


def test_locks_cover_what_is_needed_and_are_installed_with_hashes() -> None:
    """What setup.cfg and pyproject.toml need is in a lock, and whoever installs it uses --require-hashes."""
    # A dependency that is added or raised there without ``make lock`` is found here.
    needed = setup_cfg()["options"]["install_requires"].split()
    assert needed
    assert [one for one in needed if not covers(DOCKER / "requirements.lock", one)] == []
    observing = setup_cfg()["options.extras_require"]["observe"].split()
    assert len(observing) == 3
    assert [one for one in observing if not covers(DOCKER / "observe.lock", one)] == []
    # What pyproject.toml asks of its build, and what writes the SBOM.
    (wanted,) = re.findall(r'requires = \["(.*)"\]', Path(ROOT, "pyproject.toml").read_text())
    assert covers(DOCKER / "tools.lock", wanted)
    assert "cyclonedx-bom" in locked(DOCKER / "tools.lock")
    # Each is named after --require-hashes in what installs it, and there is no pip without one of them.
    texts = [path.read_text() for path in (*DOCKER.rglob("*.Dockerfile"), DOCKER / "install.sh")]
    used = set(re.findall(r"--require-hashes[^\n]*?([a-z0-9]+)\.lock", "\n".join(texts)))
    assert used == {path.stem for path in LOCKS}
