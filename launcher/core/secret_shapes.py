"""Detector of secrets in a text: finds their positions by their shape.

`find_secrets` looks for three kinds of shapes. Each kind searches the whole text and does not depend on the
results of another one, such as a quote that was opened before and stays open.

- values after a secret's name: ``password=X``, ``"DB_PASS": "X"``, ``--auth X``, ``<token>X</token>``;
- values with a known form: private keys, addresses with a password, ``ghp_...``, ``eyJ...``;
- arguments of programs: ``sshpass -p X``, ``curl -u me:X``.

Logs are long, so each search takes linear time: repetitions are bounded, or their end is remembered.
"""

from __future__ import annotations

import re

from launcher.core.secret_arguments import find_arguments
from launcher.core.secret_values import find_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Span = tuple[int, int]

MARKER = "<redacted>"

# A name that ends in one of these has a secret value, regardless of the value. Only the end
# counts: "tokenizer=gpt2", "max_tokens=8" and "SharedAccessKeyName=reader" are not secret.
_KEYS = (
    "access|account|admin|api|app|application|auth|client|consumer|deploy|encryption|functions?|hmac"
    "|instrumentation|license|master|private|root|secret|service|shared|signing|storage|subscription"
)
_STRONG = (
    rf"(?:{_KEYS})[-_. ]?key(?:[-_]?id)?|shared[-_ ]?access[-_ ]?signature"
    r"|pass(?:word|wd|phrase|code)s?|secrets?|token|jwt|authorization"
)
# The same, but only as a whole word of the name: "DB_PASS" and "dbPass", not "compass"; "PAT", not "path".
_WORDS = (
    r"(?:admin|db|ftp|key|login|mail|my|pg|redis|require|root|smtp|ssh|store|user)?(?:pass|pwd)|psw|pw|auth|pat"
    r"|credentials?|creds?"
)
# After one of these a value is secret if it looks like one: "sort_key=name" does not.
_WEAK = r"code|cookie|key|session(?:[-_]?id)?|sas"
_ENDING = r"(?:[_.-]?(?:value|string|base64|b64|plaintext|hash))?(?:[_-]?\d{1,3})?(?![a-z0-9])"
_NAME = re.compile(
    rf"(?:(?P<strong>{_STRONG})|(?P<word>{_WORDS})){_ENDING}"
    rf"|(?:(?P<weak>{_WEAK})|(?P<sig>sig(?:nature)?))(?![a-z0-9])"
)
_TEXT_TOKEN = re.compile(
    r"(?:action|begin|bos|chat|cls|cond|ctx|cur|current|each|end|eos|first|forced|image|img|last|latent|mask"
    r"|next|pad|per|prefix|prev|previous|query|sep|special|start|stop|suffix|think|tool|unk|video|vision"
    r"|audio|ms)[-_/ ]?\Z"
)
"""Words before "token" that make it a piece of text and not a secret."""
_OPEN_KEY = re.compile(r"(?:cache|primary|foreign|public|sort)[-_ ]?\Z")
LOOK_BACK = 80

