"""At a terminal: what is typed, Ctrl-C, Ctrl-Z and fg under a real shell, the status line, colours."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from launcher.agent.signals import reads_keys
from tests.process.looking import pending, read_pid, wait_for
from tests.process.starting import clean_environ

DEADLINE_S = 20.0
LAUNCHER = (sys.executable, "-m", "launcher")


class Terminal:
    """A program at a terminal of its own, and what stands on the screen (all of it, as bytes came)."""

    def __init__(self, argv: Sequence[str], **variables: str) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], list(argv), clean_environ(TERM="xterm-256color", PS1="$ ", **variables))

    def type(self, text: str) -> None:
        """Type something; no line end is added."""
        os.write(self.fd, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until a pattern is on the screen; return what matched and forget all before its end."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}") from None
        self.seen = self.seen[found.end() :]
        return found[0]

    def end(self) -> int:
        """Read to the end and return the status."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"does not end: {self.seen!r}"
            try:
                data = os.read(self.fd, 4096)
            except OSError:
                break
            if not data:
                break
            self.seen += data.decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def opened() -> Iterator[list[Terminal]]:
    """Terminals that a test has opened; closed afterwards, which hangs their programs up."""
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        os.close(terminal.fd)


def at_terminal(opened: list[Terminal], *words: str, **variables: str) -> Terminal:
    """Run ``launcher WORDS`` at a terminal."""
    terminal = Terminal([*LAUNCHER, *words], **variables)
    opened.append(terminal)
    return terminal


ASK = "import os; print('tty', os.isatty(0), os.isatty(1), os.isatty(2)); print('hello ' + input('who? '))"


def test_a_single_process_has_the_terminal(opened: list[Terminal]) -> None:
    """It reads what is typed, and its three streams are the terminal."""
    terminal = at_terminal(opened, "run", "--", sys.executable, "-c", ASK)
    terminal.wait_for("tty True True True")
    terminal.wait_for(r"who\? ")
    terminal.type("world\r")
    terminal.wait_for("hello world")
    assert terminal.end() == 0


def test_a_shell_in_a_container_works(opened: list[Terminal]) -> None:
    """launcher run -- bash: an interactive shell with job control, as with podman run -it."""
    terminal = at_terminal(opened, "run", "--", "bash", "--norc", "-i")
    terminal.type("echo $((6 * 7))\r")
    terminal.wait_for(r"[\r\n]42\r")
    terminal.type("sleep 100\r")
    terminal.wait_for("sleep 100")
    wait_for(lambda: foreground(terminal) == "sleep", "sleep is in the foreground")
    terminal.type("\x03")
    terminal.wait_for(r"\^C[^$]*\$ ")
    terminal.type("echo interrupted $?\r")
    terminal.wait_for(r"[\r\n]interrupted 130")
    terminal.type("exit 7\r")
    assert terminal.end() == 7


def foreground(terminal: Terminal) -> str:
    """Return the name of the program that has the terminal."""
    return Path(f"/proc/{os.tcgetpgrp(terminal.fd)}/comm").read_text().strip()


COUNT = """
import signal, sys, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, note)
print('ready', flush=True)
while not count:
    time.sleep(0.02)
time.sleep(0.3)  # long enough for a second copy to arrive
print('told', count, flush=True)
"""


@pytest.mark.rows(2)
@pytest.mark.parametrize("count", ["1", "2"])
def test_ctrl_c_arrives_once(opened: list[Terminal], count: str) -> None:
    """One Ctrl-C is one SIGINT in each process, whether the terminal or the launcher delivers it."""
    terminal = at_terminal(opened, "run", "--nproc-per-node", count, "--", sys.executable, "-c", COUNT)
    for _ in range(int(count)):
        terminal.wait_for("ready")
    terminal.type("\x03")
    for _ in range(int(count)):
        terminal.wait_for("told 1")
    assert terminal.end() == 0


SAVES = """
import os, signal
def save(*_):
    os.write(1, b'saved\\n')
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
while True:
    signal.pause()
"""


@pytest.mark.rows(2)
@pytest.mark.parametrize("flags", [(), ("--preload", "json")], ids=["started", "forked"])
@pytest.mark.parametrize("count", ["1", "2"])
def test_a_typed_signal_arrives_as_what_it_is_mapped_to(
    opened: list[Terminal], count: str, flags: tuple[str, ...]
) -> None:
    """The rank that reads the terminal gets the signal from there, too, and it must not end that rank."""
    words = ("--signal-map", "INT=TERM", *flags, "--", sys.executable, "-c", SAVES)
    terminal = at_terminal(opened, "run", "--nproc-per-node", count, *words)
    for _ in range(int(count)):
        terminal.wait_for("ready")
    terminal.type("\x03")
    for _ in range(int(count)):
        terminal.wait_for("saved")
    assert terminal.end() in (0, 128 + signal.SIGINT)


