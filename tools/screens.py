"""Pictures of terminal sessions for the pages, made by the real program: ``python tools/screens.py``

Each picture is an SVG in docs/images/screens. Numbers that differ from run to run (pids, ports, seconds) are
those of the run that made it. Needs torch and rich, as the tests do.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
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
WIDTH, LINES_MAX = 112, 44


class Screen(NamedTuple):
    """One session: its name, what is typed, and whether the script is the broken one."""

    name: str
    line: str
    is_broken: bool = False


SCREENS = (
    Screen("run", "launcher run --nproc-per-node 2 train.py"),
    Screen("report", "launcher run --nproc-per-node 2 train.py", is_broken=True),
    Screen("rehearse", "launcher rehearse --like slurm --nodes 2 --processes 2 -- python train.py"),
    Screen("plan", "launcher plan --nproc-per-node 8 -- python train.py"),
)


def script(*, is_broken: bool) -> str:
    """Return the README's script, or that with the line that breaks it."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    if not is_broken:
        return str(text)
    line, place = re.findall(r"break it: `(.*?: raise .*?)` before `(\w+)`", page.replace("\n", " "))[0]
    return str(text).replace(f"    {place}", f"    {line}\n    {place}", 1)


def type_line(line: str, folder: str) -> str:
    """Return all that a terminal of `WIDTH` columns shows when a line is typed in a folder."""
    main, side = pty.openpty()
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        ["/bin/sh", "-c", line], cwd=folder, env=environ, stdin=side, stdout=side, stderr=side
    ) as process:
        os.close(side)
        shown = bytearray()
        try:
            while data := os.read(main, 1 << 16):
                shown += data
        except OSError:
            pass  # the terminal is closed: all have ended
        process.wait()
    os.close(main)
    return shown.decode("utf-8", "replace").replace("\r\n", "\n")


def draw(screen: Screen) -> str:
    """Return the picture of a session as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(script(is_broken=screen.is_broken), encoding="utf-8")
        shown = PACKAGES.sub("site-packages/", type_line(screen.line, folder).replace(folder, "~"))
    lines = shown.rstrip("\n").split("\n")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX - 20], "...", *lines[-20:]]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {screen.line}", style="bold"), soft_wrap=False)
    console.print(Text.from_ansi("\n".join(lines)), soft_wrap=False)
    own = FONT_OF_OTHERS.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code", "DejaVu Sans Mono")
    picture = console.export_svg(title="launcher", code_format=own, unique_id=f"screen-{screen.name}")
    return "\n".join(part.rstrip() for part in picture.splitlines()) + "\n"


def main() -> None:
    """Make all pictures anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for screen in SCREENS:
        FOLDER.joinpath(f"{screen.name}.svg").write_text(draw(screen), encoding="utf-8")
        print(f"docs/images/screens/{screen.name}.svg")


if __name__ == "__main__":
    main()
