"""Runs the parts of the proof and writes ``results.json``: ``python3 tools/gpu OUT``.

Parts of a group run side by side, groups one after the other. Each part is a process with a limit of its own.
What does not fit into the time is skipped by name. Without a GPU all that needs one is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, NamedTuple

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from part import BROKEN, MARK, OK, ROOT, SKIPPED, WRONG, Part, kill_marked, read_json

from launcher.core.version import describe_version
from launcher.machine.gpus import list_minors
from launcher.machine.host import Host


class Row(NamedTuple):
    """A part: the module and function that it is, its group, its limit, and whether it needs a GPU."""

    name: str
    group: int
    limit_s: int
    needs_gpu: bool = True


ROWS = (
    Row("machine.collect", 1, 40, needs_gpu=False),
    Row("facts.compare", 1, 90),
    Row("suite.run", 2, 125),  # alone: it compares the memory in use, and waits for a GPU at rest
    Row("failures.endless", 3, 75),  # alone but for parts that leave the GPU's memory at rest
    Row("failures.timeout", 3, 65),
    Row("failures.stuck", 3, 75),
    Row("recorder.hang", 3, 65),
    Row("cost.start", 3, 40, needs_gpu=False),
    Row("training.ddp", 4, 60),
    Row("training.two", 4, 60),
    Row("training.started", 4, 70),
    Row("training.jax", 4, 60),
    Row("failures.memory", 4, 60),
    Row("failures.meeting", 4, 60),
    Row("failures.numbers", 4, 60),
    Row("failures.devices", 4, 60),
    Row("failures.faults", 5, 90),  # alone, one after the other: their Xids are told apart by time
    Row("restarts.wait", 6, 70),
    Row("failures.full", 7, 40),
    Row("training.first", 8, 70),
    Row("cost.steps", 9, 60),
)
"""In the order in which they run."""


def main() -> int:
    """Run the parts; 1 if something was not as expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="begin of names")
    parser.add_argument("--seconds", type=float, default=350, help="for all parts together")
    parser.add_argument("--anyway", action="store_true", help="run what needs a GPU without one, too")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    out = os.path.abspath(asked.out)
    if asked.part:
        module, _, function = asked.part.partition(".")
        getattr(importlib.import_module(module), function)(Part(asked.part, out))
        return 0
    os.makedirs(out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-") as work:
        for name in ("logs", "parts"):
            os.makedirs(os.path.join(work, name))
        os.chmod(work, 0o755)  # noqa: S103 - one program of a part runs as nobody
        return prove(out, work, asked.only, asked.seconds, bool(list_minors(Host())) or asked.anyway)


def prove(out: str, work: str, only: list[str], seconds: float, has_gpu: bool) -> int:
    """Run the chosen parts, and write what they have found; ``work``: their files until then."""
    began = time.monotonic()
    results: dict[str, Any] = {"launcher": describe_version(), "date": time.strftime("%Y-%m-%d"), "parts": {}}
    rows = [row for row in ROWS if not only or row.name.startswith(tuple(only))]
    for group in sorted({row.group for row in rows}):
        together = [row for row in rows if row.group == group]
        run_group(together, work, began + seconds, has_gpu, results["parts"])
        results["seconds"] = round(time.monotonic() - began, 1)
        write(out, work, results)
    print(render(results))
    return int(any(part["result"] not in (OK, SKIPPED) for part in results["parts"].values()))


def run_group(rows: list[Row], out: str, until: float, has_gpu: bool, parts: dict[str, Any]) -> None:
    """Run parts side by side, each to its limit."""
    running = []
    for row in rows:
        left = until - time.monotonic() - 5
        if row.needs_gpu and not has_gpu:
            parts[row.name] = {"result": SKIPPED, "why": "no NVIDIA GPU: there is no /dev/nvidia0"}
        elif left < row.limit_s / 3:
            parts[row.name] = {"result": SKIPPED, "why": f"no time: {max(left, 0):.0f} s are left"}
        else:
            words = (sys.executable, os.path.join(ROOT, "tools", "gpu"), out, "--part", row.name)
            with open(os.path.join(out, "logs", f"{row.name}.part.log"), "wb") as log:
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, MARK: f"{row.name}.part"},
                )  # fmt: skip
            running.append((row, process, time.monotonic(), min(row.limit_s, left)))
    while running:
        time.sleep(0.05)
        ended = [one for one in running if one[1].poll() is not None or time.monotonic() > one[2] + one[3]]
        for one in ended:
            running.remove(one)
            parts[one[0].name] = finish(*one[:3], out)


def finish(row: Row, process: subprocess.Popen[bytes], began: float, out: str) -> dict[str, Any]:
    """Return what a part has found that has ended, or is at its limit."""
    status = process.poll()
    kill_marked(f"{row.name}.")
    process.wait(5)
    found = read_json(os.path.join(out, "parts", f"{row.name}.json"))
    part = {"result": judge(found, status), "seconds": round(time.monotonic() - began, 1), **found}
    if part["result"] == BROKEN and status is not None:
        with open(os.path.join(out, "logs", f"{row.name}.part.log"), errors="replace") as log:
            part["log"] = log.read()[-2000:]
    print(f"{row.name}: {part['result']}, {part['seconds']} s", flush=True)
    return part


def judge(found: dict[str, Any], status: int | None) -> str:
    """Return the result of a part: its worst one; ``status`` None: it was killed at its limit."""
    results = [check["result"] for check in found.get("checks", ())]
    if status is None:
        return "timed out"
    if status or BROKEN in results or not (results or found.get("figures")):
        return BROKEN
    return WRONG if WRONG in results else SKIPPED if results and set(results) == {SKIPPED} else OK


def write(out: str, work: str, results: dict[str, Any]) -> None:
    """Write the results so far, the table, and the logs as one file."""
    with open(os.path.join(out, "results.json"), "w") as file:
        json.dump(results, file, indent=1)
    with open(os.path.join(out, "table.txt"), "w") as file:
        file.write(render(results))
    with tarfile.open(os.path.join(out, "logs.tar.gz"), "w:gz") as packed:
        packed.add(os.path.join(work, "logs"), "logs", filter=keep)


def keep(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what is no plain file, or too large to be a log."""
    return info if info.isdir() or (info.isfile() and info.size < 8 << 20) else None


def render(results: dict[str, Any]) -> str:
    """Return the table of parts: what is wrong line by line, and what was skipped."""
    lines = [f"{results['launcher']}, {results.get('seconds', 0)} s"]
    for name, part in results["parts"].items():
        checks = part.get("checks", [])
        right = sum(check["result"] == OK for check in checks)
        counts = f"{right} of {len(checks)} right" if checks else part.get("why", "")
        lines.append(f"{name:20} {part['result']:10} {part.get('seconds', 0):6.1f} s  {counts}")
        for check in checks:
            if check["result"] != OK:
                seen = str(check.get("seen", "")).strip()[-300:].replace("\n", " | ")
                expected = f"expected {str(check['expected'])[:200]}; " if "expected" in check else ""
                lines.append(f"    {check['result']}: {check['name']}: {expected}seen {seen}")
        if part.get("log"):
            lines.append(f"    {part['log'][-300:].strip()}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
