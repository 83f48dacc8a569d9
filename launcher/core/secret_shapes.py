"""Detector of secrets in a text: finds their positions by their shape.

`find_secrets` looks for three kinds of shapes. Each kind searches the whole text and does not depend on the
results of another one, such as a quote that was opened before and stays open. The table is ``secrets.txt``.

- values after a secret's name: ``password=X``, ``"DB_PASS": "X"``, ``--auth X``, ``<token>X</token>``;
- values with a known form: private keys, addresses with a password, ``ghp_...``, ``eyJ...``;
- arguments of programs: ``sshpass -p X``, ``curl -u me:X``.
"""

from __future__ import annotations

import re

from launcher.core.secret_names import MARKER, MIXED, TABLE, Text, compile_row, find_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Span = tuple[int, int]

_LEVELS_MAX = 3
"""So often a text may be encoded: an address inside an address inside JSON."""
_ODD, _KEY, _KEY_ENDS, _LINES, _ROW, _LINE_ENDS, _LAST_WORD = (
    compile_row(TABLE["encoded"].fields[row])
    for row in ("odd", "key", "end", "lines", "row", "newline", "last")
)
_CHARACTERS = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\/": "/"}
_CHARACTERS |= {"&amp;": "&", "&apos;": "'", "&gt;": ">", "&lt;": "<", "&quot;": '"'}


def find_secrets(text: str) -> list[Span]:
    """Return the (start, end) of all secrets in a text, sorted and not overlapping."""
    spans = {*find_named(text), *_find_formed(text), *_find_arguments(text)}
    if _ODD.search(text):
        plain, starts, ends = _decode(text)
        found = (*find_named(plain), *_find_formed(plain), *_find_arguments(plain))
        spans |= {(starts[start], ends[end - 1]) for start, end in found}
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return [(start, end) for start, end in merged if text[start:end] != MARKER]


def _decode(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """Return a text without escapes and odd blanks, and where each character of it starts and ends."""
    starts: Sequence[int] = range(len(text))
    ends: Sequence[int] = range(1, len(text) + 1)
    for _ in range(_LEVELS_MAX):
        parts, firsts, lasts, at = [], list[int](), list[int](), 0
        for match in _ODD.finditer(text):
            character = _decode_one(match)
            parts += [text[at : match.start()], character]
            firsts += [*starts[at : match.start()], *[starts[match.start()]] * len(character)]
            lasts += [*ends[at : match.start()], *[ends[match.end() - 1]] * len(character)]
            at = match.end()
        if not at:
            break
        text, starts, ends = "".join([*parts, text[at:]]), [*firsts, *starts[at:]], [*lasts, *ends[at:]]
    return text, starts, ends


def _decode_one(match: re.Match[str]) -> str:
    if match["gone"]:
        return ""
    if match["hex"]:
        return chr(int(match["hex"][-2:], 16))
    if match["decimal"]:
        return chr(int(match["decimal"]))
    if match["wide"]:
        return chr(ord(match["wide"]) - 0xFEE0)
    return _CHARACTERS.get(match["named"] or "", " ")


KEY_MAX = 1 << 14
"""Number of characters before the end of a private key that may belong to it."""

_SHAPES = [row.split(" ", 1) for row in TABLE["shapes"].items]
_SHAPES += [
    [prefix, rf"(?&START){re.escape(prefix)}[\w.-]{{20,}}"] for prefix in TABLE["shapes"].words("prefixes")
]
_SHAPES += [[key, rf"(?&EDGE){key}[\w+/=-]{{60,}}"] for key in TABLE["shapes"].words("keys")]


def _find_formed(text: str) -> Iterator[Span]:
    """Yield the secrets that are recognized without a name."""
    lower = text.lower()
    for part, pattern in _SHAPES:
        if part in text or part in lower:
            yield from (match.span(match.lastindex or 0) for match in compile_row(pattern).finditer(text))
    if "-----" in text:
        yield from (match.span() for match in _KEY.finditer(text))
        yield from _find_rest_of_keys(text)
    yield from (match.span() for match in _LINES.finditer(text) if _is_base64(match[0]))


def _is_base64(lines: str) -> bool:
    """Return whether lines are base64 and not hexadecimal checksums or paths, which also match."""
    rows = _ROW.findall(lines)
    return MIXED.match("".join(rows)) is not None and not all(
        row[0] == "/" and row.count("/") > 2 for row in rows
    )


def _find_rest_of_keys(text: str) -> Iterator[Span]:
    """Yield the base64 lines directly before the end of a private key, from the last to the first."""
    first = 0
    for match in _KEY_ENDS.finditer(text):
        start = max(first, match.start() - KEY_MAX)
        first = match.end()
        places = [
            start,
            *(place for end in _LINE_ENDS.finditer(text, start, match.start()) for place in end.span()),
        ]
        lines = list(zip(places[::2], [*places[1::2], match.start()], strict=True))
        if len(lines) < 2:
            continue
        for begin, end in reversed(lines[:-1]):
            word = _LAST_WORD.search(text[max(begin, end - 90) : end])
            if word is None:
                break
            yield max(begin, end - 90) + word.start(), end


_VALUE = r"([^\x1f]+)"
_USER_AND_VALUE = rf"[^:%,=\x1f]{{0,64}}[:%,=](?!\d+(?:\x1f|\Z)){_VALUE}"


def _compile_option(option: str) -> str:
    """Return the pattern of an option's secret argument; each word has a unit separator before it."""
    name = re.escape(option.strip("[]") if option[0] == "[" or option[-1] == "]" else option.rstrip(":="))
    if option[0] == "[":
        return f"{name}{_VALUE}"
    if option[-1] == ":" and name[:4] != r"\-\-":
        return rf"-(?:[a-zA-Z]{{0,7}}{name[-1]}\x1f|{name[-1]}=?){_USER_AND_VALUE}"
    between = r"\x1f" if option[-1] == "]" else r"[\x1f=]" if option[:2] == "--" else r"\x1f?"
    return name + between + {":": _USER_AND_VALUE, "=": rf"[^\x1f=]*={_VALUE}"}.get(option[-1], _VALUE)


def _read_arguments() -> dict[str, list[tuple[re.Pattern[str], re.Pattern[str], str]]]:
    """Return of each program the patterns of what is before its secret arguments, and of these."""
    rows: dict[str, list[tuple[re.Pattern[str], re.Pattern[str], str]]] = {}
    for row in TABLE["arguments"].items:
        names, bar, rest = row.partition(" | ")
        if bar:
            options, _, needs = rest.partition("+")
            head = rf"\A(?=(?:[\s\S]*\x1f)?(?:{needs})(?:\x1f|\Z))" if needs else r"\A"
            item, kind = rf"\x1f(?:{'|'.join(map(_compile_option, options.split()))})", "options"
        else:
            names, *words, kind = row.split()
            head = "".join(r"\x1f[^\x1f]*" if word == "_" else rf"\x1f{re.escape(word)}" for word in words)
            item = {"X": r"\x1f", "u/X": r"\x1f[^\x1f/]*/", "k=X": r"\x1f[^\x1f=]*="}[kind] + _VALUE
        for name in names.split():
            rows.setdefault(name, []).append((re.compile(head or r"\A"), re.compile(item), kind))
    return rows


_ARGUMENTS = _read_arguments()
PROGRAMS = frozenset(_ARGUMENTS)
_PROGRAM = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(sorted(PROGRAMS, key=lambda name: (-len(name), name)))})(?![\w.=:@-])"
)
_GAP = re.compile(r"""(?:[ \t,\[\]]|\\\r?\n[ \t]{0,32})+""")
SWITCHES = ("--relogin", "--verify", "--cloud", "-no-print")
WORDS_MAX, WORD_LENGTH = 40, 1 << 12
"""Number of arguments that are looked at, and of characters at the beginning of each."""


