"""The user's command line: detects Python, and adds it to the front of a script."""

from __future__ import annotations

import os

from launcher.core.errors import Problem, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.options.reading import Options

SHELLS = ("sh", "bash", "dash", "ash")
"""Shells, whose ``-c STRING`` may be a single command."""
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_./=:,@%+")
"""Characters that a shell passes on as they are."""
FIRST_LINE_BYTES = 256
"""Linux reads this much of a file's first line."""
SCRIPTS = (".py", ".pyc", ".pyz")
"""Ends of the names of files that run under Python."""
STDIN = ("-", "/dev/stdin")
ASK = ("-V", "--version", "-h", "--help", "-VV")
"""Python's flags that print something about it, and run nothing."""
OF_PYTHON = ("-u", "-O", "-B", "-X", "-W", "-c", "-I", "-E", "-S")
"""Python's flags that people type without ``python``; none is a flag of ours."""
VALUED, CHECK_HASHES = "cmWX", "--check-hash-based-pycs"
"""Python's flags with a value: single letters, which may be combined, and one long flag."""
STARTERS = frozenset(
    (
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "deepspeed.pt", "ds", "fabric"),
        *("lightning", "composer", "horovodrun", "mpirun", "mpiexec", "orterun", "prterun"),
        *("mpiexec.hydra", "mpiexec.mpich", "mpirun.openmpi", "torch.distributed.run"),
        *("torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"),
        *("lightning_fabric.cli", "composer.cli.launcher", "horovod.runner.launch"),
        *("axolotl", "axolotl.cli.main", "llamafactory-cli", "lmf", "llamafactory.cli", "swift"),
    )
)
"""Words that may make a command a launcher; without one `launcher.command.launchers` is not loaded."""
SRUN = "srun"
"""Starts the tasks of all nodes: it belongs in front of us."""


def is_python(word: str) -> bool:
    """Whether a command's first word is a Python: ``python``, ``/usr/bin/python3.11``, ``pypy3``."""
    name = word.rpartition("/")[2]
    kind = next((kind for kind in ("python", "pypy") if name.startswith(kind)), None)
    return kind is not None and not name[len(kind) :].strip("0123456789.")


def is_shell(word: str) -> bool:
    """Whether a command's first word is a shell."""
    return word.rpartition("/")[2] in SHELLS


def may_be_shell(argv: Sequence[str]) -> bool:
    """Whether a command is a shell or a shell script."""
    if not argv or is_python(argv[0]):
        return False
    return is_shell(argv[0]) or any(map(is_shell, read_interpreter(argv[0])))


def read_interpreter(path: str) -> list[str]:
    """Return the words after ``#!`` in the first line of a file; none without ``#!`` or without a path."""
    if "/" not in path or not os.path.isfile(path):
        return []
    try:
        with open(path, "rb") as file:
            first = file.readline(FIRST_LINE_BYTES)
    except OSError:
        return []
    return first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []


def may_be_launcher(argv: tuple[str, ...]) -> bool:
    """Whether a launcher's name is the command's program, or among the first 8 words after a Python."""
    if not argv:
        return False
    words = argv[:8] if is_python(argv[0]) else argv[:1]
    return any(word.rpartition("/")[2] in STARTERS for word in words)


def read_flags(argv: Sequence[str]) -> tuple[int, str, int]:
    """Return where a Python's own flags end, what ends them, and where its program's arguments begin.

    ``c`` or ``m`` ends them for that flag, which may be combined with others (``-um NAME``) or with its value
    (``-mNAME``). Otherwise the text is empty: the index is that of a script, of ``-`` for standard input, or
    of no word.

    Source:
        docs.python.org, "Command line and environment", Interface options.
    """
    place = 1
    while place < len(argv) and argv[place].startswith("-") and argv[place] != "-":
        word = argv[place]
        valued = (
            "" if word.startswith("--") else next((letter for letter in word[1:] if letter in VALUED), "")
        )
        is_apart = word.index(valued) == len(word) - 1 if valued else word == CHECK_HASHES
        if valued in ("c", "m"):
            return place, valued, min(place + 1 + is_apart, len(argv))
        place += 1 + is_apart
    return place, "", min(place + 1, len(argv))


def reads_program(argv: Sequence[str]) -> bool:
    """Whether a Python or a shell reads its program from standard input: no file, module or text is named.

    Source:
        POSIX, sh, OPTIONS; bash(1), "Options".
    """
    if not argv or not (is_python(argv[0]) or is_shell(argv[0])):
        return False
    if is_python(argv[0]):
        place, flag, _ = read_flags(argv)
        asks = any(word in ASK for word in argv[1:place])
        return not asks and not flag and (place >= len(argv) or argv[place] in STDIN)
    words = iter(argv[1:])
    for word in words:
        if not word.startswith(("-", "+")) or word in STDIN:
            return word in STDIN
        if word.startswith("--") and word != "--":
            return False  # few of them run anything, and their files come next
        if "s" in word[1:] or "c" in word[1:]:
            return "c" not in word[1:]
        if word.endswith("o"):
            next(words, "")  # the name of an option
    return True


def find_script(argv: Sequence[str]) -> int | None:
    """Return the index of ``-m`` or the script in a Python's command line; None if there is neither."""
    place, flag, _ = read_flags(argv)
    return None if flag == "c" or place >= len(argv) or argv[place] == "-" else place


