"""Makes the provoked part of the corpus again: real programs fail, and what they wrote is kept.

    python tests/corpus/provoke.py --python PYTHON [--only WORD]

PYTHON is one with the frameworks (`tools/setup.sh`, setup_horovod). Programs stand in ``failing/*.txt``: a
line ``=== CLASS/NAME key=value ...``, then a script. Keys: ``run`` (python, ranks, torchrun, mpirun,
horovodrun, accelerate, sh; default python), ``np`` (processes, 2), ``args``, ``limit`` (seconds), ``rank``
(whose stderr is kept) and variables of the environment in capitals. Linux, root. Those of ``gpu.txt`` need an
NVIDIA GPU: without one leave them out.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
KEPT = 12_000
"""Bytes of a stderr that are kept: its end."""
HEADING = re.compile(r"^=== (?P<kind>[a-z0-9-]+)/(?P<name>[a-z0-9-]+)(?P<keys>.*)$")


@dataclass
class Program:
    """One program that fails, and how it is started."""

    kind: str
    name: str
    script: str
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def called(self) -> str:
        """Its unique name."""
        return f"{self.kind}/{self.name}"

    @property
    def environ(self) -> dict[str, str]:
        """The variables that its heading sets."""
        return {key: value for key, value in self.keys.items() if key.isupper()}


def read_programs(folder: Path = HERE / "failing") -> list[Program]:
    """Return the programs of all files, in order."""
    found: list[Program] = []
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            heading = HEADING.match(line)
            if heading:
                words = shlex.split(heading["keys"])
                keys = dict(word.split("=", 1) for word in words)
                found.append(Program(heading["kind"], heading["name"], "", keys))
            elif found:
                found[-1].script += line + "\n"
    names = [program.called for program in found]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    return found


def command_of(program: Program, python: str, script: Path) -> list[str]:
    """Return the command line of one start."""
    count, args = program.keys.get("np", "2"), shlex.split(program.keys.get("args", ""))
    tail = [str(script), *args]
    folder = Path(python).parent
    starts = {
        "python": [python, *tail],
        "ranks": [python, *tail],
        "sh": ["bash", *tail],
        "torchrun": [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *tail],
        "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", count, python, *tail],
        "horovodrun": [str(folder / "horovodrun"), "-np", count, "--gloo", python, *tail],
        "accelerate": [python, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", count, *tail],
    }
    return starts[program.keys.get("run", "python")]


def environ_of(program: Program, python: str, folder: Path) -> dict[str, str]:
    """Return a small environment, the same on each machine."""
    base = {key: os.environ[key] for key in ("LANG", "TERM") if key in os.environ}
    path = f"{Path(python).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    base.update(
        HOME=str(folder / "home"),
        PATH=path,
        DS_ACCELERATOR="cpu",
        OMP_NUM_THREADS="1",
        MASTER_ADDR="127.0.0.1",
    )
    cache = os.path.expanduser("~/.cache/cluster-launcher")
    base.update(MPIS=f"{cache}/mpis", ROOT=str(HERE.parents[1]))
    base.update(PYTHON=python, CUDA_VISIBLE_DEVICES="", PYTHONDONTWRITEBYTECODE="1")
    return {**base, **program.environ}


def run(program: Program, python: str, folder: Path) -> tuple[int, str] | None:
    """Run a program until it has failed; return its exit code and its stderr, None if it succeeds."""
    (folder / "home").mkdir(exist_ok=True)
    script = folder / ("train.sh" if program.keys.get("run") == "sh" else "train.py")
    script.write_text(program.script, encoding="utf-8")
    environ, command = environ_of(program, python, folder), command_of(program, python, script)
    count = int(program.keys.get("np", "2")) if program.keys.get("run") == "ranks" else 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    started = []
    for rank in range(count):
        errors = folder / f"stderr.{rank}"
        if program.keys.get("run") == "ranks":
            environ = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            environ.update(MASTER_PORT=program.environ.get("MASTER_PORT", port), LOCAL_WORLD_SIZE=str(count))
        with errors.open("wb") as sink:
            process = subprocess.Popen(
                command,
                env=environ,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                start_new_session=True,
            )
        started.append(process)
    wanted = started[int(program.keys["rank"])] if "rank" in program.keys else None
    failed = wait_for_failure(started, wanted, time.monotonic() + float(program.keys.get("limit", "120")))
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if failed is None:
        return None
    return failed.returncode, (folder / f"stderr.{started.index(failed)}").read_text("utf-8", "replace")


def wait_for_failure(
    started: list[subprocess.Popen[bytes]], wanted: subprocess.Popen[bytes] | None, deadline: float
) -> subprocess.Popen[bytes] | None:
    """Return the process that failed first, or the wanted one; None if none fails."""
    while time.monotonic() < deadline:
        done = [process for process in started if process.poll() is not None]
        failed = [process for process in done if process.returncode and wanted in (None, process)]
        if failed:
            return failed[0]
        if len(done) == len(started):
            return None
        time.sleep(0.02)
    return None


def neutral(text: str, python: str, folder: Path) -> str:
    """Return the end of a stderr without the paths and names of this machine."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node0", text.replace(str(folder), "/job"))
    text = text.replace(f"{HERE.parents[1]}/tools/gpu", "/job")
    real = Path(python).resolve().parent.parent
    for prefix in sorted(
        {str(Path(python).parent.parent), str(real), sys.base_prefix}, key=len, reverse=True
    ):
        text = text.replace(prefix, "/opt/env")
    text = re.sub(r"/root/\.cache/cluster-launcher/[a-z]+-[0-9a-f]+", "/opt/env", text)
    text = re.sub(r"/root/\.pyenv/versions/[0-9.]+", "/opt/env", text)
    text = re.sub(r"\b(?:10|172|192)\.\d+\.\d+\.\d+\b", "10.0.0.4", text)
    text = "".join(char if char.isprintable() or char in "\n\t\r\x1b" else "?" for char in text)
    if len(text) > KEPT:
        text = text[-KEPT:].partition("\n")[2]
    return "\n".join(line.rpartition("\r")[2] for line in text.splitlines())


