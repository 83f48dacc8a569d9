"""Makes twelve mistakes with the launcher and torchrun: ``python tools/mistakes.py`` writes docs/mistakes.md.

The page shows the output of both. Both run the same scripts on this machine, whose paths are shortened. Needs
torch, as the tests do.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "mistakes.md"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
LIMIT_S = 20.0
FOLDERS = re.compile(r"/[^\s\"']*/(?=site-packages/|lib/python3)")
SLEEP = "import os, time\n"
ONE_FAILS = "if os.environ['RANK'] == '1':\n    {}\ntime.sleep(60)\n"
SCRIPTS = {
    "train.py": SLEEP + ONE_FAILS.format("raise KeyError('label')"),
    "imports.py": "import transfomers\n",
    "hangs.py": """import os, time
if os.environ['RANK'] == '1':
    time.sleep(60)
print('step 1', flush=True)
time.sleep(60)
""",
    "killed.py": SLEEP + ONE_FAILS.format("os.kill(os.getpid(), 9)"),
    "waits.py": SLEEP + "print('step 1', flush=True)\ntime.sleep(60)\n",
    "argument.py": "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--local_rank', type=int, required=True)\nparser.parse_args()\n",
    "bar.py": """import sys, time
for done in range(0, 101, 20):
    print(f'\\r{done} %', end='', file=sys.stderr)
    time.sleep(0.1)
print(file=sys.stderr)
""",
}


class Mistake(NamedTuple):
    """A command line after ``launcher run`` and ``torchrun``.

    Attributes:
        what: Description of the mistake.
        words: Words for both.
        more: Words for the launcher only, before the others.
        expected: Exit status of the launcher.
        says: Texts that the launcher's own lines must contain: what, where or the fix.
        sends: Signal that is sent to both after their first line of output; 0 for none.
    """

    what: str
    words: tuple[str, ...]
    expected: int
    says: tuple[str, ...]
    more: tuple[str, ...] = ()
    sends: int = 0


TWO = ("--nproc-per-node", "2")
MISTAKES = (
    Mistake("an exception", (*TWO, "train.py"), 1, ("rank 1 of 2 failed first", "KeyError: 'label'")),
    Mistake("a wrong path", (*TWO, "trian.py"), 127, ("no such script", "check the name")),
    Mistake("a missing import", (*TWO, "imports.py"), 1, ("`pip install transfomers`",)),
    Mistake(
        "a rank that hangs",
        (*TWO, "hangs.py"),
        75,
        ("no output for 2 s", "rank 1 waits in sleep (hangs.py:3)"),
        ("--stall-timeout", "2", "--on-stall", "stop"),
    ),
    Mistake(
        "a port that is taken", (*TWO, "--master-port", "PORT", "train.py"), 75, ("port-taken", "python")
    ),
    Mistake(
        "a wrong number of nodes",
        ("--nnodes", "2", *TWO, "train.py"),
        78,
        ("master address", "--node-rank R"),
    ),
    Mistake(
        "a flag after the script",
        ("waits.py", "--nproc-per-node", "2"),
        143,
        ("before the script",),
        sends=15,
    ),
    Mistake("a misspelled flag", ("--nproc-per-nodes", "2", "train.py"), 64, ("--nproc-per-node",)),
    Mistake("Ctrl-C", (*TWO, "waits.py"), 130, ("stopped by Ctrl-C",), sends=2),
    Mistake(
        "SIGKILL, as when memory runs out", (*TWO, "killed.py"), 137, ("killed by SIGKILL", "rank 1 of 2")
    ),
    Mistake("a progress bar", (*TWO, "bar.py"), 0, ()),
    Mistake(
        "a script that requires --local_rank",
        (*TWO, "argument.py"),
        2,
        ("local-rank-wanted", "--local-rank-arg"),
    ),
)


def run(words: tuple[str, ...], folder: Path, sends: int = 0) -> tuple[int | None, str]:
    """Return the exit status of a command, None after `LIMIT_S`, and all its output."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LAUNCHER_")}
    environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        errors="replace",
    ) as process:
        said = ""
        try:
            if sends and process.stdout is not None:
                said = process.stdout.readline()
                time.sleep(0.2)  # so that the other rank gets as far
                os.killpg(process.pid, sends)
            rest = process.communicate(timeout=LIMIT_S)[0]
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            rest, status = process.communicate()[0], None
    said = FOLDERS.sub("", said + rest).replace(str(folder), "~")
    return status, said.replace(sys.executable, "python")


def commit(mistake: Mistake, starter: tuple[str, ...], folder: Path, port: int) -> tuple[int | None, str]:
    """Make a mistake with one of the two; return the exit status and the output."""
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text, encoding="utf-8")
    more = mistake.more if starter != TORCHRUN else ()
    words = tuple(str(port) if word == "PORT" else word for word in (*more, *mistake.words))
    return run((*starter, *words), folder, mistake.sends)


def own_words(text: str) -> list[str]:
    """Return the launcher's own lines of an output."""
    return [line for line in text.splitlines() if line.startswith("launcher:")]


def main() -> None:
    """Make all mistakes, and write the page."""
    import socket

    ours = (sys.executable, "-m", "launcher", "run")
    parts = [HEAD]
    rows = []
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as server:
        folder, port = Path(name), server.getsockname()[1]
        for mistake in MISTAKES:
            typed = " ".join((*mistake.more, *mistake.words)).replace("PORT", str(port))
            (mine, said), (its, told) = (commit(mistake, one, folder, port) for one in (ours, TORCHRUN))
            rows.append(f"| {mistake.what} | {_status(mine, said)} | {_status(its, told)} |")
            parts.append(f"## {mistake.what[0].upper()}{mistake.what[1:]}\n\n    $ launcher run {typed}\n")
            parts.append(f"{_block(said)}\ntorchrun, {_status(its, told)}:\n\n{_block(told, 16)}")
            print(rows[-1], flush=True)
    table = "\n".join(["| mistake | launcher run | torchrun |", "|---|---|---|", *rows])
    PAGE.write_text("\n".join([parts[0], table, "", *parts[1:]]).rstrip() + "\n", encoding="utf-8")


def _status(status: int | None, said: str) -> str:
    lines = len(said.splitlines())
    end = f"still running after {LIMIT_S:g} s" if status is None else f"exit code {status}"
    return f"{end}, {lines} lines"


def _block(text: str, limit: int = 60) -> str:
    lines = [line[:200].rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
    left_out = len(lines) - limit
    if left_out > 0:
        lines = [*lines[: limit // 2], f"... ({left_out} lines)", *lines[-limit // 2 :]]
    return "```text\n" + "\n".join(lines) + "\n```\n"


HEAD = """# Twelve mistakes

What the launcher and torchrun print for twelve common mistakes.

    launcher run --nproc-per-node 2 trian.py

The output of both is from one machine with 2 CPUs. The launcher's is complete, and torchrun's is shortened.
`python tools/mistakes.py` makes this page, and `tests/process/test_mistakes.py` checks the launcher's part.
"""

if __name__ == "__main__":
    main()
