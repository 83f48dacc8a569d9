"""The commands: what they print where, their exit statuses, and the plan's JSON."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from launcher import __version__
from launcher.cli.entry import main
from launcher.cli.help import COMMANDS
from launcher.cli.help import GROUPS as COMMAND_GROUPS
from launcher.core.errors import EXIT_HARDWARE, EXIT_UNTRUSTED, EXIT_USAGE
from launcher.options.flags import FLAGS, GROUPS
from launcher.options.parser import BRIEF
from launcher.options.quick import ABOUT_RUN
from tests.process.starting import launch
from tools.parsers import find_parser

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
KEYS = {
    "": {
        *(
            *("version", "launcher", "source", "scope", "mode", "engine", "agent", "topology", "machine"),
            *("fabric", "facts", "settings"),
        ),
        *(
            *("unset", "widen_cpus", "bind", "grace_s", "supervision", "peers", "meeting", "ports"),
            *("companions", "processes", "notes", "reads"),
        ),
    },
    "topology": {"world_size", "node_count", "node_rank", "local_size", "master_addr", "master_port"},
    "machine": {"gpu_count", "cpu_count", "bound_cpu_count"},
    "fact": {"value", "origin", "source", "trust", "lost"},
    "lost": {"value", "origin", "source", "why"},
    "setting": {"name", "value", "origin"},
    "changed": {"inherited", "kept"},
    "process": {"rank", "local_rank", "argv", "cpus", "settings"},
    "agent": {"argv", "settings", "unset", "files", "fleet"},
    "fleet": {*("hosts", "per_node", "address", "ports", "timeout_s", "forward", "restored")},
}


def plan_json(
    argv: list[str], environ: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> dict[str, object]:
    assert main(["plan", "--format", "json", *argv], environ) == 0
    document = json.loads(capfd.readouterr().out)
    assert isinstance(document, dict)
    return document


def test_the_plans_json_has_these_keys_and_no_others(capfd: pytest.CaptureFixture[str]) -> None:
    """Tools read it: a new key is a decision, a lost one a new version."""
    environ = {**OPEN_MPI, "MASTER_ADDR": "127.0.0.1", "RANK": "1", "OMP_NUM_THREADS": "3"}
    document = plan_json(["--", "train.py"], environ, capfd)
    assert set(document) == KEYS[""] and document["version"] == 1
    for part in ("topology", "machine"):
        assert set(document[part]) == KEYS[part]  # type: ignore[call-overload]
    facts = document["facts"]
    assert isinstance(facts, dict) and "rank" in facts
    for fact in facts.values():
        assert set(fact) == KEYS["fact"]
        assert all(set(lost) == KEYS["lost"] for lost in fact["lost"])
    assert facts["rank"]["lost"], "RANK agrees with Open MPI's"
    processes, settings = document["processes"], document["settings"]
    assert isinstance(processes, list) and isinstance(settings, list)
    for process in processes:
        assert set(process) == KEYS["process"]
        settings += process["settings"]
    for setting in settings:
        assert set(setting) in (KEYS["setting"], KEYS["setting"] | KEYS["changed"])
    assert any("kept" in setting for setting in settings)
    agent = plan_json(["--", "torchrun", "train.py"], {}, capfd)["agent"]
    assert isinstance(agent, dict) and set(agent) == KEYS["agent"]


PAGE = Path(__file__).parents[2] / "docs" / "plan-json.md"


def test_the_users_values_are_kept_and_said_to_be(capfd: pytest.CaptureFixture[str]) -> None:
    """OMP_NUM_THREADS is the user's; the plan says what it would have been."""
    document = plan_json([], {**OPEN_MPI, "OMP_NUM_THREADS": "77"}, capfd)
    settings = document["settings"]
    assert isinstance(settings, list)
    found = [setting for setting in settings if setting["name"] == "OMP_NUM_THREADS"]
    assert all(item["inherited"] == "77" and item["kept"] is True for item in found)
    assert main(["env", "--format", "json"], {**OPEN_MPI, "OMP_NUM_THREADS": "77"}) == 0
    assert json.loads(capfd.readouterr().out).get("OMP_NUM_THREADS", "77") == "77"


