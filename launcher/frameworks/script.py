"""The script that is to run, as far as its text says which framework it is of. It is read, never run."""

from __future__ import annotations

import os

from launcher.command.line import find_script, is_python
from launcher.errors import Problem
from launcher.flags import PREFIX
from launcher.frozen import frozen
from launcher.host import Host
from launcher.machine.pythons import own_python
from launcher.options import Given, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_LINE_BYTES = 256
"""As much of a first line as Linux reads."""
TENSORFLOW, STRATEGY = "tensorflow", "MultiWorkerMirroredStrategy"


@frozen
class Script:
    """A script: its path, as the command line has it, and its text. Both are empty where there is none."""

    path: str = ""
    text: str = ""

    def imports(self, package: str) -> bool:
        """Whether a line imports the package, or something inside of it."""
        if package not in self.text:
            return False
        return any(_imports(line.strip(), package) for line in self.text.splitlines())


def read_script(argv: tuple[str, ...], host: Host) -> Script:
    """Return the script of a Python's command line, if it is a file that can be read."""
    place = find_script(argv) if argv and is_python(argv[0]) else None
    if place is None or argv[place] == "-m" or not os.path.isfile(argv[place]):
        return Script()
    return Script(argv[place], host.read_text(os.path.abspath(argv[place])) or "")


def list_pythons(argv: tuple[str, ...], environ: Mapping[str, str]) -> list[str]:
    """Return the Pythons that a command which is none itself may come to, the likeliest first.

    Those that it names, in its words or in the first line of its file; ours; those on PATH.

    Args:
        argv: A command line, e.g. ``("bash", "run.sh")``.
        environ: The environment that it would be started with.
    """
    named = [word for word in (*argv, *_read_first_line(argv[0])) if is_python(word)]
    return list(dict.fromkeys((*named, own_python(environ), "python3", "python")))


def _read_first_line(path: str) -> list[str]:
    """Return the words behind ``#!`` in a file's first line; none where there is no such line."""
    if "/" not in path or not os.path.isfile(path):
        return []
    try:
        with open(path, "rb") as file:
            first = file.readline(FIRST_LINE_BYTES)
    except OSError:
        return []
    return first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []


def find_missing(argv: tuple[str, ...]) -> str:
    """Return the script that a Python's command line names, if there is nothing of that name; else empty."""
    place = find_script(argv) if argv and is_python(argv[0]) else None
    if place is None or argv[place] == "-m" or os.path.exists(argv[place]):
        return ""
    return argv[place]


def describe_missing(path: str) -> Problem:
    """Return what is wrong where a script is not there, as for a program."""
    where = "on this machine" if path.startswith("/") else f"in {os.getcwd()}"
    fix = "check the name and the working directory, and that the node has the code"
    if len(path.split()) > 1:
        fix = f"write the command without quotes, as words: launcher run -- {path}; or {fix}"
    return Problem("command-not-found", f"{path!r}: no such script {where}", "command line", fix)


def names_workers(script: Script) -> bool:
    """Whether a script is of several workers in TensorFlow that TF_CONFIG is to tell of each other.

    One that writes TF_CONFIG, or asks something else who is who, needs nobody to say so.
    """
    if STRATEGY not in script.text or not script.imports(TENSORFLOW):
        return False
    resolvers = script.text.count("ClusterResolver") - script.text.count("TFConfigClusterResolver")
    words = script.text.replace(" ", "").replace("'", '"').replace("==", "")
    return not resolvers and 'environ["TF_CONFIG"]=' not in words


def name_framework(options: Options, name: str, why: str) -> Options:
    """Return the options of a job that shows to be one of a framework as if the user had said so."""
    return options.with_inner(Options({"framework": Given(name, why, name)}))


def note_framework(options: Options) -> tuple[str, ...]:
    """Return which framework a job shows to be of, where nobody has written it."""
    given = options.get("framework")
    written = given is None or given.is_typed or given.origin.startswith(PREFIX)
    return () if given is None or written else (f"this is a job of {given.value}: {given.origin}",)


def _imports(line: str, package: str) -> bool:
    word, _, rest = line.partition(" ")
    names = rest.split(",") if word == "import" else [rest] if word == "from" else []
    return any(name.split()[:1] and name.split()[0].partition(".")[0] == package for name in names)
