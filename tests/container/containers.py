"""Starting, stopping and looking at containers."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.container.podman import TIMEOUT_S, Podman


class Container:
    """Containers of one test: of the image under test, with a folder of the test's own as /job."""

    def __init__(self, podman: Podman, folder: Path) -> None:
        self.podman, self.folder, self.image = podman, folder, podman.image
        self._names: list[str] = []

    def line(self, command: tuple[str, ...], options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return ``podman run``'s words for a command in a container with a name of its own."""
        self._names.append(f"launcher-{uuid.uuid4().hex[:12]}")
        words = ("run", "--name", self._names[-1], "--volume", f"{self.folder}:/job")
        return (*words, *options, self.image, *command)

    def run(
        self, *command: str, options: tuple[str, ...] = (), timeout_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the container's CMD to its end."""
        return self.podman(*self.line(command, options), timeout_s=timeout_s)

    def start(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Start a command in the background; return the container's name."""
        self.podman.must(*self.line(command, ("--detach", *options)))
        return self._names[-1]

    def write(self, name: str, text: str) -> str:
        """Put a file into /job, and return its path in the container."""
        (self.folder / name).write_text(text)
        return f"/job/{name}"

    def stop(self, name: str, *options: str) -> tuple[int, str]:
        """``podman stop``; return the container's exit status and all it has said."""
        self.podman.must("stop", *options, name)
        said = self.podman("logs", name)
        return int(
            self.podman.must("inspect", "--format", "{{.State.ExitCode}}", name)
        ), said.stdout + said.stderr

    def remove(self) -> None:
        """Remove all that were started."""
        if self._names:
            self.podman("rm", "--force", "--ignore", "--time", "0", *self._names)


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Poll until something is true; fail with words at the deadline."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s: {what}"
        time.sleep(0.02)  # between two looks: there is nothing to wait on
