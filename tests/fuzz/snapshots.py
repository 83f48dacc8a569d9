"""Snapshot files to the commands that replay one: what they show, or named errors; nothing else is read.

A case has the words of a command on a line of its own, and below it the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launcher
from launcher.cli.entry import main
from launcher.core.errors import EXIT_HARDWARE, EXIT_UNTRUSTED, EXIT_USAGE
from tests.fuzz.engine import pattern_of
from tests.fuzz.mutate import mutate_json
from tests.fuzz.nasty import HOSTS, JSON_TEXTS, NUMBERS, TEXTS, VARIABLES
from tests.golden.jobs import case_names, read_case, snapshots
from tests.golden.rewrite import BLOCK
from tests.golden.topologies import read_topology, topology_names

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = (
    *(b"plan", b"plan --format json -- python train.py"),
    b"plan --format json -- torchrun --nproc-per-node 2 train.py",
    *(b"plan --engine mpirun -- ./train", b"env", b"env --all --format json", b"env --format sh"),
    *(b"topology", b"topology --format json", b"check --format json -- python train.py"),
    *(b"check --strict -- torchrun train.py", b"run --dry-run -- deepspeed train.py"),
    *(b"run --dry-run -- accelerate launch train.py", b"plan -- mpirun -np 4 ./train"),
    b"plan --nnodes 2 --bind numa --fabric infiniband -- ./train",
    b"env --format dotenv --local-rank 1",
)
EXPECTED = (0, EXIT_USAGE, EXIT_HARDWARE, EXIT_UNTRUSTED)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ERROR = re.compile(r"launcher: error: \[([a-z-]+)\] ")
MODULES = str(Path(launcher.__file__).parent)
READ_FREELY = (sys.prefix, sys.base_prefix, MODULES, "/nonexistent")
WATCHED = {"open", "os.listdir", "os.scandir", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec"}
WATCHED |= {"socket.connect", "socket.bind", "socket.getaddrinfo", "os.system"}


class Watch:
    """What a command does to this machine while it is on; a hook of Python cannot be taken away again."""

    allowed: str | None = None
    seen: tuple[str, ...] = ()
    is_hooked = False

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        """Remember what is not allowed."""
        if self.allowed is None or event not in WATCHED:
            return
        first = arguments[0] if arguments else None
        path = os.fsdecode(first) if isinstance(first, (str, bytes)) else ""
        is_import = event == "os.listdir" and path in sys.path
        is_import |= event == "open" and isinstance(first, int)  # a .pyc is written; its path was an event
        if not is_import and not (path and path.startswith((*READ_FREELY, self.allowed))):
            self.seen += (f"{event} {first!r}"[:200],)

    @contextlib.contextmanager
    def on(self, path: str) -> Iterator[None]:
        """Watch; only this file may be read."""
        if not self.is_hooked:
            self.is_hooked = True
            sys.addaudithook(self.hear)
        self.allowed, self.seen = path, ()
        try:
            yield
        finally:
            self.allowed = None


WATCH = Watch()


def judge(argv: list[str], status: int, out: str, err: str) -> str:
    """Look at what a command has shown; return its status and errors in short."""
    assert status in EXPECTED, err
    assert "Traceback" not in err
    assert bool(ERROR.search(err)) == (status != 0) or argv[0] == "check"  # whose status is what it found
    assert not CONTROL.search(err)
    if argv[-1] != "sh":  # values for a shell are what they are, in quotes
        assert not CONTROL.search(out)
    if "json" in argv and status == 0:
        assert isinstance(json.loads(out, parse_constant=_refuse), dict)
    return f"{status} {sorted(set(ERROR.findall(err)))}"


def _refuse(constant: str) -> None:
    raise AssertionError(f"no JSON for others: {constant}")


def seeds() -> list[bytes]:
    """Return whole machines, and recorded and documented jobs: one process of each golden case."""
    example = BLOCK.search((DOCS / "snapshot.md").read_text())
    assert example is not None
    machines = [json.loads(example[1]), *map(read_topology, topology_names())]
    jobs = [snapshots(read_case(name))[-1] for name in case_names()]
    return [
        *(command + b"\n" + _dump(machine) for machine in machines for command in COMMANDS),
        *(COMMANDS[place % len(COMMANDS)] + b"\n" + _dump(job) for place, job in enumerate(jobs)),
    ]


def _dump(file: object) -> bytes:
    return json.dumps(file).encode()


def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return another command, or another file."""
    command, _, file = case.partition(b"\n")
    file_of_other = other.partition(b"\n")[2]
    if dice.random() < 0.3:
        command = dice.choice(COMMANDS)
    if dice.random() < 0.3:
        file = _set_variable(file, dice)
    return command + b"\n" + mutate_json(file, file_of_other, dice)


def _set_variable(file: bytes, dice: random.Random) -> bytes:
    """Return a file with another variable in its environment, if it has one."""
    value = dice.choice(dice.choice((NUMBERS, HOSTS, TEXTS, JSON_TEXTS)))
    with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
        data = json.loads(file)
        data["environ"][dice.choice(VARIABLES)] = value
        return _dump(data)
    return file


def try_one(case: bytes) -> str:
    """Let a command replay a file."""
    command, _, file = case.partition(b"\n")
    words = command.decode("ascii", "replace").split()
    with tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as shown:
        named.write(file)
        named.flush()
        argv = [*words[:1], "--replay", named.name, *words[1:]]
        captured = _standard_output(shown.fileno())
        with captured, contextlib.redirect_stderr(io.StringIO()) as err, WATCH.on(named.name):
            status = main(argv, {})
        shown.seek(0)
        out = shown.read().decode("utf-8", "surrogateescape")
    came = judge(argv, status, out, err.getvalue())
    assert not WATCH.seen, f"of this machine: {WATCH.seen}"
    if "bad-snapshot" in came:
        return came
    first = pattern_of(err.getvalue().partition("\n")[0])
    return f"{words[:1]} {came} {first} {_shape(json.loads(out)) if out and 'json' in argv else ''}"


def _shape(plan: dict[str, Any]) -> list[object]:
    """Return what a plan is like."""
    fabric = (plan.get("fabric") or {}).get("name")
    notes = [pattern_of(note)[:60] for note in plan.get("notes") or ()]
    return [*map(plan.get, ("source", "scope", "mode", "engine", "bind")), fabric, *notes]


@contextlib.contextmanager
def _standard_output(number: int) -> Iterator[None]:
    """Have what is written to descriptor 1 in a file."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(number, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
