"""Keys in all the forms that people give them, the two configurations, and the words for what went wrong."""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest
from launcher.ssh.account import Account, find_problems
from launcher.ssh.client import explain, write_client
from launcher.ssh.config import encode_environ, render_config, session_environ
from launcher.ssh.files import quote_path, write_private
from launcher.ssh.keys import Keys, parse_keys, public_key, read_keys
from launcher.ssh.server import find_sshd, is_routine, write_server

from launcher.core.errors import NotReady, UsageError
from launcher.machine.host import Host

ALL_CAPABILITIES = (1 << 41) - 1
ROOT = Account(0, "root", "/bin/sh", True, False, ALL_CAPABILITIES)


def string(data: bytes) -> bytes:
    """Return a string of the SSH protocol."""
    return len(data).to_bytes(4, "big") + data


def make_key(seed: bytes, kind: bytes = b"ssh-ed25519", cipher: bytes = b"none") -> str:
    """Return a text that ssh-keygen takes for its own; what is secret in it is only ``seed``."""
    public = string(kind) + string(seed * 32)
    secret = string(seed * 64)
    if kind.startswith(b"sk-"):  # on a device: its application, a flag, how the device finds it, and nothing
        public += string(b"ssh:")
        secret = b"\1" + string(seed * 64) + string(b"")
    private = seed * 8 + public + secret + string(b"comment")
    private += bytes(range(1, 9))[: -len(private) % 8]
    parts = b"".join((string(cipher), string(b"none"), string(b""), (1).to_bytes(4, "big")))
    code = base64.b64encode(b"openssh-key-v1\0" + parts + string(public) + string(private)).decode()
    lines = re.findall(".{1,70}", code)
    return "\n".join(("-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""))


CLIENT, HOST = make_key(b"c"), make_key(b"h")
BOTH = Keys(CLIENT, HOST)


@pytest.mark.parametrize(
    "value",
    [
        CLIENT + HOST,
        "\n\n" + CLIENT + HOST + "\n\n",
        (CLIENT + HOST).replace("\n", "\\n"),
        (CLIENT + HOST).replace("\n", "\r\n"),
        (CLIENT + HOST).replace("\n", " "),
        base64.b64encode((CLIENT + HOST).encode()).decode(),
        re.sub("(.{76})", r"\1\n", base64.b64encode((CLIENT + HOST).encode()).decode()),
    ],
    ids=["plain", "blank lines", "literal newlines", "windows", "one line", "base64", "folded base64"],
)
def test_the_text_of_keys(value: str) -> None:
    """The client's first, the host's second, whatever a secret store made of the line ends."""
    assert read_keys(value, host=Host()) == BOTH


def test_a_single_key_serves_as_both() -> None:
    """Not as good, and allowed."""
    assert read_keys(HOST, host=Host()) == Keys(HOST, HOST)


def test_a_file_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its absolute or relative path, or below the home folder; words around the keys do not count."""
    (tmp_path / "keys").write_text(f"# of job 7\n{CLIENT}\nand the host's:\n{HOST}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in (str(tmp_path / "keys"), "./keys", "keys", "~/keys", f" {tmp_path}/keys\n"):
        assert read_keys(value, host=Host()) == BOTH


@pytest.mark.parametrize("name", ["id_ed25519", "ssh-privatekey", "id_rsa"])
def test_a_folder_of_keys(tmp_path: Path, name: str) -> None:
    """As ssh-keygen and Kubernetes name them; without a host key the client's serves as both."""
    (tmp_path / name).write_text(CLIENT)
    assert read_keys(str(tmp_path), host=Host()) == Keys(CLIENT, CLIENT)
    (tmp_path / "ssh_host_ed25519_key").write_text(HOST)
    assert read_keys(str(tmp_path), host=Host()) == BOTH


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds nothing"),
        (" \n", "holds nothing"),
        ("hello", "holds no private key"),
        ("ssh-ed25519 AAAAC3Nz me@here", "holds a public key, expected the private one"),
        ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA", "holds a public key"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "holds a PUBLIC KEY"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "holds a CERTIFICATE"),
        (make_key(b"s", cipher=b"aes256-ctr"), "with a passphrase"),
        ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA\n-----END ENCRYPTED PRIVATE KEY-----", "passphrase"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA\n-----END RSA PRIVATE KEY-----",
            "passphrase",
        ),
        ("-----BEGIN DSA PRIVATE KEY-----\nAA\n-----END DSA PRIVATE KEY-----", "DSA PRIVATE KEY"),
        (make_key(b"s", kind=b"ssh-new"), "unknown to ssh-keygen"),
        (make_key(b"s", kind=b"sk-ssh-ed25519@openssh.com"), "a key of type sk-ssh-ed25519"),
        (CLIENT[:200], "damaged or cut off: BEGIN without END"),
        (CLIENT[:120] + "\n-----END OPENSSH PRIVATE KEY-----", "damaged or cut off"),
        (CLIENT.replace("b3BlbnNzaC", "!!!!nNzaC"), "damaged or cut off"),
        (CLIENT + HOST + CLIENT, "3 private keys, expected one or two"),
        ("x" * 100_000, "larger than any key"),
    ],
)
def test_what_is_no_key(tmp_path: Path, text: str, words: str) -> None:
    """Each mistake is named, with its file, and nothing of what the file holds is shown."""
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UsageError, match=r"\[bad-ssh-key\]") as error:
        read_keys(str(tmp_path / "keys"), host=Host())
    message = str(error.value)
    assert f"{tmp_path}/keys" in message and words in message
    assert "launcher keygen" in message
    assert not any(line in message for line in text.split() if len(line) > 30)


