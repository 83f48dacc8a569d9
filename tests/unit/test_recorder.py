"""The flight recorder: variables by torch's version, dumps that may be hostile, and conclusions."""

from __future__ import annotations

import os
import pickle
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from launcher.core.ranks import parse_ranges, render_ranges
from launcher.core.wire import parse, render
from launcher.hang.conclude import conclude, describe_behind, describe_missing, size
from launcher.hang.dumps import NotADump, read_rank
from launcher.hang.model import Collective, GroupRecord, RankRecord
from launcher.hang.recorder import (
    Places,
    choose_folder,
    find_places,
    find_python,
    find_torch,
    plan_variables,
)
from tests.unit.recorded_dumps import NOW_NS, as_json, as_pickle, make_dump, make_entry

FOLDER = "/tmp/launcher_x"
STEM = f"{FOLDER}/0_recorder_"


def waiting(number: int, **more: Any) -> dict[str, Any]:
    """Return an entry that has not completed."""
    return make_entry(number, state="started", **more)


def read_all(*dumps: dict[str, Any]) -> list[RankRecord]:
    """Return the facts of one dump per rank, after a journey over the wire."""
    records = [read_rank(rank, as_pickle(dump), NOW_NS) for rank, dump in enumerate(dumps)]
    return [parse(RankRecord, render(record)) for record in records]


def say(*dumps: dict[str, Any], world_size: int | None = None) -> list[str]:
    """Return the sentences about one dump per rank."""
    return [one.text for one in conclude(read_all(*dumps), world_size)]


# --- variables


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((2, 1), {}),
        (
            (2, 2),
            {
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": STEM,
            },
        ),
        (
            (2, 7),
            {
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": STEM,
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": STEM,
            },
        ),
        (
            (2, 8),
            {
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
                "TORCH_FR_DUMP_TEMP_FILE": STEM,
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": STEM,
            },
        ),
        (
            (2, 11),
            {
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "TORCH_FR_DUMP_TEMP_FILE": STEM,
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": STEM,
            },
        ),
    ],
)
def test_names_follow_the_version_of_torch(version: tuple[int, int], expected: dict[str, str]) -> None:
    assert plan_variables(version, {}, FOLDER, 0) == expected


def test_what_the_user_has_set_stays() -> None:
    """A value of the user is never changed, under whichever of its two names."""
    theirs = {"TORCH_FR_BUFFER_SIZE": "50", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/data/fr_"}
    planned = plan_variables((2, 9), theirs, FOLDER, 0)
    assert planned == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "50",  # else torch 2.8 to 2.10 makes no pipe
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": STEM,
    }
    assert find_places({**theirs, **planned}) == Places("/data/fr_", STEM)
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in plan_variables(
        (2, 9), {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, FOLDER, 0
    )


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_user_switches_the_recorder_off(name: str) -> None:
    assert plan_variables((2, 9), {name: "0"}, FOLDER, 0) == {}
    assert find_places({name: "0", "TORCH_FR_DUMP_TEMP_FILE": "/data/fr_"}) is None


def test_torchs_version_is_found_in_its_folder(tmp_path: Any) -> None:
    folder = tmp_path / "second" / "torch"
    folder.mkdir(parents=True)
    (folder / "version.py").write_text("__version__ = '2.13.0+cpu'\ndebug = False\n")
    assert find_torch([str(tmp_path / "first"), str(tmp_path / "second")]) == (2, 13)
    assert find_torch([str(tmp_path / "first")]) is None
    (folder / "version.py").write_text("nothing")
    assert find_torch([str(tmp_path / "second")]) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("/data/e", "/out/failure.json", "/tmp/run", 3), "/data/e/node3"),
        ((None, "/out/failure.json", "/tmp/run", 3), "/out/launcher-evidence/node3"),
        ((None, "/dev/termination-log", "/tmp/run", 0), "/tmp/run/launcher-evidence/node0"),
        ((None, None, "/tmp/run", None), "/tmp/run/launcher-evidence/node"),
        ((None, None, None, 0), ""),
    ],
)
def test_evidence_has_a_place(given: tuple[Any, ...], expected: str) -> None:
    assert choose_folder(*given) == expected


