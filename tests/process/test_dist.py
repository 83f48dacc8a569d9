"""tools/dist.sh: the files of a release, built twice, and installed without an index."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher import __version__
from tests.process.starting import ROOT, clean_environ
from tests.process.test_supply import read_sbom

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("supply")]

TIMEOUT_S = 300.0
NAME = f"cluster_launcher-{__version__}"
WHEEL = f"{NAME}-py3-none-any.whl"


def call(*words: str | Path, umask: int = 0o022, **variables: str) -> str:
    """Run a command to its end and return its output."""
    environ = clean_environ(**variables)
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, umask=umask)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of the last commit."""
    clone = tmp_path_factory.mktemp("clone") / "checkout"
    call("git", "clone", "--quiet", ROOT, clone)
    return clone


@pytest.fixture(scope="module")
def dist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it; return the folder."""
    return build(clone, tmp_path_factory.mktemp("first") / "dist")


def build(checkout: Path, folder: Path, umask: int = 0o022, **variables: str) -> Path:
    """Build a checkout's release files into a folder."""
    call("bash", checkout / "tools" / "dist.sh", folder, umask=umask, PYTHON=sys.executable, **variables)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_build_gives_the_same_bytes(dist: Path, clone: Path, tmp_path: Path) -> None:
    """Of another clone in another folder, with another umask, time zone, language and home."""
    other = tmp_path / "a longer name" / "of a folder"
    call("git", "clone", "--quiet", clone, other, umask=0o077)
    (tmp_path / "home").mkdir()
    settings = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "HOME": str(tmp_path / "home")}
    kept = {"PIP_CACHE_DIR": str(tmp_path / "cache"), "PYTHONHASHSEED": "7"}
    again = read(build(other, tmp_path / "dist", 0o077, **settings, **kept))
    first = read(dist)
    assert first.keys() == again.keys()
    assert [name for name in first if first[name] != again[name]] == []


def test_the_files_of_a_release(dist: Path) -> None:
    """And their hashes, as sha256sum checks them."""
    names = set(read(dist))
    wheels = {name for name in names if name.startswith("wheelhouse/") and name.endswith(".whl")}
    assert names - wheels == {
        *(f"{NAME}.tar.gz", WHEEL, f"{WHEEL.removesuffix('.whl')}.cdx.json"),
        *(f"{WHEEL.removesuffix('.whl')}.licenses.txt", "SHA256SUMS", "wheelhouse/requirements.txt"),
        *("cluster-launcher.pyz", "cluster-launcher.pyz.cdx.json", "cluster-launcher.pyz.licenses.txt"),
    }
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=dist, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(": OK") == len(names) - 1


def test_every_form_names_the_commit(dist: Path, clone: Path) -> None:
    """With its time, which is that of all files in the source archive."""
    commit, time_s = call("git", "-C", clone, "log", "-1", "--format=%H %ct").split()
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        assert {one.mtime for one in archive.getmembers()} == {int(time_s)}
        assert {(one.uid, one.uname) for one in archive.getmembers()} == {(0, "")}
        member = archive.extractfile(f"{NAME}/launcher/commit.txt")
        assert member is not None and member.read().decode() == f"{commit} {time_s}\n"
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        assert wheel.read("launcher/commit.txt").decode() == f"{commit} {time_s}\n"
    said = call(sys.executable, dist / "cluster-launcher.pyz", "--version")
    assert re.fullmatch(
        rf"launcher {re.escape(__version__)} \(commit {commit[:12]} of [\d-]+, from a zipapp\)\n", said
    )


def test_the_wheelhouse_installs_without_an_index(dist: Path, tmp_path: Path) -> None:
    """With hashes for all, in a new environment; what was changed is refused."""
    call(sys.executable, "-m", "venv", tmp_path / "env")
    house = dist / "wheelhouse"
    words = ("-m", "pip", "install", "--quiet", "--no-index", "--require-hashes", "--find-links")
    python = tmp_path / "env" / "bin" / "python"
    call(python, *words, house, "-r", house / "requirements.txt", PIP_CONFIG_FILE="/dev/null")
    assert call(python.with_name("launcher"), "run", "--", "echo", "hi") == "hi\n"
    listed = json.loads(call(python, "-m", "pip", "list", "--format", "json"))
    assert {one["name"] for one in listed} - {"pip", "setuptools"} == {"cluster-launcher", "nvidia-ml-py"}
    lines = (house / "requirements.txt").read_text()
    changed = tmp_path / "requirements.txt"
    changed.write_text(re.sub(r"sha256:....", "sha256:0000", lines))
    line: tuple[str | Path, ...] = (python, *words, house, "--force-reinstall", "-r", changed)
    done = subprocess.run(
        line, env={**clean_environ(), "PIP_CONFIG_FILE": "/dev/null"}, capture_output=True, text=True
    )
    assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr, done.stderr


