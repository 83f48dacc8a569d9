"""docker/Dockerfile, target layer: one COPY line puts the launcher into an image that has no pip."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from launcher import __version__
from tests.container.containers import Container
from tests.container.images import BASE, BUILD_TIMEOUT_S, pip_words
from tests.container.podman import Podman
from tests.process.starting import ROOT

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

LAYER = "localhost/launcher-layer"
COMMIT = "0123abcd" * 5
WITHOUT_PIP = "RUN rm -rf /usr/lib/python3*/ensurepip /usr/lib/python3*/venv /usr/share/python-wheels"
SCRIPT = "import os, sys; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"


def build(podman: Podman, name: str) -> str:
    """Build the layer and return its name."""
    words = ("bud", *pip_words(), "--no-cache", "--timestamp", "0", "--target", "layer", "--tag", name)
    arguments = ("--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", f"REVISION={COMMIT}")
    line = (*words, *arguments, "--file", f"{ROOT}/docker/Dockerfile", ROOT)
    podman.must(*line, program="buildah", timeout_s=BUILD_TIMEOUT_S)
    return name


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    """Build the layer, and an image without pip that takes it."""
    build(podman, LAYER)
    return podman.derive("localhost/with-layer", WITHOUT_PIP, f"COPY --from={LAYER} / /", base=BASE)


def test_an_image_without_pip_takes_it(container: Container, image: str) -> None:
    """The program is on PATH; two ranks run; it names the commit that the layer is built from."""
    container.image = image
    assert container.run("python3", "-m", "pip", "--version").returncode != 0
    assert container.run("python3", "-m", "ensurepip").returncode != 0
    done = container.run("launcher", "run", "--nproc-per-node", "2", "--", "python3", "-c", SCRIPT)
    assert done.returncode == 0 and "rank 1 of 2" in done.stdout, done.stderr
    said = container.run("launcher", "--version").stdout
    assert said == f"launcher {__version__} (commit 0123abcd0123, from a wheel)\n"
    options = ("--user", "1000:1000", "--read-only", "--cap-drop", "all")
    done = container.run("launcher", "plan", "--format", "json", options=options)
    assert json.loads(done.stdout)["launcher"] == __version__, done.stderr


def test_the_layer_has_nothing_else(podman: Podman, image: str, tmp_path: Path) -> None:
    """No Python, no shell, no file of the image that it was built in."""
    name = podman.must("create", LAYER, "none")
    podman.must("export", "--output", str(tmp_path / "layer.tar"), name)
    with tarfile.open(tmp_path / "layer.tar") as archive:
        names = {one.name for one in archive.getmembers() if one.isfile() and one.size}
    assert {"opt/launcher/launcher.py", "usr/local/bin/launcher"} <= names
    assert [one for one in sorted(names) if not one.startswith(("opt/launcher/", "usr/local/"))] == []


def test_a_second_build_gives_the_same_layers(podman: Podman, image: str) -> None:
    """Of the same source, in the same base."""
    again = build(podman, f"{LAYER}-again")
    first, second = (podman.must("inspect", "--format", "{{.RootFS.Layers}}", one) for one in (LAYER, again))
    assert first == second != "[]"
