"""docker/environments: each built for real, the launcher on top, and a job of two processes in it.

``tools/setup.sh`` builds the environments, because Horovod takes minutes to compile. TensorFlow and PyTorch
are the builds without CUDA, a build argument each; there is no GPU that could tell. On CPUs DeepSpeed
compiles an operation when it first runs: its base has a compiler, and that was done when it was built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.container.containers import Container
from tests.container.images import ENVIRONMENTS, NAME, build_image, build_words, is_there, pip_words
from tests.container.podman import Podman
from tests.process.starting import ROOT

pytestmark = [
    *(pytest.mark.container, pytest.mark.root, pytest.mark.torch),
    pytest.mark.xdist_group("containers"),
]

BUILD_S = 600.0
TRAIN_S = 240.0
BASES = {"deepspeed": "deepspeed-compiled"}
"""What the launcher is put on, where that is not the environment itself."""
KEYS = r"""
find / -xdev \( -name 'ssh_host_*' -o -name 'id_*' -o -name authorized_keys -o -name known_hosts \) -type f
grep -rIlE -e '^-----BEGIN .*PRIVATE KEY-----' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev
"""
"""Files by the names of keys, and those that have one inside."""


class Training(NamedTuple):
    """An example, and how to see that both processes took part."""

    environment: str
    example: str
    is_done: Callable[[str], object]


def learnt(pattern: str) -> Callable[[str], object]:
    """Return what looks for a line."""
    return re.compile(pattern).search


def both_workers(out: str) -> bool:
    """Whether both of TensorFlow's workers have come to the same numbers, and to digits that are right."""
    said = [json.loads(line[line.index("{") :]) for line in out.splitlines() if '{"worker"' in line]
    ends = {(one["workers"], one["accuracy"], one["size"]) for one in said}
    return sorted(one["worker"] for one in said) == [0, 1] and len(ends) == 1 and said[0]["accuracy"] > 0.9


TRAININGS = (
    Training("pytorch", "allreduce.py", learnt(r'{"sum": 3, "expected": 3')),
    Training("mpi", "allreduce.py", learnt(r'{"sum": 3, "expected": 3')),
    Training("tensorflow", "tensorflow_multiworker.py", both_workers),
    Training(
        "deepspeed", "deepspeed_zero.py", learnt(r"epoch 3/3: .* accuracy [89]\d\.\d % \(2 processes\)")
    ),
    Training(
        "horovod",
        "horovod_torch.py",
        learnt(r"accuracy 0\.[89]\d+ \(2 ranks, .* by gloo\); weights differ by 0\b"),
    ),
)

MARKS = {"horovod": pytest.mark.horovod}
"""What an environment needs besides its image: Horovod's gets the wheel of the other tests."""


