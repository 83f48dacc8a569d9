"""Progress in the status of a TrainJob: a real HTTPS server with the protocol of Kubeflow Trainer's."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.observers.kubeflow import (
    CERTIFICATE,
    TOKEN,
    URL,
    TrainerStatus,
    estimate,
    find_metrics,
    make_status,
)
from launcher.process.helper import Helpers
from launcher.process.loop import Loop

PATTERN = r"step (?P<step>\d+)/(?P<total>\d+) loss (?P<loss>[\d.]+)"
PLACE = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/job/status"


def test_named_groups_of_the_last_match_are_metrics() -> None:
    """Numbers only; a pattern without names has none."""
    tail = b"step 1/100 loss 2.5\rstep 1,200/2_000 loss 0.25\nbye\n"
    assert find_metrics(r"step (?P<step>[\d,]+)/(?P<total>[\d_]+) loss (?P<loss>[\d.]+)", tail) == {
        "step": 1200,
        "total": 2000,
        "loss": 0.25,
    }
    assert find_metrics(PATTERN, b"nothing") == find_metrics(r"step (\d+)", tail) == {}
    assert find_metrics(r"(?P<word>[a-z]+)", tail) == {}
    loss = r"loss (?P<loss>\S+)"
    assert find_metrics(loss, b"loss 2.5e-04\n") == {"loss": 2.5e-04}
    assert find_metrics(loss, b"loss -1.25\n") == {"loss": -1.25}
    assert find_metrics(loss, b"loss 1e999\n") == {}


def test_the_status_has_the_fields_of_the_trainer() -> None:
    """The values of metrics are texts; progress is a whole number of percent."""
    status: dict[str, Any] = make_status({"step": 30, "total": 40, "loss": 0.25}, 12.7)
    found = status["trainerStatus"]
    assert found.pop("lastUpdatedTime").endswith("Z")
    assert found == {
        "progressPercentage": 75,
        "estimatedRemainingSeconds": 12,
        "metrics": [
            {"name": "step", "value": "30"},
            {"name": "total", "value": "40"},
            {"name": "loss", "value": "0.25"},
        ],
    }
    assert "progressPercentage" not in str(make_status({"loss": 1.0}, None))
    assert "'progressPercentage': 100" in str(make_status({"percent": 140.0}, None))


def test_the_rest_is_estimated_from_an_earlier_step() -> None:
    """Not before there is one, and not if nothing has moved."""
    now = {"step": 30.0, "total": 40.0}
    assert estimate(now, (10.0, 100.0), 120.0) == 10.0
    assert (
        estimate(now, None, 120.0)
        is estimate(now, (30.0, 100.0), 120.0)
        is estimate({}, (1.0, 1.0), 2.0)
        is None
    )


class Trainer(HTTPServer):
    """The status server: what it has received, and its answer."""

    def __init__(self, folder: Path) -> None:
        self.received: list[tuple[str, str | None, Any]] = []
        self.answer = 200
        words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost")
        files = ("-keyout", str(folder / "key"), "-out", str(folder / "ca.crt"))
        names = ("-addext", "subjectAltName=DNS:localhost")
        subprocess.run(["openssl", *words, *files, *names], check=True, capture_output=True)
        super().__init__(("127.0.0.1", 0), Posted)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        (folder / "token").write_text("t0ken\n")
        self.environ = {
            URL: f"https://localhost:{self.server_port}{PLACE}",
            TOKEN: str(folder / "token"),
            CERTIFICATE: str(folder / "ca.crt"),
        }


class Posted(BaseHTTPRequestHandler):
    """One request."""

    server: Trainer

    def do_POST(self) -> None:
        """Keep it."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.received.append((self.path, self.headers["Authorization"], body["trainerStatus"]))
        self.send_response(self.server.answer)
        self.send_header("Location", "https://elsewhere.example/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """Run the server."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    server = Trainer(tmp_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Report:
    """A reporter with its loop, and the lines that it has printed."""

    def __init__(self, environ: dict[str, str], tail: bytes) -> None:
        self.tail, self.said = tail, list[str]()
        self.loop = Loop(lambda *_, **__: None)
        self.helpers = Helpers(self.loop)
        say = lambda text, event, **_: self.said.append(text)  # noqa: E731
        self.status = TrainerStatus(PATTERN, environ, lambda: self.tail, self.helpers, say)

    def fire(self) -> None:
        """Look once, and wait until that is done."""
        self.status.fire(time.monotonic())
        self.loop.turn_until(lambda: not self.status._is_busy, 60)


def test_what_is_new_is_sent_with_the_token(trainer: Trainer) -> None:
    """Once, and the estimate from the second time on; the token is read anew, because it rotates."""
    report = Report(trainer.environ, b"step 10/40 loss 2.0\n")
    report.fire()
    report.fire()
    assert len(trainer.received) == 1
    path, token, status = trainer.received[0]
    assert (path, token) == (PLACE, "Bearer t0ken") and status["progressPercentage"] == 25
    Path(trainer.environ[TOKEN]).write_text("t1ken")
    report.tail += b"step 20/40 loss 1.0\n"
    report.status.finish(report.loop.turn_until)
    path, token, status = trainer.received[1]
    assert token == "Bearer t1ken" and status["progressPercentage"] == 50
    assert status["estimatedRemainingSeconds"] >= 0 and report.said == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "the server answers 302"),  # the token follows no redirection
        ({URL: "http://localhost:1/status"}, f"{URL} is not an https address"),
        ({TOKEN: "/nonexistent/token"}, "No such file"),
        ({CERTIFICATE: ""}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_server_that_cannot_be_told_is_one_line(trainer: Trainer, change: dict[str, str], why: str) -> None:
    """The job goes on, and the line never has the token."""
    trainer.answer = 302
    report = Report({**trainer.environ, **change}, b"step 10/40 loss 2.0\n")
    report.fire()
    report.fire()
    (line,) = report.said
    assert why in line and "t0ken" not in line
