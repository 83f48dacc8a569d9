"""--preload: ranks that are forks of one process must be what ranks of their own start would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.agent.template import FORK_LIMIT_S, Unusable, read_pids
from launcher.process.signal_file import send
from tests.process.looking import is_gone, read_pid, wait_for
from tests.process.starting import DEADLINE_S, launch, open_launcher
from tests.pythons import need_python

FACTS = """
import faulthandler, json, os, resource, signal, subprocess, sys, threading
import {module}

MAIN = ("__name__", "__package__", "__doc__", "__cached__", "__file__")
STATUS = ("SigBlk", "SigIgn", "SigCgt", "Threads", "Umask", "Cpus_allowed_list")
def read(path):
    with open(path) as file:
        return file.read()
def look():
    status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
    main = sys.modules["__main__"]
    out, fds = sys.stdout, os.listdir("/proc/self/fd")
    limits = [name for name in dir(resource) if name.startswith("RLIMIT")]
    return {{
        "argv": sys.argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
        "orig_argv": getattr(sys, "orig_argv", None), "options": [sys.warnoptions, str(sys._xoptions)],
        "main": {{name: str(getattr(main, name, None)) for name in MAIN}},
        "spec": main.__spec__ and [main.__spec__.name, main.__spec__.origin],
        "loader": main.__loader__ and type(main.__loader__).__name__,
        "names": sorted(vars(main)), "frame": str(sys._getframe(1).f_back).partition(",")[2],
        "command": read("/proc/self/cmdline"), "name": read("/proc/self/comm"),
        "status": {{name: status[name] for name in STATUS}},
        "leads": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getsid(os.getppid()),
        "parent": read(f"/proc/{{os.getppid()}}/cmdline").split("\\0")[1:3],
        "environ": {{name: value for name, value in os.environ.items() if name not in {of_run!r}}},
        "same": os.environ == {{os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()}},
        "child": subprocess.run(["env"], capture_output=True, text=True).stdout.count("RANK="),
        "cwd": os.getcwd(), "faulthandler": faulthandler.is_enabled(),
        "fds": sorted(int(fd) for fd in fds if os.path.exists("/proc/self/fd/" + fd)),
        "kinds": [os.readlink(f"/proc/self/fd/{{fd}}").partition(":")[0] for fd in range(3)],
        "out": [out.line_buffering, out.write_through, sys.stderr.line_buffering, out.encoding],
        "nice": os.nice(0), "limits": [resource.getrlimit(getattr(resource, name)) for name in limits],
        "threads": [thread.name for thread in threading.enumerate()],
        "main_thread": threading.main_thread().native_id == os.getpid(),
        "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()],
        "hooks": [str(sys.excepthook), str(sys.displayhook)],
    }}
with open(os.environ["FACTS"] + "/" + os.environ["RANK"], "w") as file:
    file.write(json.dumps(look()))
"""
OF_RUN = (
    *("LAUNCHER_RUN_ID", "LAUNCHER_STACKS_FILE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "FACTS"),
    *("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS"),
)
"""Variables that are others in each run."""
MODULE = "decimal"
TWO = ("run", "--nproc-per-node", "2")
PRELOADED = (*TWO, "--preload", MODULE)
USED = " imported once, "
NOT_USED = "preload skipped: "


def run(tmp_path: Path, text: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script with two ranks."""
    script = tmp_path / "train.py"
    script.write_text(text)
    return launch(*(words or PRELOADED), str(script), environ=environ)


# --- a fork is what a new process is