def _find_arguments(text: str) -> Iterator[Span]:
    """Yield the (start, end) of arguments in a text that are secret by position."""
    seen = Text(text)
    for match in _PROGRAM.finditer(text):
        at = match.end() + (text[match.end() : match.end() + 1] in ("'", '"'))
        words: list[str] = []
        places: list[list[int]] = []
        while len(words) < WORDS_MAX:
            gap = _GAP.match(text, at)
            begin = gap.end() if gap else at
            quote = text[begin : begin + 1]
            if quote in ("'", '"'):
                start, end = begin + 1, seen.end_of_quote(quote, 0, begin + 1)
                is_word, at = end < len(text) and text.find("\n", start, end) < 0, end + 1
            else:
                start, end = begin, seen.end("word", begin)
                is_word, at = begin < end, end
            word = text[begin : min(at, begin + WORD_LENGTH)]
            if not is_word or word in ("|", "||", "&&", ";", "&"):
                break
            if gap is None:
                if start == begin or not words or len(words[-1]) > WORD_LENGTH:
                    break
                words[-1] += word  # -p'X'
                places[-1][1] = at
            else:
                words.append(text[start : min(end, start + WORD_LENGTH)])
                places.append([start, end])
            if text[at - 1] == ";":
                break
        for index, offset in find_words(match[0], words):
            start, end = places[index]
            start += offset
            if text[start] in "'\"" and text[start] == text[end - 1] and end - start > 2:
                start, end = start + 1, end - 1
            yield start, end


def find_words(program: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield (index, offset) of each secret argument of a program: it is secret from that character on.

    An empty argument is not secret: ``--key=`` at the end of a text.
    """
    pairs = enumerate(zip(("", *words), words, strict=False))
    plain = [place for place, (before, word) in pairs if word[:1] != "-" and not _may_take(before)]
    for head, item, kind in _ARGUMENTS.get(program, ()):
        places = range(len(words)) if kind == "options" else plain
        line = "".join("\x1f" + words[place].replace("\x1f", " ") for place in places)
        begin = head.search(line)
        at = len(line) if begin is None else begin.end()
        several = kind in ("options", "k=X")
        for match in item.finditer(line, at) if several else filter(None, [item.match(line, at)]):
            start = match.start(match.lastindex or 0)
            yield places[line.count("\x1f", 0, start) - 1], start - line.rindex("\x1f", 0, start) - 1


def _may_take(word: str) -> bool:
    """Return whether the next word may be an option's argument."""
    return word[:1] == "-" and "=" not in word and word not in SWITCHES