def test_help_and_version_go_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """Status 0; help of a command is its own; nothing at all, or a word that is no command, is no success."""
    # Status 0, nothing on standard error.
    assert main(["--version"], {}) == 0
    line, errors = capfd.readouterr()
    assert line.startswith(f"launcher {__version__} (commit ") and not errors
    for argv in (["-h"], ["--help"], ["help"]):
        assert main(argv, {}) == 0
        out, err = capfd.readouterr()
        assert err == "" and all(f"\n  {name} " in out for name in COMMANDS) and "--version" in out
        assert all(f"\n{title}:\n" in out for title in COMMAND_GROUPS)
    assert COMMANDS["run"].about == ABOUT_RUN
    # launcher help run is launcher run --help; --help-all has the commands and every flag of run.
    brief, whole = show_help("--help", capfd), show_help("--help-all", capfd)
    for argv, shown in (["help", "run"], brief), (["help", "run", "--help-all"], whole):
        with pytest.raises(SystemExit):
            main(argv, {})
        assert capfd.readouterr() == (shown, "")
    with pytest.raises(SystemExit):
        main(["--help-all"], {})
    out, _ = capfd.readouterr()
    assert out.startswith("usage: launcher COMMAND") and out.endswith(whole)
    assert main(["help", "nosuch"], {}) == 64
    assert "'nosuch' is not a command" in capfd.readouterr().err
    # An image whose entry point is the launcher alone has run no job.
    assert main([], {}) == 64
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("usage: launcher COMMAND") and "[usage] no command given" in err
    # launcher alone, or with a word that is none of them: status 64.
    for argv in ([], ["start"], ["--nnodes", "2"], [""]):
        assert main(argv, {}) == EXIT_USAGE
        out, err = capfd.readouterr()
        assert out == "" and "[usage]" in err
        assert all(name in err for name in COMMANDS)


@pytest.mark.parametrize(("name", "example"), [(name, one.example) for name, one in COMMANDS.items()])
def test_examples_of_commands_have_flags_of_theirs(name: str, example: str) -> None:
    """What stands in the help can be typed."""
    words = example.partition(" -- ")[0].split()
    assert words[:2] == ["launcher", name]
    known = {spelling for action in find_parser(name)._actions for spelling in action.option_strings}
    assert [word for word in words[2:] if word.startswith("-") and word not in known] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With its flags and their variables."""
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"], {})
    assert stopped.value.code == 0
    out, err = capfd.readouterr()
    assert err == "" and out.startswith(f"usage: launcher {name}")
    if name in ("run", "env", "plan"):
        assert "--nproc-per-node" in out and "LAUNCHER_NPROC_PER_NODE" in out


def show_help(word: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Return a help of ``launcher run``."""
    with pytest.raises(SystemExit) as stopped:
        main(["run", word], {})
    out, err = capfd.readouterr()
    assert (stopped.value.code, err) == (0, "")
    return out


def test_the_help_of_run_has_what_most_need_and_all_has_every_flag(capfd: pytest.CaptureFixture[str]) -> None:
    """Ten flags on one screen; the rest in groups, with their variables."""
    # Ten flags, in groups, on one screen; the rest where it says.
    brief = show_help("--help", capfd)
    assert show_help("-h", capfd) == brief
    shown = re.findall(r"^  (?:-\w \w+, )?(--[a-z-]+)", brief, re.MULTILINE)
    assert len(set(shown) - {"--help-all"}) == 10 and {"--nproc-per-node", "--hosts"} < set(shown)
    assert len(brief.splitlines()) < 40 and "--help-all" in brief
    titles = re.findall(r"^(\w.*):$", brief, re.MULTILINE)
    assert titles == ["options", *BRIEF]
    # Those of the table, and what they are called as variables.
    whole = show_help("--help-all", capfd)
    for group, title in GROUPS.items():
        text = whole.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        flags = [flag for flag in FLAGS if flag.group == group]
        assert all(re.search(rf"^  .*{flag.name}\b", text, re.MULTILINE) for flag in flags), title
        assert all(flag.variable in whole for flag in flags)


