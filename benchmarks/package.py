"""How long does ``pip install`` of the wheel take, and how much does it bring?

    python -m benchmarks.package [--rounds 3] [--beside WHEEL]

Seconds of the wall, medians of rounds in fresh virtual environments: the wheel alone, with its dependencies
from pip's cache, and with everything asked from the index. Beside it what pip takes for a wheel that is as
good as empty, and for another one that is named: that of an older version. MiB are those of the environment
that it adds, with the bytecode that pip makes. The promise: with its dependencies at most 5 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.machine import describe_machine
from benchmarks.tables import cell, markdown, progress, promise

ROOT = Path(__file__).resolve().parent.parent
PROMISE_S = 5.0
UNSET = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
NOTHING = "an empty wheel"
ALONE = "the launcher alone"
CACHED = "the launcher, its dependencies from pip's cache"
FRESH = "the same, nothing cached"
OLDER = "{}, its dependencies from pip's cache"
OLDER_FRESH = "{}, nothing cached"
WAYS = {NOTHING: ("--no-deps",), ALONE: ("--no-deps",), CACHED: (), FRESH: ("--no-cache-dir",)}


def main() -> int:
    """Print the table; the exit status says whether the promise holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", metavar="WHEEL", type=Path, help="another wheel to measure")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        empty, wheel = make_empty(Path(folder)), build(Path(folder))
        ways = {way: (empty if way == NOTHING else wheel, options) for way, options in WAYS.items()}
        if words.beside:
            ways[OLDER.format(words.beside.name)] = (words.beside, ())
            ways[OLDER_FRESH.format(words.beside.name)] = (words.beside, ("--no-cache-dir",))
        size = wheel.stat().st_size / 1024
        times: dict[str, list[float]] = {way: [] for way in ways}
        sizes: dict[str, float] = {}
        for count in range(words.rounds + 1):
            progress(f"round {count} of {words.rounds}, the first one fills pip's cache")
            for number, (way, (what, options)) in enumerate(ways.items()):
                target = Path(folder, f"{count}-{number}")
                took_s, sizes[way] = install(target, what, options)
                times[way].append(took_s)
    medians = {way: median(values[1:]) for way, values in times.items()}
    nothing = medians[NOTHING]
    rows = [
        (way, cell(value), f"{value / nothing:.2f}", f"{sizes[way]:.1f}") for way, value in medians.items()
    ]
    print(f"{describe_machine()}; medians of {words.rounds}; the wheel has {size:,.0f} KiB.\n")
    print("\n".join(markdown(("what is installed", "s", "ratio", "MiB"), rows)))
    print(f"\n{promise('s for `pip install`', PROMISE_S, medians[CACHED])}")
    return int(medians[CACHED] > PROMISE_S)


def build(folder: Path) -> Path:
    """Build the wheel as a release does, and return it."""
    line = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(ROOT)]
    run(line, os.environ)
    return next((folder / "dist").glob("*.whl"))


def make_empty(folder: Path) -> Path:
    """Make a wheel of one empty module: what pip itself takes."""
    path = folder / "nothing-1-py3-none-any.whl"
    about = "nothing-1.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("nothing.py", "")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


def install(target: Path, wheel: Path, words: Sequence[str]) -> tuple[float, float]:
    """Return the seconds that pip takes in a new environment, which is no part of them, and the MiB added."""
    venv.create(target, with_pip=True)
    line = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *words, str(wheel)]
    environ = {name: value for name, value in os.environ.items() if name not in UNSET}
    before = measure(target)
    started = time.monotonic()
    run(line, environ)
    took_s = time.monotonic() - started
    return took_s, (measure(target) - before) / (1 << 20)


def measure(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def run(line: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run a program, whose words are of interest only if it fails.

    Raises:
        RuntimeError: It did, with its last words.
    """
    done = subprocess.run(line, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{line[3]} ended with exit code {done.returncode}: {done.stderr[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