@pytest.fixture
def built(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the name of the launcher's image on an environment."""
    environment = BASES.get(request.param, request.param)
    if not is_there(environment):
        pytest.fail(f"no image with {environment}: run bash tools/test.sh", pytrace=False)
    yield build_image(environment)


@pytest.mark.parametrize(
    ("built", "training"),
    [
        pytest.param(one.environment, one, id=one.environment, marks=MARKS.get(one.environment, ()))
        for one in TRAININGS
    ],
    indirect=["built"],
)
def test_two_processes_train(container: Container, built: str, training: Training) -> None:
    """The example of the framework, by LAUNCHER_NPROC_PER_NODE alone, as user 1000."""
    container.image = built
    container.folder.chmod(0o777)
    options = (
        *("--volume", f"{ROOT}/examples:/examples:ro", "--user", "1000:1000", "--shm-size", "1g"),
        *("--env", "LAUNCHER_NPROC_PER_NODE=2", "--env", "HOME=/job"),
    )
    done = container.run("python", f"/examples/{training.example}", options=options, timeout_s=TRAIN_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert training.is_done(done.stdout), done.stdout + done.stderr[-2000:]


def test_a_script_of_ones_own_is_rehearsed_in_a_container(container: Container) -> None:
    """README's script in an image with PyTorch: a job of two nodes, without a flag and another program."""
    (script,) = re.findall(
        r"^```python\n(.*?)^```$", Path(ROOT, "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    container.image = build_image("pytorch")
    container.folder.chmod(0o777)
    (container.folder / "train.py").write_text(script)
    options = ("--user", "1000:1000", "--shm-size", "1g", "--env", "HOME=/job", "--env", "OMP_NUM_THREADS=1")
    done = container.run("launcher", "rehearse", "/job/train.py", options=options, timeout_s=TRAIN_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"loss 0\.\d+ on 2 processes", done.stdout), done.stdout + done.stderr[-2000:]


def test_every_environment_is_tried() -> None:
    """A new file in docker/environments is built, and has a job."""
    files = sorted(
        path.name.partition(".")[0] for path in Path(ROOT, "docker/environments").glob("*.Dockerfile")
    )
    assert files == sorted(ENVIRONMENTS) == sorted(training.environment for training in TRAININGS)


def test_no_key_is_in_the_image_for_mpi(podman: Podman) -> None:
    """mpirun is ready; no host key, no user's key, nothing that looks like one."""
    entry = ("run", "--rm", "--entrypoint", "sh", f"{NAME}/mpi", "-c")
    assert podman.must(*entry, "command -v mpirun").split()
    assert podman(*entry, KEYS).stdout == ""


def test_the_keys_of_a_base_are_not_kept(podman: Podman) -> None:
    """Debian's openssh-server makes host keys when it is installed: all containers would have the same."""
    key = "/etc/ssh/ssh_host_ed25519_key"
    made = f"RUN mkdir -p /etc/ssh && echo -----BEGIN OPENSSH PRIVATE KEY----- >{key}"
    with_keys = podman.derive("localhost/with-keys", made, base=f"{NAME}/mpi")
    entry = ("run", "--rm", "--entrypoint", "sh")
    assert "ssh_host_ed25519_key" in podman.must(*entry, with_keys, "-c", KEYS)
    words = (*pip_words(), "--build-arg", f"BASE_IMAGE={with_keys}", "--tag", "localhost/without-keys")
    file = f"{ROOT}/docker/environments/mpi.Dockerfile"
    podman.must("bud", *words, "--file", file, ROOT, program="buildah", timeout_s=BUILD_S)
    assert podman(*entry, "localhost/without-keys", "-c", KEYS).stdout == ""


def test_build_sh(podman: Podman) -> None:
    """For real, by podman: an environment, the launcher on top of it, and an image that runs."""
    words = (*pip_words(), "--build-arg", f"BASE_IMAGE={NAME}/pytorch")
    done = podman(
        *("localhost/built", "mpi", "--", *words),
        program=f"{ROOT}/docker/build.sh",
        timeout_s=BUILD_S,
        ENGINE="podman",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    names = podman.must("images", "--format", "{{.Repository}}").split()
    assert {"localhost/built", "localhost/built-mpi"} <= set(names)
    (known,) = json.loads(podman.must("image", "inspect", "localhost/built"))
    labels = {name.partition("image.")[2]: text for name, text in known["Labels"].items()}
    assert labels["base.name"] == f"{NAME}/pytorch", "the base below the environments"
    (base,) = json.loads(podman.must("image", "inspect", f"{NAME}/pytorch"))
    assert labels["base.digest"] == base["Digest"]
    assert f"base: {NAME}/pytorch@{base['Digest']}\n" in done.stderr
    assert re.fullmatch("[0-9a-f]{40}|unknown", known["Labels"]["org.opencontainers.image.revision"])
    assert podman("run", "--rm", "localhost/built", "sh", "-c", "exit 7").returncode == 7
    wrong = podman("localhost/built", "no-such", program=f"{ROOT}/docker/build.sh", ENGINE="podman")
    assert wrong.returncode == 64 and "no-such: expected one of" in wrong.stderr


def test_a_base_whose_python_cannot_install(podman: Podman) -> None:
    """The system's Python has neither venv nor pip, and there is no apt-get: the pip on PATH does it."""
    lines = ("RUN rm -r /usr/lib/python3*/ensurepip /usr/share/python-wheels",)
    base = podman.derive("localhost/no-pip", *lines, base=f"{NAME}/pytorch")
    words = build_words(base, "localhost/by-another-pip")
    podman.must(*words, ROOT, program="buildah", timeout_s=BUILD_S)
    first = podman.must("run", "--rm", "localhost/by-another-pip", "cat", "/usr/local/bin/launcher")
    assert 'exec "/usr/bin/python3.' in first
