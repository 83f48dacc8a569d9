"""ssh as the head uses it: with the job's key, and only to nodes that show the job's host key.

`write_client` gives the start of a command line, `explain` says in words why a node was not reached.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, parse_host, shorten
from launcher.core.errors import Problem, UsageError
from launcher.core.redact import printable, redact
from launcher.ssh.files import quote_path, write_private
from launcher.ssh.keys import Keys, public_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALIAS = "launcher-job"
"""Under this name known_hosts has the job's host key, whatever a node is called: all must show this one."""
LIVENESS = {
    "BatchMode": "yes",
    "ConnectTimeout": "5",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
"""Never ask; know within 5 s that a node cannot be reached, and within 20 that it has gone since."""
SHARED = "%C"
"""Name of a shared connection's socket: a hash of host, port and user, as ssh writes it."""
SAID_LIMIT = 160

_CONFIG = """\
# ssh to the nodes of one job, written by the launcher.
{addresses}Host *
    Port {port}
    IdentityFile {identity}
    IdentitiesOnly yes
    IdentityAgent none
    AddKeysToAgent no
    PreferredAuthentications publickey
    PasswordAuthentication no
    KbdInteractiveAuthentication no
    HostKeyAlias {alias}
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    VerifyHostKeyDNS no
    CheckHostIP no
    CanonicalizeHostname no
    ProxyCommand none
    ControlMaster no
    ControlPath none
    ClearAllForwardings yes
    ForwardAgent no
    ForwardX11 no
    PermitLocalCommand no
    RequestTTY no
    EscapeChar none
    ConnectionAttempts 1
    TCPKeepAlive yes
    Compression no
    # One level less would not tell that a node fell silent.
    LogLevel INFO
{liveness}
"""

_REASONS = (
    ("No user exists for uid", "the user of the head has no entry in its /etc/passwd, and ssh needs one"),
    ("Name or service not known", "there is no such name: neither /etc/hosts has it, nor the name server"),
    (
        "Temporary failure in name resolution",
        "its name is not in /etc/hosts, and no name server answers that could know it",
    ),
    ("Could not resolve hostname", "its name cannot be resolved"),
    ("No route to host", "no route to it: the node is down, or a firewall refuses"),
    ("Network is unreachable", "its network cannot be reached from here"),
    ("during banner exchange", "it takes connections, but no sshd answers: it is too busy, or hangs"),
    ("timed out", "no answer: the node is down, or a firewall drops what we send"),
    (
        "Connection refused",
        "nothing listens there: its launcher has not started sshd yet, or sshd is missing there",
    ),
    ("Permission denied (", "it refuses our key: it was started with another key, or as another user"),
    (
        "Host key verification failed",
        "its host key is not the job's: it was started with another key, or another sshd listens there",
    ),
    (
        "kex_exchange_identification",
        "what listens there closes connections at once: no sshd, or one that is too busy",
    ),
    ("Not allowed at this time", "its sshd makes us wait, because we came too often before"),
    ("not responding", "the connection was there, and fell silent: the node is down or cut off"),
    ("Broken pipe", "the connection broke: the node, or its sshd, has ended"),
    ("closed by remote host", "the connection was closed: the node, or its sshd, has ended"),
    ("Connection closed by", "its sshd closed the connection before it was up: see that node's log"),
    ("Connection reset by", "its sshd closed the connection before it was up: see that node's log"),
)
"""(what ssh says, what it means), in the order in which they count: one failure can say several."""


def plan_shared(folder: str) -> tuple[str, ...]:
    """Return the options by which an ssh uses the shared connection of its node (`launcher.mpi.link`)."""
    return ("-o", f"ControlPath={folder}/{SHARED}")


def write_client(
    folder: str,
    keys: Keys | None,
    hosts: Sequence[str],
    port: int,
    addresses: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Write what ssh needs to reach the nodes of this job, and return how its command line begins.

    Args:
        folder: An existing folder of mode 0700, absolute; it must live as long as the job.
        keys: The job's; None for the user's own ssh configuration, with our time limits on top.
        hosts: The nodes, as they will stand on command lines.
        port: Where their sshd listens; not told where ``keys`` is None.
        addresses: Where to connect to instead, by host.

    Returns:
        ``("ssh", "-F", CONFIG)``, or ``("ssh", "-o", ...)`` without keys; a host and a command follow.

    Raises:
        UsageError: A host that ssh could take for something else, or a key that cannot serve.
        NotReady: The folder cannot be written.
    """
    for name in (*hosts, *(addresses or {}).keys(), *(addresses or {}).values()):
        _check_host(name)
    if keys is None:
        return ("ssh", *(word for item in LIVENESS.items() for word in ("-o", "=".join(item))))
    write_private(f"{folder}/identity", keys.client)
    write_private(f"{folder}/known_hosts", f"{ALIAS} {public_key(keys.host)}\n")
    write_private(f"{folder}/ssh_config", render_config(folder, port, addresses or {}))
    return ("ssh", "-F", f"{folder}/ssh_config")


def render_config(folder: str, port: int, addresses: Mapping[str, str]) -> str:
    """Return ssh_config: the addresses of hosts that have one, then what holds for all."""
    own = (f"Host {host}\n    HostName {address.replace('%', '%%')}\n" for host, address in addresses.items())
    return _CONFIG.format(
        addresses="".join(own),
        port=port,
        alias=ALIAS,
        identity=quote_path(f"{folder}/identity"),
        known_hosts=quote_path(f"{folder}/known_hosts"),
        liveness="\n".join(f"    {name} {value}" for name, value in LIVENESS.items()),
    )


def explain(text: str) -> str:
    """Return why ssh did not reach a node, or lost it, for a line of a table.

    Args:
        text: What ssh wrote on standard error before it ended with 255.

    Returns:
        Words on one line, safe for a terminal; ssh's own last line where it is none that we know.
    """
    for mark, reason in _REASONS:
        if mark in text:
            return reason
    lines = [line.strip() for line in redact(text).splitlines() if line.strip()]
    if not lines:
        return "ssh ended without a word"
    return f"ssh says: {shorten(printable(lines[-1]), SAID_LIMIT)}"


def _check_host(name: str) -> None:
    """Raise unless a name is one that ssh takes for a host: an option begins with a dash.

    Raises:
        UsageError: It is not.
    """
    try:
        same = parse_host(name) == name
    except Malformed:
        same = False
    if not same:
        what = f"{shorten(name)!r}: expected a host name or an IP address, without a port"
        raise UsageError(Problem("malformed-flag", what, "the hosts of the job", "correct the list of hosts"))