def render(program: Program, code: int, stderr: str, versions: str) -> str:
    """Return a result as an entry of the corpus."""
    status = f'signal = "{signal.Signals(-code).name}"' if code < 0 else f"status = {code}"
    text = (
        stderr.replace("\\", "\\\\")
        .replace("\x1b", "\\u001b")
        .replace('"""', '\\"\\"\\"')
        .replace("\t", "\\t")
    )
    how = program.keys.get("run", "python")
    return (
        f'[[case]]\nname = "{program.called}"\nclass = "{program.kind}"\n'
        f'source = "provoked: {how}; {versions}"\n'
        f'{status}\nstderr = """\n{text}\n"""\n'
    )


def versions_of(program: Program, python: str) -> str:
    """Return the versions of the packages that a program imports."""
    names: tuple[str, ...] = (
        *("torch", "tensorflow", "jax", "deepspeed", "lightning", "accelerate", "transformers", "horovod"),
    )
    names += (
        *("mpi4py", "numpy", "safetensors", "tokenizers", "huggingface_hub", "h5py", "tf_keras", "sklearn"),
    )
    used = [name for name in names if re.search(rf"\b(?:import|from) {name}\b", program.script)]
    if program.keys.get("run") in ("torchrun", "accelerate") and "torch" not in used:
        used.insert(0, "torch")
    site = [str(path) for path in Path(python).parent.parent.glob("lib/python*/site-packages")]
    for line in (Path(site[0]) / "x").parent.glob("*.pth"):
        site += [part for part in line.read_text().splitlines() if part.startswith("/")]
    rename = {"tensorflow": "tensorflow_cpu", "sklearn": "scikit-learn"}
    found = []
    for name in used:
        dists = list(metadata.distributions(name=rename.get(name, name), path=site))
        if dists:
            found.append(f"{name} {dists[0].version}")
    return ", ".join(found) or "Python 3.11"


def main() -> None:
    """Run the programs and write the corpus."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", default="", help="programs whose class/name contains this")
    parser.add_argument("--missing", action="store_true", help="only programs without an entry")
    args = parser.parse_args()
    programs = read_programs()
    target = HERE / "provoked"
    target.mkdir(exist_ok=True)
    kept = read_entries(target)
    for program in programs:
        called = program.called
        if args.only not in called or (args.missing and program.called in kept):
            continue
        folder = Path(tempfile.mkdtemp(prefix="job-"))
        try:
            result = run(program, args.python, folder)
            if result is None:
                print(f"DID NOT FAIL {called}", flush=True)
                continue
            code, text = result[0], neutral(result[1], args.python, folder)
            kept[program.called] = render(program, code, text, versions_of(program, args.python))
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            print(f"{code:4} {called}: {last[:150]}", flush=True)
            write_entries(target, programs, kept)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    write_entries(target, programs, kept)


def read_entries(target: Path) -> dict[str, str]:
    """Return the text of each entry by its name."""
    texts = [
        text for path in target.glob("*.toml") for text in path.read_text("utf-8").split("[[case]]\n")[1:]
    ]
    return {text.split('"', 2)[1]: f"[[case]]\n{text.strip()}\n" for text in texts}


def write_entries(target: Path, programs: list[Program], kept: dict[str, str]) -> None:
    """Write one file for each class, in the order of the programs."""
    kinds: dict[str, list[str]] = {}
    for program in programs:
        if program.called in kept:
            kinds.setdefault(program.kind, []).append(kept[program.called])
    for path in target.glob("*.toml"):
        if path.stem not in kinds:
            path.unlink()
    for kind, texts in kinds.items():
        (target / f"{kind}.toml").write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
