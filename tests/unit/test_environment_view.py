"""The environment as text: real shells, JSON and env file readers get the same bytes back."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.views.environment import render_environment

SHELLS = [["sh"], ["dash"], ["bash"], ["bash", "--posix"]]
LOCALES = ["C", "C.UTF-8"]

# What has been got wrong in shell quoting, one value for each trap.
VALUES = {
    "EMPTY": "",
    "PLAIN": "10.0.0.4:6105",
    "SPACES": "  two  words  ",
    "TAB": "\ta\t",
    "SINGLE_QUOTE": "it's",
    "SINGLE_QUOTES": "'''",
    "DOUBLE_QUOTE": 'say "hi"',
    "DOLLAR": "$HOME ${HOME} $(id) $",
    "BACKTICK": "`id`",
    "BACKSLASHES": "\\ \\\\ \\n \\' a\\",
    "NEWLINE": "one\ntwo\n",
    "NEWLINES_ONLY": "\n\n\n",
    "CARRIAGE_RETURN": "a\r\nb\r",
    "SEMICOLON": "a; exit 1 #",
    "OPERATORS": "a & b | c > d < e (f) {g} !h",
    "HASH": "#a #b",
    "GLOB": "* ? [a-z] ~ ~root",
    "EQUALS": "a=b=c",
    "LEADING_DASH": "-n",
    "JSON": '{"cluster":{"worker":["host0:2222","host1:2222"]},"task":{"index":0}}',
    "UNICODE": "caf\u00e9 \u6f22\u5b57 \U0001f680 \u202e",
    "CONTROL": "".join(map(chr, range(1, 32))) + "\x7f\x85\x9b",
    "NOT_UTF8": os.fsdecode(bytes(range(128, 256))),
    "DASH_CONTROL": os.fsdecode(b"\x81\x82\x83\x84\x85\x86\x87\x88"),
    "TRUNCATED_UTF8": os.fsdecode(b"\xf0\x9f\x9a'\xe2\x82\""),
    "LONG": "x" * 100_000,
}

environment_bytes = st.binary(max_size=60).map(lambda data: data.replace(b"\0", b""))
environment_values = (environment_bytes | st.text("'\"\\$`\n\r #{}!a=", max_size=12).map(str.encode)).map(
    os.fsdecode
)


def evaluate(shell: list[str], text: str, environ: dict[str, str]) -> dict[bytes, bytes]:
    """Return the environment of a program that a shell starts after it has evaluated text."""
    if shutil.which(shell[0]) is None:
        pytest.fail(f"{shell[0]} is not installed: apt-get install dash bash")
    run = subprocess.run(
        [*shell, "-c", 'set -eu; eval "$(cat)"; exec /usr/bin/env -0'],
        input=os.fsencode(text),
        env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True,
        check=True,
    )
    assert run.stderr == b""
    pairs = (pair.split(b"=", 1) for pair in run.stdout.split(b"\0") if pair)
    return {pair[0]: pair[1] for pair in pairs}


@pytest.mark.parametrize("locale", LOCALES)
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_shell_gets_every_value(shell: list[str], locale: str) -> None:
    """After eval in a real shell, a program that it starts has the same bytes."""
    text, notes = render_environment(VALUES, [], "sh")
    result = evaluate(shell, text, {"LC_ALL": locale})
    assert {name: os.fsencode(value) for name, value in VALUES.items()} == {
        name: result.get(os.fsencode(name)) for name in VALUES
    }
    assert notes == []


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,9}", fullmatch=True).map(lambda n: f"T_{n}"),
        environment_values,
        max_size=6,
    )
)
def test_shell_gets_any_value(values: dict[str, str]) -> None:
    """No value that an environment can hold changes on its way through eval."""
    text, notes = render_environment(values, [], "sh")
    expected = {os.fsencode(name): os.fsencode(value) for name, value in values.items()}
    for shell in SHELLS:
        result = evaluate(shell, text, {"LC_ALL": "C.UTF-8"})
        assert expected == {name: value for name, value in result.items() if name[:2] == b"T_"}
    assert notes == []


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_shell_unsets(shell: list[str]) -> None:
    """A name to be unset is gone, a name that was not there is no error, a set one is set."""
    text, notes = render_environment({"KEPT": "1"}, ["GONE", "NEVER_THERE", "KEPT"], "sh")
    result = evaluate(shell, text, {"GONE": "1", "KEPT": "0"})
    assert b"GONE" not in result
    assert result[b"KEPT"] == b"1"
    assert notes == []


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_names_that_shells_cannot_hold_are_left_out(shell: list[str]) -> None:
    """Dots, digits in front and the shells' own names are left out, named in a note."""
    odd = ["com.nvidia.cuda.version", "1ST", "A-B", "A=B", "A B", "", "A;id", "caf\u00e9", "A\n"]
    odd += ["\udcff", "BASH_FUNC_f%%", "UID", "PPID", "OPTIND", "SHELLOPTS", "_", "LINENO"]
    text, notes = render_environment({**dict.fromkeys(odd, "x"), "NUL": "\0", "GOOD": "1"}, [], "sh")
    assert text == "export GOOD='1'\n"
    assert evaluate(shell, text, {})[b"GOOD"] == b"1"
    assert len(notes) == 1
    assert all(name in notes[0] for name in ("com.nvidia.cuda.version", "1ST", "A\\n", "NUL"))
    assert notes[0].isprintable()


