"""What counts as a secret: shapes of many kinds are, ordinary text is not, both take little time."""

from __future__ import annotations

import pickle
import random
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.channel import lines
from launcher.cluster.facts import describe_command
from launcher.core import environ, wire
from launcher.core.errors import UsageError
from launcher.core.model import Setting
from launcher.core.redact import MARKER, quote, redact, redact_argv, shorten
from launcher.core.secret_shapes import find_secrets
from launcher.events.writer import render_event
from launcher.fabrics import spoken
from launcher.failure.text import clean_lines, presentable, redact_ends
from launcher.failure.text import quote as text_quote
from launcher.hang import dumps
from launcher.identity.hosts import read_hostfile
from launcher.machine.host import Host
from launcher.mpi.folder import folder_name
from launcher.recovery.health import run_health
from launcher.sources import nodelist
from launcher.views import plan_json
from tests.fuzz import redaction
from tests.fuzz.ordinary import EXPECTED_HIDDEN, LINES
from tests.fuzz.secrets import (
    ADDRESSES,
    BASE64,
    COMMANDS,
    FILES,
    FLAGS,
    HEADERS,
    HEX40,
    KNOWN,
    LONG_SHAPES,
    MIXED,
    OPEN,
    PLAIN,
    SHAPES,
    SHELLS,
    VARIABLES,
)

if TYPE_CHECKING:
    from collections.abc import Callable


ROOT = Path(__file__).parents[2]


