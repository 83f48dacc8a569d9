"""Containers for tests: a podman whose storage, state and settings are a temporary directory of its own.

Images come read-only from where `tests.container.images` has built them.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.container.images import build_image, image_folder

TIMEOUT_S = 60.0
PROBE = (*("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork"), "mount", "-t", "tmpfs")

# CNI, netavark: no network is needed, and none is set up. journald need not be there. The limits are
# computed because without CAP_SYS_RESOURCE nobody can raise one, and podman's own are higher than some.
STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
[storage.options]
additionalimagestores = ["{images}"]
"""
CONTAINERS_CONF = """\
[containers]
base_hosts_file = "none"
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
log_driver = "k8s-file"
netns = "none"
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
tmp_dir = "{folder}/libpod"
[network]
network_config_dir = "{folder}/networks"
"""


class Podman:
    """An engine of our own; what it runs is gone when it is closed.

    Attributes:
        folder: Of its storage and state.
        image: Name of the image under test.
        settings: Variables by which podman and its relatives use this engine.
    """

    def __init__(self) -> None:
        self.image = build_image()
        self.folder = tempfile.mkdtemp(prefix="podman-", dir="/tmp")  # its path may have 50 characters
        values = {
            "folder": self.folder,
            "images": f"{image_folder()}/storage",
            "files": _limit(resource.RLIMIT_NOFILE, 65536),
            "processes": _limit(resource.RLIMIT_NPROC, 16384),
        }
        for name, text in (("storage.conf", STORAGE_CONF), ("containers.conf", CONTAINERS_CONF)):
            Path(self.folder, name).write_text(text.format(**values))
        self.settings = {
            "CONTAINERS_STORAGE_CONF": f"{self.folder}/storage.conf",
            "CONTAINERS_CONF": f"{self.folder}/containers.conf",
        }

    def start(self, *words: str, program: str = "podman", **variables: str) -> subprocess.Popen[str]:
        """Start ``podman WORDS``, or another program on the same storage."""
        # From a folder of its own: conmon leaves a file named oom where it was started.
        return subprocess.Popen(
            [program, *words],
            env={**os.environ, **self.settings, **variables},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *words: str, program: str = "podman", timeout_s: float = TIMEOUT_S, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``podman WORDS`` to its end."""
        with self.start(*words, program=program, **variables) as process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def must(self, *words: str, program: str = "podman", timeout_s: float = TIMEOUT_S) -> str:
        """Run ``podman WORDS``, which has to succeed, and return what it prints."""
        done = self(*words, program=program, timeout_s=timeout_s)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    def derive(self, name: str, *lines: str, base: str = "", folder: Path | None = None) -> str:
        """Build an image on top of another, of these lines of a Dockerfile; return its name.

        Args:
            name: What it is called.
            lines: What comes after ``FROM``.
            base: The image below; empty for the one under test.
            folder: With the files that lines copy; None if none does.
        """
        folder = folder or Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "Dockerfile").write_text("\n".join((f"FROM {base or self.image}", *lines, "")))
        words = ("--pull-never", "--format", "docker", "--isolation", "chroot", "--tag", name, str(folder))
        self.must("bud", *words, program="buildah")
        return name

    def close(self) -> None:
        """Remove all containers and the folder."""
        self("rm", "--force", "--all", "--time", "0")
        subprocess.run(["umount", f"{self.folder}/storage/overlay"], capture_output=True, check=False)
        shutil.rmtree(self.folder)


def need_containers() -> None:
    """Skip, with the reason, where there can be no containers; fail where they were not set up."""
    if os.geteuid():
        pytest.skip("containers: only root can have them here")
    done = subprocess.run([*PROBE, "tmpfs", "/mnt"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"containers: {done.stderr.strip()}")
    missing = [name for name in ("podman", "buildah", "runc") if shutil.which(name) is None]
    if missing or not os.path.isfile(f"{image_folder()}/.recipe"):
        what = f"no {', '.join(missing)}" if missing else f"no images in {image_folder()}"
        pytest.fail(f"{what}: run bash tools/test.sh", pytrace=False)


def _limit(what: int, most: int) -> int:
    hard = resource.getrlimit(what)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
