"""Plants a secret in random text, in any shape, and looks whether a part of it is left after redaction."""

from __future__ import annotations

import base64
import json
import random
import string

from launcher.core.redact import quote, redact, shorten
from launcher.failure.text import LINES_MAX, presentable
from tests.fuzz.engine import Found
from tests.fuzz.ordinary import LINES
from tests.fuzz.secrets import KNOWN, LONG_SHAPES, SHAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PART = 8
"""So many characters of a secret in a row are a part of it that must not be left."""
# What a secret may be made of that stands behind a name without quotes.
LETTERS = string.ascii_letters + string.digits
SIGNS = LETTERS + "!#$*+-_.~^"
EDGES = ("\n", " ", "\n\n", " \n  ", "\t", " -- ", "\n[rank3]: ", "\n  | ")
NOISE = (
    *(
        *("=", ":", ": ", '"', "'", "{", "}", "[", "]", ",", ";", "&", "?", "/", "://", "@", "\\", '\\"'),
        *("--", "-", "<", ">"),
    ),
    *(
        *("%3D", "%20", "token", "pass", "key", "password", "Bearer ", "auth=", "--token ", 'pwd="'),
        *("sig=", "\u00e9", "\udcff"),
    ),
    *(
        *("<redacted>", "-----", "value", "name: ", "curl ", "login ", "set ", "none", "true", "1", "0.5"),
        *("eyJ", "AKIA", "Ab3/"),
    ),
)


def make_key(dice: random.Random, lines: int) -> list[str]:
    """Return the lines of a private key without its frame."""
    data = base64.b64encode(dice.randbytes(48 * lines)).decode()
    return [data[start : start + 64] for start in range(0, len(data), 64)]


def make_secret(dice: random.Random) -> tuple[str, list[str]]:
    """Return a secret in one of its shapes, and the parts that must not be left."""
    kind = dice.random()
    if kind < 0.15:
        lines = make_key(dice, dice.randint(2, 60))
        frame = f"{dice.choice(['', 'RSA ', 'OPENSSH ', 'EC '])}PRIVATE" + " KEY-----"
        begin, end = dice.choice([True, False]), dice.choice([True, False])
        edge = dice.choice(["\n", "\n", "\\n", "\r\n", "\n[rank0]: ", "\n    "])
        whole = [*([f"-----BEGIN {frame}"] * begin), *lines, *([f"-----END {frame}"] * end)]
        return edge.join(whole), lines
    if kind < 0.35:
        secret = dice.choice(KNOWN)
        return secret, [secret[-12:]]
    if kind < 0.45:
        secret = "".join(dice.choices(LETTERS, k=dice.randint(24, 90))) + "aB3"
        return dice.choice(LONG_SHAPES).format(secret), [secret]
    alphabet = dice.choice([LETTERS, SIGNS])
    secret = dice.choice(LETTERS) + "".join(dice.choices(alphabet, k=dice.randint(8, 40))) + "Z9x"
    shape = dice.choice(SHAPES)
    return shape.format(*[secret] * shape.count("{}")), [secret]


def make_text(dice: random.Random) -> str:
    """Return ordinary lines, some of them broken, and noise."""
    parts = []
    for _ in range(dice.randint(0, 8)):
        if dice.random() < 0.5:
            line = dice.choice(LINES)
            cut = dice.randrange(len(line) + 1)
            parts.append(dice.choice([line, line[:cut], line[cut:]]))
        else:
            parts.append("".join(dice.choices(NOISE, k=dice.randint(1, 12))))
        parts.append(dice.choice(["\n", " ", ""]))
    return "".join(parts)


def find_left(shown: str, secrets: list[str]) -> str | None:
    """Return a part of a secret that a text still has."""
    for secret in secrets:
        for start in range(max(1, len(secret) - PART + 1)):
            if secret[start : start + PART] in shown:
                return secret[start : start + PART]
    return None


def ways(dice: random.Random) -> list[Callable[[str], str]]:
    """Return what is done with texts before they are shown."""
    limit = dice.randint(1, 4000)
    count = dice.randint(1, LINES_MAX)
    return [
        redact,
        lambda text: redact(text)[limit:],
        lambda text: shorten(text, limit),
        lambda text: quote(text, limit),
        lambda text: redact(shorten(text, limit)),
        lambda text: "\n".join(presentable(text.split("\n"), count)),
    ]


def plant(seed: int) -> tuple[str, str | None]:
    """Return the text of a case, and what is left of its secret."""
    dice = random.Random(seed)
    planted, secrets = make_secret(dice)
    text = make_text(dice) + dice.choice(EDGES) + planted + dice.choice(EDGES) + make_text(dice)
    return text, next(
        filter(None, (find_left(way(text), secrets) for way in ways(random.Random(seed)))), None
    )


def seeds() -> list[bytes]:
    """Return a case: a number, of which a text with a secret is made."""
    return [b"1"]


def mutate(case: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return another number."""
    return b"%d" % dice.getrandbits(40)


def try_one(case: bytes) -> str:
    """Plant a secret; or look again at what was found: a text, and what must not be left of it."""
    if case.isdigit():
        text, part = plant(int(case))
        if part is not None:
            found = {"text": text, "part": part, "seed": int(case)}
            raise Found(f"{part!r} is left of {text!r}", json.dumps(found).encode())
    else:
        found = json.loads(case)
        for way in ways(random.Random(found["seed"])):
            assert found["part"] not in way(found["text"])
    return "nothing is left"
