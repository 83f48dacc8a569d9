"""ssh as the head uses it: with the job's key, and only to nodes that show the job's host key.

`write_client` returns the start of a command line. `explain` tells why a node was not reached.
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
"""Name of the job's host key in known_hosts, for nodes of any name: all must show this key."""
LIVENESS = {
    "BatchMode": "yes",
    "ConnectTimeout": "5",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
}
"""Options of ssh: never prompt, notice an unreachable node within 5 s, and a lost one within 20 s."""
SHARED = "%C"
"""Name of a shared connection's socket: ssh replaces it by a hash of host, port and user."""
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
    # A lower level does not report that a node stopped responding.
    LogLevel INFO
{liveness}
"""

_REASONS = (
    ("No user exists for uid", "the user of the head has no entry in its /etc/passwd, and ssh needs one"),
    ("Name or service not known", "unknown name: neither /etc/hosts nor the name server has it"),
    (
        "Temporary failure in name resolution",
        "its name is not in /etc/hosts, and no name server answers",
    ),
    ("Could not resolve hostname", "its name cannot be resolved"),
    ("No route to host", "no route to it: the node is down, or a firewall refuses"),
    ("Network is unreachable", "its network cannot be reached from here"),
    ("during banner exchange", "it accepts connections, but sshd does not answer: overloaded or hung"),
    ("timed out", "no answer: the node is down, or a firewall drops our packets"),
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
        "connections are closed at once: not an sshd, or an overloaded one",
    ),
    ("Not allowed at this time", "its sshd makes us wait after too many attempts"),
    ("not responding", "the connection stopped responding: the node is down or cut off"),
    ("Broken pipe", "the connection broke: the node, or its sshd, has ended"),
    ("closed by remote host", "the connection was closed: the node, or its sshd, has ended"),
    ("Connection closed by", "its sshd closed the connection before it was up: see that node's log"),
    ("Connection reset by", "its sshd closed the connection before it was up: see that node's log"),
)
"""(message of ssh, its meaning), in order of precedence: one failure can give several messages."""


def plan_shared(folder: str) -> tuple[str, ...]:
    """Return the options with which ssh uses the shared connection of its node (`launcher.mpi.link`)."""
    return ("-o", f"ControlPath={folder}/{SHARED}")


def write_client(
    folder: str,
    keys: Keys | None,
    hosts: Sequence[str],
    port: int,
    addresses: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Write ssh's files to reach the nodes of this job, and return the start of its command line.

    Args:
        folder: Absolute path of an existing folder of mode 0700, which must exist as long as the job.
        keys: The job's keys; None for the user's own ssh configuration, with our time limits on top.
        hosts: The nodes, as command lines will name them.
        port: Port of their sshd; not used if ``keys`` is None.
        addresses: Addresses to connect to instead, by host.

    Returns:
        ``("ssh", "-F", CONFIG)``, or ``("ssh", "-o", ...)`` without keys; a host and a command follow.

    Raises:
        UsageError: ssh could take a host for something else, or a key cannot be used.
        NotReady: The folder cannot be written, or ssh-keygen is missing.
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
    """Return the text of ssh_config: the given addresses of hosts, then the options for all."""
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
    """Return why ssh did not reach a node, or lost it, as text for a line of a table.

    Args:
        text: What ssh wrote to standard error before it exited with 255.

    Returns:
        One line, safe for a terminal; ssh's own last line if we do not know its messages.
    """
    for mark, reason in _REASONS:
        if mark in text:
            return reason
    lines = [line.strip() for line in redact(text).splitlines() if line.strip()]
    if not lines:
        return "ssh exited without a message"
    return f"ssh says: {shorten(printable(lines[-1]), SAID_LIMIT)}"


def _check_host(name: str) -> None:
    """Check that ssh takes a name for a host, and not for an option, which begins with a dash.

    Raises:
        UsageError: It is not a host name or an IP address.
    """
    try:
        same = parse_host(name) == name
    except Malformed:
        same = False
    if not same:
        what = f"{shorten(name)!r}: expected a host name or an IP address, without a port"
        raise UsageError(Problem("malformed-flag", what, "the hosts of the job", "correct the list of hosts"))
