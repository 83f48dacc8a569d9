"""Shells that only start one program, compared with what a real shell makes of the same string."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.command.shell import open_shell, split_simple

SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("exec python3 -m pkg.train", ("python3", "-m", "pkg.train")),
        ("torchrun --nproc_per_node=2 train.py", ("torchrun", "--nproc_per_node=2", "train.py")),
        ("python train.py 'a b' \"c d\"e ''", ("python", "train.py", "a b", "c de", "")),
        ("  python train.py  \n", ("python", "train.py")),
    ],
)
def test_one_command_is_what_the_shell_would_start(text: str, words: tuple[str, ...]) -> None:
    """Whatever shell: its words are the command."""
    assert open_shell(("/bin/sh", "-c", text)) == words
    assert open_shell(("bash", "-ec", text)) == words


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cd /job && python train.py",
            "python train.py; echo done",
            "python train.py > log",
            "python a | tee b",
        ),
        *(
            "LR=1 python train.py",
            "python train.py $LR",
            "python train.py `x`",
            "python train.py *.txt",
            "python x~",
        ),
        *('python "$X"', "python 'a", "python a\\\\ b", "echo hello", "exit 3", "", "exec", "python {a,b}"),
    ],
)
def test_what_needs_a_shell_stays_with_it(text: str) -> None:
    """Several commands, variables, patterns, redirections, and programs that are nothing to us."""
    command = ("sh", "-c", text)
    assert open_shell(command) == command


def test_other_uses_of_a_shell_stay_as_they_are() -> None:
    """A script, arguments behind the string, a login shell with its profile."""
    for words in (("sh", "train.sh"), ("sh",), ("sh", "-c", "python a", "name"), ("bash", "-lc", "python a")):
        assert open_shell(words) == words


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab -=/'\"\t$;#\\\\~*é%", max_size=12))
def test_words_are_a_real_shells(rest: str) -> None:
    """What `split_simple` takes apart a real shell takes apart in the same way."""
    words = split_simple(f"python {rest}")
    if not words:
        return
    line = ["/bin/sh", "-c", f'"$0" -c "$1" {rest}', sys.executable, SHOW]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert tuple(json.loads(done.stdout)) == words[1:]
