"""deploy/compose/compose.yaml: read by podman-compose as docker compose would, and run for real."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.container.podman import Podman
from tests.process.starting import ROOT

pytestmark = [
    *(pytest.mark.container, pytest.mark.root, pytest.mark.torch),
    pytest.mark.xdist_group("containers"),
]

DEADLINE_S = 240.0
# In a network of its own: bridges and rules of the firewall are made there, and gone with it.
UP = """
ip link set lo up
"$@" up --no-build --exit-code-from node0
status=$?
"$@" down --timeout 0 >&2
exit $status
"""


def test_two_nodes_of_the_compose_file_do_an_allreduce(podman: Podman) -> None:
    """Both containers find each other by name, and rank 0 has the sum of both."""
    done = compose(podman)
    assert done.returncode == 0, done.stderr
    (line,) = (line[line.index("{") :] for line in done.stdout.splitlines() if '{"sum"' in line)
    said = json.loads(line)
    assert said["sum"] == said["expected"] == 3
    assert [process["hostname"] for process in said["processes"]] == ["node0", "node1"]
    assert done.stdout.count('"problems": 0,') == 2, "each node was checked first"


def test_compose_ends_with_the_status_of_the_job(podman: Podman) -> None:
    """As the file says: whoever calls it in a script must not take a failure for a success."""
    done = compose(podman, SCRIPT="/job/no-such-script.py")
    assert done.returncode == 127, done.stderr
    assert "[command-not-found]" in done.stdout + done.stderr


def compose(podman: Podman, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the two nodes of the file until they have ended."""
    if importlib.util.find_spec("podman_compose") is None:
        pytest.fail("no podman-compose: run bash tools/test.sh", pytrace=False)
    file = f"{ROOT}/deploy/compose/compose.yaml"
    argv = (sys.executable, "-m", "podman_compose", "--project-name", "two", "--file", file)
    return subprocess.run(
        ["unshare", "--net", "sh", "-c", UP, "sh", *argv],
        env={**os.environ, **podman.settings, "IMAGE": podman.image, **variables},
        cwd=podman.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
