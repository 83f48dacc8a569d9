"""Flags and their LAUNCHER_* forms: which one wins, what is refused, and where the command begins."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launcher.cli.entry import main
from launcher.core.errors import EXIT_USAGE, EnvironmentUntrusted, HardwareMissing, LauncherError, UsageError
from launcher.core.model import Fact, Trust
from launcher.core.supervision import LogStyle, Restarts, Supervision
from launcher.machine.host import Host
from launcher.options.flag_values import NOT_PASSED_ON, PROCESS_LIMIT
from launcher.options.flags import (
    EXCLUDES,
    FLAGS,
    NEEDS,
    OTHER_PREFIXES,
    Flag,
    list_others,
)
from launcher.options.parser import find_full, make_run_parser, read_run
from launcher.options.reading import Options, read_options
from launcher.planning.notes import name_unknown
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from tests.process.starting import ROOT, clean_environ
from tests.unit.machines import recorded_cpus

VALUED = [flag for flag in FLAGS if flag.parse is not None]
SWITCHES = [flag for flag in FLAGS if flag.parse is None]
SAMPLE = {
    "nnodes": ("2", "3"),
    "node_rank": ("1", "0"),
    "nproc_per_node": ("2", "auto"),
    "master_addr": ("node0", "10.0.0.4"),
    "master_port": ("29500", "6105"),
    "scope": ("node", "process"),
    "source": ("manual", "slurm"),
    "role": ("trainer", "default"),
    "gpus_per_process": ("1", "2"),
    "bind": ("numa", "core"),
    "fabric": ("ib", "tcp"),
    "require_fabric": ("ib", "efa"),
    "grace": ("5", "0.5"),
    "signal_to": ("group", "leader"),
    "signal_map": ("TERM=USR1", "SIGINT=10,15=SIGUSR2"),
    "stopped_status": ("75", "own"),
    "fatal_status": ("65", "125"),
    "restarts": ("2", "0"),
    "restarts_per_cause": ("3", "0"),
    "restart_on": ("any", "retryable"),
    "no_restart_status": ("93", "1,255"),
    "restart_delay": ("0", "2.5"),
    "restart_delay_max": ("10", "0"),
    "restarts_reset_after": ("3600", "0"),
    "progress_file": ("checkpoint.pt", "/data/step"),
    "progress_pattern": ("step [0-9]+", "loss"),
    "attempts_file": ("attempts.jsonl", "/data/attempts.jsonl"),
    "rejoin_timeout": ("60", "0"),
    "spares": ("1", "4096"),
    "health_command": ("dcgmi diag -r 1", "'/opt/check node' --quick"),
    "failure_file": ("failure.json", "/tmp/failure.json"),
    "evidence_dir": ("evidence", "/data/evidence"),
    "events": ("events.jsonl", "/data/events-%n.jsonl"),
    "log_dir": ("logs", "/tmp/logs"),
    "redirects": ("3", "0:1,1:2"),
    "tee": ("1", "0:3"),
    "local_ranks_filter": ("0", "0,1,2"),
    "log_format": ("json", "text"),
    "log_rotate": ("100M", "65536"),
    "stdin": ("1", "all"),
    "preload": ("auto", "torch,transformers.models"),
    "stall_timeout": ("60", "0"),
    "meeting_timeout": ("60", "0"),
    "slow_below": ("300", "0.5"),
    "metrics_port": ("9400", "1"),
    "engine": ("process", "torchrun"),
    "hosts": ("node0,node1", "10.0.0.4,10.0.0.5"),
    "hostfile": ("hosts", "/etc/hosts.mpi"),
    "framework": ("jax", "horovod"),
    "worker_count": ("2", "1"),
    "parameter_server_count": ("1", "2"),
    "roles": ("chief=0 worker=0-1", "worker=0,0"),
    "tf_server": ("standard", "script"),
    "tf_port": ("3333", "1024"),
    "mpi_args": ("--mca pml 'ob1'", "-iface eth0"),
    "forward": ("HF_TOKEN", "HF_*,DATA_DIR"),
    "roll_call_timeout": ("60", "900"),
    "control_port": ("7000", "6106"),
    "token_file": ("/run/secrets/token", "token"),
    "lost_after": ("30", "10"),
    "max_restarts": ("3", "100000"),
    "rdzv_backend": ("c10d", "etcd-v2"),
    "rdzv_endpoint": ("node0:29400", "localhost:0"),
    "rdzv_id": ("job 1", "none"),
    "rdzv_conf": ("timeout=600,read_timeout=60", "is_host=true"),
    "local_addr": ("10.0.0.5", "node1"),
    "monitor_interval": ("0.5", "5"),
    "shutdown_timeout": ("60", "0"),
    "signals_to_handle": ("SIGTERM", "SIGTERM,SIGUSR1"),
    "start_method": ("fork", "spawn"),
    "numa_binding": ("node", "core-complex"),
    "logs_specs": ("mine", "default"),
    "event_log_handler": ("console", "null"),
    "duplicate_stdout_filters": ("loss", "loss,step"),
    "duplicate_stderr_filters": ("error", "error,,warn"),
    "on_stall": ("stop", "report"),
    "preemption": ("azure", "off"),
}
MALFORMED = {
    "nnodes": ["0", "-1", "two", "4:1", "1:", ":4", "1:2:3", "", " ", "1.5", "\u0662", "9" * 30],
    "node_rank": ["-1", "x", "", "1_0"],
    "nproc_per_node": ["0", "GPU", "all", str(PROCESS_LIMIT + 1), ""],
    "master_addr": ["", "a b", "a;b", "-x", "http://node0", "x" * 300],
    "master_port": ["65536", "http", "-1"],
    "scope": ["Node", "rank", ""],
    "gpus_per_process": ["0", "1024", "half"],
    "bind": ["node", "NUMA", "cores", "0-3"],
    "fabric": ["infiniband", "IB", ""],
    "require_fabric": ["auto", "tcp", ""],
    "grace": ["-1", "nan", "inf", "soon", "86401"],
    "signal_to": ["children", ""],
    "signal_map": [
        *("TERM", "TERM=", "TERM=KILL", "STOP=USR1", "TERM=USR1,TERM=USR2", "99=1", "TERM=1e1", ""),
        f"{'9' * 5000}=TERM",
        *(f"{name}=USR1" for name in NOT_PASSED_ON),
        *("SIGABRT=USR1", "6=USR1", "TERM=USR1,SEGV=USR2"),
    ],
    "stopped_status": ["0", "74", ""],
    "fatal_status": ["0", "75", "126", "x"],
    "restarts": ["-1", "1001", "many"],
    "restarts_per_cause": ["-1", "1001"],
    "restart_on": ["always", ""],
    "no_restart_status": ["0", "256", "93,", "x", ""],
    "restart_delay": ["-1", "soon"],
    "restart_delay_max": ["nan"],
    "restarts_reset_after": ["-1"],
    "progress_pattern": ["(", "*"],
    "rejoin_timeout": ["-1", "86401"],
    "spares": ["-1", "4097"],
    "health_command": ["'open"],
    "redirects": ["4", "-1", "0:4", "0:1,", "stdout", ""],
    "tee": ["0:1:2", "x:1"],
    "local_ranks_filter": ["0,", "-1", "all"],
    "log_format": ["JSON", "xml", ""],
    "stdin": ["-1", "first", ""],
    "log_rotate": ["0", "63K", "-1G", "1T", "1.5G", "G", ""],
    "preload": ["auto,torch", "a b", "../x"],
    "stall_timeout": ["-1", "soon"],
    "meeting_timeout": ["-1", "soon"],
    "metrics_port": ["0", "65536", "http"],
    "on_stall": ["kill"],
    "preemption": ["Azure", "on", "http://169.254.169.254", ""],
    "engine": ["Process", "mpi"],
    "hosts": ["", "a,", "a,a", "a b", "-oProxyCommand=x", "a;b"],
    "framework": ["keras", "JAX"],
    "worker_count": ["-1", "two", str(PROCESS_LIMIT + 1)],
    "parameter_server_count": ["-1", "1.5"],
    "roles": ["worker", "worker=", "master=0", "worker=1-0", "worker=0 worker=1", "ps=x", " "],
    "tf_server": ["none"],
    "tf_port": ["0", "65536"],
    "mpi_args": ["--mca pml 'ob1"],
    "forward": ["", "A,", "A B", "A=b", "*A", "$(id)"],
    "roll_call_timeout": ["-1", "soon", "86401"],
    "max_restarts": ["-1", "many"],
    "rdzv_backend": ["", "c10d;", "-x", "a b"],
    "rdzv_endpoint": ["node0:65536", "node0:", "a b:1", "http://node0:1"],
    "rdzv_conf": ["timeout", "timeout=", "=1", "a=1,"],
    "local_addr": ["a b", "-x"],
    "monitor_interval": ["-1", "soon"],
    "shutdown_timeout": ["1.5", "-1"],
    "start_method": ["thread"],
    "numa_binding": ["a b"],
}


def plan_environ(
    typed: Mapping[str, str | bool], environ: Mapping[str, str], gpus: int | None = None
) -> dict[str, str]:
    """Return the settings of the first process of a plan on a recorded machine."""
    host = replay({"environ": environ, "gpus": gpus})
    plan = plan_job(environ, host, read_options(typed, environ), ())
    return {item.name: item.value for item in (*plan.settings, *plan.processes[0].settings)}


@pytest.mark.parametrize("flag", VALUED, ids=lambda flag: flag.dest)
def test_a_flag_beats_its_variable(flag: Flag) -> None:
    """--nnodes 2 wins over LAUNCHER_NNODES=3, and says so."""
    typed, exported = SAMPLE[flag.dest]
    other, value = NEEDS.get(flag.dest, ("", ""))
    environ = {flag.variable: exported, f"LAUNCHER_{other.upper()}": value or "60"}
    given = read_options({flag.dest: typed}, environ).get(flag.dest)
    assert given is not None and flag.parse is not None
    assert given.value == flag.parse(typed)
    assert given.origin == f"{flag.name} {'...' if 'secret' in flag.kinds else typed}"


@pytest.mark.parametrize("flag", VALUED, ids=lambda flag: flag.dest)
def test_a_variable_gives_what_its_flag_gives(flag: Flag) -> None:
    """Without the flag its LAUNCHER_* form counts, with its own origin; an empty one is unset."""
    text = SAMPLE[flag.dest][0]
    given = read_options({}, {flag.variable: text}).get(flag.dest)
    assert given is not None and flag.parse is not None
    assert given.value == flag.parse(text)
    assert given.origin == f"{flag.variable}={'...' if 'secret' in flag.kinds else text!r}"
    assert read_options({}, {flag.variable: ""}).get(flag.dest) is None


@pytest.mark.parametrize("flag", SWITCHES, ids=lambda flag: flag.dest)
def test_a_switch_is_on_by_flag_or_by_variable(flag: Flag) -> None:
    """1 and true turn it on, 0 and false do not, anything else is refused."""
    assert read_options({flag.dest: True}, {flag.variable: "0"}).switch(flag.dest)
    for text, on in (("1", True), ("True", True), ("0", False), ("false", False)):
        assert read_options({}, {flag.variable: text}).switch(flag.dest) is on
    with pytest.raises(UsageError):
        read_options({}, {flag.variable: "yes"})


@pytest.mark.parametrize(
    ("dest", "text"), [(dest, text) for dest, texts in MALFORMED.items() for text in texts]
)
def test_a_malformed_flag_is_named_with_what_was_expected(dest: str, text: str) -> None:
    """Typed or exported: the message has the name, the value and where it came from."""
    (flag,) = (flag for flag in FLAGS if flag.dest == dest)
    with pytest.raises(UsageError) as typed:
        read_options({dest: text}, {})
    (problem,) = typed.value.problems
    assert (problem.code, problem.where) == ("malformed-flag", "command line")
    assert problem.what.startswith(f"{flag.name} {text}: expected ")
    if text:
        with pytest.raises(UsageError) as exported:
            read_options({}, {flag.variable: text})
        (problem,) = exported.value.problems
        assert problem.where == "environment"
        assert flag.variable in problem.what and flag.variable in problem.fix


@pytest.mark.parametrize("dest", [flag.dest for flag in FLAGS if "empty" in flag.kinds])
def test_an_empty_text_that_torchrun_takes_is_as_if_it_were_not_there(dest: str) -> None:
    """--rdzv-conf "$CONF" in a script, with a variable that is empty."""
    assert read_options({dest: ""}, {}).get(dest) is None


def test_a_free_port_can_be_asked_for_on_one_node() -> None:
    """--master-port 0, as torchrun has it; on several nodes each would choose another one."""
    host = replay({"environ": {}})
    for typed in ({"master_port": "0"}, {"master_port": "0", "nnodes": "1", "node_rank": "0"}):
        plan = plan_job({}, host, read_options(typed, {}), ("./a",))
        assert plan.topology.master_port == host.free_port()
    several = read_options({"master_port": "0", "nnodes": "2", "node_rank": "0", "master_addr": "node0"}, {})
    with pytest.raises(EnvironmentUntrusted, match="makes each launcher choose its own port"):
        plan_job({}, host, several, ("./a",))


def test_a_signal_map_that_never_happens_names_the_signals_that_can_be_mapped() -> None:
    """ABRT would end the launcher itself; KILL reaches no process at all."""
    with pytest.raises(UsageError) as caught:
        read_options({}, {"LAUNCHER_SIGNAL_MAP": "ABRT=USR1"})
    assert "ALRM" in caught.value.problems[0].what and "ABRT," not in caught.value.problems[0].what
    with pytest.raises(UsageError) as caught:
        read_options({"signal_map": "KILL=USR1"}, {})
    assert "no KILL or STOP, which nothing can catch" in caught.value.problems[0].what


def test_flags_overrule_what_the_platform_says() -> None:
    """Each fact of a Slurm step, contradicted by a flag: the flag wins, without an error."""
    slurm = {
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "node[0-1]",
    }
    typed = {"master_addr": "10.0.0.9", "master_port": "1234", "nproc_per_node": "2", "scope": "node"}
    environ = plan_environ(typed, slurm)
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("10.0.0.9", "1234")
    assert (environ["WORLD_SIZE"], environ["RANK"], environ["NODE_RANK"]) == ("4", "2", "1")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("0", 0), ("24h", 86400)]
)
def test_durations_have_units(text: str, seconds: float) -> None:
    """Seconds, minutes and hours, up to a day."""
    assert read_options({"grace": text}, {}).grace_s == seconds
    assert read_options({}, {"LAUNCHER_GRACE": text}).grace_s == seconds


@pytest.mark.parametrize("text", ["5d", "s", "-1m", "25h", "inf", "nan", "m5", "1mm"])
def test_what_is_no_duration_is_refused_with_the_form(text: str) -> None:
    """With examples of it."""
    with pytest.raises(UsageError, match=r"in 0[.][.]86400, or a duration such as 90s, 5m or 2h"):
        read_options({"grace": text}, {})


@pytest.mark.parametrize(
    ("text", "size"), [("65536", 1 << 16), ("64KiB", 1 << 16), ("100M", 100 << 20), ("4GiB", 4 << 30)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    """Of 1024."""
    assert read_options({"log_rotate": text}, {}).number("log_rotate", 0) == size


@pytest.mark.parametrize("text", ["4B", "65536iB", "4kib", "GiB"])
def test_what_is_no_size_is_refused_with_the_form(text: str) -> None:
    """With examples of it."""
    with pytest.raises(UsageError, match="such as 65536, 100M or 4GiB"):
        read_options({"log_rotate": text}, {})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env", "--local-rank", "one"], "'one': expected an integer in 0..16777215"),
        (["rehearse", "--nodes", "0"], "'0': expected an integer in 1..200"),
        (["status", "--watch", "0.1"], "'0.1': expected seconds in 0.5..3600, or a duration such as 90s"),
        (["run", "--stdin", "some", "true"], "expected an integer in 0..16777215, or all or none"),
    ],
)
def test_a_bad_value_of_any_command_is_told_the_form(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kinds are those of the table of flags."""
    assert main(words) == EXIT_USAGE
    assert said in capfd.readouterr().err


