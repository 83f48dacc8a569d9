"""What is in the image: listed and compared, measured, and looked at for what has no business there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.container.images import ENVIRONMENT
from tests.container.podman import Podman
from tests.process.starting import ROOT
from tests.process.test_supply import read_sbom

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

LIMIT_BYTES = 40 << 20
LIST = "find / -xdev -type d -printf '%p/\\n' -o -printf '%p %s %m %U %T@\\n'"
"""All files with what tells a changed one, folders by name."""
OF_THE_ENGINE = (
    *("/dev/", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf", "/run/", "/proc/", "/sys/"),
)
OURS = "/opt/launcher/lib/launcher/"
CONTENT = Path(__file__).with_name("content.txt")
UNWANTED = re.compile(
    r"/(id_(rsa|ed25519|ecdsa)|ssh_host_[a-z0-9_]*key|authorized_keys|known_hosts|[^/]*\.(pem|key|orig|log|part|whl))$"
    r"|/(\.cache|pip|setuptools|wheel|tests?|__pycache__/[^/]*\.pyc\.\d+)(/|$)|\.dist-info/direct_url\.json$"
)
FOLDERS = {"launcher": "/opt/launcher/lib", "env": "/opt/env/lib/python3*/site-packages"}
"""Folders of packages, by the names of their SBOMs."""
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "nvcc", "make", "cmake", "ld")


@pytest.fixture(scope="module")
def added(podman: Podman) -> list[str]:
    """Return every file that the launcher's layers have added or changed."""
    return sorted(name_files(podman, podman.image) - name_files(podman, ENVIRONMENT))


def name_files(podman: Podman, image: str) -> set[str]:
    """Return a line for each file of an image; of folders the names."""
    done = podman.must("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", LIST)
    return {line for line in done.splitlines() if not line.startswith(OF_THE_ENGINE)}


def path_of(line: str) -> str:
    """Return the path of a line of `LIST`."""
    return line if line.endswith("/") else line.rsplit(" ", 4)[0]


def inspect(podman: Podman, image: str) -> dict[str, Any]:
    """Return what podman knows of an image."""
    (known,) = json.loads(podman.must("image", "inspect", image))
    assert isinstance(known, dict)
    return known


def test_the_image_has_what_the_list_says(added: list[str]) -> None:
    """Nothing but the launcher's folder and its program; the packages are those of content.txt."""
    tops = {re.sub(r"-[0-9.]+(?=\.dist-info)", "-VERSION", _top(path_of(line))) for line in added}
    assert sorted(tops) == CONTENT.read_text().splitlines()


def _top(path: str) -> str:
    """Return a path as far as the list goes: to what stands in the folder of packages."""
    match = re.match(r"/opt/launcher/lib/[^/]+/?", path)
    return match[0] if match else path


def test_the_package_is_the_checkouts(added: list[str]) -> None:
    """Every module with its bytecode, the tables, and no other file."""
    found = {path_of(line).removeprefix(OURS) for line in added if line.startswith(OURS)}
    found = {name for name in found if name and not name.endswith("/")}
    root = Path(ROOT, "launcher")
    sources = {str(path.relative_to(root)) for path in root.rglob("*.py")}
    compiled = {name.replace("__pycache__/", "") for name in found if name.endswith(".pyc")}
    compiled = {re.sub(r"\.[^/]*\.pyc$", ".py", name) for name in compiled}
    assert {name for name in found if name.endswith(".py")} == sources == compiled
    rest = {name for name in found if not name.endswith((".py", ".pyc"))}
    tables = {str(path.relative_to(root)) for path in root.rglob("*.txt")}
    assert rest == {*tables, "commit.txt", "py.typed"}


