"""OpenTelemetry: the spans of a job as they arrive at a receiver, and that none of this changes the job."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.events.exporter import MEMORY_BYTES
from launcher.machine.process import find_children
from tests.process.looking import wait_for
from tests.process.otlp import Receiver, receive
from tests.process.starting import DEADLINE_S, launch, open_launcher

TWO = ("run", "--nproc-per-node", "2")
ERROR = 2
"""OTLP's code of a span's status."""
OUTER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
SHOWS = ("--", "sh", "-c", "echo parent=$TRACEPARENT")
# A user's script with OpenTelemetry's SDK, as its documentation has it
RANK = """
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import DefaultGetter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
import os
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
context = TraceContextTextMapPropagator().extract({"traceparent": os.environ["TRACEPARENT"]})
with provider.get_tracer("user").start_as_current_span("epoch", context):
    pass
provider.shutdown()
"""
FAILS_ONCE = """
import os, time
print("step 1", flush=True)
if "LAUNCHER_ATTEMPT" not in os.environ:
    if os.environ["RANK"] == "0":
        time.sleep(600)
    import no_such_module_anywhere
"""
pytestmark = pytest.mark.xdist_group("traces")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Return a receiver."""
    with receive() as one:
        yield one


def test_the_spans_of_a_job(receiver: Receiver, tmp_path: Path) -> None:
    """One trace: the job, its start, each attempt with its training and its stop, and why it failed."""
    script = tmp_path / "train.py"
    script.write_text(FAILS_ONCE)
    flags = ("--restarts", "1", "--restart-on", "any", "--restart-delay", "0")
    done = launch(*TWO, *flags, str(script), environ=receiver.environ)
    assert done.returncode == 0, done.stderr
    assert len({span.trace_id for span in receiver.spans}) == 1, done.stderr
    job, start = receiver.one("job"), receiver.one("start")
    first, second = receiver.named("attempt")
    assert not job.parent_id and job.status != ERROR and job.attributes["launcher.status"] == 0
    assert {start.parent_id, first.parent_id, second.parent_id} == {job.span_id}
    assert job.began_ns <= start.began_ns < start.ended_ns <= first.began_ns
    assert first.ended_ns <= second.began_ns < second.ended_ns <= job.ended_ns
    assert first.status == ERROR and second.status != ERROR
    told = first.attributes
    assert told["launcher.attempt"] == 0 and told["launcher.world_size"] == 2 and told["launcher.node"] == 0
    assert told["launcher.status"] == 1 and told["launcher.cause"] == "import-error", told
    assert [span.parent_id for span in receiver.named("training")] == [first.span_id, second.span_id]
    assert receiver.named("stop")[0].parent_id == first.span_id
    assert {"stopping", "first-failure"} <= set(first.events) and "end" in job.events
    assert job.resource["service.name"] == "launcher"


def test_the_spans_of_a_users_script_nest_in_the_attempt(receiver: Receiver, tmp_path: Path) -> None:
    """Its SDK gets TRACEPARENT, and all variables as the user has set them."""
    script = tmp_path / "train.py"
    script.write_text(RANK)
    more = {"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "team=a,service.name=other"}
    done = launch(*TWO, str(script), environ=receiver.environ | more)
    assert done.returncode == 0, done.stderr
    attempt, epochs = receiver.one("attempt"), receiver.named("epoch")
    assert [span.parent_id for span in epochs] == [attempt.span_id] * 2
    assert {span.trace_id for span in epochs} == {attempt.trace_id}
    assert attempt.resource["service.name"] == "mine" and attempt.resource["team"] == "a"


@pytest.mark.parametrize("flags", ["01", "00"], ids=["sampled", "not sampled"])
def test_a_job_nests_in_what_started_it(receiver: Receiver, flags: str) -> None:
    """TRACEPARENT of the launcher's environment; a trace that is not recorded stays so."""
    done = launch(*TWO, *SHOWS, environ=receiver.environ | {"TRACEPARENT": OUTER + flags})
    parents = {line.rpartition("parent=")[2] for line in done.stdout.splitlines()}
    assert done.returncode == 0 and len(parents) == 1
    _, trace_id, span_id, told = parents.pop().split("-")
    assert trace_id == OUTER.split("-")[1] and told == flags
    if flags == "00":
        assert receiver.spans == []
        return
    job, attempt = receiver.one("job"), receiver.one("attempt")
    assert job.parent_id == OUTER.split("-")[2] and job.trace_id == trace_id
    assert attempt.span_id == span_id


def test_a_job_of_a_platform_is_one_trace(receiver: Receiver) -> None:
    """Its id follows from the platform's id of the job, so that nodes that do not talk agree on it."""
    more = {"AZUREML_RUN_ID": "sunny_cat_42"}
    for _ in range(2):
        assert launch(*TWO, "--", "true", environ=receiver.environ | more).returncode == 0
    one, other = receiver.named("job")
    assert one.trace_id == other.trace_id and one.span_id != other.span_id


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
    ],
    ids=["nothing", "none", "disabled"],
)
def test_it_is_off_unless_asked_for(more: dict[str, str]) -> None:
    """Then ranks get no TRACEPARENT, and nothing is said."""
    done = launch(*TWO, *SHOWS, environ=more)
    assert done.returncode == 0 and done.stderr == ""
    assert {line.rpartition("] ")[2] for line in done.stdout.splitlines()} == {"parent="}