@pytest.mark.parametrize("word", ["auto", "gpu"])
def test_words_for_the_number_of_processes_count_the_gpus(word: str) -> None:
    """Both are the visible GPUs."""
    assert plan_environ({"nproc_per_node": word}, {}, gpus=4)["WORLD_SIZE"] == "4"


def test_words_for_the_number_of_processes_need_gpus() -> None:
    """auto is the CPUs without GPUs, gpu an error; several nodes need a rank and a master."""
    # As torchrun has it; what the cgroup grants counts, not the machine.
    host = replay({"environ": {}, "gpus": 0, "files": recorded_cpus("0-5"), "affinity": "0"})
    for word in ("auto", "cpu"):
        plan = plan_job({}, host, read_options({"nproc_per_node": word}, {}), ())
        assert plan.topology.world_size == 6
    with pytest.raises(HardwareMissing):
        plan_job({}, host, read_options({"nproc_per_node": "gpu"}, {}), ())
    # --nnodes 2 alone never becomes node 0 on localhost.
    argv = ["env", "--nnodes", "2"]
    assert main(argv, {}) == 78
    assert main([*argv, "--node-rank", "1"], {}) == 78
    assert main([*argv, "--node-rank", "1"], {"MASTER_ADDR": "localhost"}) == 78
    assert main([*argv, "--node-rank", "2", "--master-addr", "node0"], {}) == 78
    assert main([*argv, "--node-rank", "1", "--master-addr", "node0"], {}) == 0


