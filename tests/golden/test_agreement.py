"""What must hold in every job, whatever the golden documents say."""

from __future__ import annotations

from itertools import chain

import pytest

from launcher.core.errors import LauncherError
from launcher.core.model import Plan
from launcher.planning.settings import render_environ
from tests.golden.jobs import Json, case_names, plan_case, read_case, snapshots
from tests.golden.truth import AT_START, SPARE, TRUTH, Job, Refused


def cases(*, jobs: bool) -> list[str]:
    """Return the names of all cases, or of those that are jobs and not refusals alone."""
    return [name for name in case_names() if not jobs or isinstance(TRUTH.get(name), Job)]


def is_spare(outcome: Plan | LauncherError) -> bool:
    """Whether a start waits as a spare node, with the plan of the last node, whose place it does not take."""
    return isinstance(outcome, Plan) and outcome.allocation.spare is not None


def plans_of(name: str) -> list[Plan]:
    """Return the plans of a job, less the starts that are refused and those of spare nodes."""
    return [outcome for outcome in plan_case(name) if isinstance(outcome, Plan) and not is_spare(outcome)]


def describe_start(outcome: Plan | LauncherError) -> str:
    """Return what a start stands for, as the table of truth writes it."""
    if isinstance(outcome, LauncherError):
        return f"{outcome.exit_status} {codes(outcome)}"
    if outcome.allocation.ranks_at_start:
        return AT_START
    if is_spare(outcome):
        return SPARE
    if outcome.allocation.task:
        return outcome.allocation.task
    node = "?" if outcome.topology.node_rank is None else outcome.topology.node_rank
    return " ".join(f"{node}.{place.local_rank}={place.rank}" for place in outcome.topology.places)


def codes(error: LauncherError) -> str:
    """Return the codes of what is wrong, each once."""
    return " ".join(sorted({problem.code for problem in error.problems}))


def node_of(host: str, nodes: list[Json]) -> str:
    """Return the name of the node that a host name or address means, the host itself if unknown."""
    for node in nodes:
        addresses = chain.from_iterable(node.get("addresses", {}).values())
        if host in (node["hostname"], *addresses):
            return str(node["hostname"])
    return host


def test_the_truth_is_known_of_every_case() -> None:
    """A case without a row, or a row without a case, is a mistake."""
    assert sorted(TRUTH) == case_names()


@pytest.mark.parametrize("name", cases(jobs=False))
def test_plans_are_true(name: str) -> None:
    """Scope, world, master and the place of every process are as written by hand."""
    truth, outcomes = TRUTH[name], plan_case(name)
    if isinstance(truth, Refused):
        assert {f"{truth.status} {truth.codes}"} == {describe_start(outcome) for outcome in outcomes}
        return
    assert truth.starts == " | ".join(describe_start(outcome) for outcome in outcomes)
    plans, nodes = plans_of(name), snapshots(read_case(name))
    assert {truth.scope} == {plan.allocation.scope.value for plan in plans}
    assert {truth.world} == {plan.topology.world_size for plan in plans}
    host, _, port = truth.master.rpartition(":")
    assert {(node_of(host, nodes), int(port))} == {
        (node_of(plan.topology.master_addr, nodes), plan.topology.master_port) for plan in plans
    }


def check_processes_of_a_job_agree(name: str) -> None:
    """One world, one master, one port."""
    nodes = snapshots(read_case(name))
    seen = {
        (plan.topology.world_size, node_of(plan.topology.master_addr, nodes), plan.topology.master_port)
        for plan in plans_of(name)
    }
    assert len(seen) == 1


def check_ranks_and_places_are_taken_once(name: str) -> None:
    """Ranks are 0..W-1 once each where no start is missing; no two processes share a place."""
    outcomes = [outcome for outcome in plan_case(name) if not is_spare(outcome)]
    plans = plans_of(name)
    ranks = [place.rank for plan in plans for place in plan.topology.places]
    assert len(set(ranks)) == len(ranks)
    whole = len(plans) == len(outcomes) and not name.endswith(("batch_script_flags", "fleet_two_nodes"))
    if whole and not plans[0].allocation.ranks_at_start:
        assert sorted(ranks) == list(range(plans[0].topology.world_size or 0))
    places = [
        (plan.topology.node_rank, place.local_rank)
        for plan in plans
        for place in plan.topology.places
        if plan.topology.node_rank is not None
    ]
    assert len(set(places)) == len(places)


def check_a_node_has_one_index_and_its_processes_the_same_size(name: str) -> None:
    """What runs on one node knows one node rank and one local size, and no other node has that rank."""
    nodes = snapshots(read_case(name))
    sizes: dict[str, set[int]] = {}
    index: dict[int, set[str]] = {}
    for node, outcome in zip(nodes, plan_case(name), strict=True):
        if not isinstance(outcome, Plan) or is_spare(outcome):
            continue
        if outcome.topology.local_size is not None:
            sizes.setdefault(node["hostname"], set()).add(outcome.topology.local_size)
        if outcome.topology.node_rank is not None:
            index.setdefault(outcome.topology.node_rank, set()).add(node["hostname"])
    assert all(len(values) == 1 for values in sizes.values())
    assert all(len(values) == 1 for values in index.values())
    assert len(set(chain.from_iterable(index.values()))) == len(index)


def check_rank_0_runs_on_the_master(name: str) -> None:
    """Where the case knows which host the master is, rank 0 is there, and that is node 0."""
    nodes = snapshots(read_case(name))
    known = {node["hostname"] for node in nodes}
    for node, outcome in zip(nodes, plan_case(name), strict=True):
        if not isinstance(outcome, Plan):
            continue
        master = node_of(outcome.topology.master_addr, nodes)
        if master not in known:
            continue
        on_master = master == node["hostname"]
        assert on_master or all(place.rank > 0 for place in outcome.topology.places)
        assert outcome.topology.node_rank in (None, 0) if on_master else outcome.topology.node_rank != 0


def check_variables_say_what_the_plan_says(name: str) -> None:
    """What a process really gets is the plan: nothing inherited survives beside it."""
    nodes = snapshots(read_case(name))
    for node, outcome in zip(nodes, plan_case(name), strict=True):
        if not isinstance(outcome, Plan):
            continue
        topology = outcome.topology
        for process in outcome.processes:
            got = render_environ(outcome, process, node["environ"])
            wanted = {
                "RANK": process.rank,
                "ROLE_RANK": process.rank,
                "LOCAL_RANK": process.local_rank,
                "WORLD_SIZE": topology.world_size,
                "ROLE_WORLD_SIZE": topology.world_size,
                "LOCAL_WORLD_SIZE": topology.local_size,
                "NODE_RANK": topology.node_rank,
                "GROUP_RANK": topology.node_rank,
                "GROUP_WORLD_SIZE": topology.node_count,
                "MASTER_ADDR": topology.master_addr,
                "MASTER_ADDRESS": topology.master_addr,
                "MASTER_PORT": topology.master_port,
            }
            expected = {key: None if value is None else str(value) for key, value in wanted.items()}
            assert expected == {key: got.get(key) for key in wanted}


@pytest.mark.parametrize("name", cases(jobs=True))
def test_a_job_is_one(name: str) -> None:
    """All of the above, on one reading of the case."""
    check_processes_of_a_job_agree(name)
    check_ranks_and_places_are_taken_once(name)
    check_a_node_has_one_index_and_its_processes_the_same_size(name)
    check_rank_0_runs_on_the_master(name)
    check_variables_say_what_the_plan_says(name)