CHANNELS: dict[str, Callable[[str], str]] = {
    "text": redact,
    "one argument": lambda text: " ".join(redact_argv(["run", text])),
    "event": lambda text: render_event("output", text, {}, {"why": [text]}, 0).decode(),
    "record": lambda text: "\n".join(presentable(clean_lines(text))),
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_value_in_a_place_for_secrets_is_hidden(channel: str) -> None:
    """A name, a place in an address or on a command line says that it is one, whatever it looks like."""
    show = CHANNELS[channel]
    texts = [(shape, secret) for shape in (*SHAPES, *FILES) for secret in (PLAIN, "s3cr3t!", "Hunter")]
    assert [shape for shape, secret in texts if secret in show(shape.format(secret))] == []


def test_argument_in_a_place_for_secrets_is_hidden() -> None:
    """In a command line that a shell has split, too, where several arguments make up the place."""
    seen = []
    for shape in (*FLAGS, *VARIABLES, *ADDRESSES, *COMMANDS, *HEADERS, *SHELLS):
        if shape.startswith(("[", "(", "{", "Authorization: ")) or "(" in shape or "'{}'" in shape:
            continue  # Python's and JSON's lists, and quotes that a shell takes away
        argv = shlex.split(shape.format(PLAIN).replace("\\\n", ""))
        seen += [shape] if any(PLAIN in word for word in redact_argv(argv)) else []
    assert seen == []


def test_a_place_for_secrets_that_is_empty_is_no_error() -> None:
    """A text may end where the secret would begin, as ``wandb login --key=`` does."""
    for shape in [*SHAPES, *LONG_SHAPES, *FILES, *OPEN]:
        text = shape.format(PLAIN).partition(PLAIN)[0]
        redact(text)
        argv = text.split(" ")
        assert len(redact_argv(argv)) == len(argv)
    for text in ("wandb login --key=", "vault kv put secret/x password=", "sqlplus u/"):
        assert redact(text) == text
        assert redact_argv(text.split()) == text.split()


def test_places_that_are_left_open_are_known() -> None:
    """Each has its reason. One that is closed belongs to the others."""
    assert [shape for shape in OPEN if PLAIN not in redact(shape.format(PLAIN))] == []
    assert len(SHAPES) > 25 * len(OPEN)


def test_value_that_looks_like_a_key_is_hidden_where_one_may_be() -> None:
    """Behind "key", "code" and the like a long value of letters and digits is one."""
    texts = [(shape, secret) for shape in LONG_SHAPES for secret in (BASE64, MIXED, HEX40)]
    left = [redaction.find_left(redact(shape.format(secret)), [secret]) for shape, secret in texts]
    assert not any(left), left


@pytest.mark.parametrize(
    "frame", ["{}", "a {} b", '"{}"', "x={}&y", "line\\n{}\\nline", "\t{}\n", "({})", "{},"]
)
def test_secret_that_tells_what_it_is_is_hidden(frame: str) -> None:
    """It needs no name, and what stands around it does not matter."""
    assert [secret for secret in KNOWN if secret[-12:] in redact(frame.format(secret))] == []


@pytest.mark.parametrize(
    "shape", ["sig={}", "Signature={}", "X-Amz-Signature={}", "'sig': '{}'", "a;sig={};b"]
)
def test_a_short_signature_outside_an_address_is_hidden_if_it_looks_like_one(shape: str) -> None:
    """With digits and letters of both cases; "sig=15" and "signature=forward" have not."""
    assert PLAIN not in redact(shape.format(PLAIN))
    assert [
        one for one in ("15", "forward", "Forward", "SIGTERM") if one not in redact(shape.format(one))
    ] == []


@pytest.mark.slow
def test_ordinary_text_loses_next_to_nothing() -> None:
    """Losses, sums, words that begin like a secret's name, and what this project says."""
    # Losses, shapes, sums, tokens of text and words that begin like a secret's name stay.
    assert [redact(line) for line in LINES] == LINES
    # What this project itself says and prints; an entry more here needs a reason.
    listed = [
        *("git", "ls-files", "docs", "examples", "tests/golden", "README.md", "CHANGELOG.md"),
        "SECURITY.md",
    ]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(files) > 100
    hidden = set()
    for name in files:
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue
        hidden |= {text[start:end] for start, end in find_secrets(text)}
    assert hidden == EXPECTED_HIDDEN


KEY = redaction.make_key(random.Random(1), 50)


@pytest.mark.parametrize(
    "join", ["\n", "\r\n", "\n[rank0]: ", "\n  | ", "\\n", "\\\\n", '",\n    "', "', '", "\n\t"]
)
@pytest.mark.parametrize("first", [0, 1, 47])
def test_rest_of_a_private_key_is_hidden(join: str, first: int) -> None:
    """Two lines of pure base64 are enough: the beginning of a key may be lost."""
    text = f"error: bad key\n{join.join(KEY[first:])}\nand what follows"
    shown = redact(text)
    assert redaction.find_left(shown, KEY) is None
    assert shown.startswith("error: bad key\n") and shown.endswith("\nand what follows")


def test_the_rest_and_the_last_lines_of_a_private_key_are_hidden() -> None:
    """Keys in a list, and what a list leaves open, are known."""
    # One line and the end of the frame are enough, too.
    end = "-----END RSA PRIVATE" + " KEY-----"
    assert redact(f"a b: c\nAb3d\nAA==\n{end}\nd") == f"a b: c\n{MARKER}\n{MARKER}\n{end}\nd"
    assert KEY[1] not in redact(f"{KEY[1]}\\n{end}\\n")
    # Of a variable that may as well have the names of columns.
    assert MIXED not in redact(f"MY_KEYS=a,{MIXED}") and HEX40 not in redact(f"MY_KEYS={HEX40},a")


@pytest.mark.parametrize(
    "argument", ["sshpass -p X ssh h", "curl -u me:X h", "wandb login X", "mysql -pX db"]
)
def test_argument_that_is_secret_by_its_place_is_hidden(argument: str) -> None:
    """In a list of arguments as in a text."""
    secret = "a b'c"
    argv = ["/usr/bin/env", *argument.split()]
    argv = [word.replace("X", secret) for word in argv]
    shown = redact_argv(argv)
    assert len(shown) == len(argv)
    assert secret not in " ".join(shown) and MARKER in " ".join(shown)


@pytest.mark.parametrize("limit", [0, 1, 30, 120, 1000, 100_000])
@pytest.mark.parametrize(
    "size",
    [10, pytest.param(16_000, marks=pytest.mark.thorough), pytest.param(40_000, marks=pytest.mark.thorough)],
)
def test_what_is_cut_is_redacted_first(limit: int, size: int) -> None:
    """Half a secret at the edge is none that could be found later."""
    plain = [(secret, secret[-12:]) for secret in KNOWN]
    for secret, part in (*plain, (f"https://u:{PLAIN}@h", PLAIN), ("\n".join(KEY), KEY[-1])):
        text = ("x " * (size // 2))[: size - 20] + " " + secret + " y" * 9
        for shown in (shorten(text, limit), quote(text, limit)):
            assert len(shown) <= limit
            assert part not in shown


def test_quoting_a_long_text_searches_only_what_may_be_shown() -> None:
    """A line of 64 MB in a file of hosts costs as much as one of 16 kB."""
    text = "password=" * (64 << 17)
    started = time.process_time()
    assert quote(text, 80) == f"password={MARKER}"
    assert time.process_time() - started < 5


CUT: dict[str, Callable[[str], str]] = {
    "event": lambda text: render_event("output", text, {}, {"why": [text]}, 0).decode(),
    "record": lambda text: "\n".join(presentable(text.split("\n"))),
    "output": lambda text: "\n".join(clean_lines(text)),
    "quotation": text_quote,
    "command": lambda text: describe_command(["run", text]),
    "words": lambda text: describe_command(["run", *text.split(" ")]),
}
"""What shows a part of a text of any length."""
SEARCHED_MAX = 200_000


@pytest.mark.parametrize("channel", CUT)
@pytest.mark.parametrize("filler", ["step 12 loss 0.5\n", "x y ", "x" * 64, "password=hunter22\n"])
def test_of_a_huge_text_only_a_part_is_searched(
    channel: str, filler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 MB of a rank's output, or of one word: the loop does not wait for that."""
    counts = list[int]()

    def count(text: str) -> list[tuple[int, int]]:
        counts.append(len(text))
        return find_secrets(text)

    monkeypatch.setattr("launcher.core.secret_shapes.find_secrets", count)
    redact_ends.cache_clear()  # another channel has searched the same text
    CUT[channel](filler * (10_000_000 // len(filler)))
    assert 0 < max(counts) <= SEARCHED_MAX and sum(counts) <= 6 * SEARCHED_MAX  # a few passes


@pytest.mark.slow
@pytest.mark.parametrize("channel", CUT)
@pytest.mark.parametrize("edge", [" ", pytest.param("\n", marks=pytest.mark.thorough)])
def test_where_a_huge_text_is_cut_there_is_no_half_of_a_secret(channel: str, edge: str) -> None:
    """Secrets everywhere, so that one is at each cut."""
    secrets = {f"password={PLAIN}": PLAIN, f"https://u:{PLAIN}@h": PLAIN, "\n".join(KEY): KEY[1]}
    for secret, part in secrets.items():
        for offset in range(0, len(secret), len(secret) // 5):
            text = "a" * offset + edge + (secret + edge) * (200_000 // len(secret))
            shown = CUT[channel](text)
            assert part not in shown and part[-6:] not in shown


@pytest.mark.parametrize("place", range(90, 125, 3))
def test_a_value_in_a_message_is_cut_after_its_secrets_are_taken_out(place: int) -> None:
    """Messages are searched when they are shown: by then half of an address's password could be left."""
    text = "a," * (place // 2) + f"https://user:{PLAIN}@host/" + "b" * 99
    assert PLAIN[:4] not in redact(environ.shorten(text))
    assert PLAIN[:4] not in wire.short_text(text)
    assert PLAIN[:4] not in wire.fact(text)
    with pytest.raises(wire.Garbled) as caught:
        lines.parse(text.encode())
    assert PLAIN[:4] not in redact(str(caught.value))


@pytest.mark.parametrize("place", range(0, 66, 5))
def test_what_comes_from_outside_is_cut_after_its_secrets_are_taken_out(place: int) -> None:
    """A health command's line, a refused list, a name in NCCL's log or in a dump, a name of a job."""
    text = "n" * place + f" https://user:{PLAIN}@host/ " + "b" * 99
    entry = {"pg_id": 0, "state": "scheduled", "profiling_name": f"nccl:{'m' * 300}{text}"}
    shown: list[object] = [
        run_health(["sh", "-c", f"printf '%s' {'x' * 320}'{text}'; exit 1"]),
        spoken.hear(spoken.Spoken(), f"NCCL INFO Using network {text}").network,
        dumps.read_rank(0, pickle.dumps({"version": "2.10", "entries": [entry]})),
    ]
    for call in (lambda: nodelist.parse_nodelist(text), lambda: folder_name(text)):
        with pytest.raises((ValueError, wire.Garbled)) as refused:
            call()
        shown.append(str(refused.value))
    assert [one for one in shown if PLAIN[:4] in redact(str(one))] == []


def test_a_variable_and_a_long_line_are_quoted_safely(tmp_path: Path) -> None:
    """One with a secret's name as a whole, a line of a hostfile short."""
    # Its value may have blanks and quotes, and look like nothing.
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "MY_TOKEN", "DB_PASS"):
        setting = Setting(name, "a 'b", "typed")
        assert plan_json.describe_setting(setting, {name: "c d"}) == {
            "name": name,
            "value": MARKER,
            "origin": "typed",
            "inherited": MARKER,
            "kept": False,
        }
    # The message names the line, quotes little of it, and none of its secrets.
    (tmp_path / "hosts").write_text("password" * 12_500 + "\n")
    with pytest.raises(UsageError) as caught:
        read_hostfile(str(tmp_path / "hosts"), "--hostfile", Host())
    assert len(caught.value.problems[0].what) < 600


HOSTILE = [
    *(
        "Ab3/",
        "Ab3/" * 16 + "\n",
        *('"', "'", "=", "{", "[", "(", "\\", '"\\"', "&", ";", " ", "\n", "a", "A", "0", "-"),
    ),
    *(
        *("password", "password=", 'password="', "password='", 'password=\\"', 'password: ["', "--token "),
        "--token \\\n",
    ),
    *(
        *("<token>", "<token ", "auth=(", "auth={", "{user:a,password:", "password: |\n  "),
        *("  password: |\n  ", "name: pass\n"),
    ),
    *(
        *('"name": "pass", "value": "', "://", "://:", "://a:b", "http://a", "//a:", "%3a%2f%2fa%3ab"),
        *("eyJ", "eyJaaaaaaaa."),
    ),
    *("key=", "key=aA1", "bearer ", "bearer%20", "bearer 1", "basic ", "sig=", "cookie:", "identified by '"),
    *(
        "-----BEGIN PRIVATE" + " KEY",
        "-----END PRIVATE" + " KEY-----\n",
        "Ab3/\n-----END PRIVATE" + " KEY-----\n",
    ),
    *(
        *(
            "curl ",
            "curl;",
            "curl,",
            'curl \\" ',
            "curl -u a:b ",
            "sshpass 'a ",
            "wandb login ",
            "set token ",
            "config set token ",
        ),
        "login a password ",
    ),
    *(
        *("h:5432:b:c:", "a.", "\\n", "\\nAb3", "SK", "==", "MIIC", "AKIA", "xoxb-", "8Q~", "session_id:"),
        "worker-0.svc,",
    ),
    *(
        *("Authorization: ", "0123456789abcdef", MARKER, "token= ", "%3D", '\\\\\\"', "pass -> "),
        *("token: str = ", "ghp_"),
    ),
    *(
        *("secrets: [", "secrets: [a, ", "secrets={a:b,", "password=f(", "secrets:\n  a: b\n"),
        "[secrets]\na = b\n",
    ),
    *(
        *("password: |\n\n  ", "value=a ", "<name>token</name><value>", "<password><![CDATA[", "echo a | "),
        "<<<",
    ),
    *(
        *("--token\n", "- --token\n- ", "--token\na", "A_TOKENS=a,", "api_keys=", "?sig=", "passwd "),
        "passwd A\n",
    ),
    *("ssh-keygen -N ", "secret: in ", "A_KEYS=a,", "A_TOKENS=", "&sig=a"),
    *("\\u0022", "%25", "\x1b[", "\x1b]", "&quot;", "\\\n ", "\u200b", "cookie':'", "set A_TOKEN ", "/bot1:"),
    *(
        *("mysql -p'a' ", "vault kv put a b=c ", "authorization: aws a=b", "npm config password "),
        *("tcp://a:b", "$6$"),
    ),
]


def test_a_command_line_of_programs_takes_seconds() -> None:
    """Of each word the next ones may be its arguments; 4,000 took 11 seconds, 8,000 four times as long."""
    began = time.process_time()
    assert redact_argv(["mysql"] * 8000) == ["mysql"] * 8000
    assert time.process_time() - began < 8
    assert redact_argv(["mysql", *["-v"] * 90, "-pQz7hunter2Xk"])[-1] == f"-p{MARKER}"


@pytest.mark.parametrize("fragment", ["curl;", "curl,", 'curl \\" '])
def test_programs_without_blanks_take_no_time(fragment: str) -> None:
    """Each began an argument to the end of the text: 64 KB took 10 s, an error file of a rank 5 minutes."""
    assert _measure(fragment, 1 << 15) < 1


@pytest.mark.thorough
@pytest.mark.parametrize("fragment", HOSTILE)
def test_time_grows_with_the_length(fragment: str) -> None:
    """Twice the length takes about twice the time, of anything."""

    small = min(_measure(fragment, 1 << 14) for _ in range(3))
    large = min(_measure(fragment, 1 << 17) for _ in range(2))
    # 8 times as long; something quadratic would take 64 times as long
    assert large < 24 * max(small, 0.004)


@pytest.mark.thorough
@pytest.mark.parametrize("fragment", ["password=", "curl ", 'password=\\"', "key=aA1", "Ab3/"])
def test_a_long_log_takes_seconds(fragment: str) -> None:
    """A quarter of a mebibyte of the slowest of them."""
    assert _measure(fragment, 1 << 18) < 15


def _measure(fragment: str, size: int) -> float:
    text = fragment * (size // len(fragment))
    started = time.process_time()
    redact(text)
    return time.process_time() - started


@given(st.integers(0, 1 << 40))
def test_planted_secret_never_survives(seed: int) -> None:
    """In random text, in any shape, after redaction and whatever shortens it then."""
    text, part = redaction.plant(seed)
    assert part is None, text


def test_fuzzer_sees_what_is_left() -> None:
    """A look that finds nothing proves nothing unless it could."""
    assert redaction.find_left(f"x {PLAIN[:9]}", [PLAIN]) == PLAIN[:8]
    assert redaction.try_one(b"1") == "nothing is left"
