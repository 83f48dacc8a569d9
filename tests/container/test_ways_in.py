"""How a command comes to the launcher: as CMD, alone, nested, through somebody else's entry point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.container.containers import Container, wait_for
from tests.container.podman import Podman
from tests.process.starting import ROOT

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

# All processes, and how each was started: the launcher's first, because it is process 1 or its child.
SHOW = """
import json, os
def line(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []  # the other rank has ended meanwhile
pids = sorted(map(int, filter(str.isdecimal, os.listdir("/proc"))))
seen = {"pid": os.getpid(), "parent": os.getppid(), "lines": {pid: line(pid) for pid in pids}}
print(json.dumps({**seen, **{name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MARK")}}))
"""
OURS = "/opt/launcher/launcher.py"
# As NVIDIA's does: each part is sourced in the order of names, then the command takes its place. Written
# anew, because those images are on no machine without their registry.
NVIDIA_ENTRY_POINT = """
#!/bin/bash
shopt -s nullglob
for part in /opt/nvidia/entrypoint.d/*.{sh,txt}; do
  case $part in
    *.txt) cat "$part" ;;
    *.sh) source "$part" ;;
  esac
done
if [[ $# -eq 0 ]]; then exec /bin/bash; else exec "$@"; fi
"""


@pytest.fixture(scope="module")
def show(podman: Podman) -> str:
    """Return the name of an image with a script and, as many have it, a CMD in one string."""
    folder = Path(podman.folder, "show")
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    (folder / "nvidia.sh").write_text(NVIDIA_ENTRY_POINT.lstrip())
    (folder / "10-mark.sh").write_text("export MARK=set-up\n")
    (folder / "99-launcher.sh").write_text(Path(ROOT, "docker/entrypoint.d/99-launcher.sh").read_text())
    lines = (
        "COPY show.py /show.py",
        "COPY --chmod=755 nvidia.sh /opt/nvidia/nvidia_entrypoint.sh",
        "COPY 10-mark.sh 99-launcher.sh /opt/nvidia/entrypoint.d/",
        "CMD python3 /show.py one-word",
    )
    return podman.derive("localhost/show", *lines, folder=folder)


def launchers(seen: dict[str, dict[str, list[str]]]) -> list[int]:
    """Return the process ids of launchers; its watchdog is called by another name, but by the same words."""
    words = {int(pid): line for pid, line in seen["lines"].items()}
    return [pid for pid, line in words.items() if OURS in line]


def test_a_cmd_in_one_string_is_the_command_itself(container: Container, show: str) -> None:
    """CMD python3 /show.py: no shell between the launcher, which is process 1, and the script."""
    container.image = show
    done = container.run()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["lines"]["1"][1:3] == ["-IS", OURS]
    assert seen["lines"][str(seen["pid"])] == ["python3", "/show.py", "one-word"]
    assert (seen["RANK"], seen["WORLD_SIZE"]) == ("0", "1")
    assert not [line for line in seen["lines"].values() if line[:2] == ["/bin/sh", "-c"]]


def test_alone_it_says_what_it_sees(container: Container) -> None:
    """Status 64, the plan, and what is missing; nothing on standard output, which belongs to commands."""
    done = container.run()
    assert (done.returncode, done.stdout) == (64, "")
    assert "MASTER_PORT" in done.stderr and "nothing in the environment hints at other nodes" in done.stderr
    assert "launcher: error: [no-command] nothing to run" in done.stderr


def test_alone_in_a_contradiction(container: Container) -> None:
    """What is wrong is said, too; that nothing was to run stays the status."""
    done = container.run(options=("--env", "RANK=x", "--env", "WORLD_SIZE=2"))
    assert done.returncode == 64, done.stderr
    assert "[malformed-variable] RANK='x'" in done.stderr and "[no-command]" in done.stderr


def test_a_whole_line_of_ours_is_the_only_one(container: Container, show: str) -> None:
    """docker run IMAGE launcher run --nproc-per-node 2 -- ...: one launcher, process 1, with those flags."""
    container.image = show
    done = container.run(
        *["launcher", "run", "--nproc-per-node", "2", "--no-prefix", "--", "python3", "/show.py"]
    )
    assert done.returncode == 0, done.stderr
    for seen in map(json.loads, done.stdout.splitlines()):
        assert min(launchers(seen)) == 1 and seen["WORLD_SIZE"] == "2"
        assert seen["lines"]["1"][3:] == [
            *("run", "--nproc-per-node", "2", "--no-prefix", "--", "python3", "/show.py"),
        ]
    assert container.run("launcher", "--version").stdout.startswith("launcher ")
    assert container.run("launcher", "check").stdout.count("\n") > 5


def test_a_launcher_in_the_users_script_becomes_its_command(container: Container, show: str) -> None:
    """It is one process of a job that has a parent: there is no second supervisor."""
    container.image = show
    container.write("start.sh", "launcher run -- python3 /show.py\n")
    done = container.run("sh", "/job/start.sh", options=("--env", "LAUNCHER_NPROC_PER_NODE=2"))
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        seen = json.loads(line.partition("] ")[2])
        assert seen["WORLD_SIZE"] == "2"
        assert seen["lines"][str(seen["parent"])] == ["sh", "/job/start.sh"]


def test_inside_tini(container: Container, show: str) -> None:
    """Not process 1, yet the parent: statuses pass through both, and there is one of each."""
    container.image = show
    entry = ("--entrypoint", '["tini", "--", "launcher", "run", "--"]')
    seen = json.loads(container.run("python3", "/show.py", options=entry).stdout)
    assert seen["lines"]["1"][:2] == ["tini", "--"]
    assert seen["RANK"] == "0" and 1 not in launchers(seen)
    assert container.run("sh", "-c", "exit 7", options=entry).returncode == 7


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        (("python3", "/show.py"), True),
        (("sh", "-c", "python3 /show.py"), True),
        (("launcher", "run", "--", "python3", "/show.py"), True),
    ],
)
def test_nvidias_entry_point(container: Container, show: str, command: tuple[str, ...], ours: bool) -> None:
    """With our file among its parts it becomes the launcher, after all that the others have set up."""
    container.image = show
    done = container.run(*command, options=("--entrypoint", "/opt/nvidia/nvidia_entrypoint.sh"))
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["MARK"] == "set-up"
    assert seen["lines"]["1"][1:6] == ["-IS", OURS, "run", "--", command[0]] or command[0] == "launcher"
    assert min(launchers(seen)) == 1


def test_nvidias_entry_point_leaves_people_alone(container: Container, show: str) -> None:
    """No command, a shell, and LAUNCHER_ENTRYPOINT=0."""
    container.image = show
    entry = ("--entrypoint", "/opt/nvidia/nvidia_entrypoint.sh")
    assert container.run("bash", options=entry).stdout == ""
    off = json.loads(
        container.run("python3", "/show.py", options=(*entry, "--env", "LAUNCHER_ENTRYPOINT=0")).stdout
    )
    assert launchers(off) == [] and off["pid"] == 1


def test_docker_exec(container: Container, show: str) -> None:
    """A second command in a container that runs: planned and run like the first, and its status its own."""
    container.image = show
    name = container.start("sh", "-c", "touch /job/ready; exec sleep 60")
    wait_for((container.folder / "ready").exists, "the container is up")
    podman = container.podman
    assert podman("exec", name, "launcher", "run", "--", "sh", "-c", "exit 7").returncode == 7
    seen = json.loads(podman.must("exec", name, "launcher", "run", "--", "python3", "/show.py"))
    assert seen["RANK"] == "0"
    assert "ok" in podman("exec", name, "launcher", "check").stdout
    ended, said = container.stop(name, "--time", "10")
    assert ended == 143, said


def test_the_platform_replaces_the_entry_point(container: Container, show: str) -> None:
    """A command line of the platform's own with the launcher in it, as Kubernetes and Azure write them."""
    container.image = show
    done = container.run("-c", "cd / && launcher run -- python3 show.py", options=("--entrypoint", "sh"))
    assert json.loads(done.stdout)["RANK"] == "0", done.stderr


def test_user_1000_on_a_read_only_root(container: Container, show: str) -> None:
    """Without capabilities, without a place to write: the command runs, and the status is its own."""
    container.image = show
    options = (
        *("--user", "1000:1000", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"),
        *("--env", "LAUNCHER_NPROC_PER_NODE=2"),
    )
    done = container.run("sh", "-c", "id -u; touch /x 2>/dev/null && exit 9; exit 0", options=options)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] 1000", "[rank 1] 1000"]
    # The first that fails ends the other, which may not have come to its words.
    assert container.run("sh", "-c", "exit 5", options=options).returncode == 5


def test_small_shared_memory_is_named_with_the_fix(container: Container) -> None:
    """What a runtime gives unless it is asked for more, 64 MiB, and the option that asks."""
    options = ("--shm-size", "64m", "--env", "LAUNCHER_NPROC_PER_NODE=2", "--env", "LAUNCHER_CHECK=1")
    done = container.run("true", options=options)
    assert done.returncode == 0
    assert "/dev/shm" in done.stderr and "64 MiB" in done.stderr and "--shm-size=8g" in done.stderr
    done = container.run("true", options=("--shm-size", "4g", *options[2:]))
    assert "/dev/shm" not in done.stderr