STUBBORN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_second_ctrl_c_ends_it_now(opened: list[Terminal], count: str) -> None:
    """Who does not want to wait for the grace types it again."""
    words = ("run", "--nproc-per-node", count, "--grace", "60", "--", sys.executable, "-c", STUBBORN)
    terminal = at_terminal(opened, *words)
    for _ in range(int(count)):
        terminal.wait_for("ready")
    terminal.type("\x03")
    terminal.wait_for(r"\^C")
    wait_for(lambda: not pending(terminal.pid), "the launcher has taken the first one")
    terminal.type("\x03")
    assert terminal.end() == 137


def test_ctrl_c_does_not_end_an_interactive_program(opened: list[Terminal]) -> None:
    """A Python prompt survives Ctrl-C, in the middle of work and while it waits for input."""
    command = (sys.executable, "-q", "-i", "-c", "print('ready')")
    terminal = at_terminal(opened, "run", "--grace", "0.5", "--", *command, PYTHON_BASIC_REPL="1")
    terminal.wait_for("ready")
    terminal.wait_for(">>> ")
    # Not time.sleep(): Python would sleep on if the signal came between its last look and the system call.
    terminal.type("import time; exec(\"print('busy')\\nwhile True: pass\")\r")
    terminal.wait_for("[\r\n]busy")
    terminal.type("\x03")
    terminal.wait_for("KeyboardInterrupt")
    terminal.wait_for(">>> ")
    wait_for(lambda: reads_keys(terminal.fd), "the prompt reads each key")
    time.sleep(0.3)  # as quick as a person is
    terminal.type("\x03")
    time.sleep(0.3)
    terminal.type("time.sleep(1); print('ali' + 've')\r")
    terminal.wait_for("alive")
    terminal.type("exit(3)\r")
    assert terminal.end() == 3


@pytest.mark.parametrize("count", ["1", "2"])
def test_ctrl_z_and_fg_work_under_a_shell(opened: list[Terminal], count: str) -> None:
    """The shell sees the job stop and gets the terminal back; fg continues all processes."""
    terminal = Terminal(["/bin/bash", "--norc", "-i"], HISTFILE="")
    opened.append(terminal)
    # A bash whose child was not hit by SIGINT goes on without a trap
    script = "trap exit INT; for i in $(seq 1000); do echo tick $i; sleep 0.05; done"
    terminal.type(f"{' '.join(LAUNCHER)} run --nproc-per-node {count} -- bash -c '{script}'\r")
    terminal.wait_for("tick 3")
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    terminal.type("echo still; ps -o stat= -C sleep,bash | grep -c T\r")
    terminal.wait_for(r"[\r\n]still\r\n")
    assert int(terminal.wait_for(r"\d+\r\n")) >= int(count)
    terminal.seen = ""
    terminal.type("fg\r")
    terminal.wait_for(r"tick \d+")
    terminal.type("\x03")
    terminal.wait_for(r"\$ ")
    terminal.type("exit\r")
    terminal.end()


def test_colours_are_for_terminals_that_want_them(opened: list[Terminal]) -> None:
    """Each rank has its colour at a terminal, and none with NO_COLOR or TERM=dumb."""
    words = ("run", "--nproc-per-node", "2", "--", "echo", "hello")
    terminal = at_terminal(opened, *words)
    assert terminal.end() == 0
    first, second = (
        re.search(rf"\x1b\[([0-9;]+)m\[rank {rank}\]\x1b\[0m hello", terminal.seen) for rank in (0, 1)
    )
    assert first and second and first[1] != second[1], repr(terminal.seen)
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        terminal = Terminal(["/usr/bin/env", *(f"{k}={v}" for k, v in variables.items()), *LAUNCHER, *words])
        opened.append(terminal)
        assert terminal.end() == 0
        assert "\x1b" not in terminal.seen and "[rank 1] hello" in terminal.seen
    # As mpirun has it: a terminal for standard output, a pipe for the rest, and all of it ends in a file
    terminal = Terminal(["/bin/sh", "-c", '"$@" 2>/dev/null', "sh", *LAUNCHER, *words])
    opened.append(terminal)
    assert terminal.end() == 0
    assert "\x1b" not in terminal.seen and "[rank 1] hello" in terminal.seen


