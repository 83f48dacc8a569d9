"""A stand-in for the metadata services of Azure, AWS and GCP: a real server, on 169.254.169.254 of a node.

``python -m tests.cluster.metadata FOLDER`` runs on the node. What it answers stands in files of the folder,
so that a test can change it while a job runs; who has asked for what is written to ``requests`` there.
Headers that the real services insist on are insisted on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from launcher.rehearse.cluster import Cluster, SimulatedNode
from tests.process.looking import wait_for
from tests.process.starting import clean_environ

ADDRESS, PORT = "169.254.169.254", 80
NAME = "vm-of-this-job_1"
TOKEN = "AQAEAB-a-token=="
SLOW_S = 60.0


class Metadata:
    """The service of one node, as a test sees it."""

    def __init__(self, cluster: Cluster, node: SimulatedNode, folder: Path) -> None:
        """Start it, and wait until it listens."""
        self.folder, self._cluster = folder, cluster
        folder.mkdir()
        self.answer_events([])
        _on(cluster, node, ("ip", "addr", "add", f"{ADDRESS}/32", "dev", "lo"))
        command = (sys.executable, "-m", "tests.cluster.metadata", str(folder))
        self._server = subprocess.Popen(cluster.argv(node, command), env=clean_environ())
        wait_for((folder / "listens").exists, "the metadata service listens")

    def answer_events(self, events: Sequence[Mapping[str, object]]) -> None:
        """Have these scheduled events at Azure."""
        self._put("events", json.dumps({"DocumentIncarnation": 1, "Events": list(events)}))

    def answer_action(self, action: str, at: float) -> None:
        """Have an interruption notice at AWS."""
        moment = datetime.fromtimestamp(at, timezone.utc)
        self._put("action", json.dumps({"action": action, "time": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}))

    def answer_preempted(self) -> None:
        """Have this machine preempted at Google Cloud."""
        self._put("preempted", "TRUE")

    def behave(self, how: str) -> None:
        """Answer everything so: ``well``, ``404``, ``malformed``, ``slow``, ``oversized``, ``silent``."""
        self._put("how", how)

    def requests(self) -> list[str]:
        """Return what was asked, e.g. ``GET /metadata/...``; an empty line is a connection without a word."""
        path = self.folder / "requests"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """End it."""
        self._cluster.kill(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def _put(self, name: str, text: str) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(text)
        os.replace(new, self.folder / name)


def make_event(
    kind: str, in_s: float, *, vm: str = NAME, key: str = "602d9444", **more: object
) -> dict[str, object]:
    """Return a scheduled event of Azure's, as its documentation shows them."""
    moment = datetime.fromtimestamp(time.time() + in_s, timezone.utc)
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["another_0", vm],
        "EventStatus": "Scheduled",
        "NotBefore": f"{moment:%a, %d %b %Y %H:%M:%S GMT}",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


def _on(cluster: Cluster, node: SimulatedNode, argv: Sequence[str]) -> None:
    subprocess.run(cluster.argv(node, argv), env=clean_environ(), check=True)


# --- on the node


def serve(folder: Path) -> None:
    """Answer until killed."""
    with socket.create_server((ADDRESS, PORT), backlog=64) as server:
        (folder / "listens").touch()
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection, folder), daemon=True).start()


def answer(connection: socket.socket, folder: Path) -> None:
    """Answer one request."""
    with connection:
        asked = b""
        while b"\r\n\r\n" not in asked and (more := connection.recv(4096)):
            asked += more
        head, *lines = asked.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        with (folder / "requests").open("a") as file:
            file.write(head.removesuffix(" HTTP/1.1") + "\n")
        how = (folder / "how").read_text() if (folder / "how").exists() else "well"
        if how in ("slow", "silent"):
            if how == "slow":
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
            time.sleep(SLOW_S)  # as a service that has hung itself up: nothing comes of it
            return
        verb, path = head.split(" ")[:2] if head else ("", "")
        status, body = find_answer(verb, path.partition("?")[0], headers, folder)
        if how == "404":
            status, body = 404, b"<html>not found</html>"
        elif how == "malformed":
            body = b'{"Events": [{"EventType": "Preempt", "Resources": "\xff\xfe'
        elif how == "oversized":
            body = b" " * (1 << 20) + body
        connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


def find_answer(verb: str, path: str, headers: Mapping[str, str], folder: Path) -> tuple[int, bytes]:
    """Return the status and the body, as the real services would."""
    if path.startswith("/metadata/") and headers.get("metadata") != "true":
        return 400, b"{}"
    if path.startswith("/latest/meta-data/") and headers.get("x-aws-ec2-metadata-token") != TOKEN:
        return 401, b""
    if path.startswith("/computeMetadata/") and headers.get("metadata-flavor") != "Google":
        return 403, b""
    files = {
        "/metadata/scheduledevents": "events",
        "/latest/meta-data/spot/instance-action": "action",
        "/computeMetadata/v1/instance/preempted": "preempted",
    }
    if path == "/metadata/instance/compute/name":
        return 200, NAME.upper().encode()  # what names are called is a matter of taste there
    if (verb, path) == ("PUT", "/latest/api/token"):
        return 200, TOKEN.encode()
    file = folder / files.get(path, "nothing")
    if not file.exists():
        return (200, b"FALSE") if file.name == "preempted" else (404, b"")
    return 200, file.read_bytes()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
