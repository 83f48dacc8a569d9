"""Defaults: the file that LAUNCHER_CONFIG names, ``launcher.toml`` near the script, ``/etc/launcher.conf``.

Each line is ``name = value``, with the name of a flag and a value as in its variable; ``#`` begins a comment.
A section head ``[launcher]`` and quotes around a value are ignored, so that a file can be INI or TOML too.
Loaded only if there is such a file.
"""

from __future__ import annotations

import os

from launcher.core.environ import BOM, Malformed, shorten
from launcher.core.errors import make_problem
from launcher.options.flags import FLAGS
from launcher.options.given import CONFIG, ETC, Files, Given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.core.errors import Problem
    from launcher.machine.host import Host
    from launcher.options.flags import Flag

LIMIT_BYTES = 1 << 16
HEAD = "[launcher]"


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
                self._reject("named-defaults", path=path, why=error.strerror)
            elif not isinstance(error, FileNotFoundError):
                self.warnings.append(f"{path} is not used: {error.strerror}")
            return
        if len(data) > LIMIT_BYTES:
            why = f"it is longer than {LIMIT_BYTES >> 10} KiB"
            self._reject("named-defaults" if named else "found-defaults", path=path, why=why)
            return
        taken: dict[str, str] = {}
        text = data.decode("utf-8", "surrogateescape").removeprefix(BOM)
        for place, name, value in self._parse(text, path):
            flag = self._flags.get(name.replace("-", "_"))
            if flag is None:  # of a newer release, maybe: no reason to stop all jobs of a machine
                what = f"{shorten(name)!r} is not the name of a flag and is not used"
                self.warnings.append(f"{place}: {what} ({self._mend(name)})")
            elif taken.setdefault(flag.dest, place) != place:
                self._reject("default-twice", place=place, name=name, other=taken[flag.dest])
            elif flag.is_of_one_job:
                self._reject(
                    "default-of-one-job", place=place, name=name, flag=flag.name, variable=flag.variable
                )
            else:
                self._take(flag, value, place, f"{place}: {name} = {shorten(value)}")

    def _reject(self, row: str, **values: object) -> None:
        """Record the problem of a row of ``errors.txt``."""
        self.problems.append(make_problem(row, **values))

    def _parse(self, text: str, path: str) -> Iterator[tuple[str, str, str]]:
        """Yield the place (``/etc/launcher.conf:3``), the name as written, and the value of each line."""
        for number, line in enumerate(text.splitlines(), 1):
            words = line.strip()
            if not words or words[0] in "#;" or words == HEAD:
                continue
            place = f"{path}:{number}"
            name, equals, value = (part.strip() for part in words.partition("="))
            value = _unquote(value)
            if not equals or not name or not value:
                self._reject("default-shape", place=place, line=shorten(words))
            else:
                yield place, name, value

    def _take(self, flag: Flag, text: str, place: str, origin: str) -> None:
        """Record the value of a line unless an earlier file sets the flag."""
        try:
            value = flag.read(text)
        except Malformed as error:
            self._reject("malformed-flag", where=place, origin=origin, expected=error, name=place)
            return
        if flag.dest in self.given:
            self.notes.append(f"{origin} is not used: {self.given[flag.dest].origin}")
        else:
            self.given[flag.dest] = Given(value, origin, text if flag.parse else str(int(bool(value))))

    def _mend(self, name: str) -> str:
        """Return what was meant by an unknown name."""
        from launcher.options.unknown import find_near, name_nearest

        dashed = name.replace("_", "-").lower().lstrip("-")
        switch = self._flags.get(dashed.removeprefix("no-").replace("-", "_"))
        if dashed.startswith("no-") and switch is not None and switch.parse is None:
            return f"{switch.name[2:]} = false"
        known = [flag.name[2:] for flag in FLAGS if not flag.is_of_one_job]
        return name_nearest([dashed] if dashed in known else find_near(dashed, known, 0))


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