def test_the_status_line_comes_and_goes(opened: list[Terminal]) -> None:
    """After a second one line says what goes on; it is gone before every line of output and at the end."""
    script = "sleep 2.5; echo output; sleep 1.5; echo over"
    terminal = at_terminal(opened, "run", "--nproc-per-node", "2", "--", "sh", "-c", script)
    terminal.wait_for("2 up")
    terminal.wait_for("output")
    terminal.wait_for("2 up")
    assert terminal.end() == 0
    assert terminal.seen.endswith("\r\x1b[K"), repr(terminal.seen)


def test_no_status_line_where_it_is_not_wanted(opened: list[Terminal]) -> None:
    """--no-progress, and a single process that has the terminal for itself."""
    for words in (("--nproc-per-node", "2", "--no-progress"), ()):
        terminal = at_terminal(opened, "run", *words, "--", "sh", "-c", "sleep 1.6; echo over")
        assert terminal.end() == 0
        assert " up " not in terminal.seen, repr(terminal.seen)


@pytest.mark.parametrize("count", [1, 2])
def test_a_hangup_reaches_the_processes(opened: list[Terminal], count: int) -> None:
    """The window is closed: everybody hears SIGHUP and ends; the kernel tells the session's leader alone."""
    words = ("--nproc-per-node", str(count), "--", "sh", "-c", "echo ready; exec sleep 600")
    terminal = at_terminal(opened, "run", *words)
    for _ in range(count):
        terminal.wait_for("ready")
    opened.remove(terminal)
    os.close(terminal.fd)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        if pid:
            break
        assert time.monotonic() < deadline, "does not end"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP


def test_a_single_process_at_a_terminal_fails_in_its_own_words(
    opened: list[Terminal], tmp_path: Path
) -> None:
    """Its traceback is on the screen already: no verdict below it, but a record where one was asked for."""
    record = tmp_path / "failure.json"
    command = (sys.executable, "-c", "raise ValueError('boom')")
    terminal = at_terminal(opened, "run", "--failure-file", str(record), "--", *command)
    assert terminal.end() == 1
    assert "ValueError: boom" in terminal.seen and "cause:" not in terminal.seen
    assert '"exit_status": 1' in record.read_text()


def test_ctrl_c_while_a_restart_waits_ends_the_job(opened: list[Terminal]) -> None:
    """No process is there that has received it too."""
    flags = ("--restarts", "9", "--restart-delay", "60")
    opened.append(one := Terminal((*LAUNCHER, "run", *flags, "--", "sh", "-c", "exit 9")))
    one.wait_for("restart 2 of 9 in")
    one.type("\x03")
    assert one.end() == 9
    assert "no restart: the launcher received a signal to stop" in one.seen


def test_what_fails_after_ctrl_c_is_not_restarted(opened: list[Terminal]) -> None:
    """It saves a checkpoint for longer than the ten seconds in which an exit is the effect of a Ctrl-C."""
    script = (
        "import os, signal, sys, time\n"
        "def save(*_): os.write(1, b'saving'); time.sleep(11); sys.exit(1)\n"
        "signal.signal(signal.SIGINT, save); os.write(1, b'up'); time.sleep(60)\n"
    )
    line = (*LAUNCHER, "run", "--restarts", "9", "--", sys.executable, "-c", script)
    opened.append(one := Terminal(line))
    one.wait_for("up")
    one.type("\x03")
    one.wait_for("saving")
    assert one.end() == 1
    assert "up" not in one.seen


ONE_ASKS = """
import getpass, os, sys, time
rank, reader = os.environ["RANK"], sys.argv[1]
if rank == reader:
    exec(sys.argv[2])
    open(sys.argv[3], "w").close()
else:
    while not os.path.exists(sys.argv[3]):
        print("other goes on", flush=True)
        time.sleep(0.05)
"""


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("asks", "prompt", "typed", "shows"),
    [
        ("breakpoint()\nprint('after')", r"\(Pdb\) ", "continue\r", "after"),
        ("print('hello ' + input('who? '))", r"who\? ", "world\r", "hello world"),
        ("print('got', len(getpass.getpass('secret: ')))", "secret: ", "12345\r", "got 5"),
        ("print('line', open('/dev/tty').readline())", "other goes on", "abc\r", "line abc"),
        ("os.system('read -r word; echo said $word')", "other goes on", "abc\r", "said abc"),
    ],
)
def test_one_rank_of_several_has_the_terminal(
    opened: list[Terminal], tmp_path: Path, asks: str, prompt: str, typed: str, shows: str
) -> None:
    """A debugger, input(), getpass(), /dev/tty and a program that it starts; the others go on meanwhile."""
    words = (sys.executable, "-c", ONE_ASKS, "0", asks, str(tmp_path / "done"))
    terminal = at_terminal(opened, "run", "--nproc-per-node", "2", "--", *words)
    terminal.wait_for(prompt)
    terminal.wait_for("other goes on")
    terminal.type(typed)
    terminal.wait_for(shows)
    assert terminal.end() == 0


