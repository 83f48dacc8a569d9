"""``launcher tf-server``: what it cannot do it says in a line; what comes from outside is not shown raw."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from launcher.servers import tf_server

NOBODY = "127.0.0.1:1"
TASK = '{"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}}'


def run(*words: str, config: str | None = None) -> tuple[int, str]:
    """Return status and standard error of the server, run as a job runs it."""
    environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    environ |= {} if config is None else {"TF_CONFIG": config}
    line = [
        sys.executable,
        "-S",
        tf_server.__file__,
        *words,
    ]  # without site-packages: TensorFlow is never imported
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environ, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        *(("--until", "garbage"), ("--until", "a:b"), ("--until", f"{NOBODY},"), ("--until", ":2222")),
        *(("--until", "a:99999"), ("--while", "a:0"), ("--wait", "nan"), ("--wait", "-1")),
        ("--bogus\x1b[31m",),
    ],
)
def test_words_that_make_no_sense_are_refused(words: tuple[str, ...]) -> None:
    """Status 64, like every wrong command line, and no traceback."""
    status, said = run(*words)
    assert status == 64, said
    assert "launcher: tf-server: " in said and "Traceback" not in said and "\x1b" not in said


@pytest.mark.parametrize(("command", "expected"), [("/nonexistent/train", 127), (os.sep, 126)])
def test_a_command_that_is_none_is_named(command: str, expected: int) -> None:
    """With the status that a shell gives."""
    status, said = run("--until", NOBODY, "--", command)
    assert (status, "Traceback" in said) == (expected, False), said
    assert command in said


@pytest.mark.parametrize(
    "config", ["[]", "{", '{"task": ["type"]}', '{"task": {"type": "\\u001b[31m"}}', "[" * 9999]
)
def test_nobody_came_is_said_whatever_the_task_is_called(config: str) -> None:
    """A TF_CONFIG that is none does not hide the reason."""
    status, said = run("--until", NOBODY, "--wait", "0", "--", "sleep", "30", config=config)
    assert status == 75
    assert f"nothing has listened at {NOBODY}" in said and "Traceback" not in said and "\x1b" not in said


def test_a_name_that_cannot_be_one_is_not_there() -> None:
    """Python refuses to look up a label longer than 63 as Unicode: nobody listens there."""
    status, said = run("--until", "ü..x:1", "--wait", "0", "--", "sleep", "30")
    assert status == 75 and "Traceback" not in said, said


def test_a_resolver_that_fails_later_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task still listens at the address where its name was reached."""
    look_up = socket.getaddrinfo

    def fail(host: str, *words: Any, **more: Any) -> Any:
        if host == "localhost":
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up(host, *words, **more)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert tf_server.knock("localhost", port) == tf_server.OPEN
        monkeypatch.setattr(socket, "getaddrinfo", fail)
        assert tf_server.knock("localhost", port) == tf_server.OPEN
    assert tf_server.knock("localhost", port) == tf_server.REFUSED


@pytest.mark.parametrize("config", [None, "", "{", "[]", TASK.replace("0}", "1}"), TASK.replace("0}", "-1}")])
def test_a_server_without_a_task_is_told_so(config: str | None) -> None:
    """Before TensorFlow is imported, whose message would be a traceback."""
    status, said = run(config=config)
    assert status == 78 and "TF_CONFIG" in said and "Traceback" not in said, said


def test_a_python_without_tensorflow_is_named() -> None:
    """And what to do."""
    status, said = run(config=TASK)
    assert status == 69 and sys.executable in said and "Traceback" not in said, said


def test_the_command_gets_every_signal_that_may_be_for_it() -> None:
    """A parameter server that is the user's script saves at SIGUSR1, whatever stands in front of it."""
    script = "trap 'exit 7' USR1; kill -USR1 $PPID; for _ in $(seq 200); do sleep 0.02; done"
    status, said = run("--until", NOBODY, "--", "sh", "-c", script)
    assert status == 7, said