def ways(tmp_path: Path) -> dict[str, tuple[str, ...]]:
    """Return ways to run the same text: name to command line."""
    python = sys.executable
    text = FACTS.format(module=MODULE, of_run=OF_RUN)
    script = tmp_path / "train.py"
    script.write_text(text)
    for name in ("folder", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(text)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text(text)
    subprocess.run(
        [python, "-m", "zipfile", "-c", str(tmp_path / "job.zip"), str(tmp_path / "folder" / "__main__.py")],
        check=True,
    )
    return {
        "script": (python, str(script), "--lr", "0.1", "ä b"),
        "relative": (python, "train.py"),
        "flags": (python, "-u", "-O", "-X", "dev", "-W", "ignore::UserWarning", "-B", str(script)),
        "module": (python, "-m", "package.train", "x"),
        "package": (python, "-m", "package"),
        "code": (python, "-c", text, "x"),
        "folder": (python, str(tmp_path / "folder")),
        "zip": (python, str(tmp_path / "job.zip")),
        "py": (str(script), "x"),
    }


@pytest.mark.parametrize(
    "way", ["script", "relative", "flags", "module", "package", "code", "folder", "zip", "py"]
)
def test_a_process_sees_what_it_sees_without(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a process can ask: arguments, paths, flags, signals, descriptors, groups, variables."""
    command = ways(tmp_path)[way]
    monkeypatch.chdir(tmp_path)
    found = []
    for flags in ((), ("--preload", MODULE)):
        folder = tmp_path / f"facts{len(flags)}"
        folder.mkdir()
        done = launch(*TWO, *flags, *command, environ={"FACTS": str(folder)})
        assert done.returncode == 0, done.stderr
        assert (USED in done.stderr) == bool(flags), done.stderr
        found.append([json.loads((folder / str(rank)).read_text()) for rank in (0, 1)])
    for plain, forked in zip(*found, strict=True):
        assert flatten(forked) == flatten(plain)


def flatten(told: dict[str, object]) -> dict[str, object]:
    """Return facts with those inside of them beside each other, so that a difference is short."""
    inner = {
        f"{name}.{key}": one
        for name, value in told.items()
        if isinstance(value, dict)
        for key, one in value.items()
    }
    return {**{name: value for name, value in told.items() if not isinstance(value, dict)}, **inner}


def test_all_statuses_are_passed_on(tmp_path: Path) -> None:
    """0 to 255, as its parent sees them: a process for each."""
    text = (
        "import os, signal, sys\nsignal.signal(15, lambda *_: sys.exit(int(os.environ['RANK'])))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()\n"
    )
    record = tmp_path / "failure.json"
    script = tmp_path / "train.py"
    script.write_text(text)
    flags = ("--preload", MODULE, "--failure-file", str(record))
    running = open_launcher("run", "--nproc-per-node", "256", *flags, str(script))
    assert running.stdout is not None
    for _ in range(256):
        assert running.stdout.readline().endswith("ready\n")
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=DEADLINE_S)
    assert USED in err
    told = json.loads(record.read_text())
    codes = {end["rank"]: end["exit_status"] for end in (told, *told["others"])}
    assert codes == {rank: rank for rank in range(256)} or codes == {rank: rank for rank in range(1, 256)}


ENDINGS = {
    "exception": "raise ValueError('no')",
    "exit-text": "sys.exit('a text')",
    "exit-none": "sys.exit()",
    "interrupt": "raise KeyboardInterrupt",
    "syntax": "eval('1 +')",
    "abort": "os.abort()",
    "segv": "os.kill(os.getpid(), 11)",
    "term": "os.kill(os.getpid(), 15)",
    "hook": "sys.excepthook = lambda *told: print('hooked', told[0].__name__, file=sys.stderr); 1 / 0",
    "thread": "import threading; threading.Timer(0.1, print, ('late',), {'flush': True}).start()",
    "daemon": "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "atexit": "import atexit; atexit.register(print, 'at exit')",
    "finalizer": "import weakref; weakref.finalize(os, print, 'finalized')",
    "unflushed": "print('no newline', end='')",
    "inner": "exec(compile('def f():\\n raise KeyError(1)\\nf()', 'inner.py', 'exec'))",
    "warning": "import warnings; warnings.warn('careful', stacklevel=2)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_ends_as_without(ending: str, tmp_path: Path) -> None:
    """Status and output, to the letter: tracebacks have no frame of ours."""
    no_core = "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
    text = f"import os, resource, sys, time\n{no_core}\n{ENDINGS[ending]}\n"
    one = ("run", "--nproc-per-node", "1")
    plain = run(tmp_path, text, *one)
    forked = run(tmp_path, text, *one, "--preload", MODULE)
    assert USED in forked.stderr
    assert forked.returncode == plain.returncode, forked.stderr
    assert forked.stdout == plain.stdout
    assert _clean(forked.stderr) == _clean(plain.stderr)


def _clean(err: str) -> list[str]:
    """Return what a process has written."""
    return [line for line in err.splitlines() if not line.startswith("launcher: ")]


def test_each_has_its_own_random_numbers(tmp_path: Path) -> None:
    """random, secrets, multiprocessing's key; the seed of hashes is the same for all."""
    text = (
        "import random, multiprocessing, os, tempfile, uuid\n"
        "name = next(tempfile._get_candidate_names())\n"
        "print(random.random(), multiprocessing.current_process().authkey.hex(), name)"
    )
    done = run(tmp_path, text, *TWO, "--preload", "random,multiprocessing,tempfile")
    words = [line.split()[2:] for line in done.stdout.splitlines()]
    assert all(one != other for one, other in zip(*words, strict=True)), done.stdout


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works(method: str, tmp_path: Path) -> None:
    """Children find the script again, and do not become templates."""
    text = (
        "import multiprocessing as m, os\n"
        "def work(queue): queue.put((os.environ['RANK'], os.getppid()))\n"
        "if __name__ == '__main__':\n"
        f"    context = m.get_context('{method}')\n"
        "    queue = context.Queue(); process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    rank, parent = queue.get(timeout=50); process.join()\n"
        "    print(rank == os.environ['RANK'], process.exitcode)\n"
    )
    done = run(tmp_path, text, *TWO, "--preload", "multiprocessing")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] True 0", "[rank 1] True 0"]


def test_auto_imports_what_the_script_does_once(tmp_path: Path) -> None:
    """Not its own modules, which may read a variable; the output of an import is shown once."""
    # The imports happen in one process, whose output is shown once.
    (tmp_path / "heavy.py").write_text("import os\nprint('imported by', os.getpid(), flush=True)\n")
    text = "import os, heavy\nprint('ran', os.getpid())\n"
    done = run(tmp_path, text, *TWO, "--preload", "heavy")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[1] for line in lines] == ["0]", "1]", "imported"]
    assert lines[2].startswith("[template] imported by")
    # Its own modules are not imported, because they may read a variable; a missing module is left out.
    (tmp_path / "own.py").write_text("import os, wave\nRANK = os.environ['RANK']\n")
    text = (
        "import sys\nbefore = set(sys.modules)\nimport csv, own\nfrom xml import sax\n"
        "try:\n    import nowhere_at_all\nexcept ImportError:\n    pass\n"
        "print(own.RANK, 'wave' in before, 'csv' in before, 'xml.sax' in before, 'own' in before)\n"
    )
    done = run(tmp_path, text, *TWO, "--preload", "auto")
    assert done.returncode == 0, done.stderr
    told = "False True True False"
    assert sorted(done.stdout.splitlines()) == [f"[rank 0] 0 {told}", f"[rank 1] 1 {told}"], done.stderr
    assert "imported once" in done.stderr


