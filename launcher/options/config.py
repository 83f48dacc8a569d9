"""Defaults: the file that LAUNCHER_CONFIG names, ``launcher.toml`` near the script, ``/etc/launcher.conf``.

Each line is ``name = value``, with the name of a flag and a value as in its variable; ``#`` begins a comment.
A section head ``[launcher]`` and quotes around a value are ignored, so that a file can be INI or TOML too.
Loaded only if there is such a file.
"""

from __future__ import annotations

import os

from launcher.core.environ import BOM, Malformed, shorten
from launcher.core.errors import make_problem
from launcher.core.frozen import frozen
from launcher.options.flag_values import is_on
from launcher.options.flags import FLAGS, TENSORFLOW
from launcher.options.given import CONFIG, ETC, Files, Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.core.errors import Problem
    from launcher.machine.host import Host

LIMIT_BYTES = 1 << 16
OF_ONE_JOB = (
    *("nnodes", "node_rank", "master_addr", "local_addr", "hosts", "hostfile", "standalone"),
    *("rdzv_endpoint", "rdzv_id", "ssh", "framework", *TENSORFLOW),
    *("module", "no_python", "run_path", "expand_args", "local_rank_arg"),
)
"""Flags that describe a single job, node or command, and so cannot be defaults."""
HEAD = "[launcher]"


@frozen
class Line:
    """A line of a file.

    Attributes:
        place: File and line number, ``/etc/launcher.conf:3``.
        name: The name as written.
        text: The value.
    """

    place: str
    name: str
    text: str

    @property
    def origin(self) -> str:
        """The line's name in messages and plans."""
        return f"{self.place}: {self.name} = {shorten(self.text)}"


class ConfigReader:
    """Reader of the files: collects values and problems. The first file to set a flag wins."""

    def __init__(self) -> None:
        self.given: dict[str, Given] = {}
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self._flags = {flag.dest: flag for flag in FLAGS}

    def read(self, path: str, host: Host, *, named: bool) -> None:
        """Read one file.

        Args:
            path: Path of the file.
            host: This node.
            named: Whether the user named it. Then the file must exist, and any user may own it, but others
                must not be able to write it.
        """
        try:
            data = host.read_guarded(path, LIMIT_BYTES, of_system=not named)
        except OSError as error:
            if named:
                self.problems.append(make_problem("named-defaults", path=path, why=error.strerror))
            elif not isinstance(error, FileNotFoundError):
                self.warnings.append(f"{path} is not used: {error.strerror}")
            return
        if len(data) > LIMIT_BYTES:
            why = f"it is longer than {LIMIT_BYTES >> 10} KiB"
            problem = make_problem("named-defaults" if named else "found-defaults", path=path, why=why)
            self.problems.append(problem)
            return
        taken: dict[str, str] = {}
        text = data.decode("utf-8", "surrogateescape").removeprefix(BOM)
        for line in self._parse(text, path):
            dest = line.name.replace("-", "_")
            if dest not in self._flags:  # of a newer release, maybe: no reason to stop all jobs of a machine
                what = f"{shorten(line.name)!r} is not the name of a flag and is not used"
                self.warnings.append(f"{line.place}: {what} ({self._mend(line.name)})")
                continue
            if dest in taken:
                self.problems.append(
                    make_problem("default-twice", place=line.place, name=line.name, other=taken[dest])
                )
                continue
            taken[dest] = line.place
            self._take(line, dest)

    def _parse(self, text: str, path: str) -> Iterator[Line]:
        for number, line in enumerate(text.splitlines(), 1):
            words = line.strip()
            if not words or words[0] in "#;" or words == HEAD:
                continue
            place = f"{path}:{number}"
            name, equals, value = (part.strip() for part in words.partition("="))
            value = _unquote(value)
            if not equals or not name or not value:
                self.problems.append(make_problem("default-shape", place=place, line=shorten(words)))
                continue
            yield Line(place, name, value)

    def _take(self, line: Line, dest: str) -> None:
        """Record the value of a line unless an earlier file sets the flag."""
        flag, place = self._flags[dest], line.place
        if dest in OF_ONE_JOB:
            name, variable = flag.name, flag.variable
            self.problems.append(
                make_problem("default-of-one-job", place=place, name=line.name, flag=name, variable=variable)
            )
            return
        try:
            value = flag.parse(line.text) if flag.parse else is_on(line.text)
        except Malformed as error:
            self.problems.append(
                make_problem("malformed-flag", where=place, origin=line.origin, expected=error, name=place)
            )
            return
        if dest in self.given:
            self.notes.append(f"{line.origin} is not used: {self.given[dest].origin}")
        else:
            self.given[dest] = Given(value, line.origin, line.text if flag.parse else str(int(bool(value))))

    def _mend(self, name: str) -> str:
        """Return what was meant by an unknown name."""
        from launcher.options.unknown import find_near

        dashed = name.replace("_", "-").lower().lstrip("-")
        switch = self._flags.get(dashed.removeprefix("no-").replace("-", "_"))
        if dashed.startswith("no-") and switch is not None and switch.parse is None:
            return f"{switch.name[2:]} = false"
        known = [flag.name[2:] for flag in FLAGS if flag.dest not in OF_ONE_JOB]
        near = [dashed] if dashed in known else find_near(dashed, known, 0)
        return f"{near[0]} is the nearest" if near else "none is similar: launcher run --help-all lists all"


def _unquote(value: str) -> str:
    """Return a value without the quotes around it, or without the comment after it."""
    for quote in "\"'":
        inner, closed, rest = value[1:].partition(quote)
        if value.startswith(quote) and closed and (not rest.strip() or rest.strip().startswith("#")):
            return inner
    return value.replace("\t#", " #").partition(" #")[0].rstrip()


def read_files(environ: Mapping[str, str], host: Host, near: str = "") -> tuple[Files, list[Problem]]:
    """Return the values in the files and their problems; the first file to set a flag wins.

    ``near``: path of the ``launcher.toml`` near the script; empty for none.
    """
    reader = ConfigReader()
    named = environ.get(CONFIG)
    if named:
        reader.read(os.path.join(".", named) if named.startswith("-") else named, host, named=True)
    for path in filter(None, (near, ETC)):
        reader.read(path, host, named=False)
    return Files(reader.given, tuple(reader.notes), tuple(reader.warnings)), reader.problems
