"""The keys of a job: a client key by which its nodes let the head in, and a host key that its nodes show.

Both are private keys that every node of the job is given, as the text of a variable, a file or a folder. A
single key may serve as both. Then anything that can pass for a node can also log in to one. With two keys it
cannot.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess

from launcher.core.errors import LauncherError, NotReady, Problem, UsageError
from launcher.core.frozen import frozen
from launcher.machine.whole import PIPE_S
from launcher.ssh.account import find_problems, read_account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.machine.host import Host

ALGORITHMS = {
    "ssh-ed25519": "ssh-ed25519",
    "ecdsa-sha2-nistp256": "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384": "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521": "ecdsa-sha2-nistp521",
    "ssh-rsa": "rsa-sha2-512,rsa-sha2-256",
}
"""Types of key that can serve a job, and the signature algorithms that sshd accepts from each."""
CLIENT_FILES = ("id_ed25519", "ssh-privatekey", "id_ecdsa", "id_rsa")
"""Names of a client key in a folder: those of ssh-keygen, and of a Kubernetes secret of type ssh-auth."""
HOST_FILES = ("ssh_host_ed25519_key", "ssh_host_ecdsa_key", "ssh_host_rsa_key")
KEYGEN_TIMEOUT_S = 20.0
NAMELESS = "No user exists for uid"
"""Message of ssh-keygen and ssh about a user id without an entry in /etc/passwd."""

_SIZE_LIMIT = 1 << 16
_WIDTH = 70
_BEGIN = "-----BEGIN "
_BEGIN_BASE64 = base64.b64encode(_BEGIN.encode()).decode()[:-2]
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_PRIVATE = ("OPENSSH PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY")
_OPENSSH_CODE = "b3BlbnNzaC1rZXktdjEA"
"""Start of a key in OpenSSH's own format. The name of a cipher follows: "none" without a passphrase."""
_OPENSSH_PLAIN_CODE = "b3BlbnNzaC1rZXktdjEAAAAABG5vbm"
_FIX = "launcher keygen FILE makes both keys; give every node of the job the same file"


@frozen
class Keys:
    """The private keys of a job, as the text of key files; the repr does not show them.

    Attributes:
        client: The key by which the other nodes let the head in.
        host: The key that proves to the head that a node belongs to this job.
    """

    client: str
    host: str

    def __repr__(self) -> str:
        return "Keys()"


def read_keys(value: str, *, host: Host) -> Keys:
    """Return the keys that ``--ssh-key`` or LAUNCHER_SSH_KEY gives.

    Args:
        value: The path of a file or a folder, or the text of the keys. As secret stores do, its newlines may
            be written as ``\\n``, or the whole text in base64.
        host: This machine, from which files are read.

    Raises:
        UsageError: There is no such file, or it is not one or two private keys without a passphrase.
        NotReady: ssh-keygen, which checks the keys, is missing or does not work here.
    """
    text = value.strip()
    if text.startswith(_BEGIN):
        return parse_keys(text, "its text")
    if text.startswith(_BEGIN_BASE64):
        return parse_keys(_decode(text), "its text, in base64")
    path = os.path.abspath(os.path.expanduser(text))
    if not text or not text.isprintable() or not (text[0] in "/.~" or os.path.exists(host.path(path))):
        # The value is not shown: it may be a key without its first line.
        raise _bad(f"{len(text)} characters that are neither a private key nor the path of one")
    if os.path.isdir(host.path(path)):
        return _read_folder(path, host)
    return parse_keys(_read(path, host), path)


def parse_keys(text: str, where: str) -> Keys:
    """Return the one or two private keys in a text: the client's, then the host's.

    Args:
        text: The contents of a file; text around the keys is ignored.
        where: Name of the text in messages.

    Raises:
        UsageError: It does not contain one or two private keys without a passphrase.
        NotReady: ssh-keygen, which checks the keys, is missing or does not work here.
    """
    blocks = _BLOCK.findall(text.replace("\\n", "\n"))
    if not 1 <= len(blocks) <= 2:
        raise _bad(f"{where} holds {_what_else(text, len(blocks))}")
    keys = [_normal(label, body, where) for label, body in blocks]
    return Keys(keys[0], keys[-1])


