"""Finds secrets: names of variables that a snapshot may hold, and the positions of secrets in a text.

The table of all that counts as a secret is ``secrets.txt``. A search takes linear time: logs are long. So
repetitions are bounded, or their end is remembered.

`find_secrets` looks for three kinds of shapes. Each kind searches the whole text and does not depend on the
results of another one, such as a quote that was opened before and stays open.

- values after a secret's name: ``password=X``, ``"DB_PASS": "X"``, ``--auth X``, ``<token>X</token>``;
- values with a known form: private keys, addresses with a password, ``ghp_...``, ``eyJ...``;
- arguments of programs: ``sshpass -p X``, ``curl -u me:X``.
"""

from __future__ import annotations

import re
from functools import cache

from launcher.core import mpi
from launcher.core.blocks import read_blocks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Span = tuple[int, int]

MARKER = "<redacted>"

TABLE = {block.name: block for block in read_blocks("core/secrets.txt")}
_FRAGMENT = re.compile(r"\(\?&(\w+)\)")
_NAMES, _PARTS = TABLE["names"].fields, TABLE["parts"].fields
_FRAGMENTS = {**TABLE["fragments"].fields, **_NAMES, **_PARTS}

_PUBLIC_PREFIXES = (*TABLE["public"].words("prefixes"), *mpi.PREFIXES)
_PUBLIC_ENDS = TABLE["public"].words("ends")
_PUBLIC_NAMES = frozenset(TABLE["public"].words("names"))
_PRIVATE_PARTS = TABLE["private"].words("parts")
_PRIVATE_WORDS = frozenset(TABLE["private"].words("words"))
_HARMLESS_PART = "PRIVATE_IPV4_ADDRESS"
"""From AWS Batch: an address inside a private network."""
_HARMLESS_WORD = "PKEY"


