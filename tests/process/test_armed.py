"""Every Python of a job answers with its stacks, without a hook, without py-spy, with any script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.inprocess import site
from tests.mpis import find_mpi
from tests.process.looking import wait_for
from tests.process.starting import ROOT, clean_environ, launch, open_launcher
from tests.process.test_hook import interpreters

SITE = os.path.dirname(str(site.__file__))
WAITS = """
import sys, time
def fetch():
    open(sys.argv[1] + "/up", "w").close()
    time.sleep(3600)
fetch()
"""
IN_C = """
import sys
def count():
    open(sys.argv[1] + "/up", "w").close()
    sum(iter(int, 1))
count()
"""
IN_A_CALL = """
import ctypes, os, sys
def receive():
    open(sys.argv[1] + "/up", "w").close()
    ctypes.CDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
receive()
"""
FIFO = """
import os, sys
def load():
    os.mkfifo(sys.argv[1] + "/data")
    open(sys.argv[1] + "/up", "w").close()
    open(sys.argv[1] + "/data").read()
load()
"""
LOCKED = """
import sys, threading
lock = threading.Lock()
lock.acquire()
def take():
    open(sys.argv[1] + "/up", "w").close()
    lock.acquire()
take()
"""
WORKER = """
import multiprocessing, sys, time
def load(folder):
    open(folder + "/up", "w").close()
    time.sleep(3600)
if __name__ == "__main__":
    worker = multiprocessing.get_context("{method}").Process(target=load, args=(sys.argv[1],))
    worker.start()
    worker.join()
"""
LOADER = """
import sys, time, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        open(sys.argv[1] + "/up", "w").close()
        time.sleep(3600)
if __name__ == "__main__":
    next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))
"""
TELLS = """
import json, os, signal, sys
print(json.dumps([sys.path, sorted(sys.modules), sys.argv, os.environ.get("MARK", "")]))
"""


def without_py_spy() -> str:
    """Return PATH without the folders that have py-spy."""
    folders = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not os.path.exists(os.path.join(folder, "py-spy")))


def ask(tmp_path: Path, script: str, *words: str) -> str:
    """Run a script as a job, and return what ``launcher stacks`` says when it waits, without py-spy."""
    text = ask_plain(tmp_path, script, *words)
    assert "py-spy" not in text
    return text


def ask_plain(
    tmp_path: Path, script: str, *words: str, flags: tuple[str, ...] = (), stacks: tuple[str, ...] = ()
) -> str:
    """Run a script as a job on a plain installation, and return what ``launcher stacks`` says when it waits.

    py-spy is beside the launcher here; a copy of its Python without it stands for a plain installation.
    """
    plain = tmp_path / "bin"
    plain.mkdir()
    (plain / "python").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "train.py").write_text(script)
    packages = next(folder for folder in sys.path if folder.endswith("site-packages"))
    environ = clean_environ(PATH=without_py_spy(), PYTHONPATH=f"{ROOT}:{packages}")
    line = [str(plain / "python"), "-m", "launcher"]
    words = ("--", *(words or (sys.executable,)))
    job = ("run", *flags, *words, str(tmp_path / "train.py"), str(tmp_path))
    with subprocess.Popen([*line, *job], env=environ, stdout=subprocess.DEVNULL) as launcher:
        try:
            wait_for(lambda: (tmp_path / "up").exists(), "the script waits")
            done = subprocess.run(
                [*line, "stacks", "--job", str(launcher.pid), *stacks],
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        finally:
            launcher.terminate()
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("python", interpreters())
def test_every_python_answers(tmp_path: Path, python: str) -> None:
    text = ask(tmp_path, WAITS, python)
    assert "rank 0 waits in " in text and f'{tmp_path}/train.py", line 5, in fetch' in text


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (IN_C, "line 5, in count"),
        (IN_A_CALL, "line 5, in receive"),
        (FIFO, "line 6, in load"),
        (LOCKED, "line 7, in take"),
        (WORKER.format(method="spawn"), "line 5, in load"),
        (WORKER.format(method="fork"), "line 5, in load"),
        (WORKER.format(method="forkserver"), "line 5, in load"),
    ],
    ids=["in-c", "in-a-call", "fifo", "lock", "spawn", "fork", "forkserver"],
)
def test_wherever_it_waits(tmp_path: Path, script: str, says: str) -> None:
    """In C that holds the interpreter's lock, in a lock, and in children made in any way."""
    assert says in ask(tmp_path, script)


