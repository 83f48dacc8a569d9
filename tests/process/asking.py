"""A job that runs, for those who ask what it does: started as a user starts it, asked through its socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from tests.process.looking import wait_for
from tests.process.starting import launch, open_launcher

HANGS = """
import os, sys, time
import launcher
launcher.arm()
def fetch():
    time.sleep(3600)
if os.environ["RANK"] == os.environ.get("STUCK", "0"):
    open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
    fetch()
print("words of", os.environ["RANK"], flush=True)
open(sys.argv[1] + "/up-" + os.environ["RANK"], "w").close()
while True:
    time.sleep(0.2)
"""


class Asked:
    """One launcher on one node, in a temporary directory of its own."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        script: str = HANGS,
        count: int = 2,
        expected: int = 0,
        python: str = "python3",
        **environ: str,
    ) -> None:
        """Start it, and wait until all processes are up, or as many as are expected to be."""
        self.folder, self.environ = folder, {"TMPDIR": str(folder), **environ}
        self.script = folder / "train.py"
        self.script.write_text(script)
        words = ("run", "--nproc-per-node", str(count), *flags, "--", python, str(self.script), str(folder))
        self.launcher = open_launcher(*words, environ=self.environ)
        try:
            wait_for(lambda: len(list(folder.glob("up-*"))) == (expected or count), "all processes are up")
            wait_for(self.listens, "the socket is there, and listens")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.end()}") from None

    def listens(self) -> bool:
        """Whether its socket takes calls (__SO_ACCEPTCON): the file is there a moment before."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        return self.find_path() in {line.split()[-1] for line in lines if line.split()[3] == "00010000"}

    def find_path(self) -> str | None:
        """Return the path of its socket."""
        return next((str(path) for path in self.folder.glob("launcher_*/status")), None)

    @property
    def path(self) -> str:
        """Of its socket."""
        path = self.find_path()
        assert path is not None
        return path

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run another command of the launcher about this job."""
        words = (words[0], "--job", str(self.launcher.pid), *words[1:])
        return launch(*words, environ={**self.environ, **environ})

    def status(self) -> dict[str, Any]:
        """Return what ``launcher status --json`` prints."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def connect(self) -> socket.socket:
        """Return a connection to its socket."""
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self.path)  # waits where too many do
        connected.settimeout(20)
        return connected

    def end(self) -> tuple[str, str]:
        """End it, if it has not ended; return what it has written."""
        if self.launcher.poll() is None:
            os.kill(self.launcher.pid, signal.SIGTERM)
        return self.launcher.communicate(timeout=30)


def read_all(connected: socket.socket) -> bytes:
    """Return all that comes until the other side hangs up."""
    data = b""
    try:
        while chunk := connected.recv(1 << 16):
            data += chunk
    except ConnectionResetError:
        pass
    return data