def test_the_wheel_has_our_licence_and_lists_what_it_brings(dist: Path) -> None:
    """With its dependencies, and those of the extra observe."""
    listed = read_sbom(dist / f"{WHEEL.removesuffix('.whl')}.cdx.json")
    assert listed.keys() == {"cluster-launcher", "nvidia-ml-py", "prometheus_client", "psutil", "py-spy"}
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        licence = wheel.read(f"{NAME}.dist-info/licenses/LICENSE").decode()
    assert licence == Path(ROOT, "LICENSE").read_text()


def test_the_list_of_the_file_for_pythons_without_pip(dist: Path, tmp_path: Path) -> None:
    """Its SBOM and its licences are of all that is inside, and of nothing else."""
    with zipfile.ZipFile(dist / "cluster-launcher.pyz") as outer:
        (tmp_path / "payload.zip").write_bytes(outer.read("payload.zip"))
    with zipfile.ZipFile(tmp_path / "payload.zip") as archive:
        names = archive.namelist()
    inside = {name.split("/")[1].removesuffix(".dist-info") for name in names if name.endswith("/METADATA")}
    listed = read_sbom(dist / "cluster-launcher.pyz.cdx.json").items()
    assert {f"{name.replace('-', '_')}-{one['version']}" for name, one in listed} == inside
    assert {name.split("/")[0] for name in names} == {"lib", "files.txt"}
    text = (dist / "cluster-launcher.pyz.licenses.txt").read_text()
    assert "Name: nvidia-ml-py" in text and "Name: cluster-launcher" in text


def test_the_metadata_names_addresses(dist: Path) -> None:
    """Where to look, to ask, and to report a vulnerability: that of SECURITY.md."""
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        text = wheel.read(f"{NAME}.dist-info/METADATA").decode()
    found = dict(re.findall(r"^Project-URL: (\w+), (https://\S+)$", text, re.MULTILINE))
    assert found.keys() == {"Source", "Documentation", "Changelog", "Issues", "Security"}
    assert all(address.startswith(found["Source"]) for address in found.values())
    assert f"<{found['Security']}>" in Path(ROOT, "SECURITY.md").read_text()
    assert re.search(r"^Author: The cluster-launcher maintainers$", text, re.MULTILINE)


def test_a_release_is_built_from_its_tag_and_published_nowhere(clone: Path, tmp_path: Path) -> None:
    """It asks for the tag, the version and the date first; its hashes and its provenance name every file."""
    checkout, folder = tmp_path / "checkout", tmp_path / "release"
    call("git", "clone", "--quiet", clone, checkout)
    git = ("git", "-C", checkout, "-c", "user.name=a", "-c", "user.email=a@example.com")

    def release() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", checkout / "tools" / "release.sh", folder],
            env={**clean_environ(), "ENGINE": "none", "PYTHON": sys.executable, "BUILDER_ID": "a builder"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    assert "git tag -s" in release().stderr
    call(*git, "tag", f"v{__version__}")
    changes = checkout / "CHANGELOG.md"
    changes.write_text(re.sub(r"\(unreleased\)", "", changes.read_text()))
    assert "not committed" in release().stderr
    call(*git, "commit", "--quiet", "--all", "--message", "a heading without a date")
    call(*git, "tag", "--force", f"v{__version__}")
    assert "has no heading" in release().stderr
    heading = f"## {__version__}"
    changes.write_text(re.sub(rf"^{heading} *$", f"{heading} (2026-12-01)", changes.read_text(), flags=re.M))
    call(*git, "commit", "--quiet", "--all", "--message", "the date")
    call(*git, "tag", "--force", f"v{__version__}")

    done = release()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Nothing is published" in done.stdout and "twine upload" in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "dist",
        "site.tar.gz",
        "provenance.json",
        "SHA256SUMS",
    }
    call("sh", "-c", f"cd {folder} && sha256sum --check --quiet SHA256SUMS")
    statement = json.loads((folder / "provenance.json").read_text())
    hashes = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    del hashes["provenance.json"]
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == hashes
    commit = call(*git, "rev-parse", "HEAD").strip()
    definition = statement["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"][0]["digest"] == {"gitCommit": commit}
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "a builder"
    with tarfile.open(folder / "site.tar.gz") as site:
        assert "./index.html" in site.getnames()
    assert "is not empty" in release().stderr