AGENT = (
    *("/opt/python3", "-m", "launcher.x", "--no_python", "/usr/bin/python3", "-I", "-S"),
    *("/l/cli/worker.py", "run"),
)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("python", "train.py"), "python"),
        (("bash", "train.sh"), ""),
        (("srun", "python", "train.py"), ""),
        (("/opt/python3", "-m", "torch.distributed.run", "--no_python", "python", "t.py"), "/opt/python3"),
        ((*AGENT, "--", "python3.11", "t.py"), "python3.11"),
        ((*AGENT, "--", "bash", "t.sh"), "/opt/python3"),
        ((), ""),
    ],
)
def test_the_python_of_a_command_is_found(argv: tuple[str, ...], expected: str) -> None:
    assert find_python(argv) == expected


# --- dumps


@pytest.mark.parametrize("write", [as_pickle, as_json])
def test_a_dump_is_read(write: Callable[[dict[str, Any]], bytes]) -> None:
    """Both formats give the same facts, except for the line, which JSON does not have."""
    dump = make_dump([make_entry(1), make_entry(2), waiting(3)])
    record = read_rank(5, write(dump), NOW_NS)
    (group,) = record.groups
    assert (record.rank, record.backend, record.missing) == (5, "nccl", "")
    assert (group.name, group.description, group.ranks) == ("0", "default_pg", "0-3")
    assert (group.enqueued, group.completed) == (3, 2)
    last = group.recent[-1]
    assert (last.number, last.name, last.is_done, last.age_s) == (3, "all_reduce", False, 600)
    assert (last.sizes, last.dtypes, last.size_bytes) == ("[[10000000]]", "Float", 40_000_000)
    assert last.where == ("train.py:88 step" if write is as_pickle else "")


class Hostile:
    """A pickle that runs a program when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/launcher-recorder-was-run",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Hostile()),
        pickle.dumps({"entries": [Hostile()]}),
        *(b"cbuiltins\nstr\n.", b"\x80\x02}q\x00", b"", b"{"),
        b"[" * 100_000,
        b'{"entries": ' + b"[" * 100_000,
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": 5}),
    ],
    ids=range(10),
)
def test_what_is_no_dump_is_refused(data: bytes) -> None:
    with pytest.raises(NotADump):
        read_rank(0, data)
    assert not os.path.exists("/tmp/launcher-recorder-was-run")


def test_fields_may_be_anything() -> None:
    """A process that has gone wrong may leave wrong types everywhere."""
    wrong: Any
    for wrong in (None, -1, "x" * 100_000, [[]], {"a": {}}, 1 << 500, float("nan"), b"bytes", ((1,),)):
        entry: dict[str, Any] = dict.fromkeys(make_entry(1), wrong)
        dump = {"entries": [entry, wrong], "pg_config": {"0": wrong}, "pg_status": {"0": wrong}}
        record = read_rank(0, pickle.dumps(dump))
        assert parse(RankRecord, render(record)).rank == 0


def test_text_from_a_rank_cannot_steer_the_terminal() -> None:
    dump = make_dump([waiting(1, name="nccl:all\x1b[2Jreduce", group=("0", "\x1b]0;x\x07"))])
    (record,) = read_all(dump)
    assert "\x1b" not in str(render(record))
    assert "\x07" not in str(render(record))


def test_gloo_completes_when_it_is_retired() -> None:
    """gloo's entries have no state; its groups are listed without a name."""
    entries = [
        {**make_entry(n, "gloo:all_reduce", state="scheduled", retired=n < 3), "pg_id": 0} for n in (1, 2, 3)
    ]
    dump = make_dump(entries, {"": ("", [0, 1])})
    (group,) = read_rank(0, as_pickle(dump), NOW_NS).groups
    assert (group.enqueued, group.completed, group.ranks) == (3, 2, "")


