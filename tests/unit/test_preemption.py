"""Machines that are taken back: who is asked, what answers mean, and what is no answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.agent.preempted import PreemptionResponse, plan_grace
from launcher.cluster.messages import NodeNotice
from launcher.cluster.node import ClusterNode
from launcher.cluster.settings import Shape
from launcher.core.supervision import Preemption, Supervision
from launcher.core.wire import Garbled, parse
from launcher.machine.azure import BATCH_DEDICATED, CONTEXT
from launcher.options.reading import read_options
from launcher.output.folder import RunFolder
from launcher.planning import parts
from launcher.preemption import watch
from launcher.preemption.events import ANNOUNCED, WITHDRAWN
from launcher.preemption.services import SERVICES, Notice, Unclear, parse_time
from launcher.preemption.watch import LIMIT_BYTES
from launcher.process.helper import Helpers
from launcher.process.loop import Loop
from launcher.sources.launched import MARKER

AT = 1474309787.0  # Mon, 19 Sep 2016 18:29:47 GMT
EVENT: Mapping[str, object] = {
    "EventId": "1",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["vm_1"],
    "EventStatus": "Scheduled",
    "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
}


def context(priority: object) -> dict[str, str]:
    """Return Azure ML's word on its machine."""
    return {CONTEXT: json.dumps({"vm_size": None, "vm_priority": priority})}


@pytest.mark.parametrize(
    ("environ", "asked", "service"),
    [
        *(({}, None, None), ({}, "off", None), ({}, "aws", "aws"), ({BATCH_DEDICATED: "true"}, None, None)),
        *(({BATCH_DEDICATED: ""}, None, None), ({BATCH_DEDICATED: "false"}, None, "azure")),
        *(({BATCH_DEDICATED: "False"}, "auto", "azure"), ({BATCH_DEDICATED: "false"}, "off", None)),
        *(({BATCH_DEDICATED: "false"}, "gcp", "gcp"), (context(None), None, None)),
        *((context("Dedicated"), None, None), (context("LowPriority"), None, "azure")),
        *((context("low_priority"), None, "azure"), (context("Spot"), None, "azure")),
        *((context(["Spot"]), None, None), ({CONTEXT: "vm_priority: Spot"}, None, None)),
    ],
)
def test_who_is_asked(environ: Mapping[str, str], asked: str | None, service: str | None) -> None:
    """The user says whom; else the platform must have said that the machine may be taken back."""
    typed = {} if asked is None else {"preemption": asked}
    found = parts.plan_preempted(read_options(typed, {}), environ, None, forks=True)
    assert (found and found.service) == service
    assert found is None or found.is_asked == (asked not in (None, "auto"))


def test_who_is_asked_is_said_or_known() -> None:
    """A variable asks as the flag does; a process of this launcher asks nobody."""
    # It loads nothing of this unless one of them is there.
    assert parts.KINDS_OF_MACHINE == (BATCH_DEDICATED, CONTEXT)
    # The launcher around it does.
    cheap, options = {BATCH_DEDICATED: "false"}, read_options({}, {})
    assert parts.plan_preempted(options, cheap, None, forks=True) is not None
    assert parts.plan_preempted(options, {**cheap, MARKER: "0.1.0"}, None, forks=True) is None
    # And is named as the reason.
    options = read_options({}, {"LAUNCHER_PREEMPTION": "azure"})
    found = parts.plan_preempted(options, {}, None, forks=True)
    assert found == Preemption("azure", "LAUNCHER_PREEMPTION='azure'", is_asked=True)


# --- answers


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Return a function that has a metadata service answer with these bytes, and end the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(watch, "ADDRESS", "127.0.0.1")
        monkeypatch.setattr(watch, "PORT", server.getsockname()[1])
        monkeypatch.setattr(watch, "ANSWER_S", 0.5)

        def answer(data: bytes, *, ends: bool = True) -> None:
            def work() -> None:
                connection, _ = server.accept()
                with connection:
                    asked = connection.recv(4096)
                    assert asked.startswith(b"GET /x HTTP/1.1\r\n") and b"\r\nConnection: close\r\n" in asked
                    connection.sendall(data)
                    if not ends:
                        connection.recv(1)

            threading.Thread(target=work, daemon=True).start()

        yield answer


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE", (200, b"TRUE")),
        (b"HTTP/1.1 200 OK\r\ncontent-length:4\r\n\r\nTRUE and more", (200, b"TRUE")),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", (404, b"")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nTR\r\n2\r\nUE\r\n0\r\n\r\n",
            (200, b"TRUE"),
        ),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_is_taken_when_it_is_whole(
    serve: Callable[..., None], data: bytes, expected: tuple[int, bytes], ends: bool
) -> None:
    """The connection need not end."""
    serve(data, ends=ends)
    assert watch.get("GET", "/x", {}) == expected