@pytest.mark.parametrize(
    "line", ["os.environ['HF_HOME'] = 'x'", "sys.path.insert(0, 'x')", "os.putenv('A', 'b')"]
)
def test_auto_ends_where_the_script_prepares_an_import(line: str, tmp_path: Path) -> None:
    """What is imported after that may read it."""
    text = f"import os, sys, csv\n{line}\nbefore = set(sys.modules)\nimport wave\nprint('wave' in before)\n"
    done = run(tmp_path, text, *TWO, "--preload", "auto")
    assert sorted(done.stdout.splitlines()) == ["[rank 0] False", "[rank 1] False"], done.stderr
    assert "csv" in done.stderr.partition(USED)[0]


def test_a_module_may_read_its_input_and_replace_its_output(tmp_path: Path) -> None:
    """At the import the input is empty; the output that a module has put in place stays."""
    (tmp_path / "tee.py").write_text(
        "import sys\n"
        "GOT = sys.stdin.read()\n"
        "class Tee:\n"
        "    def __init__(self, out): self.out = out\n"
        "    def write(self, text): return self.out.write(text)\n"
        "    def flush(self): self.out.flush()\n"
        "print('left over', end='')\n"
        "sys.stdout = Tee(sys.stdout)\n"
    )
    text = "import sys, tee\nprint(repr(tee.GOT), type(sys.stdout).__name__)\n"
    done = run(tmp_path, text, *TWO, "--preload", "tee", PYTHONUNBUFFERED="")
    assert done.returncode == 0, done.stderr
    ranks = sorted(line for line in done.stdout.splitlines() if "[rank" in line)
    assert ranks == ["[rank 0] '' Tee", "[rank 1] '' Tee"]
    assert done.stdout.count("left over") == 1


