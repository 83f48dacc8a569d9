"""Arguments of each process its own: what is replaced, what stays, and where the local rank stands."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcher.cli.main import dispatch
from launcher.command.arguments import count_callers, expand
from launcher.command.line import plan_argv
from launcher.command.words import find_script
from launcher.core.errors import CommandNotFound, UsageError
from launcher.core.model import Plan
from launcher.machine.host import Host
from launcher.options.reading import Options, read_options
from launcher.planning.plan import plan_job
from launcher.views.plan import render_text
from launcher.views.plan_json import describe
from tests.process.starting import launch

VARIABLES = {"RANK": "5", "LOCAL_RANK": "1", "RANKS": "8"}
SHOW = "import sys; print(sys.argv[1:])"


def plan(*command: str, environ: Mapping[str, str] | None = None, on: str = "", **flags: str | bool) -> Plan:
    """Return the plan of node 1 of 2, with 2 processes on each; ``on``: one more switch."""
    flags |= {on: True} if on else {}
    typed = {"nnodes": "2", "node_rank": "1", "nproc_per_node": "2", "master_addr": "10.0.0.4", **flags}
    variables = {"PATH": "/usr/bin", **(environ or {})}
    return plan_job(variables, Host("/nonexistent"), read_options(typed, variables), command)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("$RANK", "5"), ("${RANK}", "5")),
        ("--out=run-$RANK-${LOCAL_RANK}.txt", "--out=run-5-1.txt"),
        *(("$RANKS", "8"), ("${RANK}S", "5S"), ("$HOME", "$HOME"), ("${HOME}", "${HOME}")),
        *(("${RANK:-0}", "${RANK:-0}"), ("$RANK$LOCAL_RANK", "51"), ("${RANK", "${RANK")),
        ("$(RANK) `RANK` $$ $1 $", "$(RANK) `RANK` $$ $1 $"),
        *(("'$RANK'", "'5'"), ("", "")),
    ],
)
def test_names_that_are_set_are_replaced_and_nothing_else(word: str, expected: str) -> None:
    """No shell: no quotes, no defaults, no commands."""
    assert expand(word, VARIABLES) == expected


@pytest.mark.parametrize(
    ("line", "count"),
    [
        *(("python -uc code a", 3), ("python -ccode a", 2), ("python train.py --x", 2)),
        ("/opt/bin/python3.11 -u -X dev train.py", 5),
        ("python --check-hash-based-pycs always train.py", 4),
        ("python -m package.train fit", 3),
        *(("python -c code --x", 3), ("python -u -c code", 4), ("python", 1), ("python -m", 2)),
        *(("python -c", 2), ("./train --x", 1), ("bash run.sh", 1)),
    ],
)
def test_the_scripts_own_arguments_begin_behind_it(line: str, count: int) -> None:
    """Behind the script or the module of a Python, behind the name of any other program."""
    assert count_callers(line.split(), {}) == count


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("-um torch.distributed.run t.py", "-u -m torch.distributed.run t.py"),
        ("-mtorch.distributed.run t.py", "-m torch.distributed.run t.py"),
        ("-X dev -BIum mod -m x", "-X dev -BIu -m mod -m x"),
        *(("-m mod -mx", "-m mod -mx"), ("-u t.py -um x", "-u t.py -um x")),
        *(("-uc code -um x", "-uc code -um x"), ("-Wm -Xm t.py", "-Wm -Xm t.py")),
        *(("-u - -um x", "-u - -um x"), ("-um", "-u -m")),
    ],
)
def test_a_module_is_a_word_of_its_own(written: str, line: str) -> None:
    """However its flag was written: what looks for a launcher's module finds it."""
    python = "/usr/bin/python3"
    assert plan_argv((python, *written.split()), Options(), {}) == (python, *line.split())
    assert plan_argv(("./train", *written.split()), Options(), {}) == ("./train", *written.split())


@pytest.mark.parametrize(
    ("line", "place"),
    [
        *(("python t.py a", 1), ("python -m mod", 1)),
        ("python -uX dev -W ignore t.py", 5),
        ("python -WW -Xa t.py", 3),
        ("python --check-hash-based-pycs always t.py", 3),
        *(("python -uc code t.py", None), ("python -ccode t.py", None), ("python - t.py", None)),
        *(("python -u", None), ("python", None)),
    ],
)
def test_the_script_of_a_pythons_line(line: str, place: int | None) -> None:
    """Its own flags may stand together, and some have a value."""
    assert find_script(line.split()) == place


@pytest.mark.parametrize(
    "flags", [("-uc", SHOW, "a"), ("-Bu", "-X", "dev", "-c", SHOW, "a"), ("-u", "-", "a")]
)
def test_code_is_never_taken_for_a_script(flags: tuple[str, ...]) -> None:
    """It is no file, and so none that is missing."""
    done = launch("run", "--", sys.executable, *flags)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_what_is_asked_for_is_replaced() -> None:
    """A value that looks like a variable stays, and without the flags arguments are as they were written."""
    # A value that looks like a variable stays.
    assert expand("$A", {"A": "$B", "B": "no"}) == "$B"
    # As they were written.
    made = plan("train.py", "$RANK", engine="process")
    assert {process.argv[1:] for process in made.processes} == {("train.py", "$RANK")}


