"""Fast parser for the usual command line of ``launcher run``, without argparse.

argparse loads re, gettext and locale, which costs 9 ms of every start, most of the total. This parser
accepts only known flags in full spelling whose values do not look like flags. argparse handles everything
else, from ``--help`` to typing errors. Both give the same result (tests/unit/test_quick.py compares them).
"""

from __future__ import annotations

from launcher.options.flags import FLAGS, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Typed = dict[str, str | bool]
ABOUT_RUN = "run COMMAND as part of a distributed job, one process per GPU"
"""Description of ``launcher run`` in every help text."""

SLOWLY = ("LAUNCHER_DRY_RUN", "LAUNCHER_REPLAY")
"""Variables for flags that the command has and the table does not; they need argparse."""


def read_quickly(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Typed, tuple[str, ...]] | None:
    """Return the typed flags (dest to text or on/off) and the command; None if argparse must parse them."""
    if any(environ.get(name) for name in SLOWLY):
        return None
    known = SPELLINGS
    typed: Typed = {}
    words = iter(enumerate(argv))
    for index, word in words:
        if word == "--":
            return typed, tuple(argv[index + 1 :])
        if not word.startswith("-"):
            return typed, tuple(argv[index:])
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name not in known:
            return None
        flag, on = known[name]
        if flag.parse is None:
            if equals:
                return None
            typed[flag.dest] = on
            continue
        if not equals:
            _, value = next(words, (0, "-"))
            if value.startswith("-"):
                return None
        typed[flag.dest] = value
    return typed, ()


def _spell() -> dict[str, tuple[Flag, bool]]:
    found: dict[str, tuple[Flag, bool]] = {}
    for flag in FLAGS:
        found[flag.name] = found["--" + flag.dest] = (flag, True)
        if flag.short:
            found[flag.short] = (flag, True)
        if "negatable" in flag.kinds:
            found["--no-" + flag.name[2:]] = (flag, False)
    return found


SPELLINGS = _spell()
"""Every spelling of each flag, and for a switch whether that spelling turns it on."""