def test_a_rank_reads_the_file_that_is_its_input(tmp_path: Path) -> None:
    """As a seekable file, which it is."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.stdin.seekable(), sys.stdin.readline(), sys.stdin.name)\n")
    command = (sys.executable, "-m", "launcher", "run", "--nproc-per-node", "1", "--preload", MODULE, script)
    with open(script) as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout == "True import sys\n <stdin>\n" and USED in done.stderr


def test_what_python_sets_at_its_start_stays(tmp_path: Path) -> None:
    """A sitecustomize of the user runs before the imports, and its variables are there in the ranks."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['FLAVOUR'] = 'set'\n")
    (tmp_path / "reads.py").write_text("import os\nFLAVOUR = os.environ.get('FLAVOUR')\n")
    text = "import os, reads\nprint(reads.FLAVOUR, os.environ.get('FLAVOUR'), os.environ['RANK'])\n"
    done = run(tmp_path, text, *TWO, "--preload", "reads", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0 and "not used" not in done.stderr, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] set set 0", "[rank 1] set set 1"]


# --- what does not survive a fork is named, and the processes start as ever

THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), name="pump", daemon=True).start()
"""
OF_RANKS = "is not the same in all ranks, and the import of unsafe reads it"
UNSAFE = {
    "thread": (THREAD, "threads, which do not survive a fork: pump"),
    "file": ("import os\nfile = open(__file__)", "which all ranks would share"),
    "socket": ("import socket\nmine = socket.socket()", "has opened socket:"),
    "epoll": ("import select\nmine = select.epoll()", "has opened anon_inode:[eventpoll]"),
    "process": ("import subprocess\nsubprocess.Popen(['sleep', '600'])", "has started a process"),
    "timer": ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 500)", "has set a timer"),
    "cpu timer": ("import signal\nsignal.setitimer(signal.ITIMER_PROF, 500)", "has set a timer"),
    "lock": ("import multiprocessing\nLOCK = multiprocessing.Lock()", "memory that all ranks would share"),
    "shared memory": ("import mmap\nPAGE = mmap.mmap(-1, 4096)", "memory that all ranks would share"),
    "folder": ("import os\nos.chdir('/')", "has changed the working directory"),
    "path": ("import sys\nsys.path.insert(0, '/opt/first')", "has changed sys.path"),
    "stream": ("import os\nos.close(0)", "has replaced a standard stream (descriptor 0)"),
    "subreaper": ("import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)", "a subreaper"),
    "rank": ("import os\nRANK = int(os.environ.get('LOCAL_RANK', -1))", f"LOCAL_RANK {OF_RANKS}"),
    "contains": ("import os\nMANY = 'RANK' in os.environ", f"RANK {OF_RANKS}"),
    "bytes": ("import os\nRANK = os.environb.get(b'RANK')", f"RANK {OF_RANKS}"),
    "port": (
        "import os\nPORT = os.environ['MASTER_ADDR'], os.environ.get('MASTER_PORT')",
        f"PORT {OF_RANKS}",
    ),
    "getenv": ("import os\nRANK = os.getenv('RANK')", "unsafe.py:2)"),
    "handler": ("import os\nos.register_at_fork(after_in_child=lambda: 1 / 0)", "a fork fails: division by"),
    "exit": ("raise SystemExit(3)", "import unsafe: SystemExit: 3"),
    "error": ("raise ValueError('no')", "import unsafe: ValueError: no"),
    "crash": ("import os\nos._exit(3)", "its Python has ended before everything was imported"),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_what_does_not_survive_is_named(kind: str, tmp_path: Path) -> None:
    """One line says why, and the ranks run as without the flag."""
    text, why = UNSAFE[kind]
    (tmp_path / "unsafe.py").write_text(text)
    done = run(tmp_path, "import os\nprint('ran', os.environ['RANK'])\n", *TWO, "--preload", "unsafe")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank 0] ran 0", "[rank 1] ran 1"]
    (line,) = [line for line in done.stderr.splitlines() if NOT_USED in line]
    assert why in line, line


def test_a_walk_over_all_variables_reads_none(tmp_path: Path) -> None:
    """Libraries look for names with a prefix, and copy all for their children."""
    text = "import os\nCOPY = dict(os.environ), os.environ.copy(), [*os.environ.items()]\n"
    (tmp_path / "walks.py").write_text(text)
    script = (
        "import os, sys\nprint(os.environ['MASTER_PORT'])\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    flags = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0")
    done = run(tmp_path, script, *TWO, *flags, "--preload", "walks")
    assert done.returncode == 0 and "not used" not in done.stderr, done.stderr


@pytest.mark.parametrize("value", ["serves", "x", '{"path": "/bin/echo", "argv": ["echo", "other"]}'])
def test_an_inherited_variable_does_nothing(value: str, tmp_path: Path) -> None:
    """That of a template, set by something else."""
    done = run(tmp_path, "print('ran')\n", *TWO, LAUNCHER_TEMPLATE=value)
    assert done.returncode == 0 and done.stdout.count("] ran") == 2
    assert "other" not in done.stdout and "Error" not in done.stderr


@pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-uE"])
def test_a_python_that_ignores_pythonpath(flag: str, tmp_path: Path) -> None:
    """The plan says it, and so does the run."""
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    done = launch(*PRELOADED, sys.executable, flag, str(script))
    assert done.returncode == 0 and done.stdout.count("] ran") == 2
    assert f"{flag}: this Python ignores PYTHONPATH" in done.stderr


@pytest.mark.parametrize("minor", range(6, 15))
def test_every_python(minor: int, tmp_path: Path) -> None:
    """From 3.8 on; with an older one the processes start as ever."""
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('ran', os.environ['RANK'])\n")
    done = launch(*PRELOADED, need_python(minor), str(script))
    assert sorted(done.stdout.splitlines()) == ["[rank 0] ran 0", "[rank 1] ran 1"], done.stderr
    assert (USED if minor >= 8 else NOT_USED) in done.stderr


def test_what_cannot_be_preloaded_is_named(tmp_path: Path) -> None:
    """A missing module, a wrapper that drops PYTHONPATH, a command that is no Python: they start as ever."""
    # A typed one; the script may not need it.
    done = run(tmp_path, "print(1)\n", *TWO, "--preload", "nowhere_at_all")
    assert done.returncode == 0
    assert f"{NOT_USED}import nowhere_at_all: ModuleNotFoundError" in done.stderr
    # The script does not run a third time, without a rank.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    done = launch(*PRELOADED, str(python), str(script))
    assert done.returncode == 0 and done.stdout.count("] ran") == 2, done.stdout + done.stderr
    assert f"{NOT_USED}its Python is older than 3.8, or does not read PYTHONPATH" in done.stderr
    # It is started as ever.
    done = launch(*PRELOADED, "echo", "ran")
    assert done.returncode == 0 and done.stdout.count("] ran") == 2
    assert NOT_USED + "echo is no Python" in done.stderr


# --- starts, stops and restarts

ANSWERS = """
import os, stat
times = []
def answer():
    times.append(0)
    for fd in range(3, 20) if {when} else ():
        try:
            is_channel = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue
        if is_channel:
            os.write(fd, {answer!r}.encode() + b"\\n")