def test_a_group_whose_ranks_are_unknown_is_not_judged() -> None:
    """gloo does not record which ranks a group has; only the group of all ranks is known."""
    pair = make_dump([waiting(5, group=("7", "tp"))], {})
    (found,) = conclude(read_all(pair, make_dump([make_entry(1)], {}), make_dump([make_entry(1)], {})), 3)
    assert (found.kind, found.ranks) == ("unsure", ())
    assert found.sentence == (
        "rank 0 waits for 600 s in all_reduce number 5 of process group 7 (tp) (40 MB) at train.py:88 step; "
        "which ranks the group has is not recorded"
    )


def test_only_some_collectives_travel() -> None:
    """A buffer has thousands; one message has those around the first that waits."""
    dump = make_dump([*(make_entry(n) for n in range(1, 1990)), *(waiting(n) for n in range(1990, 2001))])
    (record,) = read_all(dump)
    assert [one.number for one in record.groups[0].recent] == list(range(1987, 1994))
    assert len(str(render(record))) < 2000


def test_ranges_and_sizes_are_short() -> None:
    """As people read them."""
    assert render_ranges([3, 0, 1, 2, 7]) == "0-3, 7"
    assert parse_ranges("0-3, 7") == {0, 1, 2, 3, 7}
    for wrong in ("0-99999999", "x", "5-3", "1-", "-1", "9" * 30):
        assert parse_ranges(wrong) == frozenset()
    assert [size(n) for n in (0, 999, 40_000_000, 4_194_304, 2_000_000_000)] == [
        *("0 bytes", "999 bytes", "40 MB", "4.19 MB", "2 GB"),
    ]


# --- conclusions

DONE = [make_entry(1410, line=70), make_entry(1411, line=70)]


def test_the_rank_that_never_joined_is_named() -> None:
    """One, several, and one that has called nothing at all."""
    stuck = make_dump([*DONE, waiting(1412)])
    (sentence,) = say(stuck, stuck, stuck, make_dump(DONE))
    assert sentence == (
        "rank 3 never joined all_reduce number 1,412 of process group 0 (40 MB); the others waited 600 s; "
        "they called it at train.py:88 step; rank 3 last called all_reduce number 1,411 at train.py:70 step"
    )
    (found,) = conclude(read_all(stuck, stuck, stuck, make_dump(DONE)))
    assert (found.kind, found.ranks) == ("absent", (3,))
    stuck = make_dump([*DONE, waiting(1412)])
    (sentence,) = say(stuck, make_dump(DONE), stuck, make_dump(DONE))
    assert sentence.startswith("ranks 1, 3 never joined all_reduce number 1,412")
    other = make_dump([make_entry(1, group=("1", "dp"), pg_id=1)])
    stuck = make_dump([waiting(1)])
    (sentence,) = say(stuck, stuck, stuck, other)
    assert "rank 3 never joined all_reduce number 1 of" in sentence
    assert sentence.endswith("called nothing in this group")


def test_another_call_is_named() -> None:
    """Another collective, size or type, also of one that has ended early."""
    stuck, odd = make_dump([*DONE, waiting(1412)]), make_dump([*DONE, waiting(1412, name="nccl:broadcast")])
    assert say(stuck, stuck, odd, stuck) == [
        "rank 2 called broadcast at train.py:88 step where the others called all_reduce "
        "(number 1,412 of process group 0)"
    ]
    stuck = make_dump([*DONE, waiting(1412, sizes=(2_000_000,))])
    odd = make_dump([*DONE, waiting(1412, sizes=(1_000_000,))])
    assert say(stuck, odd, stuck, stuck) == [
        "rank 1 gave [[1000000]] (4 MB) at train.py:88 step where the others gave [[2000000]] (8 MB): "
        "all_reduce number 1,412 of process group 0"
    ]
    stuck, odd = make_dump([*DONE, waiting(1412)]), make_dump([*DONE, waiting(1412, dtype="BFloat16")])
    (sentence,) = say(stuck, odd, stuck, stuck)
    assert sentence.startswith(
        "rank 1 gave BFloat16 at train.py:88 step where the others gave Float: all_reduce"
    )
    # The root of a smaller broadcast is done with it, and the others wait: its size still differs.
    stuck = make_dump([waiting(1, name="nccl:broadcast", sizes=(8,))])
    root = make_dump([make_entry(1, "nccl:broadcast", sizes=(4,))])
    (sentence,) = say(root, stuck, stuck, stuck)
    assert sentence.startswith("rank 0 gave [[4]] (16 bytes)")


