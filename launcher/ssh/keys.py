"""The keys of a job: one that its nodes let in, one that its nodes show.

Both are private keys that every node of the job is given, as the text of a variable, a file or a folder. A
single key may serve as both: then whoever can pass for a node can also enter one, which two keys keep apart.
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.machine.host import Host

ALGORITHMS = {
    "ssh-ed25519": "ssh-ed25519",
    "ecdsa-sha2-nistp256": "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384": "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521": "ecdsa-sha2-nistp521",
    "ssh-rsa": "rsa-sha2-512,rsa-sha2-256",
}
"""The types of key that serve a job, and the signatures that sshd is to take from each."""
CLIENT_FILES = ("id_ed25519", "ssh-privatekey", "id_ecdsa", "id_rsa")
"""What a client key is called in a folder: by ssh-keygen, or in a Kubernetes secret of type ssh-auth."""
HOST_FILES = ("ssh_host_ed25519_key", "ssh_host_ecdsa_key", "ssh_host_rsa_key")
KEYGEN_TIMEOUT_S = 20.0

_SIZE_LIMIT = 1 << 16
_WIDTH = 70
_BEGIN = "-----BEGIN "
_BEGIN_BASE64 = base64.b64encode(_BEGIN.encode()).decode()[:-2]
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----(.*?)-----END \1-----", re.DOTALL)
_OPENSSH = "OPENSSH PRIVATE KEY"
_PEM = ("RSA PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY")
_MAGIC = b"openssh-key-v1\0"
_FIX = "launcher keygen FILE makes both keys; give every node of the job the same file"


@frozen
class Keys:
    """The private keys of a job, in the form of a file; its repr does not show them.

    Attributes:
        client: What lets the head in on the other nodes.
        host: What proves to the head that a node is one of this job.
    """

    client: str
    host: str

    def __repr__(self) -> str:
        return "Keys()"


def read_keys(value: str, *, host: Host) -> Keys:
    """Return the keys that ``--ssh-key`` or LAUNCHER_SSH_KEY gives.

    Args:
        value: The path of a file or a folder, or the keys' own text, whose newlines may be written as
            ``\\n``, or the whole in base64: secret stores do both.
        host: Where the files are.

    Raises:
        UsageError: No such file, or not one or two private keys without a passphrase.
    """
    text = value.strip()
    if text.startswith(_BEGIN):
        return parse_keys(text, "its text")
    if text.startswith(_BEGIN_BASE64):
        return parse_keys(_decode(text), "its text, in base64")
    path = os.path.abspath(os.path.expanduser(text))
    if not text or not text.isprintable() or not (text[0] in "/.~" or os.path.exists(host.path(path))):
        # Not shown: it may be a key whose first line got lost.
        raise _bad(f"{len(text)} characters that are neither a private key nor the path of one")
    if os.path.isdir(host.path(path)):
        return _read_folder(path, host)
    return parse_keys(_read(path, host), path)


def parse_keys(text: str, where: str) -> Keys:
    """Return the one or two private keys in a text: the client's, then the host's.

    Args:
        text: What a file holds; whatever stands around the keys does not count.
        where: What the text is, for messages.

    Raises:
        UsageError: Not one or two private keys without a passphrase.
    """
    blocks = _BLOCK.findall(text.replace("\\n", "\n"))
    keys = [_normal(label, body, where) for label, body in blocks]
    if not 1 <= len(keys) <= 2:
        raise _bad(f"{where} holds {_what_else(text, len(keys))}")
    return Keys(keys[0], keys[-1])


def public_key(private: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the public half of a private key, as ``TYPE BASE64``.

    Args:
        private: A key of `Keys`.
        environ: Where ssh-keygen is looked for; it is asked where the key is not in OpenSSH's own format.

    Raises:
        UsageError: A type of key that cannot serve a job.
        NotReady: ssh-keygen is needed and missing.
    """
    found = _BLOCK.match(private)
    if found is None:
        raise _bad("no private key")
    label, body = found.groups()
    blob = _public_blob(body) if label == _OPENSSH else _ask_keygen(private, environ)
    return f"{_check_type(blob, 'it')} {base64.b64encode(blob).decode()}"


