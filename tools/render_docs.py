"""Makes the tables of generated pages from the program itself: ``python tools/render_docs.py``.

Each table is between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``; the text around it is kept. With
``--check`` nothing is written, and the exit status is 1 if a page would change. A test does that.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run from anywhere, installed or not

from launcher.cli.help import COMMANDS  # noqa: E402
from launcher.options.flags import FLAGS, GROUPS, Flag  # noqa: E402
from tools import cause_table, job_table, platform_table  # noqa: E402
from tools.parsers import find_parser  # noqa: E402
from tools.reference import variable_rows  # noqa: E402

DOCS = ROOT / "docs"
SHARED = "flags"
_VARIABLE = re.compile(r" \[(LAUNCHER_\w+)\]\Z")


def main(argv: list[str]) -> int:
    """Write the pages, or compare them."""
    differ = 0
    for name, tables in make_tables().items():
        path = ROOT / name
        old = path.read_text(encoding="utf-8")
        new = render(old, tables)
        differ += old != new
        if argv != ["--check"]:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {'as it was' if old == new else 'changed'}")
    return int(argv == ["--check"] and differ > 0)


def make_tables() -> dict[str, dict[str, str]]:
    """Return the tables of each page, by the names in its comments."""
    flags = {f"{SHARED} {group}": render_flags(group) for group in GROUPS}
    return {
        "docs/platforms.md": {
            "platforms": _table(platform_table.HEAD, tuple(platform_table.rows("../tests")))
        },
        "docs/flags.md": flags | {name: render_command(name) for name in COMMANDS},
        "docs/internals.md": {"job": _table(job_table.HEAD, tuple(job_table.rows()))},
        "docs/causes.md": {"causes": _table(cause_table.HEAD, tuple(cause_table.rows()))},
        "docs/variables.md": {"variables": _table(("variable", "what it is", "also in"), variable_rows())},
    }


def render(page: str, tables: dict[str, str]) -> str:
    """Return a page with its tables replaced.

    Raises:
        ValueError: The page has no place for a table.
    """
    for name, table in tables.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the page has no {begin.strip()} ... {end}")
        page = f"{head}{begin}{table}{end}{tail}"
    return page


def render_flags(group: str) -> str:
    """Return the table of one group of the flags that ``run``, ``env`` and ``plan`` share."""
    flags = [flag for flag in FLAGS if flag.group == group]
    rows = [(_names(_spellings(flag), flag.metavar), f"`{flag.variable}`", flag.help) for flag in flags]
    return _table(("flag", "variable", "meaning"), rows)


def _spellings(flag: Flag) -> list[str]:
    return [*([flag.short] if flag.short else []), flag.name]


def render_command(name: str) -> str:
    """Return the table of one command's own flags: those that are not shared."""
    shared = {flag.dest for flag in FLAGS} if _takes_flags(name) else set()
    rows = []
    for action in find_parser(name)._actions:
        hidden = action.help == argparse.SUPPRESS  # the spelling with underscores
        if not action.option_strings or hidden or action.dest in {*shared, "help"}:
            continue
        text = action.help or ""
        variable = _VARIABLE.search(text)
        value = "|".join(action.choices) if action.choices else action.metavar or ""
        names = _names(action.option_strings, str(value) if action.nargs != 0 else "")
        rows.append((names, f"`{variable[1]}`" if variable else "", _VARIABLE.sub("", text)))
    return _table(("flag", "variable", "meaning"), rows)


def _takes_flags(name: str) -> bool:
    spellings = {spelling for action in find_parser(name)._actions for spelling in action.option_strings}
    return {flag.name for flag in FLAGS} <= spellings


def _names(spellings: Sequence[str], value: str) -> str:
    return ", ".join(f"`{f'{spelling} {value}'.strip()}`" for spelling in spellings)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
