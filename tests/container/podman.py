"""Containers for tests: a podman whose storage, state and settings are a temporary folder of its own.

The image comes read-only from where ``bash tools/test.sh`` has put it: Debian and its Python, with
``python3 -m launcher run --`` as entry point. The launcher itself is mounted from the checkout, so that
no image is ever out of date.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.process.starting import ROOT

IMAGE = "localhost/launcher-test"
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
    """An engine of our own; what it runs is gone when it is closed."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="launcher-podman-")
        values = {
            "folder": self.folder,
            "images": f"{image_folder()}/storage",
            "files": _limit(resource.RLIMIT_NOFILE, 65536),
            "processes": _limit(resource.RLIMIT_NPROC, 16384),
        }
        for name, text in (("storage.conf", STORAGE_CONF), ("containers.conf", CONTAINERS_CONF)):
            Path(self.folder, name).write_text(text.format(**values))
        self._settings = {
            "CONTAINERS_STORAGE_CONF": f"{self.folder}/storage.conf",
            "CONTAINERS_CONF": f"{self.folder}/containers.conf",
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``podman WORDS``."""
        # From a folder of its own: conmon leaves a file named oom where it was started.
        return subprocess.Popen(
            ["podman", *words],
            env={**os.environ, **self._settings},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``podman WORDS`` to its end."""
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def must(self, *words: str) -> str:
        """Run ``podman WORDS``, which has to succeed, and return what it prints."""
        done = self(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self) -> None:
        """Remove all containers and the folder."""
        self("rm", "--force", "--all", "--time", "0")
        subprocess.run(["umount", f"{self.folder}/storage/overlay"], capture_output=True, check=False)
        shutil.rmtree(self.folder)


def container_words(folder: Path) -> tuple[str, ...]:
    """Return the options that every container gets: the launcher, and a test's own folder as /job."""
    return ("--volume", f"{ROOT}/launcher:/opt/launcher/launcher:ro", "--volume", f"{folder}:/job")


def need_containers() -> None:
    """Skip, with the reason, where there can be no containers; fail where they were not set up."""
    if os.geteuid():
        pytest.skip("containers: only root can have them here")
    done = subprocess.run([*PROBE, "tmpfs", "/mnt"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"containers: {done.stderr.strip()}")
    if shutil.which("podman") is None or not os.path.isdir(f"{image_folder()}/storage"):
        pytest.fail(f"no podman, or no image in {image_folder()}: run bash tools/test.sh", pytrace=False)


def image_folder() -> str:
    """Return the folder that holds the image, as ``tools/setup.sh`` names it."""
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.environ.get("LAUNCHER_CACHE") or os.path.join(home_cache, "cluster-launcher")
    return os.environ.get("LAUNCHER_TEST_CONTAINER") or os.path.join(cache, "container")


def _limit(what: int, most: int) -> int:
    hard = resource.getrlimit(what)[1]
    return most if hard == resource.RLIM_INFINITY else min(hard, most)