# Separators between a name and its value, in lower-case text. JSON may be quoted inside other JSON,
# and an address may be percent-encoded inside another one.
_CLOSE = r"""(?P<close>\\{0,8}["'`])?\]{0,2}"""
_B = r"[ \t]{0,8}"
_Q = r"""\\{0,8}["']"""
_VALUE = rf"(?:{_Q})?(?:parameter_?|_|string_?|secret_?)?value(?:{_Q})?{_B}[:=]{_B}"
_SEPARATORS = (
    (
        "named",
        rf"{_CLOSE}(?:(?:,[ \t\r\n]{{0,32}}|[ \t\r\n]{{1,32}}){_VALUE}"
        rf"|{_B}:{_B}\{{[ \t\r\n]{{0,32}}{_VALUE})",
    ),
    (
        "equals",
        rf"{_B}:{_B}(?:str|bytes|string|secretstr|optional\[str\])(?:{_B}\|{_B}none)?{_B}={_B}",
    ),
    ("block", rf"{_CLOSE}{_B}:[ \t]{{1,8}}[|>][+-]?{_B}\r?\n(?P<indent>[ \t]{{1,32}})"),
    ("equals", rf"{_CLOSE}(?:{_B}(?::=|=>|->|[=!]==?|=){_B}|(?:%22)?(?:%3d|%3a)(?:%20|%22)?)"),
    ("json", rf"(?P<close>{_Q})\]{{0,2}}{_B}:[ \t\r\n]{{0,32}}"),
    ("equals", rf"{_B}:[ \t]{{1,8}}"),
    ("tag", r"(?:[ \t][^<>\n]{0,80})?>"),
    ("colon", r":(?![:\s]|//)"),
    ("next", rf"(?:[ \t]{{1,8}}(?:\\\r?\n[ \t]{{0,32}})?(?!-)|{_Q},[ \t\r\n]{{0,32}}(?={_Q}(?!-)))"),
)
_SEPARATORS_OF = tuple((kind, re.compile(pattern)) for kind, pattern in _SEPARATORS)
_ANY_SEPARATOR = re.compile(r"""[\s\\"'`\]:=>!%,-]""")

_QUOTE = re.compile(r"""(?:[\[(][ \t\r\n]{0,8})?[bBfFrRuU]{0,2}(\\{0,8})(\"\"\"|'''|["'`])""")
_SCHEME = re.compile(r"(?i:basic|bearer|digest|negotiate|token)[ \t]{1,8}(?=[^\s])")
_ANY_SCHEME = re.compile(r"[A-Za-z][\w-]{0,19}[ \t]{1,8}(?=[^\s\"'])")
_PAIR = re.compile(r"""\([ \t]{0,8}["'][^"'\n]{0,128}["'],[ \t]{0,8}["']""")
# A backslash belongs to a value unless it escapes the closing quote; a quote belongs to it inside a word.
_BARE = {
    "equals": re.compile(r"""(?:[^\s"'&;\\]|[&;](?![\w .%-]{1,40}=|\s|\Z)|["'](?=\w)|\\(?!\\{0,8}["']))+"""),
    "json": re.compile(r"""[^\s"',{}\[\]\\]+"""),
    "colon": re.compile(r"""[^\s"',;}]+"""),
    "tag": re.compile(r"[^<>]+(?=</)"),
    "line": re.compile(r"[^\r\n]+"),
    "blob": re.compile(r"[\w+/=-]+"),
    "signature": re.compile(r"[\w%+/=-]+"),
}
_PORT = re.compile(r"""\d{1,5}(?:[\s,;"'\])]|\Z)""")
_HARMLESS = re.compile(r"(?i:true|false|none|null|nil|undefined)\Z")
_METHOD = re.compile(
    r"(?i:anonymous|auto|basic|bearer|cert|default|digest|disabled|enabled|failed|gssapi|iam|kerberos|krb5|ldap|local"
    r"|md5|munge|no|ntlm|oauth2?|off|ok|on|pam|password|peer|plain|required|saml|ssh|sys|tls|token|trust|yes)[,;.]?\Z"
)
_COUNT = re.compile(r"(?:\d{1,3}|\d+\.\d+|\d+/\d+|\d+(?:\.\d+)?(?:[mun]?s|%))[,;)]?\Z")
_WORKING_FOLDER = re.compile(r"(?:/|~|\.{1,2}(?:/|\Z)|[A-Za-z]:\\)")