@pytest.mark.parametrize("name", ["com.example", "UID"])
def test_unset_name_that_shells_cannot_hold_is_left_out(name: str) -> None:
    """What cannot be unset either is in the note."""
    text, notes = render_environment({}, [name], "sh")
    assert text == ""
    assert [f"left out, a shell cannot hold them: {name}"] == notes


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_shells_own_names_would_not_come_through(shell: list[str]) -> None:
    """Names that a shell says it has, and that are not left out, can be set."""
    listed = subprocess.run(
        ["bash", "-c", "compgen -v"], capture_output=True, text=True, check=True, env={}
    ).stdout.split()
    names = [*listed, "IFS", "PS1", "PS4", "OPTARG", "ENV", "BASH_ENV", "TMOUT", "CDPATH", "PWD"]
    text, _ = render_environment(dict.fromkeys(names, "7"), [], "sh")
    expected = {line.split()[1].split("=")[0].encode() for line in text.splitlines()}
    result = evaluate(shell, text, {})
    assert expected == {name for name in expected if result[name] == b"7"}


@given(st.dictionaries(environment_bytes.map(os.fsdecode), environment_values))
def test_json_round_trip(values: dict[str, str]) -> None:
    """The text is ASCII, one flat object, and gives the same strings, stray bytes included."""
    text, notes = render_environment(values, [], "json")
    assert text.isascii()
    assert values == json.loads(text)
    assert list(values) == list(json.loads(text))
    assert notes == []


DOTENV = {
    "": "A=",
    "10.0.0.4:6105": "A=10.0.0.4:6105",
    '{"task":{"index":0}}': 'A={"task":{"index":0}}',
    "two words": "A=two words",
    "it's": "A=it's",
    "a=b#c": "A=a=b#c",
    "back\\slash\\": "A=back\\slash\\",
    " edge": 'A=" edge"',
    "edge\t": 'A="edge\t"',
    "a #b": 'A="a #b"',
    "#b": 'A="#b"',
    "'quoted'": "A=\"'quoted'\"",
    '"quoted"': 'A="\\"quoted\\""',
    "one\ntwo\r\n": 'A="one\\ntwo\\r\\n"',
    'a\n\\"b': 'A="a\\n\\\\\\"b"',
    "$HOME": "A='$HOME'",
    "it's $HOME": "A='it\\'s $HOME'",
}


