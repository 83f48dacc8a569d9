"""Per-process arguments: torchrun's macro, ``--expand-args`` and ``--local-rank-arg``.

Loaded only if the command uses one of them.

Source: torch/distributed/elastic/utils/api.py (2.13) reads every argument as a `string.Template` with a value
for local_rank only. torch/distributed/launch.py (2.13) and deepspeed/launcher/launch.py (0.19) put
``--local_rank=N`` before a script's own arguments.
"""

from __future__ import annotations

import re

from launcher.command.fronts import look_behind
from launcher.command.words import is_python, read_flags
from launcher.core.errors import LauncherError, make_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.options.reading import Options

_MACRO = r"local_rank(?!\w)|\{local_rank\}"
_NAMED = re.compile(rf"\$(?:{_MACRO})", flags=re.ASCII)
_READ = re.compile(rf"\$(?:(\$)|{_MACRO})", flags=re.ASCII)
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})", flags=re.ASCII)


def plan_words(
    argv: Sequence[str], local_rank: int, variables: Mapping[str, str], options: Options
) -> tuple[str, ...]:
    """Return the command line of one process.

    Args:
        argv: The command line of all processes.
        local_rank: Local rank of this process.
        variables: Variables that the launcher sets for it.
        options: The user's options.
    """
    words = list(argv)
    if options.switch("expand_args"):
        words[1:] = [expand(word, variables) for word in words[1:]]
    if options.switch("local_rank_arg") and words:
        words.insert(count_callers(words, variables), f"--local_rank={local_rank}")
    return tuple(words)


def expand(word: str, variables: Mapping[str, str]) -> str:
    """Return a word with ``$NAME`` and ``${NAME}`` replaced by the values of these variables.

    Unlike a shell it knows no quotes and no escapes, expands nothing twice, and keeps a name that is not in
    ``variables`` as it is.
    """
    return _NAME.sub(lambda match: variables.get(match[1] or match[2], match[0]), word)


def names_local_rank(word: str) -> bool:
    """Whether an argument contains torchrun's macro, ``$local_rank`` or ``${local_rank}``, escaped or not."""
    return _NAMED.search(word) is not None


def expand_local_rank(word: str, local_rank: int) -> str:
    """Return an argument as torchrun passes it on: the local rank for its macro, and ``$`` for ``$$``.

    An argument without the macro stays as it is: in a shell script ``$$`` is the shell's own PID.
    """
    if not names_local_rank(word):
        return word
    return _READ.sub(lambda match: match[1] or str(local_rank), word)


def count_callers(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the number of words before the script's own arguments."""
    behind = look_behind(tuple(argv), environ)
    callers = read_flags(behind)[2] if is_python(behind[0]) else 1
    return len(argv) - len(behind) + callers


def refuse_words(options: Options, who: str) -> LauncherError:
    """Return the error for per-process arguments when another program starts the processes."""
    flags = " and ".join(options.origins("expand_args", "local_rank_arg"))
    return make_error("arguments-per-process", flags=flags, program=who)
