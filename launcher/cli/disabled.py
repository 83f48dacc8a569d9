"""``LAUNCHER_DISABLE=1``: ``launcher run`` execs its command in an unchanged environment."""

from __future__ import annotations

from launcher.command.line import add_python
from launcher.core.environ import Malformed
from launcher.core.errors import make_error
from launcher.core.log import guess_style, say
from launcher.inprocess.marker import DISABLE
from launcher.options.flag_values import is_on
from launcher.options.given import Given
from launcher.options.reading import Options, read_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST_RESORT = f"{DISABLE}=1 runs the command as it is, without the launcher"
KINDS = ("module", "no_python", "run_path")
"""Flags that say how to run the command. All other flags are ignored and their values are not parsed."""


def leave_alone(argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Exec the command of ``launcher run ARGV``.

    Returns only if the switch is off, if there is no command, or for a dry run.

    Raises:
        UsageError: The switch has an unknown value, or ARGV is not a valid command line.
        LauncherError: The command cannot be started.
    """
    try:
        if not is_on(environ[DISABLE]):
            return
    except Malformed as error:
        where, name, origin = "environment", DISABLE, f"{DISABLE}={environ[DISABLE]!r}"
        raise make_error("malformed-flag", where=where, origin=origin, expected=error, name=name) from error
    typed, command, dry_run = read_words(argv, environ)
    if dry_run or not command:
        return
    from launcher.process.execute import execute

    kinds = Options({dest: Given(True, dest) for dest in KINDS if typed.get(dest)})
    guess_style(argv, environ)
    say(f"{DISABLE}={environ[DISABLE]}: the command runs as it is", "disabled")
    execute(add_python(command, kinds, environ), environ)
