"""MASTER_PORT: held by real sockets, here and in a process of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from launcher.machine.files import READ_LIMIT_BYTES
from launcher.machine.host import Host
from launcher.process import port_checks
from tests.unit.checks.cases import Machine, case, looker, only

look = looker("port")

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
RANGE = {"proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n"}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_real_socket(address: str) -> None:
    """We listen ourselves: the finding names our pid."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        server = socket.create_server((address, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {address} here: {error}")
    with server:
        port = server.getsockname()[1]
        found = only(look(case(Host(), is_master=True, master_port=port)))
        assert found.level == PROBLEM and f"process {os.getpid()} (" in found.found
        assert found.fix.startswith(f"end process {os.getpid()}, or pass --master-port N")
        with socket.create_connection((address, port)) as client, server.accept()[0]:
            own = client.getsockname()[1]
            if len(Path("/proc/net/tcp").read_bytes()) >= READ_LIMIT_BYTES:
                return  # after another test's flood the list is longer than what is read of it
            connected = only(look(case(Host(), is_master=True, master_port=own)))
            assert connected.level == PROBLEM and "has a connection from there" in connected.found


def rows(*lines: str) -> dict[str, str]:
    """Return the kernel's list with some sockets."""
    return {"proc/net/tcp": HEAD + "".join(f"   0: {line}\n" for line in lines), **RANGE}


@pytest.mark.parametrize(
    ("reserved", "several", "level"),
    [("", True, WARNING), ("40000-40010,50000", True, WARNING), ("29500-49500", True, OK), ("", False, OK)],
)
def test_a_port_that_the_kernel_gives_away(tmp_path: Path, reserved: str, several: bool, level: str) -> None:
    """Any outgoing connection may get it before rank 0 does; reserved ports are never given."""
    host = Machine(tmp_path, {**rows(), "proc/sys/net/ipv4/ip_local_reserved_ports": f"{reserved}\n"})
    found = only(look(case(host, is_master=True, master_port=45000, spans_nodes=several)))
    assert found.level == level


def test_who_holds_the_port_is_named_if_it_can_be(tmp_path: Path) -> None:
    """Another's process may not be looked at; what does not hold it is no finding."""
    # Nobody listens on it.
    host = Host()
    assert only(look(case(host, is_master=True, master_port=host.free_port()))).level == OK
    # A process of another user, or outside of our namespace of processes.
    line = "00000000:17D9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1"
    found = only(look(case(Machine(tmp_path, rows(line)), is_master=True, master_port=6105)))
    assert (found.level, found.found) == (PROBLEM, "a process that the launcher cannot inspect listens there")
    # A connection that is over, another port, somebody's port of this number.
    over = "0100007F:17D9 0100007F:1F90 06 00000000:00000000 03:00000000 00000000     0        0 0 3"
    other = "00000000:17DA 0100007F:17D9 01 00000000:00000000 00:00000000 00000000     0        0 4242 1"
    host = Machine(tmp_path, rows(over, other, "garbage", ""))
    assert only(look(case(host, is_master=True, master_port=6105))).level == OK
    # On other nodes, without a master, without the kernel's lists.
    assert look(case(Machine(tmp_path, rows()), is_master=False, master_port=6105)) == []
    assert look(case(Machine(tmp_path, rows()), is_master=True)) == []
    assert look(case(Machine(tmp_path / "bare"), is_master=True, master_port=6105)) == []


def test_the_search_for_who_holds_the_port_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user who holds it, and a million descriptors, delayed a start by root by 17 seconds."""
    read = list[str]()

    def read_link(host: Host, path: str) -> str:
        read.append(path)
        return "/dev/null"

    monkeypatch.setattr(port_checks, "HOLDER_S", -1.0)
    monkeypatch.setattr(Host, "read_link", read_link)
    host = Machine(tmp_path, {f"proc/7/fd/{number}": "" for number in range(9)})
    assert port_checks.find_holder(host, frozenset({"5"})) is None
    assert read == ["/proc/7/fd/0"]


def test_the_name_of_who_holds_the_port_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process may have any name, and root sees that it holds the port."""
    monkeypatch.setattr(Host, "read_link", lambda host, path: "socket:[5]")
    host = Machine(tmp_path, {"proc/7/fd/3": "", "proc/7/comm": "\x1b[31mX\nlaunch:\n"})
    assert port_checks.find_holder(host, frozenset({"5"})) == ("7", "\\x1b[31mX\\nlaunch:")