@pytest.mark.parametrize("name", ["nccl:all_to_all", "nccl:gather", "nccl:all_gather"])
def test_sizes_may_differ_where_they_may(name: str) -> None:
    dumps = [make_dump([waiting(1, name=name, sizes=(n + 1,))]) for n in range(4)]
    (sentence,) = say(*dumps)
    assert sentence.startswith("all 4 ranks joined")


def test_all_ranks_joined() -> None:
    stuck = make_dump([*DONE, waiting(1412)])
    (found,) = conclude(read_all(stuck, stuck, stuck, stuck))
    assert found.sentence == (
        "all 4 ranks joined all_reduce number 1,412 of process group 0 (40 MB) 600 s ago: "
        "the network or a GPU does not answer"
    )
    assert (found.kind, found.ranks) == ("together", ())


def test_who_waits_is_not_blamed() -> None:
    """A rank that waits itself, or has no dump; a circle is named."""
    stuck = make_dump([*DONE, waiting(1412)])
    (found,) = conclude([*read_all(stuck, stuck, stuck), RankRecord(3, missing="it did not answer")])
    assert (found.kind, found.ranks) == ("no-dump", (3,))
    assert found.sentence == (
        "ranks 0-2 wait in all_reduce number 1,412 of process group 0 (40 MB) 600 s ago; rank 3 gave no dump"
    )
    # Ranks 0 and 1 wait for rank 2, which waits for rank 3 in another group.
    world, pair = {"0": ("default_pg", [0, 1, 2, 3]), "2": ("mesh_tp", [2, 3])}, ("2", "mesh_tp")
    first = make_dump([waiting(7)], world)
    third = make_dump([make_entry(6), waiting(4, group=pair, pg_id=2, line=40)], world)
    fourth = make_dump([make_entry(6), make_entry(3, group=pair, pg_id=2, line=33)], world)
    several = conclude(read_all(first, first, third, fourth))
    assert {one.ranks for one in several} == {(3,)}
    assert any("all_reduce number 4 of process group 2 (mesh_tp)" in one.sentence for one in several)
    # Each of two ranks waits in the group that the other one has not come to.
    groups = {"1": ("dp", [0, 1]), "2": ("tp", [0, 1])}
    first = make_dump([waiting(5, group=("1", "dp"), pg_id=1)], groups)
    other = make_dump([waiting(9, group=("2", "tp"), pg_id=2, line=50)], groups)
    (found,) = conclude(read_all(first, other))
    assert (found.kind, found.ranks) == ("circle", (0, 1))
    assert (
        "rank 0 in all_reduce number 5 of process group 1 (dp) (40 MB) at train.py:88 step" in found.sentence
    )


def test_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    """Groups that each rank makes only for itself may have one name."""
    left, right = {"7": ("tp", [0, 1])}, {"7": ("tp", [2, 3])}
    stuck = make_dump([waiting(5, group=("7", "tp"))], left)
    absent = make_dump([make_entry(4, group=("7", "tp"))], left)
    well = make_dump([make_entry(9, group=("7", "tp"))], right)
    (found,) = conclude(read_all(stuck, absent, well, well))
    assert found.ranks == (1,)


def test_sends_and_receives_are_matched() -> None:
    """One without the other is named; sizes of both may differ."""
    sends = make_dump([waiting(3, name="nccl:send 0->1", is_p2p=True, sizes=(1000,))])
    (found,) = conclude(read_all(sends, make_dump(DONE), make_dump(DONE), make_dump(DONE)))
    assert found.text == (
        "rank 0 waits for 600 s in send to rank 1 (4 kB) of process group 0; rank 1 never called recv; "
        "rank 1 last called all_reduce number 1,411 at train.py:70 step"
    )
    assert found.ranks == (1,)
    sends = make_dump([waiting(3, name="nccl:send 0->1", is_p2p=True, sizes=(1000,))])
    takes = make_dump([waiting(3, name="nccl:recv 1<-0", is_p2p=True, sizes=(500,))])
    (found,) = conclude(read_all(sends, takes), world_size=2)
    assert found.sentence.startswith(
        "rank 0 gave [[1000]] (4 kB) to send where rank 1 gave [[500]] (2 kB) to recv"
    )