def test_it_is_off_without_the_sdk() -> None:
    """The plan says so; the job is as it was."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    bare = (sys.executable, "-S")
    done = launch(*TWO, *SHOWS, environ=variables, interpreter=bare)
    assert done.returncode == 0 and done.stderr == "" and "parent=\n" in done.stdout
    plan = launch(
        "plan", "--nproc-per-node", "2", "--format", "json", "--", "true", environ=variables, interpreter=bare
    )
    assert "cluster-launcher[otel]" in plan.stdout and '"traces"' not in plan.stdout
    plan = launch("plan", "--nproc-per-node", "2", "--format", "json", "--", "true", environ=variables)
    assert '"traces": true' in plan.stdout


def test_an_endpoint_that_refuses_is_said_once(tmp_path: Path, receiver: Receiver) -> None:
    """A setting that the SDK mends is no failure."""
    # The job has its status, and ends a moment later.
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}@127.0.0.1:1"}
    began = time.monotonic()
    done = launch(*TWO, "--events", str(tmp_path / "e"), "--", "sh", "-c", "exit 9", environ=variables)
    assert time.monotonic() - began < 8
    assert done.returncode == 9
    (line,) = [line for line in done.stderr.splitlines() if "no traces" in line]
    assert "Connection refused" in line and "127.0.0.1:1" in line
    assert SECRET not in done.stderr and SECRET not in (tmp_path / "e").read_text()
    # Its warning does not say that nothing was sent.
    done = launch(
        *TWO, "--", "sleep", "0.4", environ={**receiver.environ, "OTEL_EXPORTER_OTLP_TIMEOUT": "abc"}
    )
    assert done.returncode == 0 and "no traces" not in done.stderr, done.stderr


def test_a_signal_ends_the_wait_for_an_endpoint_that_never_answers(tmp_path: Path) -> None:
    """The job is over; a platform or a person does not wait for its traces."""
    events, called = tmp_path / "events", tmp_path / "called"
    ranks = ("sh", "-c", 'until [ -e "$0" ]; do sleep 0.1; done', str(called))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        job = open_launcher(*TWO, "--events", str(events), "--", *ranks, environ=variables)
        caller = server.accept()[0]
        called.touch()
        wait_for(lambda: '"event":"end"' in events.read_text(), "the job has ended")
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=60)
        assert time.monotonic() - began < 4
    caller.close()
    assert job.returncode == 0 and "a signal came" in errors, errors


def test_an_endpoint_that_never_answers_costs_a_limited_time() -> None:
    """Five seconds, and then the job ends with its status."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}"}
        began = time.monotonic()
        done = launch(*TWO, "--", "sh", "-c", "exit 9", environ=variables)
        lasted = time.monotonic() - began
    assert done.returncode == 9 and 5 <= lasted < 15
    assert len([line for line in done.stderr.splitlines() if "traces" in line]) == 1, done.stderr


def test_an_endpoint_that_answers_without_end_takes_no_memory() -> None:
    """The SDK reads a whole answer: its process has a limit, the job goes on, and it is said once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        job = open_launcher(*TWO, "--", "sleep", "600", environ=variables)
        server.settimeout(DEADLINE_S)
        caller = server.accept()[0]
        caller.sendall(b"HTTP/1.1 400 No\r\n\r\n")
        sent = 0
        try:
            while sent < 2 * MEMORY_BYTES:
                sent += caller.send(bytes(1 << 20))
        except OSError:
            pass  # it has hung up
        assert sent < 2 * MEMORY_BYTES
    assert job.stderr is not None and any(
        "no traces so far: " in line for line in iter(job.stderr.readline, "")
    )
    assert job.poll() is None
    job.terminate()
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 143


def test_headers_are_secrets(receiver: Receiver, tmp_path: Path) -> None:
    """They arrive, and are in no log and no event."""
    more = {
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRET}",
        "LAUNCHER_EVENTS": str(tmp_path / "e"),
    }
    done = launch(*TWO, "--", "sh", "-c", "exit 3", environ=receiver.environ | more)
    assert done.returncode == 3
    assert receiver.headers[0]["authorization"] == f"Bearer {SECRET}"
    sent = repr(receiver.spans)
    assert SECRET not in done.stderr + (tmp_path / "e").read_text() + sent


def find_tracer(pid: int) -> int | None:
    """Return the process that makes the spans of a launcher."""
    names = {child: Path(f"/proc/{child}/comm").read_text() for child in find_children(pid)}
    return next((child for child, name in names.items() if name == "launcher-trace\n"), None)


def test_the_process_of_the_traces_may_die(receiver: Receiver) -> None:
    """The job goes on; it is said."""
    job = open_launcher(*TWO, "--", "sleep", "600", environ=receiver.environ)
    wait_for(lambda: find_tracer(job.pid), "it is there")
    pid = find_tracer(job.pid)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert job.stderr is not None and "no more traces" in job.stderr.readline()
    assert job.poll() is None
    job.terminate()
    job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 143 and receiver.spans == []


def test_the_launcher_has_one_thread_and_loads_no_sdk(receiver: Receiver) -> None:
    """It forks; and its own memory stays what it was."""
    job = open_launcher(*TWO, "--", "sleep", "600", environ=receiver.environ)
    wait_for(lambda: find_tracer(job.pid), "it is there")
    assert len(os.listdir(f"/proc/{job.pid}/task")) == 1
    assert "google" not in Path(f"/proc/{job.pid}/maps").read_text()
    job.terminate()
    job.communicate(timeout=DEADLINE_S)
    assert receiver.one("job").attributes["launcher.status"] == 143


def test_the_events_have_their_own_time_after_an_endpoint_that_refuses(tmp_path: Path) -> None:
    """The wait for the traces takes nothing of it: no event is lost."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = launch(*TWO, "--events", str(tmp_path / "events"), "--", "true", environ=variables)
    assert done.returncode == 0 and "Connection refused" in done.stderr
    assert "were lost" not in done.stderr