class _Text:
    """A text that is searched once; caches the ends of values, quotes and blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lower = text.encode("ascii", "replace").lower().decode()  # unlike lower(), keeps the length
        self._ends: dict[str, Span] = {}

    def end(self, kind: str, start: int) -> int:
        """Return the end of a value of this kind that begins at ``start``."""
        first, last = self._ends.get(kind, (0, -1))
        if not first <= start < last:
            match = _BARE[kind].match(self.text, start)
            last = match.end() if match else start
            self._ends[kind] = (start, last)
        return last

    def end_of_quote(self, quote: str, level: int, start: int) -> int:
        """Return the end of a quoted text whose quote has ``level`` backslashes, or the end of the text."""
        kind = f"{level}{quote}"
        first, last = self._ends.get(kind, (0, -1))
        if not first <= start <= last:
            last = self._find_quote(quote, level, start)
            self._ends[kind] = (start, last)
        return last

    def end_of_block(self, start: int, indent: int) -> int:
        """Return the end of the lines with at least the first line's indentation (YAML)."""
        kind = f"block {indent}"
        first, last = self._ends.get(kind, (0, -1))
        if not first <= start <= last:
            margin = "\n" + self.text[start - indent : start]
            last = self.text.find("\n", start)
            while last >= 0 and self.text.startswith(margin, last):
                last = self.text.find("\n", last + 1)
            last = len(self.text) if last < 0 else last
            self._ends[kind] = (start, last)
        return last

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


def find_secrets(text: str) -> list[Span]:
    """Return the (start, end) of all secrets in a text, sorted and not overlapping."""
    spans = sorted({*_find_named(_Text(text)), *find_values(text), *find_arguments(text)})
    merged: list[Span] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return [(start, end) for start, end in merged if text[start:end] != MARKER]


def _find_named(seen: _Text) -> Iterator[Span]:
    """Yield the values after names of secrets."""
    for match in _NAME.finditer(seen.lower):
        if not _ANY_SEPARATOR.match(seen.lower, match.end()):
            continue
        group = match.lastgroup or ""
        start = match.start()
        if group in ("word", "sig") and match[0] != "signature" and not _begins_word(seen.text, start):
            continue
        before = seen.lower[max(0, start - LOOK_BACK) : start]
        if match[0].startswith("token") and _TEXT_TOKEN.search(before):
            group = "weak"
        if match[0] == "key" and _OPEN_KEY.search(before):
            continue
        found = _find_separator(seen, match, before)
        if found is not None:
            yield from _find_value(seen, match, group, *found)


def _begins_word(text: str, start: int) -> bool:
    """Return whether a word begins here: not after a letter, or with a capital after a lower-case letter."""
    if start == 0:
        return True
    before = text[start - 1]
    if not before.isalnum():
        return True
    if text[start].isupper() and (before.islower() or before.isdigit()):
        return True
    return text[start - 2 : start] in ("\\n", "\\t", "\\r") or text[max(0, start - 3) : start][:1] == "%"


def _find_separator(seen: _Text, match: re.Match[str], before: str) -> tuple[str, re.Match[str]] | None:
    """Return the kind and the match of the separator after a name; None if there is none."""
    for kind, pattern in _SEPARATORS_OF:
        found = pattern.match(seen.lower, match.end())
        if found is None:
            continue
        if kind == "next" and not _takes_next(seen, match, before, found):
            continue
        if kind == "tag" and not re.search(r"<[\w:.-]{0,64}\Z", before):
            continue
        if kind == "colon" and not _takes_colon(seen, match, before, found.end()):
            continue
        return kind, found
    return None


def _name_start(before: str) -> str:
    """Return the part of the text before a match that belongs to the same name."""
    at = len(before)
    while at and (before[at - 1].isalnum() or before[at - 1] in "_.-"):
        at -= 1
    return before[at:]


def _takes_next(seen: _Text, match: re.Match[str], before: str, separator: re.Match[str]) -> bool:
    """Return whether the word after a name is its value: ``--token X``, ``login u password X``."""
    own = _name_start(before)
    ahead = before[: len(before) - len(own)]
    if own.startswith("-"):
        return ahead[-1:] in ("", " ", "\t", "\n", "\r", '"', "'", "=", "[", "(", ",", "`", "|")
    if separator[0].lstrip("\\")[:1] in ("'", '"'):
        return re.search(r"\([ \t]{0,4}\\{0,8}[\"'][\w.-]{0,64}\Z", before) is not None  # ("password", "X")
    if re.search(r"\b(?:configure|config)(?:[ \t]{1,4}(?:set|--[\w-]{1,20})){1,3}[ \t]{1,4}\Z", ahead):
        return True
    if not match[0].startswith("passw"):
        return False
    return (
        seen.text[separator.end() : separator.end() + 1] in ("'", '"')
        or re.search(r"\blogin\s{1,8}\S{1,64}\s{1,8}(?:account\s{1,8}\S{1,64}\s{1,8})?\Z", ahead) is not None
    )


