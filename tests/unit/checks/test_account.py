"""The user's account and folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from launcher.checks.finding import OK, PROBLEM, WARNING
from tests.unit.checks.cases import Machine, case, levels, looker

look = looker("account")


class Account(Machine):
    """A machine with one account or none, and folders that can be written."""

    writable: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tmp_path: Path, home: str, *writable: str) -> None:
        super().__init__(tmp_path)
        self._home = home
        Account.writable = writable

    def home(self) -> str:
        """Return the home of the account."""
        return self._home


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder can be written if it is one of the account's."""
    monkeypatch.setattr("launcher.checks.node._can_write", lambda path: path in Account.writable)


def test_an_account_is_fine_or_named(tmp_path: Path) -> None:
    """An entry for the uid, and a temporary directory."""
    host = Account(tmp_path, "/home/me", "/home/me", "/tmp")
    assert levels(look(case(host, {}))) == [OK]
    # docker run --user 1234: HOME is /, which it cannot write.
    host = Account(tmp_path, "", "/tmp")
    name, home = look(case(host, {"HOME": "/"}))
    assert (name.level, name.what, home.found) == (WARNING, "user name", "/ cannot be written")
    assert "USER=" in name.fix and "HOME=" in home.fix
    assert levels(look(case(host, {"HOME": "/tmp", "USER": "me"}))) == [OK]
    assert [one.found for one in look(case(host, {"USER": "me"}))] == ["none"]
    host = Account(tmp_path, "/home/me", "/home/me")
    _, found = look(case(host, {}))
    assert found.level == PROBLEM and "--tmpfs /tmp" in found.fix
    _, found = look(case(host, {"TMPDIR": "/gone"}))
    assert (found.level, found.fix) == (WARNING, "mkdir -p /gone, or unset TMPDIR")
