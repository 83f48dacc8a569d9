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


# Ends by itself at 256 MiB, should nothing end it.
HUNGRY = """
blocks = []
while len(blocks) < 256:
    blocks.append(bytearray(b"x" * (1 << 20)))
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


def test_a_command_that_is_not_there(container: Container) -> None:
    """127 and the launcher's words, as a shell would have it; podman has started what it was asked to."""
    done = container.run("no-such-program")
    assert done.returncode == 127, done.stderr
    assert "[command-not-found] 'no-such-program': no such program" in done.stderr


def test_a_flag_behind_the_name_of_the_image(container: Container) -> None:
    """It is taken for a command; the fix is the line that was meant."""
    done = container.run("--nproc-per-node", "2", "true")
    assert done.returncode == 64, done.stderr
    assert "docker run IMAGE launcher run FLAGS -- COMMAND" in done.stderr


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


def test_the_memory_limit_is_named(container: Container) -> None:
    """-m 64m: 137, the verdict names the limit and oom_kill, also as JSON in Kubernetes' termination log."""
    container.write("hungry.py", HUNGRY)
    container.write("termination-log", "")
    log = ("--volume", f"{container.folder}/termination-log:/dev/termination-log")
    done = container.run("/job/hungry.py", options=("--memory", "64m", "--memory-swap", "64m", *log))
    assert done.returncode == 137, done.stderr
    assert "the container's memory limit of 64 MiB was reached, oom_kill went from 0 to 1" in done.stderr
    record = json.loads((container.folder / "termination-log").read_text())
    assert [cause["code"] for cause in record["causes"]] == ["out-of-memory"]


def test_too_few_process_ids(container: Container) -> None:
    """--pids-limit below what the job needs: said, nothing is left running, and the status is 75."""
    options = ("--pids-limit", "20", "--env", "LAUNCHER_NPROC_PER_NODE=40")
    done = container.run("sleep", "60", options=options)
    assert done.returncode == 75, done.stderr
    assert "[cannot-start]" in done.stderr and "pids.max" in done.stderr


def test_the_first_failure_of_several_without_pidfds(container: Container) -> None:
    """An old seccomp profile refuses pidfd_open: statuses arrive all the same, and the others are stopped."""
    container.write("no-pidfds.json", json.dumps(NO_PIDFDS_PROFILE))
    options = (
        *(word.format(folder=container.folder) for word in NO_PIDFDS),
        "--env",
        "LAUNCHER_NPROC_PER_NODE=3",
    )
    refused = "python3 -c 'import os; os.pidfd_open(1)' 2>/dev/null && exit 8; exit 9"
    done = container.run("sh", "-c", f"[ $RANK != 1 ] || {{ {refused}; }}; exec sleep 60", options=options)
    assert done.returncode == 9, done.stderr