def test_both_spellings_and_all_problems_count(capfd: pytest.CaptureFixture[str]) -> None:
    """The last of both spellings wins; all malformed flags are reported at once, in order."""
    # torchrun takes --nproc_per_node and --nproc-per-node; the last one counts.
    for spelling in ("--nproc_per_node", "--nproc-per-node"):
        assert main(["env", "--format", "json", spelling, "3"], {}) == 0
        assert json.loads(capfd.readouterr().out)["WORLD_SIZE"] == "3"
    assert main(["env", "--format", "json", "--nproc_per_node=3", "--nproc-per-node=2"], {}) == 0
    assert json.loads(capfd.readouterr().out)["WORLD_SIZE"] == "2"
    # Whether typed or exported, in sorted order.
    with pytest.raises(UsageError) as caught:
        read_options({"nnodes": "x", "master_port": "-1"}, {"LAUNCHER_SCOPE": "rank"})
    named = [problem.what.partition(":")[0] for problem in caught.value.problems]
    assert named == ["--master-port -1", "--nnodes x", "LAUNCHER_SCOPE='rank'"]


ABBREVIATED: list[tuple[list[str], dict[str, str | bool]]] = [
    (["--nproc", "2"], {"nproc_per_node": "2"}),
    (["--nproc_per=2"], {"nproc_per_node": "2"}),
    (["--redirect=3"], {"redirects": "3"}),
    (["--no-p", "--nn", "1"], {"no_python": True, "nnodes": "1"}),  # not our --no-peers, --no-prefix
    (["--max", "1"], {"max_restarts": "1"}),
    (["--local-r", "0"], {"local_ranks_filter": "0"}),  # not our --local-rank-arg
    (["--rdzv-e", "a:1", "--master-a", "b"], {"rdzv_endpoint": "a:1", "master_addr": "b"}),
    (["--standal", "--role", "a"], {"standalone": True, "role": "a"}),
    (["--stall", "9", "--no-prog"], {"stall_timeout": "9", "progress": False}),  # ours alone
    (["--restart", "2"], {"restarts": "2"}),  # not one of the flags that begin so
]


