"""The launcher as entry point, hence as process 1, of real containers."""

from __future__ import annotations

import json

import pytest

from tests.container.containers import Container, wait_for
from tests.container.podman import TIMEOUT_S

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

STATUSES = (0, 1, 7, 125, 126, 127, 128, 143, 255)
# As careful people run containers: another user, nothing to write to, no capabilities.
HARDENED = (
    *("--user", "1234:1234", "--read-only", "--read-only-tmpfs=false"),
    *("--cap-drop", "all", "--security-opt", "no-new-privileges"),
)
# As Docker's profile was before 20.10: what it does not know is refused with EPERM.
NO_PIDFDS_PROFILE = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["pidfd_open"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
}
NO_PIDFDS = ("--security-opt", "seccomp={folder}/no-pidfds.json")
SAVE = """
import os, signal, sys, time
rank = os.environ.get("RANK", "?")
def save(number, frame):
    time.sleep(0.5)  # the work of saving
    with open(f"/job/saved{rank}", "a") as file:
        file.write(f"{signal.Signals(number).name}\\n")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
open(f"/job/ready{rank}", "w").close()
while True:
    time.sleep(0.05)
"""


def run_all(container: Container, commands: list[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Run a container for each command, side by side; return their statuses and standard errors."""
    started = [container.podman.start(*container.line(command)) for command in commands]
    ends = [process.communicate(timeout=TIMEOUT_S) for process in started]
    return [(process.returncode, err) for process, (_, err) in zip(started, ends, strict=True)]


def test_statuses_are_passed_on(container: Container) -> None:
    """The container's exit status is the command's, podman's own 125 to 127 included."""
    ends = run_all(container, [("sh", "-c", f"exit {status}") for status in STATUSES])
    assert [status for status, _ in ends] == list(STATUSES), ends


@pytest.mark.parametrize(
    ("options", "command", "status", "saved"),
    [
        ((), ("python3", "/job/train.py"), 0, ["SIGTERM"]),
        ((), ("bash", "-c", "python3 /job/train.py; echo all-done"), 143, ["SIGTERM"]),
        (("--env", "LAUNCHER_SIGNAL_MAP=TERM=USR1"), ("python3", "/job/train.py"), 0, ["SIGUSR1"]),
        (("--env", "LAUNCHER_NPROC_PER_NODE=2"), ("/job/train.py",), 0, ["SIGTERM", "SIGTERM"]),
        (HARDENED, ("bash", "-c", "python3 /job/train.py; echo all-done"), 143, ["SIGTERM"]),
        (NO_PIDFDS, ("bash", "-c", "python3 /job/train.py; echo all-done"), 143, ["SIGTERM"]),
    ],
    ids=["python", "bash", "signal-map", "two", "hardened", "no-pidfds"],
)
def test_podman_stop_saves_the_checkpoint(
    container: Container, options: tuple[str, ...], command: tuple[str, ...], status: int, saved: list[str]
) -> None:
    """The script hears what ``podman stop`` sends, whatever stands between them, and has its time to save."""
    container.write("train.py", SAVE)
    container.folder.chmod(0o777)  # HARDENED is another user
    container.write("no-pidfds.json", json.dumps(NO_PIDFDS_PROFILE))
    name = container.start(*command, options=tuple(word.format(folder=container.folder) for word in options))
    places = range(len(saved))
    wait_for(lambda: all((container.folder / f"ready{n}").exists() for n in places), "the script is ready")
    ended, said = container.stop(name, "--time", "10")
    assert ended == status, said
    assert [(container.folder / f"saved{n}").read_text().strip() for n in places] == saved, said
    assert "all-done" not in said
