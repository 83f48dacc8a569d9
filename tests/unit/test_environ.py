"""Reading variables: what is a number, a host, a list of hosts; what is remembered and reported."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.environ import (
    COUNT_LIMIT,
    Malformed,
    each_once,
    is_host,
    is_loopback,
    parse_host,
    parse_host_port,
    parse_hosts,
    parse_int,
    shorten,
)
from launcher.core.model import Fact, Trust
from launcher.machine.host import Host
from launcher.sources.reader import Reader


def reader(**environ: str) -> Reader:
    return Reader("test", environ, Host("/nonexistent"), None)


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("007", 7), (" 3 ", 3), ("4\n", 4), ("16777215", 16777215)]
)
def test_numbers_are_decimal_digits_with_blanks_around(text: str, number: int) -> None:
    """Templates leave blanks and line feeds around values."""
    assert parse_int(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-1", "+1", "1.0", "1e3", "0x1", "1_000", "1 2", "x", "9" * 10),
        "9" * 5000,
        "\u0663",
        "\xb2",
    ],
)
def test_anything_else_is_no_number(text: str) -> None:
    """int() would take signs, underscores and the digits of other scripts."""
    with pytest.raises(Malformed):
        parse_int(text)


@given(st.text())
def test_parsing_a_number_gives_one_in_range_or_malformed(text: str) -> None:
    """Nothing else comes out of it, whatever goes in."""
    try:
        assert 0 <= parse_int(text) < COUNT_LIMIT
    except Malformed as error:
        assert str(error) == f"an integer in 0..{COUNT_LIMIT - 1}"


@pytest.mark.parametrize("limits", [(1, 65536)])
@pytest.mark.parametrize("text", ["0", "65536"])
def test_limits_are_part_of_the_message(text: str, limits: tuple[int, int]) -> None:
    """A port is in 1..65535."""
    with pytest.raises(Malformed, match=r"an integer in 1\.\.65535"):
        parse_int(text, *limits)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        *(("node0", "node0", None), ("node0:6000", "node0", 6000), ("10.0.0.4:1", "10.0.0.4", 1)),
        *(("fd00::1", "fd00::1", None), ("::1", "::1", None), ("[fd00::1]", "fd00::1", None)),
        ("[fd00::1]:29500", "fd00::1", 29500),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("::ffff:10.0.0.4", "::ffff:10.0.0.4", None),
        ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", None),
        (" job-master-0.ns.svc:23456\n", "job-master-0.ns.svc", 23456),
        ("under_score", "under_score", None),
    ],
)
def test_hosts_may_have_a_port_and_brackets(text: str, host: str, port: int | None) -> None:
    """A bare IPv6 address has no port: its last group is not one."""
    assert parse_host_port(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a b", "a;b", "a,b", "-option", "--help", "a/b", "user@host", "$(id)", "`id`", "a'b"),
        *('a"b', "\x1b"),
        *("host:", ":1", "host:0", "host:65536", "host:x", "[fd00::1", "[]", "[]:1", "x" * 254, "n\nm"),
        *("n\u0153ud", "\udcff", "http://host", "a..b\0", "a..b", "..", "[host]", "host%eth0"),
        *("node1:8:mlx5_0", "1:2:3", "1::2::3", ":::", "::.", "::10.0.0.256", "fd000::1", "::1%%a", "::%::1"),
    ],
)
def test_what_no_name_or_address_can_be_is_refused(text: str) -> None:
    """It would end on a command line or in a resolver."""
    with pytest.raises(Malformed):
        parse_host_port(text)


@given(st.text(max_size=40))
def test_a_host_that_is_taken_is_safe_on_a_command_line(text: str) -> None:
    """No option, no blank, nothing that a shell reads, no control character."""
    try:
        host = parse_host(text)
    except Malformed:
        return
    assert host and not host.startswith("-") and host.isascii() and host.isprintable()
    assert not set(host) & set(" '\"\\$`;&|<>()[]{}*?!#~/@,")


def test_a_list_of_hosts_has_each_once() -> None:
    """Ports are dropped, order is kept; a host that occurs twice is named."""
    assert parse_hosts("b:1,a:2,[fd00::1]:3") == ("b", "a", "fd00::1")
    assert parse_hosts("10.0.0.4;10.0.0.5", ";") == ("10.0.0.4", "10.0.0.5")
    with pytest.raises(Malformed, match="not 'a' twice"):
        parse_hosts("a,b,a")
    for text in ("", ",", "a,,b", "a,", "a b"):
        with pytest.raises(Malformed):
            parse_hosts(text)


@given(st.lists(st.sampled_from(["", "0", "fd00", "g", "12345", "10.0.0.4"]), min_size=2, max_size=10))
def test_an_address_is_what_python_takes_for_one(groups: list[str]) -> None:
    """Without the price of `ipaddress` on the launch path."""
    text = ":".join(groups)
    try:
        IPv6Address(text)
    except ValueError:
        assert not is_host(text)
    else:
        assert is_host(text)


def test_loopback_means_here_wherever_it_is_read() -> None:
    """All of 127.0.0.0/8, and the names."""
    here = ("localhost", "localhost.localdomain", "127.0.0.1", "127.0.1.1", "::1", "0.0.0.0")
    assert [is_loopback(host) for host in here] == [True] * len(here)
    assert not any(is_loopback(host) for host in ("10.0.0.4", "node127", "fd00::1", "localhostess"))


def test_an_empty_variable_is_an_unset_one() -> None:
    """Platforms template MASTER_ADDR="" into images."""
    empty = reader(RANK="", MASTER_ADDR="", HOSTS="")
    assert (empty.text("RANK"), empty.integer("RANK"), empty.hosts("HOSTS")) == (None, None, ())
    assert empty.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR") is None
    assert empty.names == set()
    assert empty.evidence().claims == () and empty.evidence().problems == ()


def test_a_reader_remembers_what_it_read_claimed_and_refused() -> None:
    """Reads that found something, claims with name and value, problems that name the fix."""
    sample = reader(RANK="3", WORLD_SIZE="x", MASTER_ADDR="node0:1", PORT="70000")
    sample.claim_int(Fact.RANK, "RANK")
    sample.claim_int(Fact.WORLD_SIZE, "WORLD_SIZE", 1)
    sample.claim_host(Fact.MASTER_ADDR, "MASTER_ADDR", Trust.DERIVED)
    sample.claim_int(Fact.MASTER_PORT, "PORT", 1)
    evidence = sample.evidence()
    assert sample.names == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "PORT"}
    assert [(claim.value, claim.origin, claim.trust) for claim in evidence.claims] == [
        (3, "RANK='3'", Trust.STATED),
        ("node0", "MASTER_ADDR='node0:1'", Trust.DERIVED),
    ]
    assert [problem.what for problem in evidence.problems] == [
        "WORLD_SIZE='x': expected an integer in 1..16777215",
        "PORT='70000': expected an integer in 1..65535",
    ]
    assert {(problem.code, problem.where) for problem in evidence.problems} == {
        ("malformed-variable", "environment, source test")
    }


def test_messages_about_long_lists_are_short_and_quick() -> None:
    """A host that occurs twice is named, in linear time, and a long value is cut."""
    # A message is no list.
    hosts = [f"node{number}" for number in range(5000)]
    with pytest.raises(Malformed) as caught:
        each_once([*hosts, *hosts])
    assert str(caught.value).endswith(", not 'node0' twice, not 'node1' twice, not 'node2' twice, ...")
    # Also when they hold the same host twice.
    hosts = [f"node{i}" for i in range(20_000)]
    assert len(parse_hosts(",".join(hosts))) == 20_000
    with pytest.raises(Malformed):
        parse_hosts(",".join([*hosts, "node7"]))
    # A list of a thousand hosts must not fill the screen.
    assert shorten("short") == "short"
    assert shorten("x" * 1000) == "x" * 120 + "... (1000 characters)"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST", "localhost.localdomain", "ip6-localhost", "localhost6", "127.0.0.1"),
        *("127.1", "127.0.1.1", "127.0.2.1", "0", "0.0.0.0", "::1", "::", "0:0:0:0:0:0:0:1"),
        *("::ffff:127.0.0.1", "::1%lo"),
    ],
)
def test_this_node_is_known_in_every_spelling(host: str) -> None:
    """A master of several nodes that means "this node" is a contradiction, however it is written."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["node0", "10.0.0.4", "127.0.77.10", "fd00::1", "localhosts", "127.node"])
def test_other_hosts_are_other_hosts(host: str) -> None:
    """Names and addresses of nodes, those of a rehearsal on one machine included, are no loopback."""
    assert not is_loopback(host)