def test_where_there_is_no_key(tmp_path: Path) -> None:
    """No such file, none in the folder, an empty value."""
    for value, words in (
        (f"{tmp_path}/none", "none: No such file"),
        (str(tmp_path), "holds none of id_ed25519"),
        ("", "0 characters"),
    ):
        with pytest.raises(UsageError, match=words):
            read_keys(value, host=Host())


def test_a_key_without_its_first_line_is_not_shown() -> None:
    """What is no path may be a secret."""
    body = CLIENT.splitlines()[1]
    for value in (body, "".join(CLIENT.splitlines()[1:-1]), "\n".join(CLIENT.splitlines()[1:])):
        with pytest.raises(UsageError, match="neither a private key nor the path of one") as error:
            read_keys(value, host=Host())
        assert body[:30] not in str(error.value)


def test_keys_are_not_in_a_repr() -> None:
    """So neither in a traceback nor in a log."""
    assert repr(BOTH) == "Keys()"


def test_the_public_half_is_what_ssh_keygen_says() -> None:
    """Its type and its code, without the comment."""
    blob = string(b"ssh-ed25519") + string(b"c" * 32)
    assert public_key(CLIENT) == f"ssh-ed25519 {base64.b64encode(blob).decode()}"


def test_a_missing_ssh_keygen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its package, when keys are read."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotReady, match=r"\[ssh-missing\] ssh-keygen[\s\S]*openssh-client"):
        parse_keys(CLIENT, "it")


def fake_keygen(folder: Path, *lines: str) -> dict[str, str]:
    """Return an environment whose ssh-keygen is a script of these lines."""
    script = folder / "ssh-keygen"
    script.write_text("\n".join(("#!/bin/sh", *lines, "")))
    script.chmod(0o755)
    return {"PATH": str(folder)}


def test_an_ssh_keygen_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its deadline, with its path."""
    monkeypatch.setattr("launcher.ssh.keys.KEYGEN_TIMEOUT_S", 0.2)
    environ = fake_keygen(tmp_path, "exec /bin/sleep 60")
    with pytest.raises(NotReady, match=rf"\[ssh-missing\] {tmp_path}/ssh-keygen: did not end within 0.2 s"):
        public_key(CLIENT, environ)


def test_a_user_without_a_name_is_told_what_to_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of ssh-keygen lead to our own."""
    environ = fake_keygen(tmp_path, "echo 'No user exists for uid 7' >&2", "exit 255")
    nameless = Account(7, None, "", False, False, 0)
    monkeypatch.setattr("launcher.ssh.keys.read_account", lambda: nameless)
    with pytest.raises(NotReady, match=r"user id 7 has no entry in /etc/passwd[\s\S]*echo 'train:x:7:7"):
        public_key(CLIENT, environ)


