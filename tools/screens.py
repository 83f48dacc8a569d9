"""Pictures of terminal sessions for the pages, made by the real program: ``python tools/screens.py [NAME]``

Each picture is an SVG in docs/images/screens. Numbers that differ from run to run (pids, ports, seconds) are
those of the run that made it. Needs torch and rich, as the tests do.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "screens"
FONT_OF_OTHERS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""Nothing is fetched from another host."""
PACKAGES = re.compile(r"/[^\s\"]*/site-packages/")
PROGRAMS = str(Path(sys.executable).parent) + "/"
"""Programs of this environment are shown by their names."""
WIDTH, LINES_MAX = 112, 44
HOME = b"\x1b[H"
"""Begins each frame of a command that fills the screen."""
FRAMES = 3
"""The frame that is drawn: by then ranks have used CPU time since the one before."""
WAIT_S = 60.0


class Screen(NamedTuple):
    """One session.

    Attributes:
        name: Its file, without the ending.
        line: The command that is typed.
        is_broken: Use the README's broken script.
        beside: A job that runs meanwhile, with a script that does not end.
    """

    name: str
    line: str
    is_broken: bool = False
    beside: str = ""


SCREENS = (
    Screen("run", "launcher run --nproc-per-node 2 train.py"),
    Screen("report", "launcher run --nproc-per-node 2 train.py", is_broken=True),
    Screen("torchrun", "torchrun --nproc-per-node 2 train.py", is_broken=True),
    Screen("rehearse", "launcher rehearse --like slurm --nodes 2 --processes 2 -- python train.py"),
    Screen("plan", "launcher plan --nproc-per-node 8 -- python train.py"),
    Screen("watch", "launcher status --watch", beside="launcher run --nproc-per-node 4 train.py"),
)


def script(screen: Screen) -> str:
    """Return the README's script, or that with the line that breaks it, or one that trains for hours."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if screen.beside:
        return str(text).replace("range(100)", "range(10**9)")
    if not screen.is_broken:
        return str(text)
    line, place = re.findall(r"break it: `(.*?: raise .*?)` before `(\w+)`", page.replace("\n", " "))[0]
    return str(text).replace(f"    {place}", f"    {line}\n    {place}", 1)


def variables() -> dict[str, str]:
    """Return the environment of every session: a terminal of `WIDTH` columns, and no GPU."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


@contextmanager
def run_beside(line: str, folder: str) -> Iterator[None]:
    """Run a job while the body runs, which begins when all ranks have used two seconds of CPU time.

    Raises:
        TimeoutError: They have not within `WAIT_S`.
    """
    if not line:
        yield
        return
    environ = variables()
    job = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {line}"],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not _trains(environ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{line}: the ranks do not train after {WAIT_S} s")
        yield
    finally:
        job.terminate()
        job.wait()


def _trains(environ: dict[str, str]) -> bool:
    asked = subprocess.run(["launcher", "status", "--json"], env=environ, capture_output=True, text=True)
    if asked.returncode:
        return False
    ranks = [rank for node in json.loads(asked.stdout)["nodes"] for rank in node["ranks"]]
    return bool(ranks) and all(rank["cpu_s"] > 2 for rank in ranks)


def type_line(line: str, folder: str) -> str:
    """Return what a terminal shows when a line is typed; of a command that fills it, one frame."""
    main, side = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", LINES_MAX, WIDTH, 0, 0))
    with subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=folder, env=variables(), stdin=side, stdout=side, stderr=side
    ) as process:
        os.close(side)
        shown = bytearray()
        try:
            while data := os.read(main, 1 << 16):
                shown += data
                if shown.count(HOME) > FRAMES:
                    os.write(main, b"q")
        except OSError:
            pass  # the terminal is closed: all have ended
        process.wait()
    os.close(main)
    if shown.count(HOME) > FRAMES:
        shown = shown.split(HOME)[FRAMES]
    return re.sub(r"\r+\n", "\n", shown.decode("utf-8", "replace"))


def draw(screen: Screen) -> str:
    """Return the picture of a session as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(script(screen), encoding="utf-8")
        with run_beside(screen.beside, folder):
            shown = type_line(screen.line, folder).replace(folder, "~").replace(PROGRAMS, "")
    shown = PACKAGES.sub("site-packages/", shown)
    lines = shown.split("\n")
    while lines and not Text.from_ansi(lines[-1]).plain.strip():
        lines.pop()  # the rest of a screen
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 20], "...", *lines[-20:]]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {screen.line}", style="bold"), soft_wrap=False)
    console.print(Text.from_ansi("\n".join(lines)), soft_wrap=False)
    own = FONT_OF_OTHERS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "DejaVu Sans Mono")
    name = f"screen-{screen.name}"
    picture = console.export_svg(title=screen.line.split()[0], code_format=own, unique_id=name)
    return "\n".join(part.rstrip() for part in picture.splitlines()) + "\n"


def main() -> None:
    """Make all pictures anew, or those that are named."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for screen in SCREENS:
        if sys.argv[1:] and screen.name not in sys.argv[1:]:
            continue
        FOLDER.joinpath(f"{screen.name}.svg").write_text(draw(screen), encoding="utf-8")
        print(f"docs/images/screens/{screen.name}.svg")


if __name__ == "__main__":
    main()