def test_an_answer_without_a_length_ends_with_its_connection(serve: Callable[..., None]) -> None:
    """As HTTP/1.0 has it."""
    serve(b"HTTP/1.0 200 OK\r\n\r\nTRUE")
    assert watch.get("GET", "/x", {}) == (200, b"TRUE")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        *((b"", "not an HTTP answer"), (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not an HTTP answer")),
        (b"HTTP/1.1 2000 OK\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nTRUE", "a truncated answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nTRU", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (LIMIT_BYTES + 1), "an answer of more than 64 KiB"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * (LIMIT_BYTES + 1),
            "an answer of more than 64 KiB",
        ),
    ],
)
def test_what_is_no_answer_is_refused(serve: Callable[..., None], data: bytes, why: str) -> None:
    """Before more of it is kept."""
    serve(data)
    with pytest.raises(Unclear, match=why):
        watch.get("GET", "/x", {})


def test_an_answer_that_does_not_come_is_not_waited_for(serve: Callable[..., None]) -> None:
    """Nor the rest of one, nor a service that is not there."""
    serve(b"HTTP/1.1 200 OK\r\nContent-Le", ends=False)
    with pytest.raises(Unclear, match=r"no answer within 0\.5 s"):
        watch.get("GET", "/x", {})
    with socket.create_server(("127.0.0.1", 0)) as other:
        watch.PORT = other.getsockname()[1]  # put back by the fixture
    with pytest.raises(Unclear, match="Connection refused"):
        watch.get("GET", "/x", {})


def test_a_process_that_asks_and_is_killed_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is said once, as any other time without an answer; what the next one finds counts."""
    tries = tmp_path / "again"
    monkeypatch.setattr(watch, "get", lambda *_: (200, b"TRUE" if tries.exists() else b"FALSE"))
    monkeypatch.setattr(watch, "RARELY_S", 0.1)
    said: list[str] = []
    told: list[str] = []
    loop = Loop(lambda text, *_: said.append(text))
    helpers = Helpers(loop)
    one = watch.PreemptionWatch(
        Preemption("gcp", "a test"),
        5.0,
        helpers,
        lambda text, *_: said.append(text),
        lambda kind, what, _: told.append(f"{kind}: {what}"),
    )
    loop.timers.append(one)
    loop.turn_until(lambda: bool(list(helpers.pids)), 5)
    (pid,) = helpers.pids
    os.kill(pid, signal.SIGKILL)
    loop.turn_until(lambda: len(said) > 1, 5)
    assert "(the process that asks was killed)" in said[1]
    os.waitpid(pid, 0)
    helpers.forget(pid)
    tries.touch()
    loop.turn_until(lambda: bool(told), 5)
    assert told == ["due: Google Cloud reclaims this spot machine (instance/preempted is TRUE)"]
    assert "answers now" in said[2] and len(said) == 3
    assert one.due is None
    helpers.close()
    loop.close()


def test_a_process_that_says_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one whose service answers byte by byte."""
    hangs = tmp_path / "hangs"
    hangs.touch()

    def get(*_: object) -> tuple[int, bytes]:
        if hangs.exists():
            hangs.unlink()
            signal.pause()
        return 200, b"TRUE"

    monkeypatch.setattr(watch, "get", get)
    monkeypatch.setattr(watch, "SILENT_S", 0.5)
    said: list[str] = []
    told: list[str] = []
    loop = Loop(lambda text, *_: said.append(text))
    helpers = Helpers(loop)
    say = lambda text, *_: said.append(text)  # noqa: E731
    one = watch.PreemptionWatch(
        Preemption("gcp", "a test"), 5.0, helpers, say, lambda *it: told.append(it[0])
    )
    loop.timers.append(one)
    loop.turn_until(lambda: bool(told), 10)
    assert told == ["due"] and "(no answer within 0.5 s)" in said[1] and "answers now" in said[2]
    helpers.close()
    loop.close()


