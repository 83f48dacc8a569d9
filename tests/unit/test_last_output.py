"""What a process said last: tracebacks of real Pythons, error files of all shapes, hostile streams."""

# ruff: noqa: E501 - frames of tracebacks are long lines

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core import secrets
from launcher.core.shorten import shorten_lines
from launcher.failure.model import ProcessExit
from launcher.failure.stderr import (
    ERROR_FILE_BYTES,
    STDERR_BYTES,
    LastOutput,
    find_user_frame,
    read_last_output,
    read_root_cause,
    read_uncaught,
)
from launcher.failure.text import LINE_CHARS, LINES_MAX, TEXT_CHARS, clean_lines, presentable
from launcher.inprocess.process import TEXT_LIMIT, write_error_file
from tests.fuzz.redaction import find_left, make_key
from tests.unit.platforms_model import deterministic

FRAME = '  File "<string>", line 1, in <module>'
TRACEBACK = f"Traceback (most recent call last):\n{FRAME}\nValueError: no"
CAUSE = "The above exception was the direct cause of the following exception:"
SECRET = "hf_" + "aB3" * 11
BAR = "\r".join(
    f" {step:3}%|{'#' * (step // 10)}| {step}/100 [00:01<00:01, 99.00it/s]" for step in (0, 50, 90)
)


def say(text: str) -> LastOutput:
    """Return the last words of a process that has written this."""
    return read_last_output(text.encode("utf-8", "surrogateescape"), None)


def run(code: str, *flags: str) -> LastOutput:
    """Return the last words of a real Python that runs this code."""
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, check=False, timeout=60)
    return read_last_output(done.stderr, None)


def record(folder: Path, content: object) -> str:
    """Write an error file with this content."""
    path = folder / "error.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python has no exception groups")
def test_a_traceback_is_found_and_stays_whole() -> None:
    """Its lines, its message of several lines, and the other lines apart; chains stay together."""
    # Its lines, what was raised, and the other lines apart.
    words = run("import sys; sys.stderr.write('starting\\n'); raise ValueError('no')")
    without_code = tuple(line for line in words.traceback if not line.startswith("    "))  # since Python 3.13
    assert without_code == tuple(TRACEBACK.split("\n"))
    assert (words.source, words.exception, words.lines) == ("stderr", "ValueError: no", ("starting",))
    assert words.messages == ("ValueError: no",)
    # As NCCL's and load_state_dict's do; a log line after it does not.
    words = say(f"{TRACEBACK}, because\nncclSystemError: x\n\tindented\nLast error:\n[W1121] a warning\nmore")
    assert words.messages[-4:] == ("ValueError: no, because", "ncclSystemError: x", "indented", "Last error:")
    assert words.lines == ("[W1121] a warning", "more")
    # From the first exception to the last, across both kinds of chains.
    code = """
try:
    try:
        {}["key"]
    except KeyError as error:
        raise ValueError("second") from error
except ValueError:
    raise RuntimeError("third")
"""
    words = run(code)
    assert words.traceback.count("Traceback (most recent call last):") == 3
    assert words.messages == ("KeyError: 'key'", "ValueError: second", "RuntimeError: third")
    assert words.exception == "RuntimeError: third"
    assert words.lines == ()
    # All of a group, nested ones too, also as the cause of another exception.
    code = """
def fail(number):
    raise ValueError(number)
errors = []
for number in (1, 2):
    try:
        fail(number)
    except ValueError as error:
        errors.append(error)
inner = ExceptionGroup("inner", errors)
try:
    raise ExceptionGroup("outer", [inner, KeyError("x")])
except ExceptionGroup as group:
    import sys
    if sys.argv[1:]:
        raise RuntimeError("after") from group
    raise
"""
    words = run(code)
    assert words.traceback[0] == "  + Exception Group Traceback (most recent call last):"
    assert words.exception == "ExceptionGroup: outer (2 sub-exceptions)"
    assert {"ValueError: 1", "ValueError: 2", "KeyError: 'x'"} <= set(words.messages)
    assert words.lines == ()
    after = run(code.replace("sys.argv[1:]", "True"))
    assert after.exception == "RuntimeError: after"
    assert after.traceback[: len(words.traceback)] == words.traceback
    assert after.lines == ()


