"""One part of the proof: its checks and figures, and the programs that it runs.

A part is a process of its own. Its file is written after each check, so that a part that is killed loses only
the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RANK = os.path.join(ROOT, "tools", "gpu", "rank.py")
MARK = "GPU_PROOF"
"""Variable that all processes of a step inherit: what is left of them is found by it."""
KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "LANG", "LD_PRELOAD", MARK)
LAUNCHER = (sys.executable, "-m", "launcher")
OK, WRONG, SKIPPED, BROKEN = "ok", "wrong", "skipped", "broken"


class Done(NamedTuple):
    """A program that has ended; status None: it was killed at its limit."""

    status: int | None
    out: str
    err: str
    seconds: float
    record: dict[str, Any]


class Job:
    """A program in the background."""

    def __init__(self, process: subprocess.Popen[bytes], base: str, mark: str) -> None:
        self.process, self.base, self.mark, self.began = process, base, mark, time.monotonic()

    def wait(self, limit_s: float) -> Done:
        """Wait for its end; kill what is left of it."""
        try:
            status: int | None = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        seconds = time.monotonic() - self.began
        kill_marked(self.mark)
        self.process.wait(5)
        record = read_json(f"{self.base}.failure.json")
        return Done(status, read(f"{self.base}.out"), read(f"{self.base}.err"), round(seconds, 3), record)

    def wait_for(self, path: str, limit_s: float) -> bool:
        """Whether a file appears before the limit and before the job's end."""
        until = time.monotonic() + limit_s
        while not os.path.exists(path):
            if time.monotonic() > until or self.process.poll() is not None:
                return os.path.exists(path)
            time.sleep(0.02)
        return True


class Part:
    """What a part has found."""

    def __init__(self, name: str, out: str) -> None:
        self.name, self.logs = name, os.path.join(out, "logs")
        self.path = os.path.join(out, "parts", f"{name}.json")
        self.checks: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}
        self.write()

    def write(self) -> None:
        """Write what is known so far."""
        document = {"checks": self.checks, "figures": self.figures}
        with open(f"{self.path}.new", "w") as file:
            json.dump(document, file, indent=1, default=str)
        os.replace(f"{self.path}.new", self.path)

    def figure(self, name: str, value: Any) -> None:
        """Keep a value that nothing is expected of."""
        self.figures[name] = value
        self.write()

    def check(self, name: str, expected: Any, seen: Any, *, right: bool | None = None) -> bool:
        """Compare; ``right``: the result, where it is not equality."""
        is_right = expected == seen if right is None else right
        self.checks.append(
            {"name": name, "result": OK if is_right else WRONG, "expected": expected, "seen": seen}
        )
        self.write()
        return is_right

    def holds(self, name: str, word: str, text: str) -> bool:
        """Whether a text contains a word."""
        return self.check(
            name, f"contains: {word}", text[-1500:] if word not in text else word, right=word in text
        )

    def skip(self, name: str, why: str) -> None:
        """Say that something was not tried."""
        self.checks.append({"name": name, "result": SKIPPED, "seen": why})
        self.write()

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Keep a fault of ours as a result; the part goes on."""
        began = time.monotonic()
        try:
            yield
        except Exception:
            self.checks.append({"name": name, "result": BROKEN, "seen": traceback.format_exc()[-2000:]})
        self.figure(f"{name}: s", round(time.monotonic() - began, 2))

    def start(
        self, name: str, words: Sequence[str], environ: dict[str, str] | None = None, user: int = 0
    ) -> Job:
        """Start a program with a small environment; its output goes to files."""
        base, mark = os.path.join(self.logs, f"{self.name}.{name}"), f"{self.name}.{name}"
        variables = small_environ() | {MARK: mark} | (environ or {})
        as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
        with open(f"{base}.out", "wb") as out, open(f"{base}.err", "wb") as err:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, **as_user}
            options |= {"env": variables, "cwd": ROOT, "start_new_session": True}
            try:
                process = subprocess.Popen(words, **options)
            except OSError as error:
                process = subprocess.Popen(("sh", "-c", 'echo "$0" >&2; exit 127', str(error)), **options)
        return Job(process, base, mark)

    def run(self, name: str, words: Sequence[str], limit_s: float = 60, **options: Any) -> Done:
        """Run a program to its end."""
        return self.start(name, words, **options).wait(limit_s)

    def start_job(self, name: str, flags: Sequence[str], *command: str, **options: Any) -> Job:
        """Start a job of the launcher, with a failure record."""
        failure = os.path.join(self.logs, f"{self.name}.{name}.failure.json")
        words = (*LAUNCHER, "run", "--standalone", "--failure-file", failure, *flags, "--", *command)
        return self.start(name, words, **options)

    def job(
        self, name: str, flags: Sequence[str], *command: str, limit_s: float = 60, **options: Any
    ) -> Done:
        """Run a job of the launcher to its end."""
        return self.start_job(name, flags, *command, **options).wait(limit_s)

    def program(self, *words: str) -> tuple[str, ...]:
        """Return the command of a rank's program."""
        return (sys.executable, RANK, *words)


def small_environ() -> dict[str, str]:
    """Return the variables that programs of a part get: nothing that describes a job."""
    kept = {key: os.environ[key] for key in KEPT if key in os.environ}
    return {**kept, "PYTHONPATH": ROOT, "PYTHONUNBUFFERED": "1"}


def kill_marked(mark: str) -> None:
    """Kill what is left of a step, or of all steps of a part if the mark ends with a dot."""
    entry = f"\0{MARK}={mark}".encode() + (b"" if mark.endswith(".") else b"\0")
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                found = b"\0" + file.read()
            if entry in found and int(name) != os.getpid():
                os.kill(int(name), signal.SIGKILL)


def read(path: str) -> str:
    """Return a file's text; empty without one."""
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path: str) -> dict[str, Any]:
    """Return a JSON object; empty without one."""
    try:
        found = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def find_result(text: str) -> dict[str, Any]:
    """Return the last JSON object that a rank has printed on a line of its own."""
    for line in reversed(text.splitlines()):
        start = line.find("{")
        if start >= 0:
            with contextlib.suppress(ValueError):
                found = json.loads(line[start:])
                if isinstance(found, dict):
                    return found
    return {}


def all_results(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of all ranks, in the order in which they came."""
    return [found for found in map(find_result, text.splitlines()) if found]