def test_the_status_line_leaves_what_is_typed(opened: list[Terminal], tmp_path: Path) -> None:
    """It is drawn again every second, and would erase an answer that is being typed."""
    words = (sys.executable, "-c", ONE_ASKS, "0", "input('who? ')", str(tmp_path / "done"))
    terminal = at_terminal(opened, "run", "--nproc-per-node", "2", "--", *words)
    terminal.wait_for(r"who\? ")
    assert not any(" up " in terminal.wait_for("(?s)^.*?other goes on") for _ in range(40))
    terminal.type("me\r")
    assert terminal.end() == 0


def test_stdin_gives_the_terminal_to_another_rank(opened: list[Terminal], tmp_path: Path) -> None:
    words = (sys.executable, "-c", ONE_ASKS, "1", "print('hi ' + input())", str(tmp_path / "done"))
    terminal = at_terminal(opened, "run", "--nproc-per-node", "2", "--stdin", "1", "--", *words)
    terminal.wait_for("other goes on")
    terminal.type("you\r")
    terminal.wait_for("hi you")
    assert terminal.end() == 0


@pytest.mark.rows(3)
@pytest.mark.parametrize(
    ("asks", "name"),
    [
        ("open('/dev/tty').readline()", "SIGTTIN"),
        ("getpass.getpass()", "SIGTTOU"),
        ("os.system('cat /dev/tty')", "SIGTTIN"),
    ],
)
def test_a_rank_that_the_terminal_stops_is_named(
    opened: list[Terminal], tmp_path: Path, asks: str, name: str
) -> None:
    """It would wait for ever without a word."""
    words = (sys.executable, "-c", ONE_ASKS, "1", asks, str(tmp_path / "done"))
    terminal = at_terminal(opened, "run", "--nproc-per-node", "2", "--grace", "5", "--", *words)
    terminal.wait_for(rf"rank 1 \(pid \d+\) is stopped: .*{name}.*fix: .*--stdin 1")
    terminal.type("\x03")
    assert terminal.end() in (1, 130)  # what it makes of the signal


def test_a_job_in_the_background_that_asks_is_named_and_goes_on_with_fg(opened: list[Terminal]) -> None:
    terminal = Terminal(["/bin/bash", "--norc", "-i"], HISTFILE="")
    opened.append(terminal)
    script = 'if [ $RANK = 0 ]; then read -r word; echo "said $word"; else sleep 0.1; fi'
    terminal.type(f"{' '.join(LAUNCHER)} run --nproc-per-node 2 -- bash -c '{script}' &\r")
    terminal.wait_for(r"rank 0 \(pid \d+\) is stopped: .*SIGTTIN.*fix: .*fg")
    terminal.type("fg\r")
    terminal.wait_for(r"fg\r\n")
    wait_for(lambda: foreground(terminal) != "bash", "the job is in the foreground")
    terminal.type("abc\r")
    terminal.wait_for("said abc")
    terminal.type("exit\r")
    terminal.end()


def test_the_terminal_is_as_before_after_a_rank_that_died_in_a_prompt(
    opened: list[Terminal], tmp_path: Path
) -> None:
    """getpass() switches the echo off."""
    terminal = Terminal(["/bin/sh"])
    opened.append(terminal)
    asks = "open(sys.argv[3] + '.pid', 'w').write(f'{os.getpid()}\\n'); getpass.getpass('secret: ')"
    (tmp_path / "asks.py").write_text(ONE_ASKS)
    line = f'{tmp_path}/asks.py 0 "{asks}" {tmp_path}/done; stty -a'
    terminal.type(f"{' '.join(LAUNCHER)} run --nproc-per-node 2 -- {sys.executable} {line}\r")
    pid = read_pid(tmp_path / "done.pid")
    wait_for(lambda: not echoes(terminal), "the echo is off")
    os.kill(pid, signal.SIGKILL)
    terminal.wait_for("[ ;]echo[ \r]")
    assert echoes(terminal)


def echoes(terminal: Terminal) -> bool:
    """Whether the terminal shows what is typed."""
    return bool(termios.tcgetattr(terminal.fd)[3] & termios.ECHO)