class Asked:
    """A service that gives these answers, one after the other, and the questions that it got."""

    def __init__(self, name: str, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        _, _, self._ask = SERVICES[name]
        self._known: dict[str, str] = {}

    def get(self, verb: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Answer one request."""
        self.asked.append((verb, path, headers))
        return self.answers.pop(0)

    def ask(self, *answers: tuple[int, bytes]) -> list[Notice]:
        """Ask it once, which takes all its answers."""
        self.answers += answers
        found = self._ask(self.get, self._known)
        assert not self.answers
        return found


def azure(*events: Mapping[str, object]) -> list[Notice]:
    """Return what Azure's events mean to ``vm_1``."""
    service = Asked("azure", (200, b"VM_1"), (200, json.dumps({"Events": events}).encode()))
    found = service.ask()
    assert [path.partition("?")[0] for _, path, _ in service.asked] == [
        "/metadata/instance/compute/name",
        "/metadata/scheduledevents",
    ]
    assert all(headers == {"Metadata": "true"} for _, _, headers in service.asked)
    return found


def test_azure_names_the_machine_and_the_time() -> None:
    """Names of machines are compared without regard to case, as Azure does."""
    (notice,) = azure(EVENT)
    assert notice.at == AT and "reclaims this spot machine (scheduled event Preempt, VM_1)" in notice.what


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        *(({"Resources": ["vm_10"]}, 0), ({"Resources": "vm_1"}, 0)),
        *(({"Resources": [None, {}, "vm_1"]}, 1), ({"EventType": "Freeze"}, 0)),
        *(({"EventType": ["Preempt"]}, 0), ({"EventType": "Reboot"}, 1), ({"EventType": "Redeploy"}, 1)),
        ({"EventType": "Terminate"}, 1),
    ],
)
def test_azure_counts_what_ends_this_machine(changed: Mapping[str, object], count: int) -> None:
    """And nothing else."""
    assert len(azure({**EVENT, **changed})) == count


@pytest.mark.parametrize("changed", [{"EventStatus": "Started"}, {"NotBefore": ""}, {"NotBefore": "soon"}])
def test_an_event_without_a_time_is_at_any_moment(changed: Mapping[str, object]) -> None:
    """One that has started has none, and what cannot be read is none."""
    (notice,) = azure({**EVENT, **changed})
    assert notice.at is None


def test_aws_tells_by_404_that_there_is_nothing() -> None:
    """Its token is fetched first, and again when it is not taken any more."""
    service = Asked("aws")
    assert service.ask((200, b"token=="), (404, b"")) == []
    assert [verb for verb, _, _ in service.asked] == ["PUT", "GET"]
    assert service.asked[1][2] == {"X-aws-ec2-metadata-token": "token=="}
    body = b'{"action": "terminate", "time": "2016-09-19T18:29:47Z"}'
    assert [notice.at for notice in service.ask((200, body))] == [AT]
    assert [notice.at for notice in service.ask((200, body.replace(b"terminate", b"hibernate")))] == [None]
    assert service.ask((401, b""), (200, b"another"), (404, b"")) == []
    assert service.asked[-1][2] == {"X-aws-ec2-metadata-token": "another"}


def test_a_token_that_is_never_taken_is_no_token_that_has_had_its_time() -> None:
    """The first is worth a word; the second comes every six hours, and is none of anybody's business."""
    service = Asked("aws")
    for _ in range(2):
        with pytest.raises(Unclear, match="rejects its own token"):
            service.ask((200, b"token=="), (401, b""))
    assert [verb for verb, _, _ in service.asked] == ["PUT", "GET"] * 2


@pytest.mark.parametrize("token", [b"", b"a\r\nHost: elsewhere", b"\xff", b"x" * 2000])
def test_a_token_that_would_be_a_header_is_none(token: bytes) -> None:
    """What we send next is made of it."""
    with pytest.raises(Unclear):
        Asked("aws", (200, token)).ask()


def test_google_says_true_or_false() -> None:
    """Anything else is no answer."""
    service = Asked("gcp")
    assert service.ask((200, b"FALSE\n")) == []
    assert service.asked[0][2]["Metadata-Flavor"] == "Google"
    assert [notice.at for notice in service.ask((200, b"TRUE"))] == [None]
    for status, body in ((200, b""), (200, b"TRUE?"), (404, b"TRUE"), (302, b"TRUE")):
        with pytest.raises(Unclear):
            service.ask((status, body))


@pytest.mark.parametrize(
    "text", ["Mon, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47Z", "2016-09-19T18:29:47"]
)
def test_times_are_utc(text: str) -> None:
    """In the two ways in which they are written."""
    assert parse_time(text) == AT


GOOD: dict[str, object] = {"kind": "announced", "what": "x", "left_ms": 1}


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"by": 1},
        {"by": 1, "notice": []},
        {"by": "1", "notice": GOOD},
        {"by": -1, "notice": GOOD},
        {"by": 1, "notice": {**GOOD, "left_ms": "1"}},
        {"by": 1, "notice": {**GOOD, "left_ms": 10**30}},
        {"by": 1, "notice": {"kind": "announced", "left_ms": 1}},
    ],
)
def test_a_notice_that_is_none_is_refused(packed: dict[str, object]) -> None:
    """Its connection ends."""
    with pytest.raises(Garbled):
        parse(NodeNotice, packed)