@pytest.mark.parametrize(("words", "wanted"), ABBREVIATED)
def test_a_flag_can_be_abbreviated(words: list[str], wanted: dict[str, str | bool]) -> None:
    """What is unique among torchrun's flags means torchrun's, else what is unique among all."""
    typed, command, _ = read_run([*words, "true", "--nproc", "9"], {})
    given = {flag.dest for flag in FLAGS if typed[flag.dest] is not None}
    assert {dest: typed[dest] for dest in given} == wanted
    assert command == ("true", "--nproc", "9")


@pytest.mark.parametrize(
    ("word", "named"),
    [("--log", "--log-dir or --log-format or --log-rotate or --logs-specs"), ("--st", "--start-method")],
)
def test_an_ambiguous_abbreviation_names_what_it_may_be(word: str, named: str) -> None:
    """Each candidate once, in its usual spelling; torchrun would refuse it, too."""
    with pytest.raises(UsageError) as caught:
        read_run([word, "9", "true"], {})
    (problem,) = caught.value.problems
    assert problem.what.startswith(f"{word} is ambiguous: ") and named in problem.what
    assert "_" not in problem.what


@pytest.mark.torch
def test_every_beginning_that_torchrun_takes_means_the_same_flag_here() -> None:
    """All beginnings of all spellings of the installed torchrun's flags, against its own parser."""
    from torch.distributed.run import get_args_parser  # type: ignore[import-not-found, unused-ignore]

    parser = get_args_parser()
    theirs = {name: action.dest for action in parser._actions for name in action.option_strings}
    del theirs["-h"]
    known = {flag.dest for flag in FLAGS if flag.is_torchruns} | {"help"}
    assert set(theirs.values()) == known
    ours = {name: action for action in make_run_parser({})._actions for name in action.option_strings}
    for full, dest in theirs.items():
        for length in range(3, len(full) + 1):
            name = full[:length]
            if name == full or {theirs[other] for other in theirs if other.startswith(name)} == {dest}:
                spelled = name if name in ours else find_full(name, ours)
                assert ours[spelled].dest == dest, name