@pytest.mark.torch
def test_a_worker_of_a_dataloader_answers(tmp_path: Path) -> None:
    text = ask(tmp_path, LOADER)
    assert "in __getitem__" in text and "below rank 0" in text


CRASHES = """
import os, signal, sys
def crash():
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
def main():
    crash()
main()
"""


@pytest.mark.parametrize("python", interpreters())
def test_a_fatal_signal_shows_the_line(tmp_path: Path, python: str) -> None:
    """Native code crashes and faulthandler is not on: the report has the line, stderr has not."""
    script, record = tmp_path / "train.py", tmp_path / "failure.json"
    script.write_text(CRASHES)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"):
        job = launch("run", "--failure-file", str(record), "--", python, str(script), name)
        assert job.returncode == 128 + getattr(signal, name)
        assert "Fatal Python error" not in job.stderr.partition("failed first")[0]
        assert f'| File "{script}", line 4 in crash' in job.stderr.replace("|   File", "| File")
        assert json.loads(record.read_text())["traceback_from"] == "faulthandler"


def test_an_abort_on_the_way_out_does_not_hide_the_exception(tmp_path: Path) -> None:
    """C++ threads abort now and then when an exception ends Python: the exception is the cause."""
    script, record = tmp_path / "train.py", tmp_path / "failure.json"
    script.write_text(
        "import atexit, os, sys\n"
        "def abort():\n"
        "    print('terminate called without an active exception', file=sys.stderr, flush=True)\n"
        "    os.abort()\n"
        "atexit.register(abort)\n"
        "raise ValueError('no such column')\n"
    )
    job = launch("run", "--failure-file", str(record), "--", sys.executable, str(script))
    assert job.returncode == 134
    told = json.loads(record.read_text())
    assert told["causes"][0]["code"] == "python-exception", told
    assert told["exception"] == "ValueError: no such column"


def test_a_fatal_signal_is_written_where_the_user_wants_it(tmp_path: Path) -> None:
    """PYTHONFAULTHANDLER sends it to stderr; there it stays."""
    (tmp_path / "train.py").write_text(CRASHES)
    command = (sys.executable, str(tmp_path / "train.py"), "SIGSEGV")
    job = launch("run", "--", *command, environ={"PYTHONFAULTHANDLER": "1"})
    assert "Fatal Python error" in job.stderr.partition("failed first")[0]


@pytest.mark.torch
def test_a_worker_of_torchrun_answers(tmp_path: Path) -> None:
    """The launcher is the parent of torchrun's agent."""
    text = ask_plain(tmp_path, WAITS, flags=("--init", "--engine", "torchrun", "--nproc-per-node", "2"))
    assert "ranks 0-1 wait in " in text and "line 5, in fetch" in text


@pytest.mark.mpi
def test_a_rank_of_mpirun_answers(tmp_path: Path) -> None:
    """mpirun starts a launcher for each rank, and one of them is asked about the job."""
    mpi = find_mpi("openmpi5")
    (tmp_path / "train.py").write_text(WAITS.replace('"/up"', '"/up-" + __import__("os").environ["RANK"]'))
    run = (sys.executable, "-m", "launcher", "run", "--stay", "--", sys.executable)
    job = ("--oversubscribe", "-n", "2", *run, str(tmp_path / "train.py"), str(tmp_path))
    environ = clean_environ(**mpi.environ, TMPDIR=str(tmp_path))
    with subprocess.Popen([mpi.mpirun, *job], env=environ, stdout=subprocess.DEVNULL) as mpirun:
        try:
            wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2, "both ranks wait")
            text = read_stacks(tmp_path)
        finally:
            mpirun.terminate()
    assert "ranks 0-1 wait in " in text and "line 5, in fetch" in text


def read_stacks(folder: Path) -> str:
    """Return the stacks of the job whose launchers have their sockets in a folder."""
    wait_for(lambda: list(folder.glob("launcher_*/status")), "a launcher listens")
    run = next(folder.glob("launcher_*/status")).parent.name.removeprefix("launcher_")
    return launch("stacks", "--job", run[:16]).stdout