os.register_at_fork(before=answer)
"""


def test_a_restart_is_a_fork_of_the_same_process(tmp_path: Path) -> None:
    """The modules are imported once for all attempts."""
    (tmp_path / "heavy.py").write_text("print('imported', flush=True)\n")
    text = (
        "import heavy, os, sys\nattempt = os.environ.get('LAUNCHER_ATTEMPT', '0')\n"
        "print('attempt', attempt, os.environ['MASTER_PORT'], flush=True)\nsys.exit(attempt != '2')\n"
    )
    flags = ("--preload", "heavy", "--restarts", "3", "--restart-on", "any", "--restart-delay", "0")
    done = run(tmp_path, text, *TWO, *flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("imported") == 1
    assert [done.stdout.count(f"attempt {number}") for number in range(3)] == [2, 2, 2]


def test_sigterm_while_modules_are_imported(tmp_path: Path) -> None:
    """It does not wait for the import, and nothing is left."""
    told = tmp_path / "pid"
    slow = f"import os, time\nopen({str(told)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(slow)
    script = tmp_path / "train.py"
    script.write_text("import signal\nsignal.pause()\n")
    running = open_launcher(*TWO, "--preload", "slow", str(script))
    template = read_pid(told)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 143, out + err
    assert is_gone(template)


def test_sigterm_while_ranks_are_forked(tmp_path: Path) -> None:
    """A module's function for forks may take its time; the launcher still answers a signal."""
    told = tmp_path / "pid"
    (tmp_path / "slow.py").write_text(
        "import os, time\ntimes = []\ndef wait():\n    times.append(0)\n    if len(times) > 1:\n"
        f"        open({str(told)!r}, 'w').write(f'{{os.getpid()}}\\n')\n        time.sleep(600)\n"
        "os.register_at_fork(before=wait)\n"
    )
    script = tmp_path / "train.py"
    script.write_text("import signal\nsignal.pause()\n")
    running = open_launcher(*TWO, "--preload", "slow", str(script))
    template = read_pid(told)
    began = time.monotonic()
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 143 and time.monotonic() - began < FORK_LIMIT_S / 2, out + err
    assert is_gone(template)