@pytest.mark.parametrize(
    ("words", "typed", "said"),
    [
        (
            ("python", "SCRIPT", "--nproc-per-node", "2"),
            {},
            "--nproc-per-node comes after the script, so the script",
        ),
        (
            ("SCRIPT", "--nnodes=2", "--node_rank", "0"),
            {},
            "--nnodes, --node_rank come after the script, so the script",
        ),
        (
            ("python3", "-u", "-m", "train", "--standalone"),
            {},
            "--standalone comes after the script, so the script",
        ),
        (("python", "SCRIPT", "--nproc", "2"), {}, "--nproc comes after the script, so the script"),
        (("python", "SCRIPT", "--n", "2"), {}, ""),  # any script may have that
        (("python", "SCRIPT", "--nnodes", "2"), {"nnodes": "1"}, ""),  # in front as well
        (("python", "TAKES", "--nnodes", "2"), {}, ""),  # its text has a flag of that name
        (
            ("python", "SCRIPT", "--log-dir", "x", "--role", "y", "--tee", "3"),
            {},
            "",
        ),  # many scripts have those
        (("python", "SCRIPT", "nnodes", "-nnodes"), {}, ""),
        (("./train", "--nnodes", "2"), {}, ""),
        (("python", "-m", "torch.distributed.run", "--nnodes", "1", "SCRIPT", "--nnodes", "2"), {}, ""),
        (
            ("nice", "torchrun", "SCRIPT", "--nproc_per_node=8"),
            {},
            "--nproc_per_node comes after the script, so the script receives it. Move it before the script: "
            "torchrun --nproc_per_node ...",
        ),
        (("torchrun", "TAKES", "--nnodes", "2"), {}, ""),
        (("accelerate", "launch", "SCRIPT", "--nnodes", "2"), {}, ""),  # it has no such flag
    ],
)
def test_a_flag_behind_the_command_gets_a_hint(
    words: tuple[str, ...], typed: dict[str, str | bool], said: str, tmp_path: Path
) -> None:
    """It is the script's, and the job starts; where that is most likely a mistake, one line says so."""
    scripts = {"SCRIPT": tmp_path / "train.py", "TAKES": tmp_path / "takes.py"}
    scripts["SCRIPT"].write_text("print('hello')\n")
    scripts["TAKES"].write_text("parser.add_argument('--nnodes')\n")
    command = tuple(str(scripts.get(word, word)) for word in words)
    plan = plan_job({}, Host(), read_options(typed, {}), command)
    hints = [warning for warning in plan.warnings if "after the script" in warning]
    assert [hint[: len(said)] for hint in hints] == ([said] if said else [])
    assert all(hint in plan.notes for hint in hints)
    if plan.processes and hints:
        assert plan.processes[0].argv[-1] == command[-1]


