"""The hook inside of real interpreters: nothing without a job, the variables with one, and no harm ever."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from launcher.hook.line import MARKERS
from launcher.inprocess.marker import HOOKED
from tests.process.hooking import RANK, make_venv, read_dump, read_environ, run, write_dump
from tests.process.starting import ROOT, launch

BATCH = {
    "AZ_BATCH_HOST_LIST": "10.0.0.4,10.0.0.5",
    "AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5",
    "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
    "AZ_BATCH_IS_CURRENT_NODE_MASTER": "false",
    "LAUNCHER_NODE_RANK": "1",
    "LAUNCHER_NPROC_PER_NODE": "2",
}
"""One of two nodes that should run two processes each."""
RECURSE = """
import json, os, subprocess, sys
if len(sys.argv) > 1:
    print(os.environ["LAUNCHER_HOOKED"])
else:
    print(os.environ["LAUNCHER_HOOKED"], flush=True)
    subprocess.run([sys.executable, __file__, "inner"])
"""


def test_nothing_is_imported_where_no_job_is(each_hooked: str, tmp_path: Path) -> None:
    """The same modules and finders as without the hook, and an environment without a trace."""
    script = write_dump(tmp_path)
    plain = Path(make_venv(tmp_path / "plain", os.path.realpath(each_hooked))) / "bin" / "python"
    (site,) = plain.parent.parent.rglob("site-packages")
    (site / "empty.pth").write_text("# Python itself imports something to read such a file\n")
    hooked, bare = read_dump(run(each_hooked, script)), read_dump(run(plain, script))
    assert hooked["modules"] == bare["modules"]
    assert len(hooked["finders"]) == len(bare["finders"])  # type: ignore[arg-type]
    empty = read_environ(run(each_hooked, script, **dict.fromkeys(MARKERS, "")))
    assert {name for name, value in empty.items() if value} == {
        name for name in read_environ(run(each_hooked, script)) if name not in MARKERS
    }


def test_the_launchers_modules_are_gone_when_the_script_begins(each_hooked: str, tmp_path: Path) -> None:
    """Neither the package nor its finder: what the user imports by that name is the user's own."""
    (tmp_path / "launcher.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text(
        "import os, sys, launcher\nprint([n for n in sys.modules if n.startswith('launcher')],"
        "launcher.MINE, os.environ['RANK'], [f for f in sys.meta_path if 'rivate' in repr(f)])\n"
    )
    done = run(each_hooked, str(tmp_path / "train.py"), **RANK)
    assert (done.stdout, done.stderr) == ("['launcher'] True 1 []\n", "")


def test_a_node_is_described_and_no_rank_is_made_up(each_hooked: str, tmp_path: Path) -> None:
    """At NODE scope with two processes: where the master is, which node this is, and what torchrun reads."""
    told = read_environ(run(each_hooked, write_dump(tmp_path), **BATCH))
    assert {name: told.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK")} == {
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "6105",
        "NODE_RANK": "1",
        "RANK": None,
    }
    pets = {name: value for name, value in told.items() if name.startswith("PET_")}
    assert pets == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.4",
        "PET_MASTER_PORT": "6105",
    }


