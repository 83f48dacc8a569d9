"""What is read quickly is what argparse would have read."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UsageError
from launcher.options.flags import FLAGS
from launcher.options.parser import add_flags, make_parser, strip_dashes
from launcher.options.quick import SPELLINGS, read_quickly

NAMES = sorted(SPELLINGS)
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["--", "-", "", "2", "train.py", "-x", "--unknown", "--help", "--nn", "a=b", "-r3", "python"]
    ),
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(["", "2", "-1", "a b"])),
)


def read_slowly(argv: list[str]) -> tuple[dict[str, object], tuple[str, ...]] | None:
    """Return what argparse makes of it, None for an error."""
    parser = make_parser("run", "", "")
    add_flags(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    try:
        words = vars(parser.parse_args(argv))
    except (UsageError, SystemExit):
        return None
    command = strip_dashes(words.pop("command"))
    return {name: value for name, value in words.items() if value is not None}, command


@given(st.lists(WORDS, max_size=6))
def test_both_readers_agree(argv: list[str]) -> None:
    """Whatever the quick one accepts, argparse reads alike."""
    quick = read_quickly(argv, {})
    if quick is not None:
        assert quick == read_slowly(argv)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.dest)
def test_every_flag_is_read_quickly(flag: object) -> None:
    """The usual forms of each flag do not need argparse."""
    name, dest = flag.name, flag.dest  # type: ignore[attr-defined]
    if flag.parse is None:  # type: ignore[attr-defined]
        assert read_quickly([name, "--", "x"], {}) == ({dest: True}, ("x",))
    else:
        assert read_quickly([name, "2", "x", name], {}) == ({dest: "2"}, ("x", name))
        assert read_quickly([f"{name}=2"], {}) == ({dest: "2"}, ())


def test_what_is_not_plain_is_left_to_argparse() -> None:
    """Help, errors, values that look like flags, and what belongs to the command alone."""
    for argv in (
        *(["--help"], ["--nnodes"], ["--nnodes", "-1"], ["-x"], ["--init=1"], ["--dry-run"]),
        ["--replay", "f"],
    ):
        assert read_quickly(argv, {}) is None
    assert read_quickly(["x"], {"LAUNCHER_DRY_RUN": "1"}) is None