PROBE = """#!{python}
import json, os, sys
names = ("RANK", "ROLE_NAME", "LAUNCHER_NNODES")
print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in names}}]))
"""
# words after "launcher run", what the command must find as its own arguments, and its ROLE_NAME
LINES: list[tuple[list[str], list[str] | int, str]] = [
    (["--", "PROBE", "--flag"], ["--flag"], "default"),
    (["PROBE", "--", "y"], ["--", "y"], "default"),
    (["--", "PROBE", "--", "y"], ["--", "y"], "default"),
    (["PROBE"], [], "default"),
    (["-m", "probe", "--nnodes", "3"], ["--nnodes", "3"], "default"),
    (["--role", "a", "-m", "probe", "--role", "b", "-m"], ["--role", "b", "-m"], "a"),
    (["--", "-m", "probe", "--dry-run"], ["--dry-run"], "default"),
    (["--module", "--", "probe", "--", "-x"], ["--", "-x"], "default"),
    (["PROBE", "--dry-run", "--help", "-h"], ["--dry-run", "--help", "-h"], "default"),
    (["--role=a", "PROBE", "--role=b"], ["--role=b"], "a"),
    (["--nproc_per_node=1", "PROBE", "--nproc-per-node", "9"], ["--nproc-per-node", "9"], "default"),
    (["PROBE", "", "a b", "*", "-", "--", "$HOME"], ["", "a b", "*", "-", "--", "$HOME"], "default"),
    (["--role", "--", "PROBE"], 64, ""),
    (["--unknown", "PROBE"], 64, ""),
    (["--nno", "1", "PROBE", "--nno", "9"], ["--nno", "9"], "default"),
    (["--rol=a", "--no-pyth", "PROBE", "--rol"], ["--rol"], "a"),
    (["--log", "x", "PROBE"], 64, ""),  # --log-dir or --logs-specs
    (["--nnodes", "-1", "PROBE"], 64, ""),
    (["--"], 64, ""),
    ([], 64, ""),
]


