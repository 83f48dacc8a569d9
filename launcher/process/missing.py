"""A missing program or module: reads its name from error output, and says how to install it.

Loaded only after a failure.
"""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

APT = {
    "curl": "curl",
    "ffmpeg": "ffmpeg",
    "g++": "g++",
    "gcc": "gcc",
    "gdb": "gdb",
    "git": "git",
    "gosu": "gosu",
    "hwloc-bind": "hwloc",
    "ibv_devinfo": "ibverbs-utils",
    "ip": "iproute2",
    "jq": "jq",
    "make": "make",
    "mpiexec": "openmpi-bin",
    "mpirun": "openmpi-bin",
    "numactl": "numactl",
    "perf": "linux-perf",
    "python": "python-is-python3",
    "ssh": "openssh-client",
    "stdbuf": "coreutils",
    "strace": "strace",
    "sudo": "sudo",
    "taskset": "util-linux",
    "time": "time",
    "timeout": "coreutils",
    "tini": "tini",
    "unzip": "unzip",
    "valgrind": "valgrind",
    "wget": "wget",
    "xvfb-run": "xvfb",
}
PIP = {
    "accelerate": "accelerate",
    "composer": "mosaicml",
    "coverage": "coverage",
    "deepspeed": "deepspeed",
    "fabric": "lightning",
    "horovodrun": "horovod",
    "ipython": "ipython",
    "kernprof": "line_profiler",
    "lightning": "lightning",
    "memray": "memray",
    "ninja": "ninja",
    "pdm": "pdm",
    "pipenv": "pipenv",
    "poetry": "poetry",
    "py-spy": "py-spy",
    "pytest": "pytest",
    "scalene": "scalene",
    "torchrun": "torch",
    "uv": "uv",
    "uvx": "uv",
}
PACKAGES = {
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "apex": "git+https://github.com/NVIDIA/apex",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "clip": "git+https://github.com/openai/CLIP",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "detectron2": "git+https://github.com/facebookresearch/detectron2",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "mmcv": "openmim && mim install mmcv",
    "pkg_resources": "'setuptools<81'",
    "ruamel": "ruamel.yaml",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "transformer_engine": "'transformer_engine[pytorch]'",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Names under which pip has modules of another name."""
OWN = (
    *(
        "app",
        "common",
        "config",
        "configs",
        "core",
        "data",
        "dataloader",
        "dataset",
        "engine",
        "helpers",
        "lib",
    ),
    *(
        "losses",
        "main",
        "misc",
        "model",
        "models",
        "modules",
        "network",
        "networks",
        "options",
        "scripts",
        "src",
    ),
    *("test", "tests", "tools", "train", "trainer", "training", "util", "utils"),
)
"""Names of modules of the user's own: what pip has under them is another's."""
OTHERS = {
    "compute-sanitizer": "it comes with the CUDA toolkit",
    "conda": "install Miniforge in the image, or put the bin folder of the environment on PATH without it",
    "mamba": "install Miniforge in the image, or put the bin folder of the environment on PATH without it",
    "micromamba": "install it in the image, or put the bin folder of the environment on PATH without it",
    "ncu": "it comes with NVIDIA Nsight Compute (the CUDA toolkit has it)",
    "nsys": "it comes with NVIDIA Nsight Systems (NVIDIA's images of PyTorch and the CUDA toolkit have it)",
    "nvcc": "it comes with the CUDA toolkit: an image of the kind devel",
    "nvidia-smi": "the container runtime brings it: docker run --gpus all",
    "srun": "Slurm's client is on its login and compute nodes: call it outside of the container",
}
INSTEAD = {"numactl": "--bind numa", "taskset": "--bind numa"}
"""Flags of the launcher that replace programs that users often put before a script."""
ENDINGS = ("command not found", "not found", "No such file or directory", "bad interpreter")
_QUOTED = re.compile(r"[\u2018'`\"]([^\s\u2018\u2019'`\"]{1,60})[\u2019'`\"]")
_NAME = re.compile(
    r"([^\s:\u2018\u2019'`\"]{1,60}):? (?:(?:command )?not found|No such file|failed: No such file)"
)
_LAST = re.compile(r"command not found: (\S{1,60})$")
_MODULE = re.compile(r"No module named '?([\w.]{1,60})'?$")
_RAISED = re.compile(r"^FileNotFoundError: \[Errno 2\] No such file or directory: '([^'/\s]{1,60})'$")


def find_program(lines: Sequence[str], messages: Sequence[str], traceback: Sequence[str], code: int) -> str:
    """Return the name of the program that a process did not find, read from its output; empty if none.

    Args:
        lines: The process's output without its traceback.
        messages: Messages of its exceptions.
        traceback: Lines of its traceback: a missing file is a missing program only if a process was to be
            started.
        code: Its exit status; a shell, env and others report a missing program as 127.
    """
    if any("_execute_child" in line or "in execvp" in line for line in traceback):
        found = (_RAISED.match(line) for line in reversed(messages))
        return next((match[1] for match in found if match), "")
    return next(_read_lines(lines), "") if code == 127 else ""


def _read_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in reversed(lines):
        if "shared librar" in line or not any(ending in line for ending in ENDINGS):
            continue
        line = line.replace(": bad interpreter:", ":")
        found = _LAST.search(line) or _QUOTED.search(line) or _NAME.search(line)
        if found:
            yield found[1].removesuffix(":")


def fix_missing(name: str) -> str:
    """Return how to provide a program that was not found; empty if unknown."""
    base = name.rpartition("/")[2]
    if base.endswith(("\r", "\\r")):
        return "the script has Windows line ends: sed -i 's/\\r$//' SCRIPT"
    if base.endswith((".sh", ".py")):
        return "check the name and the working directory, and that the node has the code"
    if base in PIP:
        return f"pip install {PIP[base]} in the image, or put its environment's folder on PATH"
    if base in OTHERS:
        return f"{base} is not installed here: {OTHERS[base]}"
    if base not in APT:
        return ""
    flag = f"; or leave it out: the launcher's {INSTEAD[base]} does this" if base in INSTEAD else ""
    return f"install {APT[base]} in the image (apt-get install {APT[base]}){flag}"


def fix_module(message: str) -> str:
    """Return how to install the package of the module that a message says is missing; empty if unknown."""
    found = _MODULE.search(message)
    name = found[1] if found else ""
    if name in PACKAGES:
        return f"`pip install {PACKAGES[name]}`"
    if any(os.path.isfile(path) for path in (f"{name}.py", f"{name}/__init__.py")):
        return f"`PYTHONPATH=$PWD`: {name} is in this folder, and Python looks in that of the script"
    if not name or "." in name or name in OWN or name in sys.stdlib_module_names:
        return ""  # "a.b": the package is there, but this part of it is not
    return f"`pip install {name}`"
