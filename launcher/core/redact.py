"""Redaction: decides which names and which parts of values may leave a node in a snapshot, plan or log.

It has two independent filters, and one table for both: ``secrets.txt``. Names: an allow-list, so that an
unexpected variable never leaves the node (`launcher.core.secrets`). Values: patterns of secrets, because
a variable with a harmless name can contain a connection string or a signed address
(AZ_BATCHAI_HOST_TOOLS_URL does). In doubt a pattern hides too much (`launcher.core.secrets`).
"""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MARKER = "<redacted>"

_NO_PUNCTUATION = dict.fromkeys(map(ord, "-_."))
_HARMLESS_VALUES = ("true", "false", "none", "null")

_PASSES_MAX = 6
_SECRET_MIN = 6
_QUOTED_MAX = 1 << 12
"""Number of characters that are searched if only the beginning of a text is shown."""
_ARGUMENTS_MAX = 100
"""Number of words after a program that may be its arguments: all words of a line may be programs."""
_HALF_MAX = 1 << 10
"""Number of characters that may be needed to recognize a secret."""
_LIMIT_S = 0.5
"""CPU time to search the texts of one message, see `LimitedSearch`; a large one of a launcher needs 0.1 s."""
_search = _thread._local()


class LimitedSearch:
    """Limits the time to search the texts that another program has sent; what is left then is not shown.

    A text may be made so that its search takes a thousand times as long as that of another one.
    """

    def __enter__(self) -> None:
        self._before: float | None = getattr(_search, "until", None)
        _search.until = time.thread_time() + _LIMIT_S

    def __exit__(self, *_: object) -> None:
        _search.until = self._before


def is_search_over() -> bool:
    """Whether a `LimitedSearch` has used up its time."""
    until: float | None = getattr(_search, "until", None)
    return until is not None and time.thread_time() > until


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable's name looks like a secret's, or its value contains a secret."""
    from launcher.core.secrets import sounds_secret

    return sounds_secret(name) or redact(value) != value


def redact_variable(name: str, value: str) -> str:
    """Return a variable's value for display: nothing of it if its name looks like a secret's."""
    from launcher.core.secrets import sounds_secret

    return MARKER if value and sounds_secret(name) else redact(value)


def redact(text: str) -> str:
    """Return a value with the secrets in it replaced by ``<redacted>``.

    Args:
        text: Value of a variable, a line of a log, or a command line as one text.

    Returns:
        The text with passwords, tokens, keys, signatures, private keys and the user part of
        addresses replaced; the rest, including host names and paths, unchanged. Redacting the
        result again changes nothing.
    """
    if len(text) < _SECRET_MIN:
        return text
    if is_search_over():
        return MARKER
    from launcher.core.secrets import find_secrets

    for _ in range(_PASSES_MAX):
        spans = find_secrets(text)
        if not spans:
            return text
        parts, last = [], 0
        for start, end in spans:
            parts += [text[last:start], MARKER]
            last = end
        text = "".join([*parts, text[last:]])
    # Only a text made to defeat redaction gets here.
    return MARKER


def shorten(text: str, limit: int) -> str:
    """Return the redacted beginning of a text: at most ``limit`` characters, not yet printable.

    Cut a text that is not redacted only with this function: `redact` does not recognize half a secret. If a
    text is far longer than the limit, only a part of it is searched.
    """
    most = max(_QUOTED_MAX, 2 * limit)
    if len(text) <= most:
        return redact(text)[:limit]
    kept = redact(text[:most])
    whole = len(kept) if kept.endswith(MARKER) else max(0, len(kept) - _HALF_MAX)
    return kept[: min(limit, whole)]


def quote(text: str, limit: int) -> str:
    """Return the redacted, printable beginning of a text: at most ``limit`` characters.

    What escapes have made of it may look like a secret; it is the same when it is quoted again.
    """
    shown = printable(shorten(text, limit))
    return shown[:limit] if text.isprintable() else shorten(shown, limit)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Return a command line for display, without the values of secret options.

    Args:
        argv: Program and arguments, e.g. ``["train", "--token", "X", "--api-key=Y"]``.

    Returns:
        The same number of arguments: ``["train", "--token", "<redacted>",
        "--api-key=<redacted>"]``. `redact` is applied to all others.
    """
    from launcher.core.secrets import PROGRAMS, find_words

    shown = _redact_joined(argv)
    shown = [_redact_argument(*pair) for pair in zip(["", *argv], shown, strict=False)]
    for place, program in enumerate(argv):
        name = program.rpartition("/")[2]
        if name in PROGRAMS:
            for index, offset in find_words(name, argv[place + 1 : place + 1 + _ARGUMENTS_MAX]):
                shown[place + 1 + index] = argv[place + 1 + index][:offset] + MARKER
    for _ in range(_PASSES_MAX):
        before, shown = shown, _redact_joined(shown)
        if before == shown:
            break
    return shown