def test_nothing_is_inside_that_should_not_be(added: list[str], podman: Podman) -> None:
    """No key, cache, log, test or compiler; all files are root's, and nobody else may write to them."""
    unwanted = [line for line in added if UNWANTED.search(path_of(line)) and not line.startswith(OURS)]
    assert unwanted == []
    files = [line.rsplit(" ", 4) for line in added if not line.endswith("/")]
    assert {(mode, owner) for _, _, mode, owner, _ in files} == {("644", "0"), ("755", "0")}
    assert [path for path, _, mode, _, _ in files if mode == "755"] == [
        "/opt/launcher/bin/launcher",
        "/opt/launcher/lib/bin/py-spy",
        "/opt/launcher/lib/psutil/_psutil_linux.abi3.so",
        "/usr/local/bin/launcher",
    ]
    look = "ls /etc/ssh/ssh_host_* /root/.ssh /root/.cache /etc/pip.conf /run/pip/* /tmp/* 2>/dev/null; "
    look += f"for name in {' '.join(COMPILERS)}; do command -v $name; done; "
    look += "grep -rl 'PRIVATE KEY-----$' /opt/launcher /etc"
    assert podman("run", "--rm", "--entrypoint", "sh", podman.image, "-c", look).stdout == ""


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_the_sbom_lists_every_package(podman: Podman, tmp_path: Path, name: str, folder: str) -> None:
    """Of the launcher's, and of those in /opt/env below, each with its version; the licences name each."""
    inside = ("run", "--rm", "--entrypoint", "sh", podman.image, "-c")
    look = "sed '/^$/q' $file | grep -E '^(Name|Version): ' | sort"
    found = podman.must(*inside, f"for file in {folder}/*.dist-info/METADATA; do {look}; done").splitlines()
    values = [line.partition(": ")[2] for line in found]
    packages = dict(zip(values[::2], values[1::2], strict=True))
    sbom = tmp_path / "sbom.json"
    sbom.write_text(podman.must(*inside, f"cat /opt/launcher/share/{name}.cdx.json"))
    assert {one: listed["version"] for one, listed in read_sbom(sbom).items()} == packages
    licences = podman.must(*inside, f"cat /opt/launcher/share/{name}.licenses.txt")
    assert set(packages) <= set(re.findall(r"^Name: (.*)$", licences, flags=re.MULTILINE))
    assert len(packages) >= {"launcher": 5, "env": 3}[name]


def test_it_adds_less_than_40_mib(podman: Podman, record_property: Callable[[str, object], None]) -> None:
    """Measured as podman measures both images."""
    size = inspect(podman, podman.image)["Size"] - inspect(podman, ENVIRONMENT)["Size"]
    record_property("added_mib", f"{size / (1 << 20):.1f}")
    assert 0 < size < LIMIT_BYTES


def test_the_image_says_what_it_is(podman: Podman) -> None:
    """OCI labels, the entry point, no command of its own; the rest is the base's."""
    ours, base = inspect(podman, podman.image), inspect(podman, ENVIRONMENT)
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in ours["Labels"].items()}
    assert labels["title"] == "cluster-launcher"
    assert labels["licenses"] == "MIT"
    assert labels["version"] == _version()
    assert labels["revision"] == "0123abc"
    assert labels["base.name"] == ENVIRONMENT
    assert labels["base.digest"] == "unknown", "build.sh looks it up, and a build without it does not guess"
    assert ours["Config"]["Entrypoint"] == ["launcher", "run", "--"]
    assert not ours["Config"].get("Cmd")
    assert ours["Config"]["Env"] == base["Config"]["Env"]
    assert ours["Config"].get("User") == base["Config"].get("User")


def _version() -> str:
    text = Path(ROOT, "launcher", "core", "version.py").read_text()
    (version,) = re.findall(r'__version__ = "(.*)"', text)
    return str(version)


def test_files_do_not_tell_when_and_where_they_were_made(podman: Podman, added: list[str]) -> None:
    """All have the time that the build was given, none the path of the build."""
    files = [line.rsplit(" ", 4) for line in added if not line.endswith("/")]
    assert {time for *_, time in files} == {"1767225600.0000000000"}
    words = (
        *("run", "--rm", "--entrypoint", "grep", podman.image, "-rl", "/tmp/launcher-source"),
        "/opt/launcher",
    )
    assert podman(*words).stdout == ""


def test_the_committed_lists_name_what_is_there() -> None:
    """What the Dockerfile copies exists, and .dockerignore lets it through."""
    allowed = {line[1:] for line in Path(ROOT, ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert all(os.path.exists(os.path.join(ROOT, name)) for name in allowed)