@pytest.mark.parametrize(
    ("argv", "environ", "status", "code"),
    [
        (["plan", "--nnodes", "x"], {}, EXIT_USAGE, "malformed-flag"),
        (["plan"], {"LAUNCHER_SCOPE": "rank"}, EXIT_USAGE, "malformed-flag"),
        (["plan", "--source", "nobody"], {}, EXIT_USAGE, "unknown-source"),
        (["plan", "--source", ":"], {}, EXIT_USAGE, "unknown-source"),
        (["plan", "--source", "json:missing"], {}, EXIT_USAGE, "unknown-source"),
        (["plan", "--replay", "/nonexistent"], {}, EXIT_USAGE, "bad-snapshot"),
        (["run"], {}, EXIT_USAGE, "no-command"),
        (["run", "-m"], {}, EXIT_USAGE, "no-command"),
        (["run", "--replay", "/nonexistent", "true"], {}, EXIT_USAGE, "usage"),
        (["env", "--format", "yaml"], {}, EXIT_USAGE, "usage"),
        (["env", "--local-rank", "1"], {}, EXIT_USAGE, "usage"),
        (["env", "--local-rank", "x"], {}, EXIT_USAGE, "usage"),
        (["env", "--nproc-per-node", "gpu"], {}, EXIT_HARDWARE, "no-gpu"),
        (["env"], {"RANK": "x", "WORLD_SIZE": "2"}, EXIT_UNTRUSTED, "malformed-variable"),
        (["env"], {"RANK": "0"}, EXIT_UNTRUSTED, "missing-variable"),
        (["env"], {"MASTER_ADDR": "192.0.2.1"}, EXIT_UNTRUSTED, "no-identity"),
        (["env"], {**OPEN_MPI, "RANK": "0"}, EXIT_UNTRUSTED, "contradiction"),
        (["env", "--gpus-per-process", "2"], {}, EXIT_UNTRUSTED, "too-few-gpus"),
    ],
)
def test_refusals_have_a_status_a_code_and_a_fix(
    argv: list[str], environ: dict[str, str], status: int, code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What, where and the fix on standard error; standard output stays empty for whoever parses it."""
    assert main(argv, {**environ, "CUDA_VISIBLE_DEVICES": ""}) == status
    out, err = capfd.readouterr()
    assert out == ""
    assert f"launcher: error: [{code}] " in err
    assert err.count("launcher:   from: ") == err.count("launcher:   fix:  ") == err.count("error: [")


def test_all_problems_are_reported_at_once_and_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    """Never one per attempt."""
    environ = {"RANK": "x", "WORLD_SIZE": "-2", "LOCAL_RANK": "1.5", "MASTER_PORT": "0"}
    assert main(["plan"], environ) == EXIT_UNTRUSTED
    named = re.findall(r"error: \[malformed-variable\] (\w+)=", capfd.readouterr().err)
    assert named == sorted(environ)


@pytest.mark.parametrize(
    ("words", "status"), [(["no-such-program"], 127), (["/"], 126), (["--", "/etc/passwd"], 126)]
)
def test_a_command_that_cannot_start_has_a_shells_status(words: list[str], status: int) -> None:
    """127 not found, 126 found but not executable; the launcher's message says which."""
    done = launch("run", *words, environ=OPEN_MPI)
    assert done.returncode == status
    assert done.stdout == "" and "launcher: error: [command-not-" in done.stderr


def test_env_prints_what_a_process_has(capfd: pytest.CaptureFixture[str]) -> None:
    """--local-rank chooses one; a process without a rank inherits nothing that describes one."""
    # --local-rank chooses among those of this node.
    for local_rank in range(3):
        argv = ["env", "--nproc-per-node", "3", "--local-rank", str(local_rank), "--format", "json"]
        assert main(argv, {}) == 0
        environ = json.loads(capfd.readouterr().out)
        assert (environ["RANK"], environ["LOCAL_RANK"]) == (str(local_rank), str(local_rank))
    assert main(["env", "--nproc-per-node", "3", "--local-rank", "3"], {}) == EXIT_USAGE
    # A shell that evaluates it has nothing left that describes a rank.
    task = {
        "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]},
        "task": {"type": "ps", "index": 0},
    }
    environ = {"TF_CONFIG": json.dumps(task), "ROLE_RANK": "5", "MASTER_PORT": "7"}
    assert main(["env", "--format", "sh"], environ) == 0
    out, _ = capfd.readouterr()
    assert "unset ROLE_RANK\n" in out and "MASTER_PORT" not in out


def test_a_dry_run_prints_the_plan_and_no_secret_and_starts_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """run --dry-run says the exact command, without what people paste into bug reports."""
    # run --dry-run says the exact command.
    marker = tmp_path / "started"
    assert main(["run", "--dry-run", "--nproc-per-node", "2", "--", "touch", str(marker)], {}) == 0
    out, _ = capfd.readouterr()
    assert "start ranks 0-1: touch" in out and "MASTER_PORT" in out
    assert not marker.exists()
    # --api-key X is what people paste into bug reports.
    for style in ("text", "json"):
        assert main(["plan", "--format", style, "--", "train.py", "--api-key", "hunter2"], {}) == 0
        assert "hunter2" not in capfd.readouterr().out


def test_a_plan_says_how_the_processes_are_watched(capfd: pytest.CaptureFixture[str]) -> None:
    """One line, where the launcher stays; none where it becomes the command."""
    flags = [
        *("--nproc-per-node", "2", "--signal-map", "TERM=USR1", "--restarts", "3", "-r", "3", "--grace"),
        "5",
    ]
    assert main(["plan", *flags, "--", "true"], {}) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("watch: ")]
    assert line == (
        "watch: stops processes with SIGTERM to each leader, and SIGKILL after 5 s; "
        "SIGUSR1 where SIGTERM arrives; lines start with their rank; "
        "off a terminal, the same traceback of several ranks once; "
        "output in files below a temporary directory; 3 restarts; report after 600 s without activity"
    )
    assert main(["plan", "--", "true"], {**OPEN_MPI, "MASTER_ADDR": "127.0.0.1"}) == 0
    assert "watch: " not in capfd.readouterr().out


def test_what_is_shown_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder on PYTHONPATH that pip has not installed shows all that an installation shows."""
    for name in ("rich", "pynvml", "prometheus_client", "psutil"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in (["plan"], ["plan", "--format", "json"], ["env"], ["topology"]):
        assert main(words, {}) == 0, words
