"""Plants a secret in random text, in any shape, and looks whether a part of it is left after redaction.

    python -m tests.fuzz.redaction [SECONDS] [SEED]

`run` is for tests, CI and longer runs alike. What it finds goes to `FOUND`, which the tests try each time.
"""

from __future__ import annotations

import base64
import random
import string
import sys
import time

from launcher.core.redact import quote, redact, shorten
from launcher.failure.text import LINES_MAX, presentable
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
        "=",
        ":",
        ": ",
        '"',
        "'",
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
        "&",
        "?",
        "/",
        "://",
        "@",
        "\\",
        '\\"',
        "--",
        "-",
        "<",
        ">",
    ),
    *(
        "%3D",
        "%20",
        "token",
        "pass",
        "key",
        "password",
        "Bearer ",
        "auth=",
        "--token ",
        'pwd="',
        "sig=",
        "\u00e9",
        "\udcff",
    ),
    *(
        "<redacted>",
        "-----",
        "value",
        "name: ",
        "curl ",
        "login ",
        "set ",
        "none",
        "true",
        "1",
        "0.5",
        "eyJ",
        "AKIA",
        "Ab3/",
    ),
)

FOUND: tuple[tuple[str, str], ...] = (
    ("a -- *:*:*:user:Isf1zViSwmYnCPiZ \n   b", "Isf1zViS"),
    ('[rank3]: db.example.com:5432:db:user:dGpp0QdndemLyKII\n\npwd="x', "dGpp0Qdn"),
    ("\thttp://EnHPIeS1uJ0ob30M2rlVQ#uSj_J3M@host \n", "EnHPIeS1"),
    ("url=https%3A%2F%2Fu%3As3cr3t!xyz%40h", "s3cr3t!x"),
    ('password="a --password "Xq7hunter2 y"', "Xq7hunte"),
)
"""(text, what must not be left of it): found by earlier runs."""


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


def run(seconds: float, seed: int | None = None, cases: int | None = None) -> list[tuple[int, str, str]]:
    """Return what is left of secrets: (seed of the case, text, part).

    Args:
        seconds: How long to look.
        seed: Of the first case; a case's own seed makes it again.
        cases: How many at most.
    """
    first = random.randrange(1 << 32) if seed is None else seed
    found: list[tuple[int, str, str]] = []
    until = time.monotonic() + seconds
    number = first
    while time.monotonic() < until and (cases is None or number < first + cases) and len(found) < 20:
        text, part = try_one(number)
        if part is not None:
            found.append((number, text, part))
        number += 1
    return found


def try_one(seed: int) -> tuple[str, str | None]:
    """Return the text of a case, and what is left of its secret."""
    dice = random.Random(seed)
    planted, secrets = make_secret(dice)
    text = make_text(dice) + dice.choice(EDGES) + planted + dice.choice(EDGES) + make_text(dice)
    for way in ways(dice):
        part = find_left(way(text), secrets)
        if part is not None:
            return text, part
    return text, None


def main() -> int:
    """Look as long as the command line says; return 1 if something was found."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    found = run(seconds, int(sys.argv[2]) if len(sys.argv) > 2 else None)
    for seed, text, part in found:
        print(f"seed {seed}: {part!r} is left of {text!r}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