def test_what_stands_beside_a_traceback_is_not_it() -> None:
    """Ignored exceptions and threads count only if there is no other; ranks' marks and bars are left out."""
    # Ignored exceptions, threads and exit functions come after the one that counts.
    code = """
import atexit, threading
class Loud:
    def __del__(self):
        raise KeyError("ignored")
atexit.register(lambda: {}["at exit"])
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
loud = Loud()
raise ValueError("this one")
"""
    words = run(code)
    assert words.exception == "ValueError: this one"
    assert words.messages == ("ValueError: this one",)
    assert any("ZeroDivisionError" in line for line in words.lines)
    # A thread that failed may be why the process was ended later.
    words = run("import threading; thread = threading.Thread(target=lambda: 1 / 0); thread.start()")
    assert words.exception == "ZeroDivisionError: division by zero"
    # torch's excepthook puts the rank in front of each line.
    marked = "\n".join(f"[rank3]: {line}" for line in f"{TRACEBACK}\nmore of it".split("\n"))
    words = say(f"[rank3]:[W1121 10:00:00] a warning\n{marked}\n[rank3]:[W1121 10:00:01] another")
    assert words.traceback == (*TRACEBACK.split("\n"), "more of it")
    assert len(words.lines) == 2
    # Also where a traceback begins in the middle of its line; Windows' line ends are no bar.
    words = say(f"start\r\n{BAR}{TRACEBACK}")
    assert words.lines == ("start", BAR.rpartition("\r")[2])
    assert words.exception == "ValueError: no"
    words = say(f"{BAR}[rank0]: Traceback (most recent call last):\n[rank0]: {FRAME}\n[rank0]: E: no")
    assert words.exception == "E: no"
    assert clean_lines(BAR + "\r" + " " * 60 + "\r") == [BAR.rpartition("\r")[2]]


KEY = make_key(random.Random(1), 50)
FRAME_OF_KEY = "RSA PRIVATE" + " KEY-----"


@pytest.mark.parametrize("first", [0, 1, 48], ids=["whole", "without its beginning", "its last lines"])
@pytest.mark.parametrize("mark", ["", "[rank0]: "])
def test_a_long_private_key_does_not_get_through(first: int, mark: str) -> None:
    """One of 4,096 bits has more lines than are shown, and what is kept may begin in its middle."""
    lines = ["loading", f"-----BEGIN {FRAME_OF_KEY}", *KEY, f"-----END {FRAME_OF_KEY}", "cannot go on"]
    lines = [lines[0], *lines[first + (2 if first else 1) :]]
    for limit in (3, 10, 40, LINES_MAX):
        shown = "\n".join(presentable(say("\n".join(mark + line for line in lines)).lines, limit))
        assert find_left(shown, KEY) is None
        assert "cannot go on" in shown
    raised = say("\n".join([TRACEBACK, *KEY]))
    assert (
        find_left("\n".join((raised.exception, *raised.traceback, *raised.messages, *raised.lines)), KEY)
        is None
    )


@pytest.mark.parametrize("edge", ["\n", " "])
@pytest.mark.parametrize("distance", [-20, TEXT_LIMIT + 20])
def test_long_message_is_cut_between_words_in_the_process(tmp_path: Path, edge: str, distance: int) -> None:
    """What the hook writes is redacted where it is read: by then nothing of a secret may be half."""
    path = str(tmp_path / "error.json")
    text = edge.join(["x" * 9] * TEXT_LIMIT)
    place = TEXT_LIMIT + distance if distance < 0 else len(text) - distance
    text = text[:place] + edge + SECRET + edge + text[place:]
    write_error_file(path, ValueError, ValueError(text), None)
    assert SECRET[6:20] not in str(read_last_output(b"", path))