def _takes_colon(seen: _Text, match: re.Match[str], before: str, at: int) -> bool:
    """Return whether a colon without a blank ends a name; it does not before a port, as in "secret:2222"."""
    if _PORT.match(seen.text, at):
        return False
    own = _name_start(before)
    edge = before[: len(before) - len(own)][-1:]
    if match["strong"]:
        return edge in ("", " ", "\t", "\n", "\r", "{", ",", "(", "[", '"', "'", "+", "/")
    is_openssl = re.search(r"-pass(?:in|out)?[ \t]{1,8}\Z", before) is not None
    return edge in ("{", ",") or (is_openssl and match[0] == "pass")


def _find_value(
    seen: _Text, match: re.Match[str], group: str, kind: str, separator: re.Match[str]
) -> Iterator[Span]:
    start, text = separator.end(), seen.text
    if match[0] == "auth" and kind in ("equals", "json"):
        pair = _PAIR.match(text, start)  # auth=("user", "X")
        if pair:
            yield pair.end(), seen.end_of_quote(pair[0][-1], 0, pair.end())
            return
    if kind == "block":
        yield start, seen.end_of_block(start, len(separator["indent"]))
        return
    scheme = (_ANY_SCHEME if match[0] == "authorization" else _SCHEME).match(text, start)
    if scheme and group in ("strong", "word"):
        start = scheme.end()
    quote = _QUOTE.match(text, start) if kind != "tag" else None
    if quote is not None:
        start = quote.end()
    if text.startswith(MARKER, start):
        return
    if group == "weak":
        yield from _find_blob(seen, start)
        return
    if group == "sig":
        end = seen.end("signature", start)
        if end - start >= 16:
            yield start, end
        return
    if quote is not None:
        end = seen.end_of_quote(quote[2], len(quote[1]), start)
    else:
        shape = {"named": "equals", "next": "equals"}.get(kind, kind)
        end = seen.end(shape, start)
        if start < end and kind == "equals" and text[start] in "\"'":
            end = start
    if end > start and not _is_harmless(seen, match, kind, text[start : min(end, start + 400)]):
        yield start, end


def _find_blob(seen: _Text, start: int) -> Iterator[Span]:
    """Yield a value that looks like a key: long, and with digits, lower and upper case, or hexadecimal."""
    end = seen.end("blob", start)
    head = seen.text[start : min(end, start + 200)]
    if end - start < 20:
        return
    mixed = head[0] != "/" and all(re.search(part, head) for part in ("[0-9]", "[a-z]", "[A-Z]"))
    if mixed or re.match(r"[0-9a-fA-F]{32}", head):
        yield start, end


def _is_harmless(seen: _Text, match: re.Match[str], kind: str, value: str) -> bool:
    """Return whether a value cannot be a secret although its name says so."""
    if _HARMLESS.match(value.rstrip(",;)}]")):
        return True
    if kind == "next" and value.isupper() and value.lower().rstrip("])") == match[0]:
        return True  # --token TOKEN, in a usage text
    name = match["word"]
    if name is None:
        return False
    if value[0] in "{[(":
        return True
    if name == "auth":
        return _METHOD.match(value) is not None
    if name in ("pass", "pw", "pat") and kind != "next":
        return _COUNT.match(value) is not None and not seen.text[match.start()].isupper()
    if name == "pwd":
        whole = seen.text[max(0, match.start() - 1) : match.end()].strip(" \t\r\n'\"=")
        return whole == "PWD" and value[0] == "/"  # the shell's variable
    return name.startswith("cred") and _WORKING_FOLDER.match(value) is not None
