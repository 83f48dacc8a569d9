"""The nodes that a user lists, and the place of this one among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.errors import EnvironmentUntrusted, UsageError
from launcher.identity.hosts import read_hostfile
from launcher.machine.host import Host
from launcher.options.reading import read_options
from launcher.planning.plan import plan_job


class Node(Host):
    """A node with a name and addresses of its own: no machine of tests has these."""

    def __init__(self, name: str, *addresses: str) -> None:
        super().__init__()
        self._name, self._addresses = name, addresses

    def hostname(self) -> str:
        return self._name

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return {"eth0": self._addresses}

    def resolve(self, name: str) -> frozenset[str]:
        return frozenset({"b-alias": {"10.0.0.5"}}.get(name, ()))


@pytest.mark.parametrize(
    ("hosts", "node", "index"),
    [
        ("10.0.0.4,10.0.0.5", Node("x", "10.0.0.5"), 1),
        ("a,b", Node("b", "10.0.0.5"), 1),
        ("a,b", Node("b.cluster.local", "10.0.0.5"), 1),
        ("a,b-alias", Node("x", "10.0.0.5"), 1),
    ],
)
def test_the_place_in_the_list_is_the_node_rank(hosts: str, node: Node, index: int) -> None:
    """By address, by name, by the short form of a long name, by what a name resolves to."""
    plan = plan_job({}, node, read_options({"hosts": hosts}, {}), ["true"])
    found = plan.allocation
    assert (found.node_rank, found.node_count, found.master_addr) == (index, 2, hosts.split(",")[0])


def test_who_is_not_in_the_list_must_say_who_it_is() -> None:
    """Never node 0 by default; --node-rank settles it."""
    with pytest.raises(EnvironmentUntrusted) as caught:
        plan_job({}, Node("x", "10.0.0.9"), read_options({"hosts": "a,b"}, {}), ["true"])
    fix = caught.value.problems[0].fix
    assert "--node-rank" in fix and "none of this node's names and addresses (10.0.0.9, x) stand in it" in fix
    asked = read_options({"hosts": "a,b", "node_rank": "1"}, {})
    assert plan_job({}, Node("x", "10.0.0.9"), asked, ["true"]).allocation.node_rank == 1


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\n",
        "# nodes\na slots=4\nb slots=4\n\n",
        "a:4\nb:4\n",
        "a 4\nb 4 # last\n",
        "a  slots=4 max_slots=8\nb slots=4",
        "a\tslots=4\nb\t4\n",
        "a slots = 4\nb max_slots=8 slots= 4\n",
        "a cpu=4\nb count=4\n",
        "a:4 binding=core:1\nb:4\n",
    ],
)
def test_hostfiles_of_any_mpirun(text: str, tmp_path: Path) -> None:
    """One host per line, with or without slots, comments and blank lines."""
    (tmp_path / "hosts").write_text(text)
    listed = read_hostfile(str(tmp_path / "hosts"), "--hostfile hosts", Host())
    assert listed.hosts == ("a", "b")
    assert listed.per_node == (4 if "4" in text else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a slots=2\nb slots=4\n",
        "a\na\n",
        "a;rm -rf\n",
        "a slots=x\nb\n-oProxy=x",
        "a slots=\nb\n",
        "a\n=\n",
        "a:\nb:\n",
    ],
)
def test_a_hostfile_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    """Empty, uneven, a host twice, what no host is called."""
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError):
        read_hostfile(str(tmp_path / "hosts"), "--hostfile hosts", Host())


def test_a_hostfile_is_looked_for_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is one from the working directory."""
    (tmp_path / "hosts").write_text("one\ntwo\n")
    monkeypatch.chdir(tmp_path)
    assert read_hostfile("hosts", "--hostfile hosts", Host()).hosts == ("one", "two")


def test_two_lists_are_one_too_many(tmp_path: Path) -> None:
    """--hosts and --hostfile exclude each other."""
    with pytest.raises(UsageError, match="two-host-lists"):
        plan_job({}, Host(), read_options({"hosts": "a", "hostfile": "/f"}, {}), ["true"])


def test_a_key_in_a_variable_is_never_quoted() -> None:
    """LAUNCHER_SSH_KEY may hold the key itself."""
    options = read_options({}, {"LAUNCHER_SSH_KEY": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"})
    given = options.get("ssh_key")
    assert given is not None and "BEGIN" not in given.origin


def test_a_hostfile_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """20,000 nodes with long names are a list; what is too long for one is refused, not cut."""
    path = tmp_path / "hosts"
    names = [f"gpu-node-{number:05}.cluster.with-a-long-domain.example.internal" for number in range(20000)]
    path.write_text("".join(f"{name}  slots=8\n" for name in names))
    assert path.stat().st_size > 1 << 20
    assert read_hostfile(str(path), "--hostfile hosts", Host()).hosts == tuple(names)
    path.write_text("a\n" * (3 << 20))
    with pytest.raises(UsageError, match="expected at most 4 MiB"):
        read_hostfile(str(path), "--hostfile hosts", Host())
    with pytest.raises(UsageError, match="No such file"):
        read_hostfile(str(tmp_path / "none"), "--hostfile none", Host())


def test_nothing_is_resolved_where_the_own_name_stands_in_the_list() -> None:
    """A resolver that is down takes seconds for each name."""

    class Unresolved(Node):
        def resolve(self, name: str) -> frozenset[str]:
            raise AssertionError(f"asked for {name}")

    hosts = ",".join([*(f"x{number}" for number in range(500)), "me"])
    plan = plan_job({}, Unresolved("me", "10.0.0.5"), read_options({"hosts": hosts}, {}), ["true"])
    assert plan.allocation.node_rank == 500
