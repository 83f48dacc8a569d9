"""``launcher keygen``: real keys, made once, and read again as a node would."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from launcher.ssh.keys import Keys, public_key, read_keys

from launcher.core.errors import UsageError
from launcher.machine.host import Host

from .starting import launch


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def make(path: Path, *options: str) -> str:
    """Make a key with ssh-keygen; return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-f", str(path), *options], check=True)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def test_a_file_of_two_keys(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask; said is where it is and how to give it, and nothing of it."""
    file = tmp_path / "job keys"
    previous = os.umask(0)
    try:
        done = launch("keygen", str(file))
    finally:
        os.umask(previous)
    assert (done.returncode, done.stderr) == (0, "")
    assert mode(file) == 0o600
    keys = read_keys(str(file), host=Host())
    assert keys == read_keys(file.read_text(), host=Host())
    assert keys.client != keys.host
    assert {public_key(key).split()[0] for key in (keys.client, keys.host)} == {"ssh-ed25519"}
    assert str(file) in done.stdout and "LAUNCHER_SSH_KEY" in done.stdout
    assert "PRIVATE KEY" not in done.stdout


def test_a_folder_of_two_keys(tmp_path: Path) -> None:
    """As a Kubernetes secret has them."""
    folder = tmp_path / "keys"
    done = launch("keygen", "--folder", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "id_ed25519": 0o600,
        "ssh_host_ed25519_key": 0o600,
    }
    texts = [(folder / name).read_text() for name in ("id_ed25519", "ssh_host_ed25519_key")]
    assert read_keys(str(folder), host=Host()) == Keys(*texts)


@pytest.mark.parametrize("options", [[], ["--folder"]], ids=["file", "folder"])
def test_nothing_is_overwritten(tmp_path: Path, options: list[str]) -> None:
    """Somebody may be using what is there."""
    path = tmp_path / "keys"
    assert launch("keygen", *options, str(path)).returncode == 0
    before = [file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()]
    done = launch("keygen", *options, str(path))
    assert (done.returncode, done.stdout) == (64, "")
    assert f"[key-exists] {path} exists already" in done.stderr and "disk" not in done.stderr
    assert before == [file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()]


def test_a_missing_ssh_keygen_is_named(tmp_path: Path) -> None:
    """With its package; nothing is left behind."""
    done = launch("keygen", str(tmp_path / "keys"), environ={"PATH": "/nowhere"})
    assert done.returncode == 75
    assert "[ssh-missing]" in done.stderr and "openssh-client" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_one_path_is_needed() -> None:
    """No default: whoever makes a key says where."""
    assert launch("keygen").returncode == 64


@pytest.mark.parametrize(
    "options",
    [
        ["-t", "ed25519"],
        ["-t", "ecdsa"],
        ["-t", "rsa"],
        ["-t", "rsa", "-m", "PEM"],
        ["-t", "ecdsa", "-m", "PEM"],
        ["-t", "rsa", "-m", "PKCS8"],
    ],
    ids=" ".join,
)
def test_keys_of_other_makes_are_read(tmp_path: Path, options: list[str]) -> None:
    """Every format that ssh-keygen writes, and the public half as it writes it."""
    public = make(tmp_path / "key", *options, "-N", "")
    keys = read_keys(str(tmp_path / "key"), host=Host())
    assert public_key(keys.client) == public


@pytest.mark.parametrize("form", [[], ["-m", "PEM"], ["-m", "PKCS8"]], ids=["openssh", "pem", "pkcs8"])
def test_a_passphrase_is_noticed(tmp_path: Path, form: list[str]) -> None:
    """In every format, without asking for it."""
    make(tmp_path / "key", "-t", "rsa", *form, "-N", "correct horse")
    with pytest.raises(UsageError, match="with a passphrase"):
        read_keys(str(tmp_path / "key"), host=Host())


def test_the_public_file_is_noticed(tmp_path: Path) -> None:
    """The usual mistake."""
    make(tmp_path / "key", "-t", "ed25519", "-N", "")
    with pytest.raises(UsageError, match=r"a public key, expected the private one \(the file without .pub\)"):
        read_keys(str(tmp_path / "key.pub"), host=Host())