def test_words_of_an_agents_process_lose_their_first_line_too() -> None:
    """What the agent says at the end is cut off; what is lost at the beginning stays lost."""
    end = (
        b"E] failed (exitcode: 1) local_rank: 0\nRoot Cause (first observed failure):\n[0]:\n  time : t\n"
        b"  host : h\n  rank : 0 (local_rank: 0)\n  exitcode : 1 (pid: 7)\n  error_file: <N/A>\n"
    )
    text = (SECRET.encode()[5:] + b"\n" + b"y\n" * STDERR_BYTES)[: STDERR_BYTES - len(end) - 1] + b"\n" + end
    found = read_root_cause(ProcessExit(0, 0, 1, 1, 0, stderr=text))
    assert found is not None and SECRET[5:].encode() not in found.stderr


def test_words_of_an_agents_process_are_its_own_and_of_the_last_attempt() -> None:
    """The lines of another rank, which has only lost this one, and of an attempt before are kept apart."""
    lost = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "t.py", line 1\n[rank0]: RuntimeError: lost\n'
    said = "E] failed (exitcode: 9) local_rank: 1 (pid: {pid}) of binary: python\n"
    end = (
        "Root Cause (first observed failure):\n[0]:\n  time : t\n  host : h\n  rank : 1 (local_rank: 1)\n"
        "  exitcode : 9 (pid: 8)\n  error_file: <N/A>\n"
    )
    text = f"{TRACEBACK}\n{said.format(pid=7)}{lost}stopping\n{said.format(pid=8)}{end}"
    found = read_root_cause(ProcessExit(0, 0, 1, 1, 0, stderr=text.encode()))
    assert found is not None and (found.rank, found.code, found.pid) == (1, 9, 8)
    assert found.stderr.split() == [b"stopping"]
    assert found.shared.decode().strip() == f"{lost}stopping"