def _redact_joined(argv: Sequence[str]) -> list[str]:
    """Return arguments without secrets that several of them make up: ``["setenv", "DB_PASS", "X"]``."""
    from launcher.core.secrets import find_secrets

    shown, index, start = list(argv), 0, 0  # of the argument, and where it starts in the line
    cut = 0
    for first, last in find_secrets(" ".join(argv)):
        while first > start + len(argv[index]):
            start, index, cut = start + len(argv[index]) + 1, index + 1, 0
        found = argv[index][first - start : last - start]
        if found not in ("", MARKER):
            head = first - start + cut
            shown[index] = shown[index][:head] + MARKER + shown[index][head + len(found) :]
            cut += len(MARKER) - len(found)
    return shown


def redact_ends(text: str, limit: int) -> tuple[str, str]:
    """Return the redacted beginning and end of a text that is longer than ``limit``, not yet printable.

    Both are whole lines if possible; the beginning has a third of the limit. Of a text that is not longer,
    the first result is all of it, and the second one is empty. Only a part of a longer text is searched.
    """
    if len(text) <= limit:
        return redact(text), ""
    head, tail = shorten(text, limit // 3), redact(text[len(text) - 2 * limit // 3 - _HALF_MAX :])
    return head.rpartition("\n")[0] or head, drop_partial(tail[_HALF_MAX:]) or MARKER


def drop_partial(text: str) -> str:
    """Return a text whose beginning is lost without its first line or word, which may be half a secret."""
    edge = next((mark for mark in "\n\r " if mark in text), None)
    return text.partition(edge)[2] if edge else ""


def quote_command(argv: Sequence[str], limit: int, join: Callable[[Sequence[str]], str] = " ".join) -> str:
    """Return the redacted, printable beginning of a command line: at most ``limit`` characters.

    Like `shorten`, it searches only a part of a line that is far longer: its length is the program's choice.
    ``join`` makes a line of the words.
    """
    left, kept = max(_QUOTED_MAX, 2 * limit), []
    for word in argv:
        if left <= 0:
            break
        kept.append(word[:left])
        left -= len(word) + 1
    shown = join(redact_argv(kept))
    whole = len(shown) if left >= 0 or shown.endswith(MARKER) else max(0, len(shown) - _HALF_MAX)
    return printable(shown[: min(limit, whole)])[:limit]


def printable(text: str) -> str:
    r"""Return a text as one line without characters that control a terminal.

    Args:
        text: Any text, e.g. a value from the environment or a message from the network.

    Returns:
        The text with each unprintable character as a backslash escape: control
        characters (``\n``, ``\x1b``), bidirectional overrides (``\u202e``), other invisible
        characters, and bytes that were not UTF-8 (``\udcff`` for byte FF). Backslashes are unchanged,
        so that paths and patterns stay readable. The result is for display and cannot be parsed back.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _redact_argument(previous: str, argument: str) -> str:
    """Return an argument for display; the previous argument may make it secret."""
    after_flag = previous.startswith("-") and "=" not in previous and not argument.startswith("-")
    if after_flag and _is_secret_option(previous, argument):
        return MARKER
    name, equals, value = argument.partition("=")
    if equals and _is_secret_option(name, value):
        # Unlike in a text we know where the value ends: it may contain spaces and quotes.
        return f"{name}={MARKER}"
    if after_flag and not equals:
        before, equals, value = redact(f"{previous}={argument}").partition("=")
        return value if before == previous and equals else MARKER
    return redact(argument)


def _is_secret_option(name: str, value: str) -> bool:
    """Return whether an option's name alone says that its value is secret."""
    is_word = name.translate(_NO_PUNCTUATION).isalnum()
    if not is_word or value == "" or value.lower() in _HARMLESS_VALUES:
        return False
    return redact(f"{name}=x") != f"{name}=x"
