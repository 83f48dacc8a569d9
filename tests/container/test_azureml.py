"""docker/azureml: a context as Azure ML gets it, built as Azure ML builds it (no BuildKit), and a job in it.

Azure's base is not here: one of PyTorch and Open MPI stands in. So torch and numpy are there already. The
context's requirements.txt names files of PyTorch with CUDA; a list as a user writes it takes its place.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import __version__
from tests.container.containers import Container
from tests.container.images import NAME, pip_words
from tests.container.podman import Podman
from tests.process.starting import ROOT

pytestmark = [
    *(pytest.mark.container, pytest.mark.root, pytest.mark.torch),
    pytest.mark.xdist_group("containers"),
]

HERE = Path(ROOT, "docker", "azureml")
IMAGE = "localhost/azureml"
BUILD_S = 600.0
TRAIN_S = 240.0
OURS = "find /opt/launcher /usr/local/bin/launcher -type f -printf '%p %m %U %T@\\n' | sort"
"""All files of ours with what a second way to install would make different."""


@pytest.fixture(scope="module")
def image(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the image that the PyTorch environment's context makes."""
    contexts = tmp_path_factory.mktemp("contexts")
    make = ["sh", str(HERE / "make_contexts.sh"), str(contexts)]
    environ = {**os.environ, "PYTHON": sys.executable}
    subprocess.run(make, env=environ, stdin=subprocess.DEVNULL, check=True, timeout=BUILD_S)
    (contexts / "pytorch" / "requirements.txt").write_text("torch==2.13.0\nnumpy\nscikit-learn\neinops\n")
    words = ("bud", *pip_words(more=True), "--build-arg", f"BASE_IMAGE={NAME}/mpi", "--tag", IMAGE)
    podman.must(*words, str(contexts / "pytorch"), program="buildah", timeout_s=BUILD_S)
    yield IMAGE


def test_the_launcher_is_there(podman: Podman, image: str) -> None:
    """On PATH, and as it is in every other image: the same files, modes, owners and times."""
    run = ("run", "--rm", "--entrypoint", "sh")
    assert podman.must(*run, image, "-c", "launcher --version").startswith(f"launcher {__version__} (commit ")
    files = [podman.must(*run, name, "-c", OURS).splitlines() for name in (image, podman.image)]
    assert files[0] == files[1]
    assert len(files[0]) > 200
    assert podman.must(*run, image, "-c", "python -c 'import einops' && echo there") == "there"


def test_nothing_of_the_build_is_left(podman: Podman, image: str) -> None:
    """The wheels and the source stay behind in a stage that is thrown away."""
    look = "ls /tmp/launcher-source /tmp/wheels /tmp/launcher* 2>/dev/null; ls /tmp"
    assert podman.must("run", "--rm", "--entrypoint", "sh", image, "-c", look) == "requirements.txt"


def test_a_job_trains(container: Container, image: str) -> None:
    """The command of a job, run as Azure ML runs it: by a shell, in the folder with the code."""
    job = (HERE / "jobs" / "single-node.yml").read_text()
    (command,) = re.findall(r"^command: (.*)$", job, flags=re.MULTILINE)
    container.image = image
    options = (
        *("--volume", f"{ROOT}/examples:/code:ro", "--workdir", "/code", "--shm-size", "1g"),
        *("--env", "LAUNCHER_NPROC_PER_NODE=2"),
    )
    done = container.run("bash", "-c", command, options=options, timeout_s=TRAIN_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"epoch 5/5: .* accuracy 9\d\.\d % \(2 processes on 1 node\)", done.stdout), done.stdout