def test_ssh_keygen_is_given_the_key_through_a_pipe(tmp_path: Path) -> None:
    """No line of processes shows it, and no file of ours has it."""
    said = tmp_path / "said"
    with_cat = f"/bin/cat /proc/self/fd/0 >{said}.input; /bin/readlink /proc/$$/fd/0 >{said}.kind"
    environ = fake_keygen(tmp_path, f'echo "$@" >{said}.line', with_cat, "echo ssh-ed25519 AAAA me")
    assert public_key(CLIENT, environ) == "ssh-ed25519 AAAA"
    assert (tmp_path / "said.line").read_text() == "-y -P  -f /proc/self/fd/0\n"
    assert (tmp_path / "said.input").read_text() == CLIENT
    assert (tmp_path / "said.kind").read_text().startswith("pipe:")


def test_files_are_ours_alone(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask, also one that was there; new means new."""
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o644)
    write_private(str(path), "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
    with pytest.raises(UsageError, match=r"\[key-exists\]"):
        write_private(str(path), "other", new=True)
    assert path.read_text() == "new"


def test_paths_in_configurations() -> None:
    """Blanks are quoted; what cannot be written, or would be expanded, is refused."""
    assert quote_path("/a b/c") == '"/a b/c"'
    for path in ('/a"b', "/a\\b", "/a$b", "/a%h", "/a\nb"):
        with pytest.raises(NotReady, match="a path without"):
            quote_path(path)


def test_sessions_see_what_our_process_sees() -> None:
    """Secrets too; not the job's key, and nothing that describes a login or a terminal."""
    kept = {"PATH": "/bin", "HOME": "/data", "HF_TOKEN": "s", "NVIDIA_X": "1", "LAUNCHER_NODE_RANK": "1"}
    dropped = {"LAUNCHER_SSH_KEY": CLIENT, "SSH_AUTH_SOCK": "/x", "TERM": "xterm", "PWD": "/", "USER": "me"}
    assert session_environ(kept | dropped, {"PATH": "/mpi", "MORE": "2"}) == {
        **kept,
        "PATH": "/mpi",
        "MORE": "2",
    }
    assert "LAUNCHER_SSH_KEY" not in session_environ({}, {"LAUNCHER_SSH_KEY": CLIENT})


def test_variables_are_written_as_bytes() -> None:
    """Newlines and bytes that are no UTF-8 included."""
    assert encode_environ({"A": "1\n2", "B": "\udcff"}) == b"A=1\n2\0B=\xff\0"


def config(
    address: str = "10.0.0.4", account: Account = ROOT, variables: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the lines of an sshd_config, by their first word."""
    public = ("ssh-rsa AAAA", "ssh-ed25519 AAAA")
    text = render_config("/dev/shm/f", account, address, 2222, public, variables or {})
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    assert len({line[0] for line in lines}) == len(lines), "sshd takes the first of two"
    return dict(lines)


def test_the_server_serves_one_user_with_one_key_at_one_address() -> None:
    """What makes it that is written out, whatever the defaults of this version are."""
    found = config()
    assert (found["ListenAddress"], found["Port"]) == ("10.0.0.4", "2222")
    assert config("fd00::1%eth0")["ListenAddress"] == "[fd00::1%eth0]:2222"
    assert (found["AllowUsers"], found["PermitRootLogin"]) == ("root", "prohibit-password")
    assert found["PubkeyAcceptedKeyTypes"] == "rsa-sha2-512,rsa-sha2-256"
    assert found["HostKeyAlgorithms"] == "ssh-ed25519"
    assert config(account=Account(7, "u", "/bin/sh", True, False, 0))["PermitRootLogin"] == "no"
    off = ("AllowTcpForwarding", "AllowAgentForwarding", "X11Forwarding", "PermitTunnel", "PermitTTY")
    assert {found[name] for name in (*off, "PasswordAuthentication", "UsePAM", "PermitUserRC")} == {"no"}


def test_what_a_python_needs_to_start_is_told_to_sshd() -> None:
    """The library path, where sshd's configuration can hold it."""
    assert config()["SetEnv"] == "SHLVL=1"
    found = config(variables={"LD_LIBRARY_PATH": "/opt/a b", "OTHER": "x"})
    assert found["SetEnv"] == 'SHLVL=1 "LD_LIBRARY_PATH=/opt/a b"'
    assert config(variables={"LD_LIBRARY_PATH": 'a"b'})["SetEnv"] == "SHLVL=1"


def test_a_user_that_can_be_served_has_no_problems() -> None:
    """Root with its capabilities, and others without any."""
    assert find_problems(ROOT) == ()
    assert find_problems(Account(1000, "train.er_1-x", "/bin/bash", True, False, 0)) == ()


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (Account(1000, None, "", False, False, 0), "user id 1000 has no entry"),
        (Account(1000, "u", "/sbin/nologin", False, False, 0), "its shell /sbin/nologin runs no commands"),
        (Account(0, "root", "/bin/sh", True, True, ALL_CAPABILITIES), "is locked"),
        (Account(0, "root", "/bin/sh", True, False, 0), "lacks the capabilities SETGID, SETUID, SYS_CHROOT"),
        (Account(1000, "a*", "/bin/sh", True, False, 0), "takes characters of this name for a pattern"),
    ],
)
def test_a_user_that_cannot_be_served(account: Account, words: str) -> None:
    """One problem, with a fix."""
    (problem,) = find_problems(account)
    assert problem.code == "sshd-refuses" and words in problem.what and problem.fix


