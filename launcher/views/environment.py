r"""Renders the variables of a process as a table, shell commands, JSON or an env file.

What each format can represent:

======  ==================================================================================
table   Any value, with control characters shown as escapes. Not meant to be parsed.
sh      Any value, byte for byte, for ``eval "$(launcher env --format sh)"`` in any POSIX
        shell. Names that are not identifiers, or that shells reserve, are left out with a
        note.
json    Any value. A byte that is not UTF-8 is a lone surrogate, as in ``os.environ``:
        byte FF is ``"\udcff"``. Python reads it back (``os.fsencode`` gives the byte), other
        readers may refuse it or show U+FFFD. Variables to unset are listed in a note.
dotenv  ``NAME=value`` lines. A value has no quotes if ``docker run --env-file`` (which takes
        the line literally), docker compose and python-dotenv (which interpret quotes,
        comments and ``$NAME``) then all read it the same. Other values are quoted for the
        last two, with a note; line breaks become ``\n`` inside double quotes. Values that
        those two read differently, and bytes that are not UTF-8, are left out with a note.
        Variables to unset are listed in a note.
======  ==================================================================================
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from launcher.core.blocks import read_blocks
from launcher.core.model import Plan
from launcher.core.redact import printable
from launcher.output.tables import align

(_KEPT,) = read_blocks("views/shells.txt")
_KEPT_BY_SHELLS = frozenset(_KEPT.words("names"))
# docker run refuses a file with a longer line, line feed included ("token too long").
_DOCKER_LINE_BYTES_MAX = 65_536
_DOUBLE_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def without_files(plan: Plan, environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return an environment without the variables whose file only a job has, and a note on each of them."""
    words = [word for word, _ in plan.network.files] if plan.network else []
    gone = [name for name, value in environ.items() if value in words]
    kept = {name: value for name, value in environ.items() if name not in gone}
    return kept, tuple(f"{name} is left out: launcher run makes its file" for name in gone)


def render_environment(
    settings: Mapping[str, str], unset: Sequence[str], style: str
) -> tuple[str, list[str]]:
    """Return variables as text, in the given order.

    Args:
        settings: Values by name, as strings like those of ``os.environ``. Bytes that are not UTF-8 are lone
            surrogates, so the text must be written with ``errors="surrogateescape"``.
        unset: Names that the process must not inherit; one that is also in `settings` is set.
        style: ``"table"``, ``"sh"``, ``"json"`` or ``"dotenv"``.

    Returns:
        The text, which is empty or ends with a line feed, and notes for standard error about
        what this format cannot represent, one line each.

    Raises:
        ValueError: The style is unknown.
    """
    if style not in _STYLES:
        raise ValueError(f"style {style!r}: expected one of {', '.join(_STYLES)}")
    return _STYLES[style](settings, [name for name in unset if name not in settings])


def _render_table(settings: Mapping[str, str], unset: Sequence[str]) -> tuple[str, list[str]]:
    rows = [(printable(name), printable(value)) for name, value in settings.items()]
    rows += [(printable(name), "(unset)") for name in unset]
    return "".join(f"{line}\n" for line in align(rows)), []


def _render_sh(settings: Mapping[str, str], unset: Sequence[str]) -> tuple[str, list[str]]:
    unset_here = [name for name in unset if _shell_holds(name)]
    set_here = [name for name in settings if _shell_holds(name) and "\0" not in settings[name]]
    lines = [f"unset {name}\n" for name in unset_here]
    lines += [f"export {name}={_quote(settings[name])}\n" for name in set_here]
    left_out = [*settings.keys() - set_here, *set(unset) - set(unset_here)]
    return "".join(lines), _note("left out, a shell cannot hold them", sorted(left_out))


def _render_json(settings: Mapping[str, str], unset: Sequence[str]) -> tuple[str, list[str]]:
    import json

    text = json.dumps(dict(settings), indent=2) + "\n"
    return text, _note("to be unset, which this format cannot express", unset)


def _render_dotenv(settings: Mapping[str, str], unset: Sequence[str]) -> tuple[str, list[str]]:
    words = {name: _quote_dotenv(name, value) for name, value in settings.items()}
    lines = [f"{name}={word}\n" for name, word in words.items() if word is not None]
    quoted = [name for name, word in words.items() if word and word != settings[name]]
    long = [line.split("=")[0] for line in lines if len(line.encode()) > _DOCKER_LINE_BYTES_MAX]
    return "".join(lines), [
        *_note("left out, env files cannot hold them", [n for n in words if words[n] is None]),
        *_note("quoted, and docker run --env-file keeps the quotes", quoted),
        *_note("longer than docker run --env-file reads", long),
        *_note("to be unset, which this format cannot express", unset),
    ]


def _shell_holds(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name not in _KEPT_BY_SHELLS


def _quote(value: str) -> str:
    """Return a value quoted for a POSIX shell; in single quotes only the quote itself is special."""
    return "'" + value.replace("'", "'\\''") + "'"


def _quote_dotenv(name: str, value: str) -> str | None:
    """Return a value as an env file has it; None if an env file cannot hold it, or readers would differ."""
    if not _is_dotenv_name(name) or not _is_dotenv_text(value):
        return None
    if _is_plain(value):
        return value
    if "$" not in value:
        # Older python-dotenv takes a backslash before the closing quote for an escape.
        return None if value.endswith("\\") else f'"{value.translate(_DOUBLE_QUOTED)}"'
    # compose expands $NAME in double quotes. In single quotes the two read backslashes differently,
    # and python-dotenv expands ${NAME} everywhere.
    if any(part in value for part in ("${", "\\", "\n", "\r")):
        return None
    return "'" + value.replace("'", "\\'") + "'"


def _is_dotenv_name(name: str) -> bool:
    # compose strips "export" from the start of a name.
    return name.isascii() and name.replace(".", "_").isidentifier() and name[:6] != "export"


def _is_dotenv_text(value: str) -> bool:
    """Whether a value is UTF-8, without control characters that env files cannot represent."""
    return all(c in "\t\n\r" or unicodedata.category(c) not in ("Cc", "Cs") for c in value)


def _is_plain(value: str) -> bool:
    """Whether every reader takes an unquoted value literally."""
    in_comment = any(word.startswith("#") for word in value.split())
    special = in_comment or value != value.strip() or value.startswith(("'", '"'))
    return not special and not any(c in value for c in "$\n\r")


def _note(what: str, names: Iterable[str]) -> list[str]:
    """Return one note about these names; no note without names."""
    listed = ", ".join(printable(name) or "(empty name)" for name in names)
    return [f"{what}: {listed}"] if listed else []


_STYLES: dict[str, Callable[[Mapping[str, str], Sequence[str]], tuple[str, list[str]]]] = {
    "table": _render_table,
    "sh": _render_sh,
    "json": _render_json,
    "dotenv": _render_dotenv,
}