def interpreters() -> list[str]:
    """Return one interpreter for each supported version that this machine has, ours first."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(10, 15):
        patterns = (f"~/.pyenv/versions/3.{minor}.*/bin/python", f"/usr/bin/python3.{minor}")
        paths = [path for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))]
        if paths:
            found.setdefault((3, minor), paths[-1])
    return list(found.values())


def run_line(python: str, words: Sequence[str], folder: Path) -> tuple[list[str] | int, str]:
    """Run one line under one interpreter; return the command's arguments or the status, and the role."""
    environ = clean_environ()
    environ["PYTHONPATH"] += os.pathsep + str(folder)
    line = [str(folder / "probe") if word == "PROBE" else word for word in words]
    done = subprocess.run(
        [python, "-m", "launcher", "run", *line],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        return done.returncode, ""
    arguments, variables = json.loads(done.stdout)
    assert variables["RANK"] == "0"
    return arguments, variables["ROLE_NAME"]


@pytest.mark.thorough
@pytest.mark.parametrize("python", interpreters())
def test_the_command_keeps_its_own_flags_under_every_python(python: str, tmp_path: Path) -> None:
    """argparse treats -- differently from version to version; what the command gets must not differ."""
    for name in ("probe", "probe.py"):
        (tmp_path / name).write_text(PROBE.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    expected = [(wanted, role) for _, wanted, role in LINES]
    assert [run_line(python, words, tmp_path) for words, _, _ in LINES] == expected


@pytest.mark.parametrize("path", ["no_such_module_x:read", "json", ":"])
def test_a_source_that_is_none_is_a_usage_error(path: str) -> None:
    """A wrong --source is named, with those that exist; it is no bug of the launcher."""
    with pytest.raises(UsageError, match="unknown-source"):
        plan_job({}, replay({"environ": {}}), read_options({"source": path}, {}), ())


def test_a_source_is_a_source_of_this_job(capfd: pytest.CaptureFixture[str]) -> None:
    """One of which nothing is set is not believed; env takes no command."""
    # --source slurm without srun: each node would be a job of its own.
    slurm = read_options({"source": "slurm"}, {})
    with pytest.raises(EnvironmentUntrusted, match="source-absent") as caught:
        plan_job({"PATH": "/bin"}, replay({"environ": {}}), slurm, ("true",))
    assert "SLURM_PROCID" in str(caught.value) and "leave out --source" in str(caught.value)
    plan_job({}, replay({"environ": {}}), read_options({"source": "manual"}, {}), ("true",))
    # launcher env prints variables; a command after it is a mistake, and is named.
    assert main(["env", "--", "python"], {}) == EXIT_USAGE
    assert "python" in capfd.readouterr().err


CONFLICTS = [
    ({"on_stall": "stop"}, ("--on-stall stop", "--stall-timeout S")),
    ({"forward": "A", "engine": "process"}, ("--forward A", "--engine mpirun", "--engine process")),
    ({"module": True, "no_python": True}, ("--module", "--no-python")),
    ({"standalone": True, "nnodes": "2"}, ("--standalone", "--nnodes 2")),
    ({"standalone": True, "nnodes": "2:3"}, ("--standalone", "--nnodes 2:3")),
    ({"standalone": True, "node_rank": "1"}, ("--standalone", "--node-rank 1")),
    ({"standalone": True, "hosts": "a,b"}, ("--standalone", "--hosts a,b")),
    ({"restarts": "1", "max_restarts": "1"}, ("--restarts 1", "--max-restarts 1")),
    ({"nproc_per_node": "3", "worker_count": "2"}, ("--nproc-per-node 3", "--worker-count 2")),
    ({"nproc_per_node": "3", "roles": "worker=0"}, ("--nproc-per-node 3", "--roles worker=0")),
    ({"fabric": "tcp", "require_fabric": "ib"}, ("--fabric tcp", "--require-fabric ib")),
    ({"nproc_per_node": "3", "chief": False}, ("--nproc-per-node 3", "--no-chief")),
]


@pytest.mark.parametrize(("typed", "named"), CONFLICTS)
def test_a_flag_that_would_do_nothing_names_both(
    typed: dict[str, str | bool], named: tuple[str, ...]
) -> None:
    """As a variable it may stand in an image, for jobs of other kinds."""
    with pytest.raises(UsageError) as caught:
        read_options(typed, {})
    (problem,) = caught.value.problems
    assert problem.code == "flag-conflict" and all(name in problem.what for name in named)
    read_options(
        {}, {f"LAUNCHER_{dest.upper()}": str(int(v) if v is True else v) for dest, v in typed.items()}
    )


@pytest.mark.parametrize(
    "typed",
    [
        {"on_stall": "stop", "stall_timeout": "60"},
        {"token_file": "k", "engine": "mpirun"},
        {"standalone": True, "nnodes": "1", "node_rank": "0"},
        {"standalone": True, "nnodes": "1:2"},
        {"module": True, "no_python": False},
        {"run_path": True, "no_python": True},
    ],
)
def test_flags_that_go_together(typed: dict[str, str | bool]) -> None:
    """The same with what they need."""
    read_options(typed, {})


def test_two_variables_of_torchruns_that_it_refuses_are_refused() -> None:
    """They are set for one job; the same in LAUNCHER_* may stand in an image, for jobs of other kinds."""
    with pytest.raises(UsageError, match=r"\[flag-conflict\] PET_MODULE='1' and PET_NO_PYTHON='1'"):
        read_options({}, {"PET_MODULE": "1", "PET_NO_PYTHON": "1"})
    read_options({}, {"PET_MODULE": "0", "PET_NO_PYTHON": "1"})


def test_a_standalone_job_is_one_node_of_its_range() -> None:
    """--standalone --nnodes 1:2, typed or in variables: nobody else can join, so nobody is waited for."""
    cases: tuple[tuple[dict[str, str | bool], dict[str, str]], ...] = (
        ({"standalone": True, "nnodes": "1:2"}, {}),
        ({"nnodes": "1:2"}, {"LAUNCHER_STANDALONE": "1"}),
        ({"standalone": True}, {"LAUNCHER_NNODES": "1:2"}),
        ({"standalone": True}, {"PET_NNODES": "1:2"}),
        ({}, {"PET_STANDALONE": "1", "PET_NNODES": "1:2"}),
    )
    for typed, environ in cases:
        plan = plan_job(environ, replay({"environ": environ}), read_options(typed, environ), ("./a",))
        assert (plan.engine, plan.topology.node_count, plan.allocation.node_range) == ("process", 1, None)


def test_the_table_of_flags_is_consistent() -> None:
    """Facts are those a person can know, and have the user's trust; the pairs are flags."""
    # Rule 4: the user wins, because nothing has a more direct trust.
    options = read_options({flag.dest: SAMPLE[flag.dest][0] for flag in VALUED if flag.fact}, {})
    claims = options.evidence().claims
    assert {claim.fact for claim in claims} == {flag.fact for flag in FLAGS if flag.fact}
    assert {claim.trust for claim in claims} == {Trust.ASKED}
    assert Options().evidence().claims == ()
    # The table's facts are those a person can know before the start: never a rank.
    assert {flag.fact for flag in FLAGS} - {None} == {
        *(Fact.NODE_COUNT, Fact.NODE_RANK, Fact.PROCESSES_PER_NODE, Fact.MASTER_ADDR, Fact.MASTER_PORT),
    }
    # Names in the tables are those of the table of flags.
    known = {flag.dest for flag in FLAGS}
    assert {
        *NEEDS,
        *(other for other, _ in NEEDS.values()),
        *(name for pair in EXCLUDES for name in pair),
    } <= known


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("LAUNCHER_NPROC_PER_NOD", "LAUNCHER_NPROC_PER_NODE is the nearest"),
        ("LAUNCHER_STALL_TIMOUT", "LAUNCHER_STALL_TIMEOUT is the nearest"),
        ("LAUNCHER_XYZZY", "none is similar"),
        ("LAUNCHER_FOO", "none is similar"),
    ],
)
def test_a_variable_that_nobody_knows_is_named_with_the_nearest(name: str, said: str) -> None:
    """Once, and without its value, in the plan and by `launcher run`."""
    (sentence,) = name_unknown({name: "hunter2", "LAUNCHER_NNODES": "1", "PATH": "/bin"})
    assert sentence.startswith(f"{name} is not a variable of the launcher") and said in sentence
    assert "hunter2" not in sentence