def test_a_missing_sshd_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its package."""
    monkeypatch.setattr("launcher.ssh.server.FOLDERS", ("/nowhere",))
    with pytest.raises(NotReady, match=r"\[sshd-missing\][\s\S]*apt-get install openssh-server"):
        find_sshd({"PATH": "/nowhere"})


def test_the_client_trusts_only_the_jobs_host_key(tmp_path: Path) -> None:
    """One line of known_hosts for whatever a node is called, and nothing of the user's."""
    line = write_client(str(tmp_path), BOTH, ("node1", "fd00::1"), 2222, {"node1": "fe80::1%eth0"})
    assert line == ("ssh", "-F", f"{tmp_path}/ssh_config")
    assert (tmp_path / "known_hosts").read_text() == f"launcher-job {public_key(HOST)}\n"
    assert (tmp_path / "identity").read_text() == CLIENT
    words = (tmp_path / "ssh_config").read_text().split("\n")
    assert words[1:3] == ["Host node1", "    HostName fe80::1%%eth0"]
    assert {"    Port 2222", "    StrictHostKeyChecking yes", "    BatchMode yes"} <= set(words)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_without_keys_the_users_own_configuration_counts(tmp_path: Path) -> None:
    """With our limits of time on top, and no file."""
    line = write_client(str(tmp_path), None, ("node1",), 2222)
    assert line[0] == "ssh" and "-F" not in line and "BatchMode=yes" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "", "a b", "a;b", "user@host", "$(id)", "[::1]"])