def test_a_conclusion_is_one_only_where_it_is_known() -> None:
    """A healthy job has none; stragglers and a missing recorder are said."""
    assert say(*[make_dump(DONE)] * 4) == []
    assert conclude([]) == ()
    # Ranks that have called fewer collectives, the last first.
    ahead, behind = make_dump([make_entry(20)]), make_dump([make_entry(17)])
    found = describe_behind(read_all(ahead, behind, ahead, make_dump([make_entry(19)])))
    assert found == [
        "rank 1 is at number 17 of process group 0, another rank at 20",
        "rank 3 is at number 19 of process group 0, another rank at 20",
    ]
    records = [
        RankRecord(0, missing="no pipe"),
        RankRecord(1, missing="no pipe"),
        RankRecord(2, missing="late"),
    ]
    assert describe_missing(records) == "no flight recorder (ranks 0-1): no pipe; (rank 2): late"
    assert describe_missing([RankRecord(0, "nccl")]) == ""


def test_a_thousand_ranks_are_judged_at_once() -> None:
    """The coordinator must not stand still."""
    import time

    groups = {"0": ("default_pg", list(range(1000)))}
    stuck, absent = make_dump([*DONE, waiting(1412)], groups), make_dump(DONE, groups)
    record, missing = read_rank(0, as_pickle(stuck), NOW_NS), read_rank(0, as_pickle(absent), NOW_NS)
    records = [RankRecord(rank, "nccl", (missing if rank == 777 else record).groups) for rank in range(1000)]
    started = time.thread_time()
    (found,) = conclude(records, 1000)
    assert found.ranks == (777,)
    assert time.thread_time() - started < 1


# --- what is hostile


@pytest.mark.parametrize(
    "entry",
    [{"pg_id": 10**5000}, {"collective_seq_id": "--5"}, {"pg_id": "0" * 500}],
    ids=["huge", "signs", "long"],
)
def test_a_number_that_is_none_costs_only_itself(entry: dict[str, object]) -> None:
    record = read_rank(3, as_pickle({"entries": [entry]}), NOW_NS)
    assert not record.missing
    assert len(record.groups[0].name) <= 32


def test_a_nested_value_is_not_written_out() -> None:
    """The text of one that has itself in it twice, again and again, has no end."""
    nested: list[object] = ["x"]
    for _ in range(40):
        nested = [nested, nested]
    began = time.thread_time()
    record = read_rank(3, as_pickle({"entries": [{"pg_id": nested}]}), NOW_NS)
    assert time.thread_time() - began < 1
    assert record.groups[0].name == ""


@pytest.mark.slow
def test_groups_of_many_ranks_do_not_fill_the_memory() -> None:
    waits = (Collective(1, "all_reduce"),)
    groups = tuple(GroupRecord(f"{number}", "", "0-65535", 1, 0, waits) for number in range(900))
    tracemalloc.start()
    try:
        assert conclude([RankRecord(0, "gloo", groups)], 8)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_conclusions_about_eight_thousand_ranks_take_no_time() -> None:
    """Each is in a group of all, of which half are absent, and waits in three more."""
    waits, done = (Collective(2, "all_reduce"),), (Collective(1, "all_reduce", True),)
    records = [
        RankRecord(
            rank,
            "nccl",
            (
                GroupRecord("0", "", "0-8191", 1 + rank % 2, 1, waits if rank % 2 else done),
                *(
                    GroupRecord(f"{at}", "", f"{rank // 8 * 8}-{rank // 8 * 8 + 7}", 2, 1, waits)
                    for at in "abc"
                ),
            ),
        )
        for rank in range(8192)
    ]
    began = time.thread_time()
    conclude(records, 8192)
    assert time.thread_time() - began < 3
