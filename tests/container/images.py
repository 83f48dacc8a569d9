"""The image under test: docker/Dockerfile, built for real with buildah, from this checkout.

What it stands on comes from where ``bash tools/test.sh`` has put it: Debian with its Python, PyTorch,
Open MPI and ssh, and the wheels that pip installs. An image is built once for each state of the files
that it is made of, and kept there for the next run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.process.starting import ROOT

NAME = "localhost/launcher-test"
BASE = f"{NAME}/base"
ENVIRONMENT = f"{NAME}/mpi"
"""What the launcher is put on: docker/environments/mpi.Dockerfile on that of PyTorch."""
ENVIRONMENTS = ("pytorch", "mpi", "tensorflow", "deepspeed", "horovod")
"""The files in docker/environments; tools/setup.sh has built them, as NAME/ENVIRONMENT."""
CONTEXT = ("launcher", "bin", "docker", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")
"""As in .dockerignore."""
BUILD_TIMEOUT_S = 600.0
KEPT = 4
"""Images of other states; other checkouts of this machine may be testing theirs."""


def image_folder() -> str:
    """Return the folder that holds the images, as ``tools/setup.sh`` names it."""
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher")
    return os.environ.get("LAUNCHER_TEST_IMAGES") or os.path.join(cache, "images")


def build_image(environment: str = "mpi") -> str:
    """Return the name of this checkout's launcher on an environment, made now if nobody has made it yet."""
    made = f"{NAME}/launcher-{environment}"
    name = f"{made}:{_state()}"
    with open(f"{image_folder()}/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if _buildah("inspect", "--type", "image", name).returncode:
                done = _buildah(*build_words(f"{NAME}/{environment}", name), ROOT)
                assert done.returncode == 0, done.stderr[-4000:]
                _forget_old(made)
        finally:
            subprocess.run(["umount", f"{image_folder()}/storage/overlay"], capture_output=True, check=False)
    return name


def build_words(base: str, name: str) -> tuple[str, ...]:
    """Return buildah's words for an image of the launcher on a base; the context comes last."""
    return (
        *("bud", *pip_words(), "--build-arg", f"BASE_IMAGE={base}", "--build-arg", "REVISION=0123abc"),
        *("--file", f"{ROOT}/docker/Dockerfile", "--tag", name),
    )


def pip_words(*, more: bool = False) -> tuple[str, ...]:
    """Return what every build here needs: no registry, and pip's packages from a folder.

    Args:
        more: Also the packages of the environments with other frameworks.
    """
    volumes = [f"{image_folder()}/pip:/run/pip:ro"]
    volumes += [f"{image_folder()}/environments/pip:/run/more:ro"] if more else []
    return (
        *("--pull-never", "--format", "docker", "--isolation", "chroot"),
        *(f"--volume={volume}" for volume in volumes),
        *("--build-arg", f"PIP_CONFIG_FILE=/run/{'more' if more else 'pip'}/pip.conf"),
    )


def is_there(environment: str) -> bool:
    """Whether tools/setup.sh has built an environment."""
    return _buildah("inspect", "--type", "image", f"{NAME}/{environment}").returncode == 0


def _state() -> str:
    recipes = (Path(image_folder(), name) for name in (".recipe", "environments/.recipe"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in recipes if path.exists()))
    for path in _context():
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode:o}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _context() -> Iterator[Path]:
    for name in CONTEXT:
        path = Path(ROOT, name)
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in below if file.is_file() and "__pycache__" not in file.parts)


def _forget_old(made: str) -> None:
    words = ("images", "--format", "{{.CreatedAtRaw}} {{.Name}}:{{.Tag}}", "--filter", f"reference={made}")
    lines = sorted(_buildah(*words).stdout.split("\n"), reverse=True)
    for line in filter(None, lines[KEPT:]):
        _buildah("rmi", line.rpartition(" ")[2])


def _buildah(*words: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="images-", dir="/tmp") as run:  # may have 50 characters
        line = ("buildah", "--root", f"{image_folder()}/storage", "--runroot", run)
        return subprocess.run(
            [*line, "--storage-driver", "overlay", *words],
            capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
