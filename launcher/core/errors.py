"""Errors and problems. Each problem states what is wrong, where, what was expected, and the fix.

A `Problem` is a value: sources and checks collect them, so that a user sees all of them at once
instead of one per attempt. `LauncherError` carries them to `launcher.cli.entry`, the only place that prints
them and exits. Their texts are in ``errors.txt``. docs/errors.md lists the exit statuses (those of sysexits.h
where it has one).
"""

from __future__ import annotations

import os

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ParamSpec, TypeVar

    from launcher.core.blocks import Block

    P = ParamSpec("P")
    T = TypeVar("T")

BROKEN_PIPE = 141
"""128 + SIGPIPE, as a shell reports it."""
EXIT_USAGE = 64
EXIT_HARDWARE = 69
EXIT_BUG = 70
EXIT_NOT_READY = 75
EXIT_UNTRUSTED = 78
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
TEXT_MAX = 1 << 14
"""Characters of a text that are printed: it may quote a value or a file of any length."""


@frozen
class Problem:
    """One thing that is wrong.

    ``code`` and ``where`` are public: they never quote a file or a program.

    Attributes:
        code: Short stable reason, e.g. ``"malformed-variable"``; tools may match on it.
        what: Variables and values with what was expected, e.g. ``"RANK='x': expected ..."``.
        where: Where the values came from, e.g. ``"environment, source open_mpi"``; of a file, with the line.
        fix: What the user should type or set.
    """

    code: str
    what: str
    where: str
    fix: str


class LauncherError(Exception):
    """An error that stops the launcher. Subclasses set the exit status; instances carry the problems.

    ``notes`` are earlier observations: they often show the cause, and the problem is its effect.
    """

    exit_status = EXIT_BUG

    def __init__(self, *problems: Problem, notes: Sequence[str] = ()) -> None:
        lines = [f"[{p.code}] {p.what}\n  from: {p.where}\n  fix:  {p.fix}" for p in problems]
        super().__init__("\n".join(lines + [f"note: {note}" for note in dict.fromkeys(notes)]))
        self.notes = tuple(dict.fromkeys(notes))
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.code, p.what, p.where, p.fix)))

    @property
    def summary(self) -> str:
        """What is wrong, in one line."""
        return "; ".join(f"[{problem.code}] {problem.what}" for problem in self.problems)


class UsageError(LauncherError):
    """The command line (or a LAUNCHER_* variable) is wrong: status 64."""

    exit_status = EXIT_USAGE


class EnvironmentUntrusted(LauncherError):
    """The environment is contradictory, incomplete or malformed: status 78."""

    exit_status = EXIT_UNTRUSTED


class HardwareMissing(LauncherError):
    """Required hardware is missing: status 69."""

    exit_status = EXIT_HARDWARE


class Unavailable(LauncherError):
    """A required program, package or job is missing: status 69, as for hardware."""

    exit_status = EXIT_HARDWARE


class NotReady(LauncherError):
    """Something is not ready yet, and a retry can help: status 75."""

    exit_status = EXIT_NOT_READY


class CommandNotFound(LauncherError):
    """The command to start does not exist: status 127, as in a shell."""

    exit_status = EXIT_NOT_FOUND


class CommandNotExecutable(LauncherError):
    """The command to start exists but cannot be executed: status 126, as in a shell."""

    exit_status = EXIT_NOT_EXECUTABLE


KINDS: Mapping[str, type[LauncherError]] = {
    "usage": UsageError,
    "untrusted": EnvironmentUntrusted,
    "hardware": HardwareMissing,
    "unavailable": Unavailable,
    "not ready": NotReady,
    "not found": CommandNotFound,
    "not executable": CommandNotExecutable,
}
"""The kinds of errors, as ``errors.txt`` calls them."""
DOCS, ADDRESS_MAX = "LAUNCHER_DOCS_URL", 200
"""Variable with the address of the documentation as a site (tools/site.sh), and the limit of its length."""
WHERE = "command line and environment"
_rows: dict[str, Block] = {}


def _find_row(name: str) -> Block:
    if not _rows:
        from launcher.core.blocks import read_blocks

        _rows.update({row.name: row for row in read_blocks("core/errors.txt")})
    return _rows[name]


def make_problem(row: str, /, **values: object) -> Problem:
    """Return the problem of a row of ``errors.txt``; ``values`` replace the names in its texts."""
    texts = _find_row(row).fields
    where, what, fix = (texts.get(name, WHERE).format_map(values) for name in ("where", "what", "fix"))
    return Problem(texts.get("code", row), what, where, fix)


def make_error(row: str, /, **values: object) -> LauncherError:
    """Return the error with the problem of a row, of the row's kind."""
    return KINDS[_find_row(row).fields["status"]](make_problem(row, **values))


def name_page(page: str, code: str, environ: Mapping[str, str]) -> str:
    """Return the address of a code in the documentation, if `DOCS` says where that is; else an empty text.

    Args:
        page: Page of the site with the code, e.g. ``errors``.
        code: Code of a problem or of a cause.
        environ: The environment; what is no plain address in it is ignored.
    """
    address = environ.get(DOCS, "").rstrip("/")
    is_plain = address.isascii() and address.isprintable() and not any(sign in address for sign in " @?#")
    if not (is_plain and address.startswith(("https://", "http://")) and len(address) <= ADDRESS_MAX):
        return ""
    return f"{address}/{page}.html#{code}"


def attempt(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Return the result of a call; None if it raises OSError or ValueError.

    For calls whose failure only says that something is missing, or has ended. `contextlib.suppress` would be
    one more module on the launch path.
    """
    try:
        return act(*args, **kwargs)
    except (OSError, ValueError):
        return None


def print_problems(error: LauncherError) -> None:
    """Print each problem to standard error: what is wrong, where, and the fix; then the notes."""
    from launcher.core.log import say
    from launcher.core.redact import quote

    for problem in error.problems:
        what, where, fix = (quote(text, TEXT_MAX) for text in (problem.what, problem.where, problem.fix))
        page = name_page("errors", problem.code, os.environ)
        more = f"\n  docs: {page}" if page else ""
        say(f"error: [{problem.code}] {what}\n  from: {where}\n  fix:  {fix}{more}", problem.code)
    for note in error.notes:
        say(f"note: {quote(note, TEXT_MAX)}", "note")


def say_size(count: int) -> str:
    """Return a number of bytes in a human-readable form: ``64 MiB``, ``1.5 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"
