"""Three ways into a job, ``launcher run``, ``launcher.setup()`` and the environment hook: the same variables.

Every process of every case, on its recorded machine. What each way plans is one chain; here it is what each
makes of it. That the ways themselves agree, as real processes, is in ``tests/process/test_ways.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from launcher.command.line import plan_argv
from launcher.command.request import read_request
from launcher.core.errors import LauncherError
from launcher.core.model import TORCHRUN, Plan, Scope
from launcher.hook.answer import NODE, PROCESS, find_answer
from launcher.hook.line import MARKERS
from launcher.inprocess import marker
from launcher.machine.host import Host
from launcher.options.given import PET_PREFIX
from launcher.options.reading import Options, read_options
from launcher.planning.plan import plan_job
from launcher.planning.recorded import replay
from launcher.planning.settings import apply_settings, choose_one, render_environ
from tests.golden.jobs import COMMAND, Json, case_names, read_case, snapshots

TORCHRUN_LINE = ("torchrun", "train.py")
MAY_CHANGE = ("SLURM_", "OMPI_COMM_WORLD_", "LAUNCHER_")
"""What is there and is changed nevertheless: what an outer starter says of itself, and what is ours."""


def starts(name: str) -> Iterator[tuple[dict[str, str], Host, tuple[str, ...]]]:
    """Yield environment, machine and command of each process of a case; typed flags as their variables."""
    case = read_case(name)
    for place, snapshot in enumerate(snapshots(case)):
        own = case["processes"][place].get("options", {}) if "processes" in case else {}
        typed = {f"LAUNCHER_{n.upper()}": str(v) for n, v in {**case.get("options", {}), **own}.items()}
        recorded: Json = {**snapshot, "environ": {**snapshot["environ"], **typed}}
        host = replay(recorded)
        environ = dict(host.environ)
        yield environ, host, plan_argv(case.get("command", COMMAND), Options(), environ)


def plan(environ: Mapping[str, str], host: Host, words: tuple[str, ...]) -> Plan | LauncherError:
    """Return what ``launcher run`` plans, or why it refuses."""
    try:
        return plan_job(environ, host, read_options({}, environ, host), words)
    except LauncherError as error:
        return error


def is_asked(environ: Mapping[str, str]) -> bool:
    """Whether the line in site-packages, and then the hook, would do anything in such a process."""
    signs = any(map(environ.get, MARKERS))
    return signs and marker.needs_action(environ, starts_workers=False)


def take_over(environ: Mapping[str, str], answer: dict[str, Any]) -> dict[str, str]:
    """Return the environment after an answer, as `inprocess.apply` makes it, less files and marker."""
    assert "refused" not in answer, answer
    kept = {name: value for name, value in environ.items() if name not in answer["unset"]}
    return {**kept, **answer["set"]}


def check_every_way_gives_a_process_the_same(name: str) -> None:
    """At PROCESS scope: byte for byte, and nothing that the user or the platform has set is another then."""
    for environ, host, words in starts(name):
        planned = plan(environ, host, words)
        if not is_asked(environ) or isinstance(planned, LauncherError):
            continue
        if planned.allocation.scope is not Scope.PROCESS:
            continue
        answer = find_answer(environ, host, words)
        expected = render_environ(planned, choose_one(planned, "test"), environ)
        assert (answer["scope"], take_over(environ, answer)) == (PROCESS, expected)
        left_over = marker.is_left_over(environ)
        for variable in [*answer["set"], *answer["unset"]]:
            assert not environ.get(variable) or variable.startswith(MAY_CHANGE) or left_over, variable


def check_torchrun_is_told_the_same_with_and_without_the_launcher(name: str) -> None:
    """``torchrun train.py`` by itself, with the hook, sees what ``launcher run -- torchrun ...`` gives it."""
    for environ, host, _ in starts(name):
        planned = plan(environ, host, TORCHRUN_LINE)
        if not is_asked(environ) or not isinstance(planned, Plan) or planned.agent is None:
            continue
        answer = find_answer(environ, host, TORCHRUN_LINE)
        expected = apply_settings(environ, planned.agent.unset, planned.agent.settings)
        assert (answer["scope"], take_over(environ, answer)) == (TORCHRUN, expected)


def check_a_script_that_stands_for_a_node_gets_what_it_lacks(name: str) -> None:
    """At NODE scope nothing that is there changes; the node is told, or a process where the node has one."""
    for environ, host, words in starts(name):
        planned = plan(environ, host, words)
        if not is_asked(environ) or not isinstance(planned, Plan):
            continue
        own = read_request(words, read_options({}, environ), environ).own
        if planned.allocation.scope is not Scope.NODE or own is not None:
            continue
        answer = find_answer(environ, host, words)
        if "refused" in answer:
            continue
        assert (answer["scope"], answer["unset"]) == (NODE, [])
        assert [variable for variable in answer["set"] if environ.get(variable)] == []
        after, topology = take_over(environ, answer), planned.topology
        if topology.local_size == 1 and len(planned.processes) == 1:
            (one,) = planned.processes
            assert after.get("RANK") == environ.get("RANK", str(one.rank))
        elif topology.local_size is not None:
            assert not answer["set"].keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
            name = f"{PET_PREFIX}NPROC_PER_NODE"
            assert after[name] == environ.get(name, str(topology.local_size))
        if topology.spans_nodes and topology.node_rank is not None:
            assert after["MASTER_ADDR"] == environ.get("MASTER_ADDR", topology.master_addr)
            assert after["NODE_RANK"] == environ.get("NODE_RANK", str(topology.node_rank))


def check_what_is_refused_by_one_way_is_refused_by_all(name: str) -> None:
    """The hook sets nothing then, and names the first thing that is wrong."""
    for environ, host, words in starts(name):
        planned = plan(environ, host, words)
        if is_asked(environ) and isinstance(planned, LauncherError):
            answer = find_answer(environ, host, words)
            assert list(answer) == ["refused"]
            assert answer["refused"].startswith(f"[{planned.problems[0].code}] ")


@pytest.mark.parametrize("name", case_names())
def test_all_ways_of_a_case_agree(name: str) -> None:
    """All of the above."""
    check_every_way_gives_a_process_the_same(name)
    check_torchrun_is_told_the_same_with_and_without_the_launcher(name)
    check_a_script_that_stands_for_a_node_gets_what_it_lacks(name)
    check_what_is_refused_by_one_way_is_refused_by_all(name)


ALONE = {
    "one machine, and no platform": (
        *(
            *("bind_nd96_h200_v5", "module_command", "plain_1_gpu", "plain_8_gpus"),
            "plain_8_gpus_two_per_process",
        ),
        *("plain_8_gpus_two_visible", "plain_empty_variables", "plain_no_gpu", "program_command"),
        *("refused_too_few_gpus", "torchrun_left_over"),
        *("defaults_of_a_fleet", "refused_defaults_of_a_fleet"),
    ),
    "one node of a platform that says nothing of ranks": ("azure_batch_single_node",),
    "the script or shell from which a job is started, and no part of it": (
        *("kubeflow_mpijob_launcher_pod", "slurm_22.05_batch_script", "slurm_22.05_batch_script_one_node"),
        *("slurm_22.05_salloc_shell", "refused_slurm_step_left_out", "refused_slurm_in_docker"),
        *("refused_mpijob_launcher_pod", "refused_lsf_script", "refused_pbs_script"),
    ),
    "one host of a batch system that starts nothing there": ("lsf_one_host_8_slots", "pbs_one_host"),
    "an index that needs a flag, or is a job of its own": ("refused_indexed_job",),
    "a platform that is not understood": (
        *("refused_platform_without_source", "refused_trainer_v2_xgboost"),
    ),
    "a flag that makes no job of itself": ("refused_master_flag_alone",),
    "told already, by torchrun or this launcher": (
        *("launcher_inside_launcher", "launcher_inside_launcher_node_unknown", "torchrun_2.15_c10d_2x2"),
        *("torchrun_2.15_inside_srun_and_mpirun", "torchrun_2.15_static_2x2"),
    ),
}
"""Cases in which the hook has nothing to do, and why."""


def test_which_cases_each_way_applies_to() -> None:
    """No job of a platform goes without the hook, but where processes are told, and in what starts a job."""
    silent = {name for name in case_names() if not any(is_asked(environ) for environ, *_ in starts(name))}
    assert sorted(silent) == sorted(name for names in ALONE.values() for name in names)
