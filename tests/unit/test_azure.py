"""Azure VM sizes: what is known of each, whose word is taken, and that asking costs nothing elsewhere."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from launcher.machine import azure
from launcher.machine.azure import (
    ASSET_TAG,
    SIZE_LIMIT,
    Vm,
    ask_size,
    find_kind,
    is_azure,
    read_kinds,
    read_vm,
)
from launcher.machine.host import Host
from launcher.planning.recorded import replay
from launcher.planning.snapshot import take_snapshot


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What was asked is remembered for the whole process: not from test to test."""
    azure._asked.clear()
    yield
    azure._asked.clear()


class Service(HTTPServer):
    """The part of Azure's metadata service that is asked, on a loopback address."""

    def __init__(self, body: bytes, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.body, self.status = body, status
        self.asked: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Service)
        self.server.asked.append((self.path, self.headers.get("Metadata")))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("size", "gpus", "ports", "rate"),
    [
        *(("Standard_ND96isr_H200_v5", 8, 8, 400), ("STANDARD_nd96isr_h100_V5", 8, 8, 400)),
        *(("Standard_ND96is_H100_v5", 8, 0, None), ("Standard_ND96amsr_A100_v4", 8, 8, 200)),
        *(("Standard_ND40rs_v2", 8, 1, 100), ("Standard_NC24rs_v3", 4, 1, 56)),
        ("Standard_NC12s_v3", 2, 0, None),
        ("Standard_NC128ds_xl_RTXPRO6000BSE_v6", None, 0, None),
        *(("Standard_HB120rs_v3", 0, 1, 200), ("Standard_HB120-16rs_v3", 0, 1, 200)),
        *(("Standard_HB176-24rs_v4", 0, 1, 400), ("Standard_HX176-96rs", 0, 1, 400), ("hc44rs", 0, 1, 100)),
    ],
)
def test_sizes_are_found_in_any_case(size: str, gpus: int | None, ports: int, rate: int | None) -> None:
    """With constrained cores too: all else is that of the whole size."""
    kind = find_kind(size)
    assert kind is not None
    assert (Vm(size, kind, "").gpu_count, kind.port_count, kind.rate_gbps) == (gpus, ports, rate)


def test_a_size_is_known_by_one_row() -> None:
    """Two rows would be two truths; names with and without RDMA differ by two letters."""
    # Two rows for one size would be two truths.
    sizes = [size for kind in read_kinds() for size in kind.sizes]
    assert len(set(sizes)) == len(sizes)
    assert all(size == size.lower() and find_kind(f"Standard_{size}") is not None for size in sizes)
    # NC24r has Network Direct, NC24rs_v3 has SR-IOV; the names differ by two letters.
    verbs = {
        size: kind.has_verbs
        for size in ("NC24r", "NC24rs_v2", "NC24rs_v3", "A8")
        if (kind := find_kind(size))
    }
    assert verbs == {"NC24r": False, "NC24rs_v2": False, "NC24rs_v3": True, "A8": False}


@pytest.mark.parametrize("size", ["Standard_D2s_v3", "", "nd96", "Standard_ND96isr_H100_v5 "[:-2], "*"])
def test_an_unknown_size_is_no_error(size: str) -> None:
    """Nothing is known of it, and nothing follows from it."""
    assert find_kind(size) is None
    assert Vm(size, None, "").gpu_count is None


def context(size: object) -> dict[str, str]:
    return {azure.CONTEXT: json.dumps({"cluster_name": "c", "gpu_count": 8, "vm_size": size})}


def test_the_common_runtime_names_the_size() -> None:
    """Its JSON has vm_size, which is null on compute that is no VM of Azure."""
    vm = read_vm(context("Standard_ND96isr_H100_v5"))
    assert vm is not None and vm.kind is not None
    assert (vm.size, vm.kind.family, vm.gpu_count) == ("Standard_ND96isr_H100_v5", "ndv5", 8)
    assert vm.origin == "AZUREML_CR_COMPUTE_CONTEXT: vm_size 'Standard_ND96isr_H100_v5'"
    assert read_vm(context(None)) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "vm_size", "[]", '{"vm_size": 7}', '{"vm_size": "\\u001b[31m"}', '["vm_size"]'),
        "[" * 90000 + "vm_size",
    ],
)
def test_what_is_no_size_is_none(text: str) -> None:
    """A variable can hold anything."""
    assert read_vm({azure.CONTEXT: text}) is None


def test_a_family_is_known_without_its_size() -> None:
    """What all of its sizes have is known; what they differ in is not."""
    vm = read_vm({azure.FAMILY: "NDv4"})
    assert vm is not None and vm.kind is not None
    assert (vm.size, vm.name, vm.kind.family, vm.kind.port_count) == ("", "ndv4", "ndv4", 8)
    several = read_vm({azure.FAMILY: "ndv5"})
    assert several is not None and several.kind is not None
    assert (several.name, several.kind.port_count, several.gpu_count) == ("ndv5", 0, None)
    unknown = read_vm({azure.FAMILY: "ndv99"})
    assert unknown is not None and unknown.kind is None


def test_azure_is_certain_by_firmware_by_batch_or_by_a_size(tmp_path: Path) -> None:
    """Azure ML runs jobs in Kubernetes elsewhere too, so its variables alone say nothing."""
    host = Host(str(tmp_path))
    assert not is_azure(host, {"AZUREML_RUN_ID": "x", **context(None)})
    assert is_azure(host, {"AZ_BATCH_NODE_ID": "tvm-1"})
    assert is_azure(host, context("Standard_ND96isr_H100_v5"))
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/chassis_asset_tag").write_text(f"{ASSET_TAG}\n")
    assert is_azure(host, {})
    assert is_azure(replay(take_snapshot(host, {azure.FAMILY: "ndv5"})), {})
    (tmp_path / "sys/class/dmi/id/chassis_asset_tag").write_text("inventory 4711\n")
    assert not is_azure(host, {})
    assert "4711" not in json.dumps(take_snapshot(host, {}))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        *((b"", 200), (b"Standard_ND96isr_H200_v5", 404), (b"<html>login</html>", 200)),
        *((b"x" * (SIZE_LIMIT + 1), 200), (b"\xff\x1b[31m", 200)),
    ],
)
def test_an_answer_that_is_no_size_is_none(body: bytes, status: int) -> None:
    """A captive portal, an error, or too much."""
    with Service(body, status) as service:
        assert ask_size(service.url) == ""


def test_the_service_is_asked_once_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the header that it wants, past any proxy."""
    # With the header that it wants, past any proxy; the answer holds for the process.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Service(b"Standard_ND96isr_H200_v5") as service:
        assert ask_size(service.url) == "Standard_ND96isr_H200_v5"
        assert service.asked == [(azure.SIZE_PATH, "true")]
    # A closed port refuses at once; a port that never answers costs no more than the limit.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert ask_size(url, timeout_s=0.2) == ""
        assert 0.1 < time.monotonic() - started < 2
    started = time.monotonic()
    assert ask_size("http://127.0.0.1:9", timeout_s=30) == ""
    assert time.monotonic() - started < 2


def test_reading_a_machine_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even on Azure: who wants to know more asks by itself."""
    monkeypatch.setattr(socket, "create_connection", None)
    assert read_vm({"AZ_BATCH_NODE_ID": "tvm-1"}) is None
    assert is_azure(Host(str(tmp_path)), {"AZ_BATCH_NODE_ID": "tvm-1"})