def public_key(private: str, environ: Mapping[str, str] | None = None, where: str = "it") -> str:
    """Return the public half of a private key from ssh-keygen, as ``TYPE BASE64``.

    Args:
        private: A key of `Keys`.
        environ: The environment whose PATH has ssh-keygen; None for our own.
        where: Name of what contains the key, in messages.

    Raises:
        UsageError: The key is damaged, or of a type that cannot serve a job: DSA, or a key on a device that
            must be touched.
        NotReady: ssh-keygen is missing or does not work here.
    """
    # Through a pipe: the key is neither on a command line nor in a file. An empty passphrase avoids a prompt.
    done = run_keygen(("-y", "-P", "", "-f", "/proc/self/fd/0"), environ, private)
    if NAMELESS in done.stderr:
        raise NotReady(*find_problems(read_account()))
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        raise _bad(f"{where} holds a private key that is damaged or cut off, or unknown to ssh-keygen")
    if words[0] not in ALGORITHMS:
        raise _bad(f"{where} holds a key of type {words[0]}, expected one of {', '.join(ALGORITHMS)}")
    return " ".join(words[:2])


def run_keygen(
    options: Sequence[str], environ: Mapping[str, str] | None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ssh-keygen with these options and this standard input, and return the finished process.

    Raises:
        NotReady: It is not on PATH, cannot be started, or does not end within `KEYGEN_TIMEOUT_S`.
    """
    line = [find_tool("ssh-keygen", environ), *options]
    try:
        return subprocess.run(
            line,
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=KEYGEN_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = error.strerror if isinstance(error, OSError) else f"did not end within {KEYGEN_TIMEOUT_S:g} s"
        problem = Problem("ssh-missing", f"{line[0]}: {said}", "this node", "find out what it waits for")
        raise NotReady(problem) from None


def find_tool(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the absolute path of ssh or ssh-keygen.

    Raises:
        NotReady: It is not on PATH.
    """
    path = shutil.which(name, path=(os.environ if environ is None else environ).get("PATH", os.defpath))
    if path is None:
        fix = "apt-get install openssh-client, or dnf install openssh-clients, in the image"
        raise NotReady(Problem("ssh-missing", f"{name}: no such program on PATH", "this node", fix))
    return os.path.abspath(path)


def _read_folder(path: str, host: Host) -> Keys:
    """Return the keys in a folder, e.g. a mounted secret: one per file, or both in the client's file."""
    names = host.list_folder(path)
    client = next((name for name in CLIENT_FILES if name in names), None)
    if client is None:
        raise _bad(f"{path} holds none of {', '.join(CLIENT_FILES)}")
    keys = parse_keys(_read(f"{path}/{client}", host), f"{path}/{client}")
    for name in HOST_FILES:
        if name in names:
            return Keys(keys.client, parse_keys(_read(f"{path}/{name}", host), f"{path}/{name}").client)
    return keys


def _read(path: str, host: Host) -> str:
    try:
        data = host.read_whole(path, _SIZE_LIMIT, PIPE_S)
    except OSError as error:
        raise _bad(f"{path}: {error.strerror}") from None
    if len(data) > _SIZE_LIMIT:
        raise _bad(f"{path} is larger than any key")
    return data.decode("utf-8", "surrogateescape")


def _decode(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error:
        raise _bad("its text begins like a private key in base64, but is not one") from None


def _normal(label: str, body: str, where: str) -> str:
    """Return one key in the format of a file, whatever happened to its line ends.

    Raises:
        UsageError: It is not a private key that can be used without a passphrase.
        NotReady: ssh-keygen, which checks the key, is missing or does not work here.
    """
    code = "".join(body.split())
    is_locked = code.startswith(_OPENSSH_CODE) and not code.startswith(_OPENSSH_PLAIN_CODE)
    if is_locked or "ENCRYPTED" in label + body:
        raise _bad(f"{where} holds a private key with a passphrase, which cannot be typed on every node")
    if label not in _PRIVATE:
        raise _bad(f"{where} holds a {label}, expected a private key")
    lines = [code[start : start + _WIDTH] for start in range(0, len(code), _WIDTH)]
    key = "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))
    public_key(key, None, where)
    return key


def _what_else(text: str, count: int) -> str:
    """Return what a text contains instead of one or two private keys, without showing any of it."""
    if count:
        return f"{count} private keys, expected one or two: the client's, then the host's"
    if not text.strip():
        return "nothing"
    if _BEGIN in text:
        return "a private key that is damaged or cut off: BEGIN without END"
    if text.lstrip().startswith((*ALGORITHMS, "---- BEGIN SSH2 PUBLIC KEY")):
        return "a public key, expected the private one (the file without .pub)"
    return "no private key"


def _bad(what: str) -> LauncherError:
    return UsageError(Problem("bad-ssh-key", what, "--ssh-key or LAUNCHER_SSH_KEY", _FIX))