def test_variables_of_others_and_of_processes_are_left_alone() -> None:
    """What is documented as none of ours, and what our own processes have."""
    names = (*list_others(), *(f"{prefix}X" for prefix in OTHER_PREFIXES))
    assert name_unknown(dict.fromkeys((*names, "HYDRA_LAUNCHER", "launcher_x"), "1")) == ()
    page = (Path(ROOT) / "docs" / "flags.md").read_text().partition("## Variables that are no flags")[2]
    assert all(f"`{name}`" in page for name in list_others())
    assert all(f"`{prefix}*`" in page for prefix in OTHER_PREFIXES)


@pytest.mark.parametrize(
    ("typed", "environ", "said"),
    [
        (
            {"node_rank": "0", "master_addr": "localhost"},
            {"LAUNCHER_NNODES": "2"},
            "fix:  --master-addr with the address of node 0",
        ),
        (
            {"nnodes": "2", "node_rank": "0"},
            {"MASTER_ADDR": "localhost"},
            "fix:  set MASTER_ADDR to the address of node 0, or unset it",
        ),
        (
            {},
            {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            "there may be several nodes .*\n.*\n.* are on this node, set LOCAL_WORLD_SIZE",
        ),
        ({"nnodes": "2", "node_rank": "0"}, {}, "there are several nodes"),
        ({"nproc_per_node": "gpu"}, {}, "from: command line\n"),
        ({}, {"LAUNCHER_NPROC_PER_NODE": "gpu"}, "from: environment, source manual\n"),
        ({"roles": "chief=0 worker=1"}, {}, r"fix:  pass the number of nodes \(--nnodes N, or --hosts"),
    ],
)
def test_a_refusal_speaks_of_what_was_given(
    typed: dict[str, str | bool], environ: dict[str, str], said: str
) -> None:
    """Where a flag was wrong, the fix is about that flag; what is not known is not stated."""
    with pytest.raises(LauncherError, match=said):
        plan_job(environ, replay({"environ": environ}), read_options(typed, environ), ("./a",))


@pytest.mark.parametrize("place", [flag.sets for flag in FLAGS if flag.sets])
def test_a_flag_sets_a_field_of_the_plan(place: str) -> None:
    """Else every job with this flag would end in a fault of ours."""
    part, field = place.split(".")
    kinds = {"watch": Supervision, "restarts": Restarts, "log": LogStyle}
    assert field in vars(kinds[part]())