@pytest.mark.parametrize(
    "words",
    [
        *(("-c", "{dump}"), ("-I", "{script}"), ("-S", "{script}"), ("-m", "pip"), ("-um", "venv")),
        *(("{bin}/pip3.11",), ("{bin}/conda",), ("{folder}/setup.py",)),
    ],
    ids=lambda words: " ".join(words),
)
def test_tools_are_left_alone(each_hooked: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """What is no script of a job runs as without the hook."""
    script = Path(write_dump(tmp_path))
    dump = script.read_text()
    for name in ("pip", "venv"):  # stand-ins for the modules that an environment without pip lacks
        (tmp_path / f"{name}.py").write_text(dump)
    for name in ("pip3.11", "conda", "setup.py"):
        (tmp_path / name).write_text(dump)
    places = {"dump": dump, "script": str(script), "bin": str(tmp_path), "folder": str(tmp_path)}
    line = [word.format(**places) if word != "{dump}" else dump for word in words]
    dumped = read_dump(run(each_hooked, *line, PYTHONPATH=str(tmp_path), **RANK))
    environ = dumped["environ"]
    assert isinstance(environ, dict)
    assert not {"RANK", HOOKED} & environ.keys()


@pytest.mark.parametrize("value", ["0", "false"])
def test_it_can_be_switched_off(each_hooked: str, value: str, tmp_path: Path) -> None:
    """``LAUNCHER_HOOK=0``: not even an exception is written down."""
    script = tmp_path / "train.py"
    script.write_text("raise ValueError")
    error = tmp_path / "error.json"
    run(each_hooked, str(script), LAUNCHER_HOOK=value, TORCHELASTIC_ERROR_FILE=str(error), **RANK)
    assert not error.exists()
    told = read_environ(run(each_hooked, write_dump(tmp_path), LAUNCHER_HOOK=value, **RANK))
    assert "RANK" not in told


def test_it_acts_once_per_job(each_hooked: str, tmp_path: Path) -> None:
    """Children have all that there is; one of another starter inside is told anew."""
    script = tmp_path / "train.py"
    script.write_text(RECURSE)
    outer, inner = run(each_hooked, str(script), **RANK).stdout.splitlines()
    assert outer == inner
    told = read_environ(run(each_hooked, write_dump(tmp_path), **RANK))
    inside = {**told, HOOKED: outer, "PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "2"}
    inside["MPI_LOCALNRANKS"] = "3"
    for name in RANK:
        del inside[name]
    again = read_environ(run(each_hooked, write_dump(tmp_path), **inside))
    assert (again["RANK"], again["WORLD_SIZE"]) == ("2", "3")


def test_what_somebody_sets_after_the_hook_is_theirs(hooked: str, tmp_path: Path) -> None:
    """A script that chooses another port before it starts an mpirun: the ranks keep it."""
    first = run(hooked, write_dump(tmp_path), **RANK)
    environ = read_dump(first)["environ"]
    assert isinstance(environ, dict)
    environ.update({"MASTER_PORT": "29777", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    again = read_environ(run(hooked, write_dump(tmp_path), **environ))
    assert (again["RANK"], again["MASTER_PORT"]) == ("0", "29777")


def test_workers_of_torchrun_and_of_the_launcher_are_left_alone(each_hooked: str, tmp_path: Path) -> None:
    """They have the contract; the hook only arms them."""
    script, error = write_dump(tmp_path), str(tmp_path / "error.json")
    contract = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "a"}
    for mark in ("TORCHELASTIC_RUN_ID", "LAUNCHER_LAUNCHED"):
        told = read_environ(run(each_hooked, script, **{**contract, mark: "x"}))
        assert told.keys() & {"JAX_PROCESS_ID", "NODE_RANK"} == set()
    failing = tmp_path / "failing.py"
    failing.write_text("raise ValueError('mine')\n")
    run(each_hooked, str(failing), TORCHELASTIC_RUN_ID="x", TORCHELASTIC_ERROR_FILE=error, **contract)
    assert json.loads(Path(error).read_text())["message"]["message"] == "ValueError: mine"


def test_a_watched_process_answers_for_its_stacks(each_hooked: str, tmp_path: Path) -> None:
    """``LAUNCHER_STACKS_FILE``: every Python answers, ``-c`` too; a tool's exception is not the job's."""
    stacks, error = tmp_path / "stacks.txt", tmp_path / "error.json"
    script = "import os\nos.kill(os.getpid(), 61)\nraise ValueError"
    watched = {"LAUNCHER_STACKS_FILE": str(stacks), "TORCHELASTIC_ERROR_FILE": str(error)}
    done = run(each_hooked, "-c", script, **watched)
    assert (done.returncode, "line 2 in <module>" in stacks.read_text(), error.exists()) == (1, True, False)


def test_a_contradiction_is_one_line_once(each_hooked: str, tmp_path: Path) -> None:
    """No variable is guessed, the job runs as it would have, and its children do not repeat it."""
    script = tmp_path / "train.py"
    script.write_text(RECURSE)
    done = run(each_hooked, str(script), **{**RANK, "OMPI_COMM_WORLD_RANK": "2"})
    assert done.returncode == 0
    assert done.stdout.split() == ["refused/2.2,.,.,.,.,.,.,./"] * 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("launcher: hook: no variables set: [contradiction] environment (run launcher plan")
    assert "LAUNCHER_HOOK=0" in line


def test_the_plan_says_that_the_hook_has_acted(hooked: str, tmp_path: Path) -> None:
    """And plans from what the platform has said, as if it had not."""
    environ = read_dump(run(hooked, write_dump(tmp_path), **RANK))["environ"]
    assert isinstance(environ, dict)
    document = json.loads(launch("plan", "--format", "json", environ={**environ, "PYTHONPATH": ROOT}).stdout)
    (note,) = [note for note in document["notes"] if "environment hook" in note]
    assert "scope process" in note and "MASTER_ADDR" in note
    assert document["source"] == "open_mpi"
    assert HOOKED in document["unset"]


OF_MPI = {"MASTER_ADDR": "10.0.0.4", **RANK}
OF_TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", **BATCH}


@pytest.mark.parametrize(
    ("variables", "script", "kept"),
    [
        ({**BATCH, "LAUNCHER_NPROC_PER_NODE": "1"}, "train.py", False),
        (OF_MPI, "train.py", False),
        (OF_TORCHRUN, "train.py", False),
        (BATCH, "torchrun", False),
        (BATCH, "train.py", True),
        ({**OF_MPI, "RANK": "0"}, "train.py", True),
        (OF_MPI, "pip", True),
    ],
    ids=["one-per-node", "mpi", "torchruns-worker", "torchrun", "node", "refused", "tool"],
)
def test_a_rank_does_not_inherit_the_token(
    each_hooked: str, variables: dict[str, str], script: str, kept: bool, tmp_path: Path
) -> None:
    """Whoever has started it; a script that stands for a whole node keeps it, and what is left alone."""
    named = Path(write_dump(tmp_path)).rename(tmp_path / script)
    done = run(each_hooked, str(named), **{**variables, "LAUNCHER_TOKEN": "0123456789abcdef"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["environ"].get("LAUNCHER_TOKEN") == ("0123456789abcdef" if kept else None)


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_script_has_the_variables(shell: str, tmp_path: Path) -> None:
    """By BASH_ENV, or as a login shell; once, and not where the hook is switched off."""
    prefix, file = make_venv(tmp_path / "venv"), tmp_path / "hook.sh"
    assert launch("hook", "install", "--prefix", str(prefix), "--shell", str(file)).returncode == 0
    told = 'echo "$RANK $MASTER_ADDR ${LAUNCHER_HOOKED%%/*}"'
    words = f'. {file}; set -u; {told}; echo "$(. {file}; {told})"'
    done = run(shutil.which(shell) or shell, "-c", words, **RANK)
    assert (done.stdout, done.stderr) == ("1 127.0.0.1 process\n" * 2, "")
    off = run(shutil.which(shell) or shell, "-c", words.replace("set -u", "true"), LAUNCHER_HOOK="0", **RANK)
    assert off.stdout == "  \n" * 2
    if shell == "bash":
        script = run("/bin/bash", "-c", told, BASH_ENV=str(file), **RANK)
        assert script.stdout == "1 127.0.0.1 process\n"
        python = run(
            "/bin/bash", "-c", f"{prefix}/bin/python {write_dump(tmp_path)}", BASH_ENV=str(file), **RANK
        )
        assert read_environ(python)["RANK"] == "1"
    refused = run(shutil.which(shell) or shell, "-c", f". {file}", **{**RANK, "OMPI_COMM_WORLD_RANK": "7"})
    assert refused.stderr.count("\n") == 1 and "[contradiction]" in refused.stderr


def test_a_shells_variables_survive_any_value(tmp_path: Path) -> None:
    """What the platform has written into a name is quoted, never run."""
    file = tmp_path / "hook.sh"
    prefix = make_venv(tmp_path / "venv")
    assert launch("hook", "install", "--prefix", str(prefix), "--shell", str(file)).returncode == 0
    bad = "$(touch " + str(tmp_path / "ran") + ")'; touch " + str(tmp_path / "ran") + " #"
    done = run("/bin/bash", "-c", "echo ${RANK-none}", BASH_ENV=str(file), **{**RANK, "MASTER_ADDR": bad})
    assert done.stdout == "none\n"
    assert not (tmp_path / "ran").exists()