def test_what_is_shown_obeys_nothing_and_has_no_secret() -> None:
    """Colors, links, keys that span lines, half a secret at the edge of what is kept."""
    # Colours, cursor movements, titles, links: neither obeyed nor noise.
    words = say(
        "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b[2K\x1b(B\x9b1mbold\x1b]unended"
    )
    assert presentable(words.lines) == ("red linkboldunended",)
    (shown,) = presentable(say("a\x00b\x07\u202ec\x85 \udcff tab\tend").lines)
    assert shown.isprintable()
    assert "\x1b" not in shown and "\u202e" not in shown
    # In tracebacks, messages and plain lines; a private key that spans lines.
    key = "-----BEGIN RSA PRIVATE" + " KEY-----\nAAAA\nBBBB\n-----END RSA PRIVATE" + " KEY-----"
    words = say(f"token={SECRET}\n{key}\n{TRACEBACK} {SECRET}")
    shown = "\n".join((*presentable(words.traceback), *presentable(words.lines)))
    assert SECRET not in shown and "AAAA" not in shown and "BBBB" not in shown
    assert shown.count("<redacted>") == 3
    # The end of a stream may begin in the middle of anything.
    tail = (SECRET[5:] + " x\n" + "y\n" * STDERR_BYTES).encode()[:STDERR_BYTES]
    assert set(read_last_output(tail, None).lines) == {"y"}
    assert read_last_output(b"a" * STDERR_BYTES, None).lines == ()
    assert read_last_output(b"a" * (STDERR_BYTES - 10) + b" the rest ", None).lines == ("the rest",)
    (line,) = presentable(["word " * (LINE_CHARS // 5 - 2) + SECRET + " more" * 9])
    assert SECRET[:10] not in line and line.endswith("characters)")


def test_too_much_is_shortened_in_the_middle() -> None:
    """The beginning tells where, the end tells what; a line says how many are gone."""
    lines = [str(number) for number in range(1000)]
    shown = presentable(lines)
    assert len(shown) == LINES_MAX
    assert (shown[0], shown[40], shown[-1]) == ("0", "... 881 lines left out ...", "999")
    assert shorten_lines(lines, 0) == [] and shorten_lines(lines, 1) == ["999"]
    assert presentable([]) == ()


def test_quoted_and_native_tracebacks_are_read() -> None:
    """faulthandler's stacks, a worker's quoted traceback, and frames of C++ that are counted."""
    # A crash in native code, with every thread, and what C++ has said before it.
    words = run(
        "import ctypes, os; os.write(2, b'terminate called\\n'); ctypes.string_at(0)", "-X", "faulthandler"
    )
    assert words.exception == "Fatal Python error: Segmentation fault"
    assert words.traceback[0] == words.exception
    assert any("string_at" in line for line in words.traceback)
    assert words.lines[0] == "terminate called"
    # DataLoader's and multiprocessing's quoted tracebacks are part of the one they stand in.
    loader = f"{TRACEBACK}: Caught KeyError in DataLoader worker process 0.\nOriginal {TRACEBACK}2\n"
    words = say(loader)
    assert words.exception == "ValueError: no2"
    assert len(words.traceback) == 6
    pool = f'multiprocessing.pool.RemoteTraceback: \n"""\n{TRACEBACK}1\n"""\n\n{CAUSE}\n\n{TRACEBACK}2'
    assert say(pool).messages[-1] == "ValueError: no2"
    assert "ValueError: no1" in say(pool).messages
    spawned = f"{TRACEBACK}: \n\n-- Process 1 terminated with the following error:\n{TRACEBACK}1"
    assert say(spawned).exception == "ValueError: no1"
    assert len(say(spawned).traceback) == 8
    # Thirty lines of addresses would push out the one that says what happened.
    words = say("what():  no\nframe #0: c10::Error + 0x96\nframe #1: clone + 0x43\n[rank0]: frame #2: x\nend")
    assert words.lines == ("what():  no", "(3 frames of a C++ stack left out)", "end")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe\x00", b"[1]", b"null"),
        b"[" * 100_000,
        *(b'{"message": 5}', b'{"message": {"message": 5, "extraInfo": 7}}', b'{"message": ["a"]}'),
        b"9" * 5000,
        b'{"message": ' + b"1" * (ERROR_FILE_BYTES - 20) + b"}",
    ],
    ids=range(11),
)
def test_a_broken_error_file_is_a_note(content: bytes, tmp_path: Path) -> None:
    """stderr is used instead, and the note says why."""
    words = read_last_output(TRACEBACK.encode(), record(tmp_path, content))
    assert words.exception == "ValueError: no"
    assert words.note.startswith("its error file is not what torch writes")


def test_the_error_file_is_read_in_both_shapes(tmp_path: Path) -> None:
    """A dict with the traceback in extraInfo, or a text; a surrogate is an escape."""
    # torch's shape: a dict with the traceback in extraInfo. It stands for the same one in stderr.
    content = {
        "message": {
            "message": "ValueError: no\nand why",
            "extraInfo": {"py_callstack": TRACEBACK + "\n", "timestamp": "1"},
            "errorCode": 1,
        }
    }
    words = read_last_output(b"before\n" + TRACEBACK.encode(), record(tmp_path, content))
    assert words.traceback == tuple(TRACEBACK.split("\n"))
    assert (words.source, words.exception, words.lines) == ("error file", "ValueError: no", ("before",))
    other = read_last_output(f"{TRACEBACK} other".encode(), record(tmp_path, content))
    assert other.lines[-1] == "ValueError: no other"
    # The other shape: a text. The traceback is that of stderr then, if there is one.
    path = record(tmp_path, {"message": "it broke", "timestamp": 1})
    assert read_last_output(b"x", path) == LastOutput(
        (), "error file", "it broke", ("it broke",), ("x",), was_ending=True
    )
    both = read_last_output(TRACEBACK.encode(), path)
    assert both.exception == "it broke" and both.traceback == tuple(TRACEBACK.split("\n"))
    whole = read_last_output(b"", record(tmp_path, {"message": TRACEBACK}))
    assert whole.exception == "ValueError: no" and whole.source == "error file"
    bare = {"message": {"message": "E: no", "extraInfo": {}}}
    assert read_last_output(b"", record(tmp_path, bare)).exception == "E: no"
    stack = {"message": {"extraInfo": {"py_callstack": TRACEBACK}}}
    assert read_last_output(b"", record(tmp_path, stack)).exception == "ValueError: no"
    # JSON can hold what no file can: it must not reach one.
    words = read_last_output(b"", record(tmp_path, b'{"message": "half \\ud800 \\u001b[31m pair"}'))
    assert presentable([words.exception]) == ("half \\ud800  pair",)


def test_an_error_file_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe, a folder, an endless device, or 1 GiB: at once, with a note."""
    # A pipe, a folder, a device that never ends, a path that cannot be: at once, with a note.
    os.mkfifo(tmp_path / "pipe")
    begin = time.monotonic()
    for path in (str(tmp_path / "pipe"), str(tmp_path), "/dev/zero", "a\0b", str(tmp_path / ("x" * 300))):
        words = read_last_output(b"x", path)
        assert words.note.startswith("its error file cannot be read: "), path
        assert words.lines == ("x",)
    assert time.monotonic() - begin < 5
    assert read_last_output(b"x", str(tmp_path / "none")).note == ""
    # 1 GiB of it (sparse) costs neither memory nor time.
    with open(tmp_path / "error.json", "wb") as file:
        file.truncate(1 << 30)
    words = read_last_output(b"", str(tmp_path / "error.json"))
    assert words.note == "its error file cannot be read: it is larger than 1 MiB"


@deterministic(300)
@given(stderr=st.binary(max_size=2000), content=st.binary(max_size=500))
def test_anything_can_be_read_and_shown(
    stderr: bytes, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever a process writes, what is shown is printable, and nothing raises."""
    words = read_last_output(stderr, record(tmp_path_factory.mktemp("any"), content))
    for line in (*presentable(words.traceback), *presentable(words.lines), *presentable([words.exception])):
        assert line.isprintable()


PIECES = st.sampled_from(
    [
        *(
            *("Traceback (most recent call last):", FRAME, "    code", "ValueError: no", "", CAUSE, '"""'),
            "  | x",
        ),
        *(
            "  + Exception Group Traceback (most recent call last):",
            "    | Traceback (most recent call last):",
        ),
        *(
            "Original Traceback (most recent call last):",
            "Exception ignored in: x",
            "[rank0]: y",
            "-- Process 1",
        ),
        *(
            *("Fatal Python error: Aborted", "Current thread 0x1 (most recent call first):", "frame #1: x"),
            *("\r", "\x1b["),
        ),
    ]
)


@deterministic(500)
@given(st.lists(PIECES, max_size=30))
def test_any_order_of_the_pieces_of_tracebacks(lines: list[str]) -> None:
    """Each line is in the traceback or among the others, and none is lost but frames and empty ones."""
    words = say("\n".join(lines))
    kept = len([line for line in words.traceback if line.strip()]) + len(words.lines)
    dropped = sum(not line.strip() or line.startswith("frame") or line == "\x1b[" for line in lines)
    assert kept >= len(lines) - dropped


def test_reading_stays_quick_on_hostile_streams() -> None:
    """No pattern takes more than linear time: 32 KiB of what it must look at, in well under a second."""
    begin = time.monotonic()
    header = "Traceback (most recent call last):\n"
    for text in (
        "\x1b]" * 16000,
        "\x1b[" * 16000,
        header * 900,
        "  | " + header * 900,
        "\r" * 32000,
        CAUSE + "\n",
    ):
        words = read_last_output((text * (32000 // len(text))).encode(), None)
        presentable(words.lines)
        presentable(words.traceback)
    assert time.monotonic() - begin < 10


LIBRARY = '  File "/opt/env/lib/python3.11/site-packages/torch/nn/functional.py", line 5, in linear\n    x()'
STANDARD = '  File "/usr/lib/python3.11/json/decoder.py", line 6, in decode\n    x()'
STEP = '  File "/job/train.py", line 67, in step\n    x()'
MAIN = '  File "/job/train.py", line 90, in <module>\n    step()'
DATA = '  File "/job/data/images.py", line 12, in __getitem__\n    x()'
HEAD = "Traceback (most recent call last):"
FRAMES = {
    "script": (f"{HEAD}\n{MAIN}\n{STEP}\nValueError: no", "train.py:67 in step"),
    "module": (f"{HEAD}\n{MAIN}\nValueError: no", "train.py:90"),
    "library": (f"{HEAD}\n{MAIN}\n{STEP}\n{LIBRARY}\nValueError: no", "train.py:67 in step"),
    "standard library": (f"{HEAD}\n{MAIN}\n{STEP}\n{STANDARD}\nValueError: no", "train.py:67 in step"),
    "frozen": (
        f'{HEAD}\n{MAIN}\n{STEP}\n  File "<frozen importlib._bootstrap>", line 1, in load\nValueError: no',
        "train.py:67 in step",
    ),
    "string": (f"{TRACEBACK}", ""),
    "only libraries": (f"{HEAD}\n{LIBRARY}\nValueError: no", ""),
    "another file": (f"{HEAD}\n{MAIN}\n{DATA}\nKeyError: 3", "data/images.py:12 in __getitem__"),
    "worker": (
        f"{HEAD}\n{MAIN}\n{LIBRARY}\nKeyError: Caught KeyError in DataLoader worker process 0.\n"
        f"Original {HEAD}\n{LIBRARY}\n{DATA}\nKeyError: 3",
        "data/images.py:12 in __getitem__",
    ),
    "chained": (f"{HEAD}\n{DATA}\nKeyError: 3\n\n{CAUSE}\n\n{HEAD}\n{STEP}\nValueError: no", "train.py:67 in step"),
    "group": (
        f"  + Exception Group {HEAD}\n  | {MAIN}\n  | ExceptionGroup: all (1 sub-exception)\n  +-+---- 1 ----\n"
        f"    | {HEAD}\n    | {STEP}\n    | ValueError: no\n    +------------------------------------",
        "train.py:67 in step",
    ),
    "syntax": (f'{HEAD}\n{MAIN}\n  File "/job/net.py", line 3\n    x = (\n        ^\nSyntaxError: no', "net.py:3"),
    "rank prefix": (
        "\n".join(f"[rank1]: {line}" for line in f"{HEAD}\n{MAIN}\n{STEP}\nValueError: no".split("\n")),
        "train.py:67 in step",
    ),
    "abort in C++": (
        'Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n  File "/job/other.py", line 1 in wait\n\n'
        'Thread 0x2 (most recent call first):\n  File "/job/train.py", line 67 in step',
        "train.py:67 in step",
    ),
    "fatal signal": (
        'Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File "/job/other.py", line 1 '
        'in wait\n\nCurrent thread 0x2 (most recent call first):\n  File "/usr/lib/python3.11/ctypes/__init__.py", '
        'line 2 in at\n  File "/job/train.py", line 67 in step\n  File "/job/train.py", line 90 in <module>',
        "train.py:67 in step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_the_innermost_line_of_the_users_code_is_found(name: str) -> None:
    """Not one of a package, of Python itself, or of no file."""
    text, frame = FRAMES[name]
    assert find_user_frame(say(text).traceback) == frame


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        (f"epoch 1\n{TRACEBACK}\n", "ValueError: no"),
        (f"{TRACEBACK}\n\n[rank0] epoch 2\n", ""),
        (f"Exception ignored in: <function f>\n{TRACEBACK}\n", ""),
        (f"Exception in thread Thread-1:\n{TRACEBACK}\n", ""),
        (f"{TRACEBACK}\n\n{CAUSE}\n\n{TRACEBACK.replace('no', 'yes')}\n", "ValueError: yes"),
        ("ValueError: no\n", ""),
        ("", ""),
    ],
)
def test_an_exception_that_ends_an_output_was_not_caught(text: str, raised: str) -> None:
    """One that is followed by something was caught, or is another's."""
    assert read_uncaught(text.encode()) == raised


def test_a_long_error_file_is_searched_for_secrets_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict reads it several times: 1 MB of command lines kept a launcher from its signals for 14 s."""
    searched = list[int]()
    monkeypatch.setattr(secrets, "find_secrets", lambda text: searched.append(len(text)))
    path = tmp_path / "error.json"
    long = "x " * (1 << 17)
    path.write_text(json.dumps({"message": {"message": long, "extraInfo": {"py_callstack": f"{long}y"}}}))
    for _ in range(3):
        assert read_last_output(b"", str(path)).exception.startswith("x x")
    assert sum(searched) < 3 * TEXT_CHARS