@pytest.mark.parametrize(
    "answer", ['{"pids": ["x", "y"]}', '{"pids": 5}', '{"pids": [4294967296, 4294967297]}', '{"pids": [1e3]}']
)
def test_what_a_module_answers_in_place_of_the_template(answer: str, tmp_path: Path) -> None:
    """The launcher takes only processes that are its own children for ranks: it signals and awaits them."""
    (tmp_path / "answers.py").write_text(ANSWERS.format(when="len(times) == 2", answer=answer))
    done = run(tmp_path, "print('up')", *TWO, "--preload", "answers")
    assert (done.returncode, done.stdout.count("up")) == (0, 2), done.stderr
    assert f"{NOT_USED}its answer is not what the launcher expects" in done.stderr


def test_only_children_of_the_launcher_are_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would signal the group of process 1 as ``kill(-1)``, which is every process of the machine."""
    with subprocess.Popen(["sleep", "60"]) as child:
        assert read_pids({"pids": [child.pid]}, 1) == [child.pid]
        for pids in ([1], [os.getppid()], [-1], [0], [-child.pid], [child.pid] * 2, [True], [child.pid, "1"]):
            with pytest.raises(Unusable):
                read_pids({"pids": pids}, len(pids))
        child.kill()
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    for pid in (-1, 0, -2, 2):
        send(pid, signal.SIGKILL)
    assert sent == [0, -2, 2]


@pytest.mark.parametrize("size", ['"x"', "1e400", "NaN", "[]"])
def test_a_size_that_is_none(size: str, tmp_path: Path) -> None:
    answer = f'{{"ready": true, "bytes": {size}}}'
    (tmp_path / "answers.py").write_text(ANSWERS.format(when="len(times) == 1", answer=answer))
    done = run(tmp_path, "print('up')", *TWO, "--preload", "answers")
    assert (done.returncode, done.stdout.count("up")) == (0, 2), done.stderr
    assert "internal" not in done.stderr


def test_sigusr1_while_modules_are_imported(tmp_path: Path) -> None:
    """The processes get it once they are there, and the status says meanwhile what the job waits for."""
    gate, told = tmp_path / "gate", tmp_path / "pid"
    (tmp_path / "slow.py").write_text(
        f"import os, time\nopen({str(told)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.05)\n"
    )
    script = tmp_path / "train.py"
    script.write_text("import signal\nsignal.pause()\n")
    running = open_launcher(*TWO, "--preload", "slow", str(script))
    read_pid(told)
    asked = ("status", "--job", str(running.pid))
    wait_for(lambda: "importing" in launch(*asked).stdout, "the launcher answers")
    running.send_signal(signal.SIGUSR1)
    gate.touch()
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 128 + signal.SIGUSR1, out + err
    assert "SIGUSR1, forwarded by the launcher" in err


def test_nothing_stays_if_the_launcher_is_killed_while_modules_are_imported(tmp_path: Path) -> None:
    """Neither the template, nor what an import has started."""
    told = tmp_path / "pid"
    (tmp_path / "slow.py").write_text(
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(told)!r}, 'w').write(f'{{child.pid}}\\n')\ntime.sleep(600)\n"
    )
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    running = open_launcher(*TWO, "--preload", "slow", str(script))
    child = read_pid(told)
    running.kill()
    running.communicate(timeout=DEADLINE_S)
    wait_for(lambda: is_gone(child), "the watchdog has killed it")


def test_all_end_if_the_launcher_is_killed(tmp_path: Path) -> None:
    """SIGKILL to it and to its watchdog: the kernel ends the forks and the template."""
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    running = open_launcher(*PRELOADED, "--restarts", "1", str(script))
    assert running.stdout is not None
    pids = [int(running.stdout.readline().split()[-1]) for _ in range(2)]
    children = [
        int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    ]
    assert set(pids) < set(children)
    for pid in {*children} - {*pids}:
        if "watch" in Path(f"/proc/{pid}/comm").read_text():
            os.kill(pid, signal.SIGKILL)
    running.kill()
    running.communicate(timeout=DEADLINE_S)
    wait_for(lambda: all(map(is_gone, children)), "all have ended")


def test_the_plan_says_it() -> None:
    """In words and as JSON."""
    done = launch("plan", *PRELOADED[1:], "train.py")
    assert f"{MODULE} imported once, before the processes are forked" in done.stdout
    told = json.loads(launch("plan", *PRELOADED[1:], "--format", "json", "train.py").stdout)
    assert told["supervision"]["preload"] == [MODULE]


@pytest.mark.parametrize("value", ["auto,torch", "a b", "torch,", "../x"])
def test_a_wrong_name_is_refused(value: str) -> None:
    """Before anything starts."""
    done = launch("run", "--preload", value, "true")
    assert done.returncode == 64, done.stderr
    assert "names of modules, or auto" in done.stderr


def test_stacks_while_modules_are_imported_are_those_of_the_process_that_imports(tmp_path: Path) -> None:
    """A slow import is what one wants to see then; the ranks do not run yet."""
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "slow_module.py").write_text(f"open({str(tmp_path / 'gate')!r}).read()\n")
    (tmp_path / "train.py").write_text("import slow_module\n")
    launcher = open_launcher(*TWO, "--preload", "slow_module", str(tmp_path / "train.py"))
    try:
        seen: list[str] = []

        def sees() -> bool:
            seen.append(launch("stacks", "--job", str(launcher.pid)).stdout)
            return "slow_module.py:1" in seen[-1]

        wait_for(sees, f"the import is seen: {seen}")
        (tmp_path / "gate").write_text("")
        assert launcher.wait(DEADLINE_S) == 0
    finally:
        launcher.kill()
        launcher.communicate()