@pytest.mark.parametrize(("by", "kind"), [(1, "due"), (1, "x"), (0, "announced")])
def test_a_notice_ends_nothing(by: int, kind: str) -> None:
    """Of another kind than an announcement, or our own."""
    together = Listener()
    together.hear(parse(NodeNotice, {"by": by, "notice": {**GOOD, "kind": kind}}))
    assert together.heard == []


def test_a_notice_of_another_node_names_it() -> None:
    """Without what a terminal would obey, days before, and with a time that fits into a year."""
    for left_ms, left_s in ((-1, 0.0), (3 * 86_400_000, 3 * 86400.0), (10**15, 366 * 86400.0)):
        together = Listener()
        notice = {"kind": "announced", "what": "Azure\x1b[2J", "left_ms": left_ms}
        together.hear(parse(NodeNotice, {"by": 1, "notice": notice}))
        assert together.heard == [("announced", "node 1: Azure\\x1b[2J", left_s)]


def test_each_node_has_its_own_deadline_and_the_first_counts(tmp_path: Path) -> None:
    """Another node's event neither puts off nor withdraws what was announced of one."""
    agent = Announced(RunFolder(str(tmp_path), "r" * 16, 0, {}))
    file = Path(agent.deadline_file)
    response = PreemptionResponse(agent, lambda *_: None)  # type: ignore[arg-type]

    def left_s() -> int | None:
        return round(json.loads(file.read_text())["deadline"] - time.time(), -2) if file.exists() else None

    events = [
        (ANNOUNCED, 300.0, 1, 300),
        (ANNOUNCED, 900.0, 2, 300),
        (WITHDRAWN, 0.0, 2, 300),
        (ANNOUNCED, 600.0, None, 300),
        (ANNOUNCED, 700.0, 1, 600),  # at another time
        (WITHDRAWN, 0.0, None, 700),
        (WITHDRAWN, 0.0, 1, None),
    ]
    for kind, in_s, node, expected in events:
        response.respond(kind, f"node {node}", in_s, node)
        assert left_s() == expected


def test_a_notice_for_the_end_of_time_is_one_for_next_year() -> None:
    """Its time is no date on this side of the world any more."""
    told: list[float] = []
    asking = watch.PreemptionWatch(
        Preemption("aws", "asked"), 2.0, NOTHING, lambda *_: None, lambda *what: told.append(what[2])
    )
    asking._take([Notice("stop", "AWS reclaims it", parse_time("9999-12-31T23:59:59-12:00"))])
    assert 365 * 86_400 < told[0] < 367 * 86_400


class Announced:
    """What of an agent hears of machines that will be taken back; the real one would start a job."""

    watch, forwarder = Supervision(), SimpleNamespace(translate=lambda number: number)

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.deadline_file = f"{folder.path}/deadline.json"
        self.said: list[str] = []

    def say(self, text: str, event: str) -> None:
        """Remember it."""
        self.said.append(text)


NOTHING: Any = None


class Listener:
    """What of an agent a node needs that hears notices; a real one would start a job."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []
        self.observers = self.preemption = self
        self.node = ClusterNode(Shape(0, 2, 2, "10.0.0.4", (6106,)), NOTHING, NOTHING)
        self.node.parts, self.node._has_begun = cast("Any", self), True

    def hear(self, noticed: NodeNotice) -> None:
        """Handle a notice that node 0 has passed on."""
        self.node.subscribers[NodeNotice](noticed)

    def respond(self, kind: str, what: str, left_s: float, node: int) -> None:
        """Remember it."""
        self.heard.append((kind, what, left_s))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*EVENT, "Events", "action", "time"]) | st.text(max_size=5), inner, max_size=6
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["azure", "aws", "gcp"]),
    st.lists(st.binary(max_size=80) | JSON, max_size=4),
    st.integers(0, 999),
)
def test_nothing_but_unclear_escapes(name: str, bodies: list[object], status: int) -> None:
    """Whatever a service answers, no answer is an error of ours, and what is asked fits into a request."""
    service = Asked(name)
    for body in bodies:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        for answer in ((status, data), (200, data)):
            service.answers = [answer] * 4
            try:
                service._ask(service.get, service._known)
            except Unclear:
                continue
    for _, path, headers in service.asked:
        assert all(text.isascii() and text.isprintable() for text in (path, *headers.values()))


@pytest.mark.parametrize(
    ("grace_s", "left_s", "expected"), [(30, 30, 28), (30, 900, 30), (5, 30, 5), (600, 9, 7), (30, 0, 3)]
)
def test_the_grace_ends_before_the_machine(grace_s: float, left_s: float, expected: float) -> None:
    """With a moment for our last word; who has no time left gets a few seconds all the same."""
    assert plan_grace(grace_s, left_s) == expected
