"""The script that is to run, as far as its text says which framework it is of. It is read, never run."""

from __future__ import annotations

import os

from launcher.engines.process import find_script, is_python
from launcher.frozen import frozen
from launcher.host import Host
from launcher.options import Given, Options


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


def name_framework(options: Options, name: str, why: str) -> Options:
    """Return the options of a job that shows to be one of a framework as if the user had said so."""
    return options.with_inner(Options({"framework": Given(name, why, name)}))


def _imports(line: str, package: str) -> bool:
    word, _, rest = line.partition(" ")
    names = rest.split(",") if word == "import" else [rest] if word == "from" else []
    return any(name.split()[:1] and name.split()[0].partition(".")[0] == package for name in names)