@cache
def compile_row(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern of the table, compiled; ``(?&X)`` is the fragment X."""
    while "(?&" in pattern:
        pattern = _FRAGMENT.sub(lambda match: f"(?:{_FRAGMENTS[match[1]]})", pattern)
    return re.compile(pattern, re.VERBOSE | flags)


def is_public_name(name: str) -> bool:
    """Return whether a variable of this name may appear in a snapshot (its value redacted).

    Args:
        name: Name of an environment variable; case matters, as it does to the system.

    Returns:
        True for a name that the launcher or a reader of a bug report needs, unless the name
        looks like a secret's: ``OMPI_COMM_WORLD_RANK`` but neither ``HOME`` nor ``SLURM_JWT``.
    """
    if not name.isascii() or sounds_secret(name):
        return False
    return name in _PUBLIC_NAMES or name.startswith(_PUBLIC_PREFIXES) or f"_{name}".endswith(_PUBLIC_ENDS)


def sounds_secret(name: str) -> bool:
    """Return whether a variable of this name has a secret value."""
    name = name.upper().replace(_HARMLESS_PART, "ADDRESS")
    words = name.replace(".", "_").replace("-", "_").split("_")
    return (
        any(part in name for part in _PRIVATE_PARTS)
        or not _PRIVATE_WORDS.isdisjoint(words)
        or any(word.endswith("KEY") and word != _HARMLESS_WORD for word in words)
    )


_NAME, _OPEN, _TEXT, _OPEN_FIELD, _PROSE, _HARMLESS, _UNLESS = (
    compile_row(_NAMES[row]) for row in ("name", "open", "text", "fields", "prose", "harmless", "unless")
)
_IF = {group: compile_row(row) for group, row in TABLE["if"].fields.items()}
_PART = {part: compile_row(row) for part, row in _PARTS.items()}
_ENDS = {kind: compile_row(row) for kind, row in TABLE["ends"].fields.items()}
_LOOK_BACK = 80
_SEPARATORS = [
    (
        row.fields["kind"],
        row.words("of"),
        row.fields.get("name", ""),
        compile_row(row.fields["then"]),
        row.fields.get("value", ""),
    )
    for row in TABLE.values()
    if "then" in row.fields
]
_PIECES_MAX, _LINES_MAX = 400, 100
_OF_NAMES = "abcdefghijklmnopqrstuvwxyz0123456789_.-"
"""Characters of a name, in lower-case text."""
_STATEMENTS = ("pass", "continue", "break", "return")


class Text:
    """A text that is searched once; caches the ends of values, quotes and blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lower = text.encode("ascii", "replace").lower().decode()  # unlike lower(), keeps the length
        self._ends: dict[str, Span] = {}
        self.listed = [0, 0]
        """Where the last list or table ends, and the last call."""
        self.keyed = 0
        """How far values were searched for keys."""

    def name(self, match: re.Match[str]) -> str:
        """Return a name with what is before it, and NUL where the match begins."""
        start, end = match.span()
        return f"{self.text[max(0, start - _LOOK_BACK) : start]}\0{self.text[start:end]}"

    def end(self, kind: str, start: int) -> int:
        """Return the end of a value of this kind that begins at ``start``."""
        return self._find_end(kind, start, lambda: self._match(_ENDS[kind], start))

    def end_of_quote(self, quote: str, level: int, start: int) -> int:
        """Return the end of a quoted text whose quote has ``level`` backslashes, or the end of the text."""
        return self._find_end(f"{level}{quote}", start, lambda: self._find_quote(quote, level, start))

    def end_of_block(self, start: int, indent: int) -> int:
        """Return the end of the lines with at least the first line's indentation (YAML)."""
        margin = re.escape(self.text[start - indent : start])
        lines = rf"[^\n]*(?:\n{margin}[^\n]*|\n[ \t]*(?=\n{margin}))*"
        return self._find_end(f"block {indent}", start, lambda: self._match(re.compile(lines), start))

    def _find_end(self, kind: str, start: int, find: Callable[[], int]) -> int:
        """Return the end of what was found last if ``start`` is in it, else what is found now."""
        first, last = self._ends.get(kind, (0, -1))
        if not first <= start <= last:
            last = find()
            if last > start:  # what is empty must not replace a long one
                self._ends[kind] = (start, last)
        return last

    def _match(self, pattern: re.Pattern[str], start: int) -> int:
        match = pattern.match(self.text, start)
        return match.end() if match else start

    def _find_quote(self, quote: str, level: int, start: int) -> int:
        at = self.text.find(quote, start)
        while at >= 0:
            slashes = at
            while slashes > start and self.text[slashes - 1] == "\\":
                slashes -= 1
            count = at - slashes
            # Each level of quoting doubles backslashes and adds one: 0, 1, 3, 7
            if count <= level if level else count % 2 == 0:
                return max(at - count, start) if level else at
            if level and ((count + 1) // (level + 1)) % 2:
                return at - level
            at = self.text.find(quote, at + 1)
        return len(self.text)


def find_named(text: str) -> Iterator[Span]:
    """Yield the (start, end) of the values after names of secrets."""
    seen = Text(text)
    for match in _NAME.finditer(seen.lower):
        if not _PART["separator"].match(seen.lower, match.end()):
            continue
        group = match.lastgroup or ""
        before = seen.lower[max(0, match.start() - _LOOK_BACK) : match.start()]
        named = seen.name(match)
        if group in _IF and not _IF[group].search(named):
            continue
        is_text = match[0].startswith("token") and _TEXT.search(before)
        if (match[0] == "key" and _OPEN.search(before)) or (is_text and group == "several"):
            continue
        group = "weak" if is_text else group
        found = _find_separator(seen, match, before, named)
        if found is not None:
            yield from _find_value(seen, match, group, *found)


def _find_separator(
    seen: Text, match: re.Match[str], before: str, named: str
) -> tuple[str, re.Match[str]] | None:
    """Return the kind and the match of the separator after a name; None if there is none."""
    for kind, groups, name, then, value in _SEPARATORS:
        found = then.match(seen.lower, match.end())
        if found is None or (groups and match.lastgroup not in groups):
            continue
        if not compile_row(name, re.ASCII).search(named):
            continue
        if not compile_row(value).match(seen.text, found.end()):
            continue
        if kind not in ("lines", "below") or _is_below(seen, kind, before, match.start(), found):
            return "next" if kind == "below" else kind, found
    return None


def _is_below(seen: Text, kind: str, before: str, start: int, separator: re.Match[str]) -> bool:
    """Return whether lines below a name are its values: further in, items of a list, or alone."""
    ahead = before.rstrip(_OF_NAMES)
    line = ahead.rpartition("\n")[2].rstrip("\"'")
    begin = line.lstrip(" \t")
    if kind == "lines":
        is_item = seen.text.startswith("- ", separator.end())
        return len(separator["indent"]) + is_item > len(line) - len(begin)
    if separator["item"]:
        return begin.rstrip(" \t") == "-"
    is_whole = "\n" in ahead or start <= _LOOK_BACK
    return not begin or len(separator["indent"]) > (len(line) - len(begin) if is_whole else 0)


def _find_value(
    seen: Text, match: re.Match[str], group: str, kind: str, separator: re.Match[str]
) -> Iterator[Span]:
    """Yield what is secret after a name and its separator: lines, items, or a single value."""
    start, text = separator.end(), seen.text
    # The class of a secret: AzureKeyCredential("X")
    is_class = match[0] in ("auth", "credential", "credentials") and text[match.start()].isupper()
    if kind == "call" and is_class:
        if start > seen.listed[1]:
            items, seen.listed[1], _ = _find_items(seen, start - 1, match[0] == "auth", is_call=True)
            yield from items
    elif kind == "block" and group != "plural":
        yield start, seen.end_of_block(start, len(separator["indent"]))
    elif kind in ("lines", "section"):
        if group in ("strong", "plural") or match[0].startswith("cred"):
            yield from _find_lines(seen, start, len(separator["indent"]), kind)
    elif match[0] == "authorization" and _PART["params"].match(text, start):
        quote = text[match.start() - 1] if match.start() else ""  # Authorization: Digest a="b", c="X"
        end = text.find(quote, start) if quote in ("'", '"') else -1
        line = seen.end("line", start)
        yield start, end if start < end < line else line
    else:
        scheme = _PART["another" if match[0] == "authorization" else "scheme"].match(text, start)
        if scheme and group in ("strong", "word"):
            if kind == "colon" and not _PART["scheme"].match(text, start):
                yield start, scheme.end() - 1  # Authorization:X
            start = scheme.end()
        opening = _PART["opening"].match(text, start) if kind != "tag" else None
        items, is_all = _find_opened(seen, match, group, opening)
        yield from items
        is_counted = group in ("plural", "several") and (separator[0] != "=" or opening is not None)
        if not is_all and not is_counted:
            yield from _find_single(seen, match, group, kind, separator, start)


def _find_opened(
    seen: Text, match: re.Match[str], group: str, opening: re.Match[str] | None
) -> tuple[list[Span], bool]:
    """Return the secret items of a list, a table or a call that begins here, and whether that is all."""
    if opening is None or group not in ("strong", "plural", "word"):
        return [], False
    is_call = len(opening[0]) > 1
    is_pair = match[0] == "auth" and opening[0][-1] in "(["
    if group == "word" and not (is_pair or match[0].startswith("cred") or match[0].endswith("pwd")):
        return [], False
    if opening.end() - 1 < max(seen.listed[: 1 + is_call]):
        return [], not is_call  # it is a part of the last one
    items, seen.listed[is_call], closed = _find_items(seen, opening.end() - 1, is_pair, is_call)
    return items, closed and not is_call


def _find_single(
    seen: Text, match: re.Match[str], group: str, kind: str, separator: re.Match[str], start: int
) -> Iterator[Span]:
    """Yield a value that is one text, quoted or not, unless it cannot be a secret."""
    text = seen.text
    quote_found = _PART["quote"].match(text, start) if kind != "tag" else None
    if quote_found is not None:
        start = quote_found.end()
    if text.startswith(MARKER, start):
        return
    if group == "weak":
        yield from _find_blob(seen, start)
        return
    if match[0] == "keys":
        yield from _find_keys(seen, start)
        return
    if group == "sig":
        is_in_address = separator[0] == "=" and _PART["parameter"].search(seen.name(match))
        end = seen.end("equals" if is_in_address else "signature", start)
        is_key = end - start >= 16 or (end - start >= 8 and _PART["mixed"].match(text, start, end))
        if start < end and (is_in_address or is_key):
            yield start, end
        return
    if quote_found is None and separator[0].strip() == ":" and _PROSE.match(text, start):
        return
    if quote_found is not None:
        end = seen.end_of_quote(quote_found[2], len(quote_found[1]), start)
    else:
        end = seen.end(kind if kind in _ENDS else "equals", start)
    value = text[start : min(end, start + 400)]
    if group in ("plural", "several"):
        is_variable = text[match.start() : match.end()].isupper()
        if all(map(_PART["nothing"].match, value.split(","))) or not (is_variable or "," in value[:-1]):
            return
    if end > start and not _is_harmless(seen, match, kind, value):
        yield start, end


def _find_items(seen: Text, start: int, is_pair: bool, is_call: bool) -> tuple[list[Span], int, bool]:
    """Return the values in a list, table or call that opens here, without keys.

    Of a pair (user, password), only the last one is secret; of a call, only strings. Also return how far all
    values were found, and whether it is closed.
    """
    found: list[Span] = []
    last: Span | None = None
    depth, open_depth, at, open_at, is_open = 0, _PIECES_MAX, start, 0, False
    for _ in range(_PIECES_MAX):
        piece = _PART["piece"].match(seen.text, at)
        if piece is None:
            break
        at = piece.end()
        if piece["open"]:
            depth += 1
            if is_open and open_depth == _PIECES_MAX:
                open_depth, open_at = depth, open_at or at
            last, is_open = None, False
        elif piece["close"]:
            depth -= 1
            open_depth = open_depth if depth >= open_depth else _PIECES_MAX
            if depth == 0:
                return (found[-1:] if is_pair and len(found) == 2 else found), open_at or at, True
        elif piece["key"]:
            if last is not None:
                is_open = _OPEN_FIELD.match(seen.text[last[0] : last[1]]) is not None
                found = found[:-1] if found and found[-1] == last else found
            last = None
        elif piece["quote"] or piece["bare"]:
            last = piece.span()
            if piece["quote"]:
                last = at, seen.end_of_quote(piece["quote"], len(piece["slashes"]), at)
                at = last[1] + len(piece["slashes"]) + len(piece["quote"])
            value = seen.text[last[0] : min(last[1], last[0] + 99)]
            is_name = is_call and (piece["bare"] or _PART["variable"].match(value))
            if not is_open and not is_name and depth < open_depth and not _PART["nothing"].match(value):
                found.append(last)
            is_open = False
    return found, open_at or at, False


def _find_lines(seen: Text, start: int, indent: int, kind: str) -> Iterator[Span]:
    """Yield the values in lines of the same indentation: of a list, of a table, or a single one."""
    margin = seen.text[start - indent : start]
    for _ in range(_LINES_MAX):
        line = _PART["line"].match(seen.text, start)
        if line is None or not line[0] or line[0][0] in "[#":
            return
        key = line[2] or line[3]
        is_value = line[1] or key or (kind == "lines" and " " not in line[4].strip() and "(" not in line[4])
        value = line[4].strip().strip("\"'")
        if not is_value:
            return
        is_open = (key and _OPEN_FIELD.match(key)) or value in _STATEMENTS
        if not is_open and not _PART["nothing"].match(value):
            begin = line.start(4) + line[4].index(value)
            yield begin, begin + len(value)
        if not (line[1] or key):
            return
        start = line.end() + 1 + indent
        if seen.text[line.end() : start] != f"\n{margin}":
            return


def _find_blob(seen: Text, start: int) -> Iterator[Span]:
    """Yield a value that looks like a key: long, and with digits, lower and upper case, or hexadecimal."""
    end = seen.end("blob", start)
    if end - start >= 20 and _PART["key"].match(seen.text, start, min(end, start + 200)):
        yield start, end


def _find_keys(seen: Text, start: int) -> Iterator[Span]:
    """Yield the values in a list without brackets that look like keys."""
    end = seen.end("equals", start)
    start, seen.keyed = max(start, seen.keyed), max(end, seen.keyed)
    for item in _PART["item"].finditer(seen.text, start, end):
        yield from _find_blob(seen, item.start())


def _is_harmless(seen: Text, match: re.Match[str], kind: str, value: str) -> bool:
    """Return whether a value cannot be a secret although its name says so."""
    if _HARMLESS.match(value.rstrip(",;)}]")):
        return True
    if kind == "next" and _NAME.fullmatch(value.lower().rstrip("])\"',")):
        return True  # --token TOKEN, in a usage text; ["password", "token"]
    name = seen.text[max(0, match.start() - 1) : match.end("word")].strip(" \t\r\n'\"=")
    return match["word"] is not None and _UNLESS.match(f"{kind} {name}\0{value}") is not None


# --- forms and places

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
    return _PART["mixed"].match("".join(rows)) is not None and not all(
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
