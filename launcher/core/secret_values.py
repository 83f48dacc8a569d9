"""Secrets with a known form: private keys, addresses with a password, tokens of services."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Span = tuple[int, int]

_NOT_YET = "(?!<redacted>)"

# Where a secret may begin
_START = r"(?<![A-Za-z])"

_PIPED = (
    r"""[ \t]{1,8}(?:-\w{1,3}[ \t]{1,8})?(?:["']?%s(?:\\n)?["']?[ \t]{1,8})?["']?([^\s|"']{1,256})["']?"""
    r"""[ \t]{0,8}\|[^\n]{0,80}?(?:--[\w-]{0,20}stdin|--with-token|sudo -S|chpasswd|passwd --stdin)"""
)

# (a substring of every match, the pattern): most texts contain none, and a substring search is cheap. The
# search ignores case. The group of the pattern, if any, is the secret.
_PATTERNS = (
    # http://token@host, anything://user:password@host; not Open MPI's "tcp://10.0.0.4:5;job@0.1"
    ("://", rf"""(?<=http)s?://({_NOT_YET}[^\s/?"'<>]+)(?=@)"""),
    (
        "//",
        rf"""(?:(?<!tcp)(?<!tcp4)(?<!tcp6)://|(?<![:/\w])//)({_NOT_YET}[^\s/?#"'<>:@]*:[^\s/?"']+)(?=@)""",
    ),
    # a password with a slash or a question mark, which is not valid in an address
    (
        "://",
        rf"""(?<!tcp)(?<!tcp4)(?<!tcp6)://({_NOT_YET}[^\s/?#"'<>:@\[]{{0,64}}:"""
        r"""(?!\d{1,5}(?:[/?;,]|\Z))[^\s"'<>@]{1,256})(?=@)""",
    ),
    ("tcp", r"""tcp[46]?://([^\s/?"'<>:@;,\[]{1,64}:[^\s/?"'<>@;,]+)(?=@)"""),
    ("nats://", rf"""(?<=nats)://({_NOT_YET}[^\s/?"'<>@]+)(?=@)"""),
    ("jdbc:oracle:", r"""(?i:jdbc:oracle:\w{1,16}:)[^\s/@"']{1,64}/([^\s@"']{1,256})(?=@)"""),
    ("/bot", rf"""/bot\d{{1,16}}:({_NOT_YET}[^\s/"'<>]+)"""),
    ("$", r"\$(?:apr1|[156y]|2[abxy]|argon2\w{1,2}|scrypt|pbkdf2[\w-]{0,10})\$([\w./$=,+-]{16,})"),
    ("auth ", r"\bAUTH (?:PLAIN|LOGIN) (\S{4,})"),
    # echo X | docker login --password-stdin; docker login --password-stdin <<< X
    ("echo ", rf"\becho{_PIPED}"),
    ("printf ", rf"\bprintf{_PIPED}"),
    (
        "<<<",
        r"""(?i:-stdin|--with-token|sudo -S|passwd|password|token|secret)[^\n<|]{0,80}"""
        r"""<<<[ \t]{0,8}["']?([^\s"']{1,256})""",
    ),
    # <property value="X" name="password">
    (
        "value",
        r"""(?i:\bvalue["']?\s{0,4}[:=]\s{0,4}["']?([^"'\s]{1,512}?)["']?,?\s{1,32}["']?name["']?\s{0,4}[:=]\s{0,4}["']?"""
        r"""[\w.-]{0,64}(?:pass(?:word|wd)?|pwd|secret|token|key)(?![a-z]))""",
    ),
    (
        "cookie",
        rf"""(?i:\bcookie(?::|["'](?::|,)[ \t]{{0,8}}\[?b?["']))[ \t]{{0,8}}({_NOT_YET}[^\s"'][^\r\n"']*)""",
    ),
    ("bearer", r"(?i:\bbearer)[ \t]{1,8}((?=[^\s]{0,200}[0-9])[\w.~+/=%-]{16,})"),
    (
        "basic",
        r"(?i:\bbasic)[ \t]{1,8}"
        r"((?=[^\s]{0,200}[0-9=])(?=[^\s]{0,200}[A-Z])(?=[^\s]{0,200}[a-z])[\w+/-]{8,}={0,2})",
    ),
    # as a program: its argument, if that is no name of a user
    (
        "passwd",
        r"""(?:\A|[\n$#;&|(]|\bsudo\b)[ \t]{0,8}(?:(?:/usr)?/bin/)?passwd[ \t]{1,8}(?![-<|>])"""
        r"""(?=[\w-]{0,64}[^\sa-z0-9_;.,-])([^\s;]{4,})""",
    ),
    (
        "identified",
        r"""(?i:\bidentified[ \t]{1,8}(?:with[ \t]{1,8}\S{1,64}[ \t]{1,8})?by)[ \t]{1,8}['"]([^'"]+)"""
        r"""|\bIDENTIFIED BY (?!['"])([^\s;]+)""",
    ),
    (
        "securestring",
        r"""(?i:convertto-securestring[ \t]{1,8}(?:-string[ \t]{1,8})?)["']?([^\s"'-][^\s"']*)""",
    ),
    # .pgpass: host:port:database:user:password
    (
        ":",
        r"(?<!\S)[^\s:/]{1,100}:(?:[56]\d{3}|\*):[\w*.-]{1,64}:[A-Za-z*][\w*.@-]{0,64}:([^\s:]{4,})(?!\S)",
    ),
    # conda's channels: https://conda.anaconda.org/t/X/channel
    ("/t/", rf"""//[^\s"'<>]{{0,80}}?(?i:conda)[^\s"'<>]{{0,80}}?/t/({_NOT_YET}[^\s/"'<>]+)(?=/)"""),
    ("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w/-]{20,})"),
    ("/webhooks/", r"/webhooks/(\d{10,}/[\w-]{20,})"),
    ("webhook.office.com", r"webhook\.office\.com/([\w@/-]{20,})"),
)
_EXACT = (
    ("eyJ", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*){0,3}"),
    ("AKIA", rf"{_START}AKIA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    ("ASIA", rf"{_START}ASIA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    ("ABIA", rf"{_START}ABIA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    ("-us", rf"(?<![0-9a-f]){_START}[0-9a-f]{{32}}-us\d{{1,2}}(?!\w)"),
    ("AIza", rf"{_START}AIza[\w-]{{35}}"),
    ("dapi", rf"{_START}dapi[0-9a-f]{{32}}(?:-\d)?"),
    ("xox", rf"{_START}xox[abeprs](?:\.xox[bp])?-[\w-]{{10,}}"),
    ("xapp-", rf"{_START}xapp-\d-[\w-]{{10,}}"),
    ("sk-", rf"{_START}sk-(?:(?:admin|ant|lf|or|proj|svcacct)-[\w-]{{16,}}|[A-Za-z0-9]{{20,}})"),
    ("8Q~", r"(?<![\w~.-])[\w~.-]{3}8Q~[\w~.-]{31,34}"),
    (":AA", rf"(?<![0-9]){_START}\d{{8,10}}:AA[\w-]{{33}}"),
    ("1//0", r"(?<![\w/])1//0[\w-]{30,}"),
    ("SK", rf"(?<![0-9]){_START}SK[0-9a-f]{{32}}(?![A-Za-z0-9])"),
    ("key-", rf"(?<![0-9]){_START}key-[0-9a-f]{{32}}(?![A-Za-z0-9])"),
    (
        "==",
        r"(?<!sha512-)(?<!sha512:)(?<![A-Za-z0-9+])[A-Za-z0-9+/]{86}==(?![A-Za-z0-9+=])",
    ),
)
_PREFIXES = re.findall(
    r"\S+",
    "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ hf_ api_org_ npm_ r8_ gsk_ pplx- dop_v1_ doo_v1_ dor_v1_"
    " sk_live_ rk_live_ sk_test_ rk_test_ whsec_ hvs. hvb. hvr. SG. ya29. tskey- GOCSPX-"
    " AGE-SECRET-KEY- glpat- gldt- glrt- glcbt- glptt- glsoat- gloas- glimt- glft- glagent- glsa_ glc_"
    " nvapi- pypi-Ag dckr_pat_ dckr_oat_ lin_api_ ntn_ shpat_ shpss_ shpca_ shppa_ sntrys_ sntryu_"
    " dp.pt. dp.st. pul- rubygems_ figd_ figo_ ATATT3x ATBB atlasv1. xai- wandb_v1_ tgp_v1_ CFPAT-"
    " NRAK- sgp_ LTAI5t lsv2_pt_ lsv2_sk_ sk-lf- pscale_tkn_ pscale_pw_ PMAK- xkeysib- sbp_ nfp_ rnd_"
    " fo1_ fm2_ pcsk_ rpa_ AKCp8 HRKU- sq0csp- sq0atp- xoxe.xox EAACEdEose0cBA AQVN KGAT_ fw_ ops_eyJ",
)
# In base64 on one line: a private key as PEM, the content of PEM, and an OpenSSH key
_PREFIXES_OF_KEYS = ("LS0tLS1CRUdJTi", "MIIC", "MIIE", "MIIF", "MIIG", "MIIJ", "MIGH", "b3BlbnNzaC1rZXk")

# With BEGIN and END lines, even if the end is cut off
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY"
    r"[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,9}-----|\Z)"
)
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY")
# Two or more lines of pure base64: the middle of a key without its beginning. Each line may have the prefix
# of a rank or a quotation; its end may be written as \n, or as the next item of a list.
_EDGE = r"(?:(?<![A-Za-z0-9+/])|(?<=\\[nr]))"
_LINE = _EDGE + r"[A-Za-z0-9+/]{60,76}={0,2}(?![A-Za-z0-9+/=])"
_LINE_END = r"""[ \t"',|]{0,8}(?:(?:\\{1,8}r)?\\{1,8}n|\r?\n|\r|(?<=["']),[ \t]{0,8}(?=["']))"""
_TO_NEXT = rf"{_LINE_END}(?:[^\r\n]{{0,80}}?(?<![A-Za-z0-9+/]))??"
_LAST = r"(?:[A-Za-z0-9+/]{4}){0,18}(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)"
_LINES = re.compile(
    rf"{_LINE}(?:{_TO_NEXT}{_LINE})+"
    rf"""(?:{_LINE_END}[ \t|>"']{{0,32}}(?:\[[^\]\n]{{1,40}}\][: ]{{1,4}})?{_LAST}"""
    r"""(?=[ \t"',|]{0,8}(?:[\\\r\n"']|\Z)))?"""
)
_ROW = re.compile(_LINE)
_LINE_ENDS = re.compile(r"""\r?\n|(?:\\{1,8}r)?\\{1,8}n""")
_LAST_WORD = re.compile(rf"""(?<![A-Za-z0-9+/]){_LAST}[ \t"',|]{{0,8}}\Z""")
KEY_MAX = 1 << 14
"""Number of characters before the end of a private key that may belong to it."""

_compiled: dict[str, re.Pattern[str]] = {}


def find_values(text: str) -> Iterator[Span]:
    """Yield the (start, end) of secrets that are recognized without a name."""
    lower = text.lower()
    for part, pattern in _PATTERNS:
        if part in lower:
            yield from _find(pattern, text)
    for part, pattern in _EXACT:
        if part in text:
            yield from _find(pattern, text)
    for prefix in _PREFIXES:
        if prefix in text:
            yield from _find(rf"{_START}{re.escape(prefix)}[\w.-]{{20,}}", text)
    for prefix in _PREFIXES_OF_KEYS:
        if prefix in text:
            yield from _find(rf"{_EDGE}{prefix}[\w+/=-]{{60,}}", text)
    if "-----" in text:
        yield from (match.span() for match in _KEY.finditer(text))
        yield from _find_rest_of_keys(text)
    yield from (match.span() for match in _LINES.finditer(text) if _is_base64(match[0]))


def _find(pattern: str, text: str) -> Iterator[Span]:
    compiled = _compiled.get(pattern)
    if compiled is None:
        compiled = _compiled[pattern] = re.compile(pattern)
    for match in compiled.finditer(text):
        yield match.span(match.lastindex or 0)


def _is_base64(lines: str) -> bool:
    """Return whether lines are base64 and not hexadecimal checksums or paths, which also match."""
    rows = _ROW.findall(lines)
    words = "".join(rows)
    mixed = all(re.search(part, words) for part in ("[0-9]", "[a-z]", "[A-Z]"))
    return mixed and not all(row[0] == "/" and row.count("/") > 2 for row in rows)


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