@pytest.mark.parametrize(
    "before", ["", "export PYTHONPATH=/users/own:$PYTHONPATH; "], ids=["as-it-is", "added"]
)
def test_a_python_that_a_shell_starts_answers(tmp_path: Path, before: str) -> None:
    (tmp_path / "train.sh").write_text(f'{before}{sys.executable} "$@"; true\n')
    assert "line 5, in fetch" in ask(tmp_path, WAITS, "bash", str(tmp_path / "train.sh"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((sys.executable, "-I"), "python -I leaves the launcher's sitecustomize out"),
        ((sys.executable, "-S"), "python -S leaves the launcher's sitecustomize out"),
        ((sys.executable, "-uE"), "python -uE leaves the launcher's sitecustomize out"),
        (("env", "PYTHONPATH=/users/own", sys.executable), "a script has replaced PYTHONPATH"),
        (("env", "-u", "PYTHONPATH", sys.executable), "a script has replaced PYTHONPATH"),
        (("env", "-i", sys.executable), "it does not have the job's environment"),
    ],
    ids=["I", "S", "E", "set", "unset", "empty"],
)
def test_a_python_that_cannot_answer_says_why(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    """And what to install for its stack."""
    text = ask_plain(tmp_path, WAITS, *words)
    assert "rank 0: no Python stack (" in text and why in text
    assert "(pip install cluster-launcher[observe])" in text


def test_an_isolated_python_is_left_alone() -> None:
    """It ignores PYTHONPATH."""
    done = launch("run", "--", sys.executable, "-I", "-c", TELLS)
    path, modules, *_ = json.loads(done.stdout)
    assert SITE not in path and "faulthandler" not in modules


@pytest.mark.parametrize("python", interpreters())
def test_a_process_is_as_without_it(tmp_path: Path, python: str) -> None:
    """Its path, modules and sitecustomize are the user's, but for the module that answers."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['MARK'] = __name__ + __file__\n")
    (tmp_path / "script.py").write_text(TELLS)
    line = [python, str(tmp_path / "script.py"), "--a", "b"]
    environ = clean_environ(PYTHONPATH=str(tmp_path))
    alone = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout
    job = launch("run", "--", *line, environ={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    path, modules, argv, mark = json.loads(job.stdout)
    path.remove(ROOT)
    modules.remove("faulthandler")
    assert [path, modules, argv, mark] == json.loads(alone)
    assert mark == f"sitecustomize{tmp_path}/sitecustomize.py"


def test_a_sitecustomize_of_the_users_runs_as_without_it(tmp_path: Path) -> None:
    """That of a virtual environment, and one that fails."""
    # Its module has run, and so has ours.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "own")], check=True)
    (packages,) = (tmp_path / "own" / "lib").glob("python*/site-packages")
    (packages / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    assert "line 5, in fetch" in ask(tmp_path, WAITS, str(tmp_path / "own" / "bin" / "python"))
    assert (tmp_path / "ran").exists()
    (tmp_path / "sitecustomize.py").write_text("import nothing_of_this_name\n")
    line = [sys.executable, "-c", "print('goes on')"]
    environ = clean_environ(PYTHONPATH=str(tmp_path))
    alone = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=60, check=True)
    job = launch("run", "--", *line, environ={"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert "nothing_of_this_name" in alone.stderr
    assert (job.returncode, job.stdout) == (0, "goes on\n")
    assert alone.stderr.splitlines()[-1] in job.stderr


def test_children_keep_the_users_pythonpath(tmp_path: Path) -> None:
    """The folder stands in front, and what the user has set follows."""
    job = launch("run", "--", "sh", "-c", "echo $PYTHONPATH", environ={"PYTHONPATH": f"{ROOT}:/users/own"})
    assert job.stdout == f"{SITE}:{ROOT}:/users/own\n"
    running = open_launcher("run", "--", "sh", "-c", "echo $PYTHONPATH")
    assert running.communicate()[0] == f"{SITE}:{ROOT}\n"


def test_a_launcher_inside_of_another_adds_nothing() -> None:
    nested = ("run", "--", sys.executable, "-m", "launcher", "run", "--init", "--", "sh", "-c")
    assert launch(*nested, "echo $PYTHONPATH").stdout == f"{SITE}:{ROOT}\n"


@pytest.mark.parametrize("python", interpreters())
def test_in_a_folder_that_is_gone_it_is_as_without(tmp_path: Path, python: str) -> None:
    """A relative path in PYTHONPATH cannot be made absolute there: 3.11 does not start, 3.10 goes on."""
    leave = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone"
    found = []
    for before in ("", f"{SITE}:"):
        script = f"{leave} && PYTHONPATH={before}lib exec {python} -c 'print(1)'"
        environ = clean_environ(LAUNCHER_STACKS_FILE=str(tmp_path / "stacks.txt"))
        found.append(
            subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=False)
        )
    alone, armed = found
    assert (armed.returncode, armed.stdout) == (alone.returncode, alone.stdout)
    assert "sitecustomize" not in armed.stderr