def test_no_host_is_an_option(tmp_path: Path, name: str) -> None:
    """Nor anything else than a host."""
    for keys in (BOTH, None):
        with pytest.raises(UsageError, match="expected a host name or an IP address"):
            write_client(str(tmp_path), keys, ("node1", name), 2222)
        with pytest.raises(UsageError, match="expected a host name or an IP address"):
            write_client(str(tmp_path), keys, ("node1",), 2222, {"node1": name})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ssh: Could not resolve hostname a: Name or service not known", "unknown name: neither"),
        ("ssh: Could not resolve hostname a: No address associated with hostname", "its name cannot be"),
        (
            "ssh: Could not resolve hostname a: Temporary failure in name resolution",
            "its name is not in /etc/hosts, and no name server answers",
        ),
        ("ssh: connect to host a port 2222: No route to host", "no route to it"),
        ("ssh: connect to host a port 2222: Network is unreachable", "its network cannot be reached"),
        ("ssh: connect to host a port 2222: Connection timed out", "no answer"),
        ("Connection timed out during banner exchange", "it accepts connections, but sshd does not answer"),
        ("ssh: connect to host a port 2222: Connection refused", "nothing listens there"),
        ("u@a: Permission denied (publickey).", "it refuses our key"),
        (
            "No ED25519 host key is known for x\nHost key verification failed.",
            "its host key is not the job's",
        ),
        ("kex_exchange_identification: Connection closed by remote host", "connections are closed at once"),
        ("kex_exchange_identification: read: Connection reset by peer", "connections are closed at once"),
        ("Connection closed by 10.0.0.5 port 2222", "its sshd closed the connection before it was up"),
        ("Timeout, server a not responding.", "the connection stopped responding"),
        ("client_loop: send disconnect: Broken pipe", "the connection broke"),
        ("Connection to a closed by remote host.", "the connection was closed"),
        ("No user exists for uid 5555", "the user of the head has no entry in its /etc/passwd"),
        ("", "ssh exited without a message"),
        ("first\nlast \x1b[31mline\n\n", "ssh says: last \\x1b[31mline"),
    ],
)
def test_reasons(said: str, words: str) -> None:
    """What ssh says, and what a table of nodes says instead."""
    assert explain(said).startswith(words)


def test_a_long_complaint_is_shortened() -> None:
    """And stays one line."""
    assert len(explain("x" * 1000)) < 250


@pytest.mark.parametrize(
    ("line", "routine"),
    [
        ("Server listening on 10.0.0.4 port 2222.", True),
        ("Accepted publickey for root from 10.0.0.4 port 5 ssh2: ED25519 SHA256:x", True),
        ("Disconnected from user root 10.0.0.4 port 5", True),
        ("Connection closed by 10.0.0.9 port 5 [preauth]", True),
        ("Connection closed by authenticating user root 10.0.0.9 port 5 [preauth]", False),
        ("Invalid user bob from 10.0.0.9 port 5", False),
        ("Timeout, client not responding from user root 10.0.0.4 port 5", False),
        ("error: Bind to port 2222 on 10.0.0.4 failed: Address already in use.", False),
    ],
)
def test_routine_lines_of_the_log(line: str, routine: bool) -> None:
    """A look whether the port is open is routine; a key that was refused is not."""
    assert is_routine(line) is routine


@pytest.mark.slow
@pytest.mark.parametrize(("addresses", "tries", "least"), [(1, 5, 5), (5, 30, 1)], ids=["one", "five"])
def test_mute_connections_lock_no_other_out(addresses: int, tries: int, least: int, tmp_path: Path) -> None:
    """Those of one address fill what it has; of several, what all have: then one that tries again gets in."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or pytest.skip("no sshd")
    version = subprocess.run([sshd, "-V"], capture_output=True, text=True, check=False).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < (8, 5):
        pytest.skip("this sshd does not tell addresses apart")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.chmod(tmp_path, 0o700)
    argv = write_server(str(tmp_path), make_real_keys(tmp_path), "127.0.0.1", port, os.environ)
    mute: list[socket.socket] = []
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as server:
        try:
            until = time.monotonic() + 20
            while not call(port, "127.0.0.1") and time.monotonic() < until:
                pass
            for number in range(320):
                source = (f"127.0.0.{2 + number % addresses}", 0)
                mute.append(socket.create_connection(("127.0.0.1", port), 5, source))
            assert sum(call(port, "127.0.0.1") for _ in range(tries)) >= least
        finally:
            for one in mute:
                one.close()
            server.terminate()


def make_real_keys(folder: Path) -> Keys:
    """Return keys that sshd takes."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "real"], check=True)
    text = (folder / "real").read_text()
    return Keys(text, text)


def call(port: int, source: str) -> bool:
    """Return whether sshd answers a connection from an address."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5, (source, 0)) as connected:
            return connected.recv(4) == b"SSH-"
    except OSError:
        return False
