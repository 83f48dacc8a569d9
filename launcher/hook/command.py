"""The command line of ``launcher hook``."""

from __future__ import annotations

import os
import sys

from launcher.core.errors import TEXT_MAX, make_error
from launcher.core.log import say
from launcher.core.redact import quote
from launcher.core.stdout import write
from launcher.hook import install as files
from launcher.hook.line import CUSTOMIZE, PTH, enter_file, render_customize, render_pth
from launcher.hook.place import find_place, find_target
from launcher.hook.shell import PROFILE, render_shell
from launcher.options.parser import make_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

UNPACKED = "launcher-pyz-"
"""How the directory begins in which launcher.pyz unpacks itself (tools/pyz/__main__.py).

A clean-up may remove it.
"""


def hook(argv: Sequence[str], _: Mapping[str, str], description: str) -> int:
    """Run ``launcher hook ARGV``; return the exit status: 1 if ``status`` finds a missing or wrong file."""
    words = _parse(argv, description)
    place = find_target(words.target) if words.target else find_place(words.prefix, user=words.user)
    if words.target:
        todo = [(os.path.join(place.folder, CUSTOMIZE), render_customize(), "target")]
    else:
        todo = [(os.path.join(place.folder, PTH), render_pth(), f"{place.kind}, Python {place.version}")]
    if words.shell:
        path = os.path.abspath(words.shell)
        todo.append((path, render_shell(path), f"for bash scripts: BASH_ENV={path}"))
    if words.action == "install":
        if place.managed and not words.managed:
            raise make_error("externally-managed", prefix=place.prefix, file=place.managed)
        if f"/{UNPACKED}" in enter_file():
            raise make_error("hook-of-one-file", path=enter_file())
        _refuse_writable([path for path, _, _ in todo])
        _warn_closed()
    well = True
    for path, text, what in todo:
        if words.action == "status":
            said, good = files.look(path, text)
            well = well and good
        else:
            change = files.install if words.action == "install" else files.remove
            said = change(path, text, force=words.force)
        write(quote(f"{said}: {path} ({what})", TEXT_MAX) + "\n")  # of another user's file, maybe
    if words.action == "remove" and not words.shell and os.path.exists(PROFILE):
        write(f"still installed: {PROFILE} (for shells; launcher hook remove --shell removes it)\n")
    return 0 if well else 1


def _parse(argv: Sequence[str], description: str) -> argparse.Namespace:
    parser = make_parser("hook", "install|remove|status [options]", description)
    add = parser.add_argument
    add("action", choices=("install", "remove", "status"), help="what to do")
    where = parser.add_mutually_exclusive_group()
    text = "environment to use: its directory or its Python (the launcher's own)"
    where.add_argument("--prefix", metavar="ENV", default=sys.prefix, help=text)
    text = "package directory on PYTHONPATH, as pip install --target creates"
    where.add_argument("--target", metavar="DIR", help=text)
    add("--user", action="store_true", help="install for this user only, in the user's packages")
    text = f"install for shells, too, in FILE ({PROFILE})"
    add("--shell", nargs="?", const=PROFILE, metavar="FILE", help=text)
    text = "install even into an environment that the distribution manages"
    add("--break-system-packages", dest="managed", action="store_true", help=text)
    text = "replace or remove a hook file even if lines were added to it"
    add("--force", action="store_true", help=text)
    words = parser.parse_args(argv)
    if words.user and words.target:
        parser.error("--user and --target: one of them would be ignored")
    return words


def _refuse_writable(paths: Sequence[str]) -> None:
    """Refuse root a launcher, or a Python of it, that other users can change; warn other users of it.

    In directories that others can change anyway the hook opens nothing, and a warning is enough.

    Args:
        paths: The files of the hook: what reads one of them may not read another one.
    """
    package = os.path.dirname(os.path.dirname(enter_file()))
    fix = files.find_unsafe(package)
    if fix is None:
        return
    error = make_error("hook-unsafe", package=package, fix=fix)
    folders = map(os.path.dirname, paths)
    if os.geteuid() == 0 and any(files.find_writable_above(folder) is None for folder in folders):
        raise error
    say(f"warning: {error.problems[0].what}: {fix}", "warning")


def _warn_closed() -> None:
    """Warn if other users cannot enter the launcher's directory: their jobs run without the hook."""
    closed = files.find_closed_folder(enter_file())
    if closed is not None:
        say(
            f"warning: only the owner can enter {closed}, where the launcher is: "
            "Pythons of other users will not find it, and run without the hook",
            "warning",
        )