@pytest.mark.parametrize("value", DOTENV)
def test_dotenv_text(value: str) -> None:
    """Plain where all readers agree; quoted, with a note, where docker run does not."""
    text, notes = render_environment({"A": value}, [], "dotenv")
    assert f"{DOTENV[value]}\n" == text
    quoted = text != f"A={value}\n"
    assert (["quoted, and docker run --env-file keeps the quotes: A"] if quoted else []) == notes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("A", value) for value in ("${HOME}", "$a\nb", "$a\\b", "\na\\", "\udcff", "\0")],
        *[(name, "1") for name in ("1A", "A-B", "A B", "", "A#", "export_dir", "\u00e9", "A\n")],
    ],
)
def test_dotenv_leaves_out_what_readers_disagree_on(name: str, value: str) -> None:
    """What two readers would read differently is left out, with a note."""
    text, notes = render_environment({name: value, "B": "1"}, ["C"], "dotenv")
    assert text == "B=1\n"
    assert len(notes) == 2
    assert notes[0].startswith("left out, env files cannot hold them: ")
    assert notes[1] == "to be unset, which this format cannot express: C"


def test_dotenv_tells_what_docker_cannot_read() -> None:
    """A line that is longer than docker run's buffer has a note."""
    _, notes = render_environment({"A": "x" * 65_533, "B": "x" * 65_534}, [], "dotenv")
    assert notes == ["longer than docker run --env-file reads: B"]


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_.]*", fullmatch=True), environment_values))
def test_python_dotenv_reads_the_same(values: dict[str, str]) -> None:
    """python-dotenv, expansion included, reads every variable that is not left out."""
    dotenv = pytest.importorskip("dotenv")
    text, notes = render_environment(values, [], "dotenv")
    read = dotenv.dotenv_values(stream=io.StringIO(text, newline=""))
    left_out = "".join(note.split(": ")[1] for note in notes if note.startswith("left out"))
    expected = {name: values[name] for name in values if name not in left_out.split(", ")}
    assert expected == read


def read_like_docker(text: str) -> dict[str, str]:
    """Return what docker run reads: lines as they are, split at the first equals sign."""
    return dict(line.split("=", 1) for line in text.split("\n")[:-1])


@given(environment_values)
def test_docker_reads_the_same_without_a_note(value: str) -> None:
    """Without a note, docker run's literal reading is the value."""
    text, notes = render_environment({"A": value}, [], "dotenv")
    if not notes:
        assert {"A": value} == read_like_docker(text)


def test_table_is_aligned_and_harmless() -> None:
    """Names and values stand in columns; what a terminal would obey is escaped."""
    values = {"RANK": "0", "MASTER_ADDR": "10.0.0.4", "EMPTY": "", "BAD\x1b": "\x1b[2Ja\nb\udcff"}
    text, notes = render_environment(values, ["PMI_FD"], "table")
    assert text == (
        "RANK         0\n"
        "MASTER_ADDR  10.0.0.4\n"
        "EMPTY\n"
        "BAD\\x1b      \\x1b[2Ja\\nb\\udcff\n"
        "PMI_FD       (unset)\n"
    )
    assert notes == []


@given(st.dictionaries(st.text(), st.text(st.characters())), st.lists(st.text()))
def test_table_is_one_printable_line_each(values: dict[str, str], unset: list[str]) -> None:
    """Whatever the names and values, the table has one printable line for each."""
    text, _ = render_environment(values, unset, "table")
    lines = text.split("\n")[:-1]
    assert all(line.isprintable() for line in lines)
    assert len(values) + len([name for name in unset if name not in values]) == len(lines)


@pytest.mark.parametrize("style", ["table", "sh", "dotenv"])
def test_nothing_is_empty_text(style: str) -> None:
    """No variables, no lines."""
    assert render_environment({}, [], style) == ("", [])


def test_texts_of_sh_and_json() -> None:
    """One line for each variable, what is unset first; what is to be unset is a note."""
    # One line for each variable, in the given order, what is unset first.
    text, _ = render_environment({"B": "1", "A": "it's"}, ["C"], "sh")
    assert text == "unset C\nexport B='1'\nexport A='it'\\''s'\n"
    # Bytes that are not UTF-8 are lone surrogates; what is to be unset is a note.
    text, notes = render_environment({"A": "\udcff", "B": "1"}, ["C"], "json")
    assert text == '{\n  "A": "\\udcff",\n  "B": "1"\n}\n'
    assert notes == ["to be unset, which this format cannot express: C"]
    # The message names the styles there are.
    with pytest.raises(ValueError, match="table, sh, json, dotenv"):
        render_environment({}, [], "yaml")