def part_module(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command line with a Python's ``-m`` and its module as separate words."""
    place, flag, _ = read_flags(argv) if is_python(argv[0]) else (0, "", 0)
    if flag != "m" or argv[place] == "-m":
        return argv
    others, _, name = argv[place].partition("m")
    flags = (*([others] if others != "-" else []), "-m", *([name] if name else []))
    return (*argv[:place], *flags, *argv[place + 1 :])


def plan_argv(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the full command line: a ``.py`` file, ``-m module`` or a folder runs under Python.

    A file that is not executable and names Python in its first line runs under Python too. A shell with a
    text that only starts a Python or a launcher (an image's ``CMD python train.py``) is replaced by it, so
    that signals reach it directly. In a Python's command line ``-m`` and the module become separate words.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    count = 0
    if may_have_front(command):
        from launcher.command.fronts import find_front

        front = find_front(command)
        count = front.count
        if count and front.runs(command[count]):
            return tuple(command)
    argv = add_python(command[count:], options, environ)
    if not count and argv[0].startswith("-"):
        raise UsageError(_flag_first(argv))
    if not count and not options.switch("no_python"):
        argv = open_shell(argv)
    return (*command[:count], *part_module(argv))


def open_shell(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the Python or launcher that ``sh -c "python train.py"`` only starts; else the command itself."""
    if len(argv) != 3 or not is_shell(argv[0]) or argv[1] not in ("-c", "-ec"):
        return argv
    words = tuple(argv[2].split())
    words = words[1:] if words[:1] == ("exec",) else words
    is_only = words and PLAIN.issuperset(argv[2].strip())
    return words if is_only and (is_python(words[0]) or may_be_launcher(words)) else argv


def name_launcher(argv: Sequence[str], text: str) -> str:
    """Return a launcher that a shell's text, or that of its file, names outside a comment; empty if none."""
    lines = [line.partition("#")[0].split() for line in (*argv[1:], *text.splitlines())]
    names = (word.rpartition("/")[2] for words in lines for word in words)
    return next((name for name in names if name in STARTERS or name == SRUN), "")


def may_have_front(argv: Sequence[str]) -> bool:
    """Whether a program such as ``nice`` may come before the command; if not, the table is not loaded."""
    if not argv or argv[0].endswith(SCRIPTS) or is_shell(argv[0]):
        return False
    return not is_python(argv[0]) or read_flags(argv)[1] == "m"


def behind_front(argv: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line behind programs such as ``nice -n 5``, from its Python on if it has one."""
    if not may_have_front(argv):
        return argv
    from launcher.command.fronts import look_behind

    return look_behind(argv, _python(environ))


def add_python(command: Sequence[str], options: Options, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command, with Python in front of it if it needs one.

    Raises:
        UsageError: No command, or ``-m`` without a module.
    """
    if not command:
        raise UsageError(no_command())
    if options.switch("run_path"):
        return (_python(environ), *command)
    if options.switch("no_python"):
        return tuple(command)
    if options.switch("module"):
        return (_python(environ), "-m", *command)
    if command[0] == "-m":
        if len(command) < 2:
            raise UsageError(no_command())
        return (_python(environ), *command)
    if command[0].endswith(SCRIPTS) or _is_script(command[0]):
        named = () if environ.get("PYTHON_EXEC") else read_python(command[0])
        if named and named[0] not in ("python", "python3"):  # those are any Python
            return (*named, *command)
        return (_python(environ), *command)
    return tuple(command)


def read_python(path: str) -> tuple[str, ...]:
    """Return the Python in the ``#!`` line of an executable file, with its flags; empty if there is none."""
    words = read_interpreter(path) if os.access(path, os.X_OK) else []
    if words and words[0].rpartition("/")[2] == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words) if words and is_python(words[0]) else ()


def find_program_script(word: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the Python and the file that a program runs by its ``#!`` line, as pip's console scripts do."""
    folders = [""] if "/" in word else environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.abspath(os.path.join(folder, word)) for folder in folders)
    path = next((one for one in paths if os.path.isfile(one) and os.access(one, os.X_OK)), "")
    python = read_python(path)
    return (*python, path) if python else ()


def _flag_first(command: Sequence[str]) -> Problem:
    """Return the problem of a flag where the command's program is expected."""
    import shlex

    place = next((place for place, word in enumerate(command) if word.endswith(".py") or is_python(word)), 0)
    line = f"{shlex.join(command[:place])} -- {shlex.join(command[place:])}" if place else "FLAGS -- COMMAND"
    fix = (
        f"flags of the launcher go before --: launcher run {line} (docker run IMAGE launcher run {line}), "
        "or set their LAUNCHER_* variables"
    )
    if command[0][:2] in OF_PYTHON:
        fix = f"put python before its flags: launcher run -- python {shlex.join(command)}"
    what = f"{command[0]!r} comes after --, where the command's program is expected"
    return Problem("usage", what, "command line", fix)


def _python(environ: Mapping[str, str]) -> str:
    from launcher.machine.pythons import own_python

    return own_python(environ)


def _is_script(path: str) -> bool:
    """Whether Python runs it: a file that is not executable and begins with ``#!...python``, or a folder.

    A folder's name has a slash: a program may have the name of the package that it comes from.
    """
    if "/" in path and os.path.isfile(os.path.join(path, "__main__.py")):
        return True
    words = () if os.access(path, os.X_OK) else read_interpreter(os.path.join(".", path))
    return any("python" in word for word in words)


def no_command() -> Problem:
    """Return the problem of a missing command."""
    return Problem(
        "no-command",
        "nothing to run: expected a .py file, -m MODULE, or a program",
        "command line",
        "launcher run [options] -- python train.py",
    )