def find_tool(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the path of ssh or ssh-keygen.

    Raises:
        NotReady: It is not on PATH.
    """
    path = shutil.which(name, path=(os.environ if environ is None else environ).get("PATH", os.defpath))
    if path is None:
        fix = "apt-get install openssh-client, or dnf install openssh-clients, in the image"
        raise NotReady(Problem("ssh-missing", f"{name}: no such program on PATH", "this node", fix))
    return os.path.abspath(path)


def _read_folder(path: str, host: Host) -> Keys:
    """Return the keys of a folder, e.g. a mounted secret: one file each, or both in the client's."""
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
        with open(host.path(path), "rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise _bad(f"{path}: {error.strerror}") from None
    if len(data) > _SIZE_LIMIT:
        raise _bad(f"{path} is larger than any key")
    return data.decode("utf-8", "surrogateescape")


def _decode(text: str) -> str:
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error:
        raise _bad("its text begins as a private key in base64, and does not go on as one") from None


def _normal(label: str, body: str, where: str) -> str:
    """Return one key as a file has it, whatever happened to its line ends.

    Raises:
        UsageError: Not a private key that can be used without a passphrase.
    """
    if label not in (_OPENSSH, *_PEM):
        if label == "ENCRYPTED PRIVATE KEY":
            raise _encrypted(where)
        raise _bad(f"{where} holds a {label}, expected a private key")
    if label == _OPENSSH:
        _check_type(_public_blob(body, where), where)
    elif "ENCRYPTED" in body:
        raise _encrypted(where)
    code = "".join(body.split())
    lines = [code[start : start + _WIDTH] for start in range(0, len(code), _WIDTH)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


def _public_blob(body: str, where: str = "it") -> bytes:
    """Return the public key that stands in clear in a private one.

    Raises:
        UsageError: The private one is damaged, or encrypted.

    Source:
        PROTOCOL.key of OpenSSH: magic, cipher, kdf, kdf's options, number of keys, public key.
    """
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
        if not data.startswith(_MAGIC):
            raise ValueError
        cipher, rest = _take(data[len(_MAGIC) :])
        if cipher != b"none":
            raise _encrypted(where)
        _, rest = _take(rest)
        _, rest = _take(rest)
        public, private = _take(rest[4:])
        _take(private)
    except ValueError:
        raise _bad(f"{where} holds a private key that is damaged or cut off") from None
    return public


def _take(data: bytes) -> tuple[bytes, bytes]:
    """Return a string of the SSH protocol (RFC 4251: four bytes of length, then it), and what follows.

    Raises:
        ValueError: Shorter than it says.
    """
    end = 4 + int.from_bytes(data[:4], "big")
    if len(data) < end:
        raise ValueError
    return data[4:end], data[end:]


def _check_type(blob: bytes, where: str) -> str:
    """Return the type of a public key.

    Raises:
        UsageError: None that can serve a job: DSA, or a key on a device that somebody must touch.
    """
    try:
        kind = _take(blob)[0].decode("ascii")
    except ValueError:
        raise _bad(f"{where} holds a private key that is damaged or cut off") from None
    if kind not in ALGORITHMS:
        raise _bad(f"{where} holds a key of type {kind}, expected one of {', '.join(ALGORITHMS)}")
    return kind


def _ask_keygen(private: str, environ: Mapping[str, str] | None) -> bytes:
    """Return the public half of a key in a format that only OpenSSL's readers know.

    Raises:
        UsageError: ssh-keygen does not know it either.
    """
    # Through a pipe: neither on a command line nor in a file. The empty passphrase keeps it from asking.
    line = [find_tool("ssh-keygen", environ), "-y", "-P", "", "-f", "/dev/stdin"]
    done = subprocess.run(
        line, input=private.encode(), capture_output=True, timeout=KEYGEN_TIMEOUT_S, check=False
    )
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        raise _bad("ssh-keygen cannot read the private key")
    return base64.b64decode(words[1])


def _what_else(text: str, count: int) -> str:
    """Return what a text holds instead of one or two private keys, without showing any of it."""
    if count:
        return f"{count} private keys, expected one or two: the client's, then the host's"
    if not text.strip():
        return "nothing"
    if _BEGIN in text:
        return "a private key that is damaged or cut off: BEGIN without END"
    if text.lstrip().startswith((*ALGORITHMS, "---- BEGIN SSH2 PUBLIC KEY")):
        return "a public key, expected the private one (the file without .pub)"
    return "no private key"


def _encrypted(where: str) -> LauncherError:
    return _bad(f"{where} holds a private key with a passphrase, which nobody could type on every node")


def _bad(what: str) -> LauncherError:
    return UsageError(Problem("bad-ssh-key", what, "--ssh-key or LAUNCHER_SSH_KEY", _FIX))