def test_each_process_has_its_own_line() -> None:
    """By rank and local rank, visible in the plan and in its JSON."""
    # By rank and local rank, visible in the plan and in its JSON.
    made = plan(
        "train.py", "--seed", "$RANK", "$HOME", expand_args=True, local_rank_arg=True, engine="process"
    )
    lines = [("train.py", "--local_rank=0", "--seed", "2"), ("train.py", "--local_rank=1", "--seed", "3")]
    assert [process.argv[1:] for process in made.processes] == [(*line, "$HOME") for line in lines]
    assert "train.py --local_rank=1 --seed 3 '$HOME'" in render_text(made, {})
    processes = describe(made, {})["processes"]
    assert isinstance(processes, list) and processes[1]["argv"][1:] == [*lines[1], "$HOME"]
    # Where the user's own value of a variable wins, it is the one that is put in.
    mine = {"JAX_COORDINATOR_ADDRESS": "10.9.9.9:1", "NOT_OURS": "x"}
    made = plan(
        "train.py", "$JAX_COORDINATOR_ADDRESS,$NOT_OURS", environ=mine, expand_args=True, engine="process"
    )
    assert made.processes[0].argv[-1] == "10.9.9.9:1,$NOT_OURS"
    # They plan for their own process; torchrun itself must not touch the dollars.
    agent = plan("train.py", "$RANK", engine="torchrun", expand_args=True, local_rank_arg=True).agent
    assert agent is not None
    shim = agent.argv[agent.argv.index("run") :]
    assert {"--expand-args", "--local-rank-arg"} <= set(shim[: shim.index("--")])
    assert shim[-1] == "$$RANK"


@pytest.mark.parametrize("flag", ["expand_args", "local_rank_arg"])
def test_another_launchers_processes_are_not_ours(flag: str) -> None:
    """accelerate gives all its processes one line; torchrun's --run-path, too."""
    with pytest.raises(UsageError, match="arguments-per-process"):
        plan("accelerate", "launch", "train.py", "$RANK", on=flag)
    with pytest.raises(UsageError, match="arguments-per-process"):
        plan("train.py", "$RANK", run_path=True, on=flag)


@pytest.mark.parametrize("given", ["flags", "variables"])
def test_real_processes_get_them(given: str) -> None:
    """Two processes, by flags and by variables: each prints its own arguments."""
    flags = ("--expand-args", "--local-rank-arg") if given == "flags" else ()
    variables = {} if flags else {"LAUNCHER_EXPAND_ARGS": "1", "LAUNCHER_LOCAL_RANK_ARG": "1"}
    job = ("run", "--standalone", "--nproc-per-node", "2", "--no-prefix", *flags, "--")
    done = launch(*job, "python3", "-c", SHOW, "$RANK/${WORLD_SIZE}", environ=variables)
    assert sorted(done.stdout.splitlines()) == ["['--local_rank=0', '0/2']", "['--local_rank=1', '1/2']"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("run", "--nproc-per-noed", "2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--nproc_per_noed=2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--num-nodes", "2", "--", "true"), "did you mean --nnodes? "),
        (("run", "-np", "2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--nprocpernode", "2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--nprocs", "2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--gpus", "2", "--", "true"), "did you mean --nproc-per-node? "),
        (("run", "--nodes", "2", "--", "true"), "did you mean --nnodes? "),
        (("run", "--learning-rate", "2", "--", "true"), "launcher run --help-all; flags of your command"),
        (("bandwidth", "--nproc-per-node", "2"), "LAUNCHER_NPROC_PER_NODE=... launcher bandwidth"),
        (("bandwidth", "--pars"), "did you mean --pairs?"),
        (("snapshot", "--format", "json"), "launcher snapshot --help"),
        (
            ("rehearse", "--like", "slurm", "--framework", "jax", "--", "x"),
            "-- launcher run --framework ... --",
        ),
        (("rehearse", "--like", "slurm", "--nproc-per-node", "2", "--", "x"), "did you mean --processes?"),
        (("rehearse", "--like", "slurm", "-np", "2", "--", "x"), "did you mean --processes?"),
    ],
)
def test_an_unknown_flag_is_told_what_may_be_meant(words: tuple[str, ...], fix: str) -> None:
    """The nearest name, the name that another launcher has for it, or where it belongs."""
    with pytest.raises(UsageError) as refused:
        dispatch(words, {})
    (problem,) = refused.value.problems
    assert fix in problem.fix
    takes_command = words[0] in ("run", "rehearse")
    assert ("-- COMMAND ..." in problem.fix) is takes_command


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("rnu", "did you mean launcher run?"), ("snapshto", "did you mean launcher snapshot?")),
        *(("version", "did you mean launcher --version?"), ("launch", "did you mean launcher run?")),
        *(("python", "launcher run -- python ...;"), ("train.py", "launcher run -- train.py ...;")),
    ],
)
def test_a_word_that_is_no_command_is_told_what_may_be_meant(word: str, meant: str) -> None:
    """The nearest command, what others call it, or how to run a program."""
    with pytest.raises(UsageError) as refused:
        dispatch((word, "x"), {})
    (problem,) = refused.value.problems
    assert problem.fix == f"{meant} launcher --help lists the commands"


def test_a_rehearsal_of_a_script_that_is_not_there_starts_no_node() -> None:
    """One error, and not that of every node."""
    with pytest.raises(CommandNotFound, match="no such script on this machine"):
        dispatch(("rehearse", "--like", "slurm", "--", "/nonexistent/train.py"), {})


def test_what_a_python_runs_by_its_name_is_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code, an archive, and a folder with ``__main__.py``: none needs ``python`` in front of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").mkdir()
    assert plan_argv(("./trainer",), Options(), {}) == ("./trainer",)
    (tmp_path / "trainer" / "__main__.py").touch()
    assert plan_argv(("trainer",), Options(), {}) == ("trainer",)  # may be a program of this name
    for name in ("train.py", "train.pyc", "train.pyz", "trainer/", "./trainer"):
        assert plan_argv((name, "--x"), Options(), {"PYTHON_EXEC": "/py"}) == ("/py", name, "--x")
