"""Images in which much is broken: the entry point works, or says exactly why it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.container.containers import Container
from tests.container.podman import Podman
from tests.pythons import need_python

pytestmark = [pytest.mark.container, pytest.mark.root, pytest.mark.xdist_group("containers")]

BROKEN = (
    "RUN mkdir /broken && echo 'raise SystemExit(\"a broken module\")' >/broken/os.py",
    "RUN for name in site sitecustomize usercustomize encodings re json launcher; "
    "do cp /broken/os.py /broken/$name.py; done",
    "RUN for site in /usr/lib/python3/dist-packages /opt/env/lib/python3*/site-packages; "
    'do echo "import sys; sys.exit(\\"a broken .pth\\")" >$site/broken.pth; done',
    "RUN ln -s /bin/false /broken/python3 && ln -s /bin/false /broken/python",
    "RUN rm -rf /tmp /var/tmp /etc/passwd /root",
    "ENV PYTHONPATH=/broken PYTHONHOME=/broken PYTHONSTARTUP=/broken/os.py PYTHONINSPECT=1 PYTHONVERBOSE=1",
    "ENV PYTHONPLATLIBDIR=x PYTHONOPTIMIZE=2 PATH=/broken:/usr/local/bin:/usr/bin:/bin",
    "WORKDIR /broken",
)
"""What a user's image can do to a Python, and what it can take away from everybody."""
NOBODY = (
    *("--user", "4242:4242", "--env", "HOME=", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"),
    *("--security-opt", "no-new-privileges"),
)


@pytest.fixture(scope="module")
def broken(podman: Podman) -> str:
    """Return the name of such an image."""
    return podman.derive("localhost/broken", *BROKEN)


@pytest.mark.parametrize("options", [("--user", "0:0"), NOBODY], ids=["root", "nobody"])
def test_a_broken_image_runs_its_command(container: Container, broken: str, options: tuple[str, ...]) -> None:
    """Its status, its output, and its environment whole, whoever runs it and whatever may be written to."""
    container.image = broken
    done = container.run("sh", "-c", "env; exit 7", options=options)
    assert done.returncode == 7, done.stderr
    lines = done.stdout.splitlines()
    assert {"RANK=0", "PYTHONHOME=/broken", "PYTHONINSPECT=1"} <= set(lines), lines
    assert any(re.fullmatch("PYTHONPATH=/[^:]+/launcher/inprocess/site:/broken", line) for line in lines), (
        lines
    )
    assert "Traceback" not in done.stderr and "broken" not in done.stderr.replace("/broken", ""), done.stderr


@pytest.mark.parametrize("options", [("--user", "0:0"), NOBODY], ids=["root", "nobody"])
def test_a_broken_image_runs_several_processes(
    container: Container, broken: str, options: tuple[str, ...]
) -> None:
    """As their parent, which needs more of its own Python than one that only becomes the command."""
    container.image = broken
    both = (*options, "--env", "LAUNCHER_NPROC_PER_NODE=2")
    done = container.run("sh", "-c", "echo rank $RANK", options=both)
    assert done.returncode == 0, done.stderr
    assert {"[rank 0] rank 0", "[rank 1] rank 1"} <= set(done.stdout.splitlines()), done.stdout
    done = container.run("sh", "-c", "exit $RANK", options=both)  # which may end rank 0 before its first word
    assert done.returncode == 1, done.stderr
    assert "rank 1 of 2 failed first: it exited with code 1" in done.stderr


def test_what_is_broken_for_the_user_is_told_in_its_own_words(container: Container, broken: str) -> None:
    """The user's Python does not start there; its status and its words are what one sees."""
    container.image = broken
    done = container.run("/usr/bin/python3", "-c", "print(1)", options=("--user", "0:0"))
    assert done.returncode != 0
    assert "init_fs_encoding" in done.stderr, done.stderr


def test_the_launchers_python_is_gone(container: Container, podman: Podman) -> None:
    """Another one that is new enough runs it; where there is none it says so, and what to do."""
    lines = ("RUN mv /usr/bin/python3.11 /usr/bin/moved", "RUN rm -f /usr/bin/python3")
    container.image = podman.derive("localhost/no-python", *lines)
    done = container.run("true")
    assert done.returncode == 69, done.stderr
    assert "[no-python] /usr/bin/python3.11 is not in this image, and no other" in done.stderr
    container.image = podman.derive("localhost/other-python", *lines, "RUN ln -s moved /usr/bin/python3")
    done = container.run("sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


def test_the_users_python_is_an_old_one(container: Container) -> None:
    """A real Python 3.8, first on PATH: the launcher keeps to its own, and scripts run under that one."""
    root = Path(need_python(8)).parent.parent
    container.write("show.py", "import os, sys; print(sys.version_info[:2] < (3, 10), os.environ['RANK'])")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    old = ("--volume", f"{root}:{root}:ro", "--env", f"PATH={root}/bin:{path}")
    for command in (("/job/show.py",), ("python", "/job/show.py")):
        done = container.run(*command, options=old)
        assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stderr


def test_scripts_run_under_the_users_python(container: Container) -> None:
    """The one that is first on PATH, not the launcher's; and it finds its own packages."""
    container.write(
        "show.py", "import json, sys\nimport torch\nprint(json.dumps([sys.prefix, sys.flags.no_site]))\n"
    )
    done = container.run("/job/show.py")
    assert (done.returncode, json.loads(done.stdout)) == (0, ["/opt/env", 0]), done.stderr
