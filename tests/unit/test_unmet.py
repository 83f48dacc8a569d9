"""Processes that meet while the launcher looks seldom: what was not looked at is no evidence."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.core.supervision import Contact
from launcher.observers import connections
from launcher.observers.connections import ConnectionTable
from launcher.observers.meeting import MeetingWatch

A, B, C = b"0100007F:A000", b"0100007F:B000", b"0100007F:C000"
"""Ends of connections."""
READ_COSTS_S = 0.02
MET_S, END_S = 12.0, 18.0


class Clock:
    """The time, and what each reading of the kernel's table costs on a busy machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cpu_s, self.table = 0.0, 0.0, ConnectionTable({}, frozenset())
        self.sockets: dict[int, set[bytes]] = {}
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.process_time", lambda: self.cpu_s)
        monkeypatch.setattr(connections, "read_table", self.read)
        monkeypatch.setattr(connections, "find_sockets", self.find)
        monkeypatch.setattr(connections, "with_descendants", lambda pid: [pid])
        monkeypatch.setattr(connections, "count_libraries", lambda _: "1000 kB")
        monkeypatch.setattr(connections, "has_framework", lambda _: True)

    def read(self) -> ConnectionTable:
        """Read the table."""
        self.cpu_s += READ_COSTS_S
        return self.table

    def find(self, pids: Any) -> set[bytes]:
        """Return the sockets of processes."""
        return set().union(*(self.sockets.get(pid, set()) for pid in pids))


def two_ranks() -> list[Any]:
    """Return two processes that run."""
    child = SimpleNamespace(companion=False, environ={})
    return [
        SimpleNamespace(pid=pid, code=None, ended_ns=0, child=SimpleNamespace(**vars(child), rank=rank))
        for rank, pid in enumerate((os.getpid(), os.getppid()))
    ]


def test_ranks_that_ran_too_short_to_be_seen_are_excused_but_not_connected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of their connection would count as the beginning of the work."""
    clock, ranks = Clock(monkeypatch), two_ranks()
    watch = MeetingWatch(Contact(300.0), ranks, lambda text, _: None, lambda: False, 0.0)
    for one in ranks:
        one.code, one.ended_ns = 1, int(1e9)
    clock.now = 1.1
    watch.fire(clock.now)
    assert watch.has_met and watch.together_at is None
    assert watch.end() is None


def test_a_connection_to_another_node_that_is_made_between_two_readings_is_no_lone_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ranks' sockets are all there, but the one to the other node is not connected yet."""
    clock, ranks = Clock(monkeypatch), two_ranks()
    said: list[str] = []
    watch = MeetingWatch(
        Contact(300.0, spans_nodes=True), ranks, lambda text, _: said.append(text), lambda: False, 0.0,
    )  # fmt: skip
    near = {(A, B): b"1", (B, A): b"2"}
    while clock.now < END_S:
        clock.now += 0.05
        if watch.due is None or clock.now < watch.due:
            continue
        if clock.sockets:  # connected since the last reading
            clock.table = ConnectionTable({**near, (A, C): b"3"}, frozenset())
        elif clock.now > MET_S:
            clock.sockets = {ranks[0].pid: {b"1", b"3"}, ranks[1].pid: {b"2"}}
            clock.table = ConnectionTable(near, frozenset())
        watch.fire(clock.now)
    clock.sockets, clock.table = {}, ConnectionTable({}, frozenset())
    for one in ranks:
        one.code, one.ended_ns = 0, int(END_S * 1e9)
    assert watch.end() is None
