"""The sshd_config of one job, and the environment of its sessions."""

from __future__ import annotations

import os
import shlex

from launcher.machine.pythons import own_program
from launcher.ssh import enter
from launcher.ssh.files import quote_path
from launcher.ssh.keys import ALGORITHMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.ssh.account import Account

KEY_VARIABLE = "LAUNCHER_SSH_KEY"
NEWER = (
    *("PerSourcePenalties no", "UnusedConnectionTimeout 60"),
    *("PerSourceMaxStartups 64", "PerSourceNetBlockSize 32:64"),
)
"""Options of OpenSSH 9.8, 9.2 and 8.5 (two); those that an sshd does not know are left out.

Without the first, sshd makes an address wait that has failed before, e.g. that of a head that comes early.
The last two give one caller a tenth of `MaxStartups`: an IPv4 address, or the /64 of an IPv6 address, as
`launcher.core.budget.network_of` counts them.
"""
_CONFIG = """\
# The sshd of one job, written by the launcher. It lets in one user, by one key, from anywhere that
# reaches this address. What they may do: run commands.
ListenAddress {address}
Port {port}
HostKey {folder_host_key}
AllowUsers {user}
PermitRootLogin {root_login}
AuthenticationMethods publickey
PubkeyAuthentication yes
# The names of these two before OpenSSH 8.5 are known to all versions.
PubkeyAcceptedKeyTypes {client_algorithms}
HostKeyAlgorithms {host_algorithms}
AuthorizedKeysFile {folder_authorized_keys}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
# Our files are 0600 in a folder 0700 of the same user. Strict mode would also refuse the folders above
# it, /tmp and /dev/shm, because every user may write there.
StrictModes no

# DisableForwarding alone left X11 and agents open before OpenSSH 10 (CVE-2025-32728).
DisableForwarding yes
AllowTcpForwarding no
AllowStreamLocalForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
GatewayPorts no
PermitOpen none
PermitListen none
PermitTTY no
PermitUserRC no
PermitUserEnvironment no
PrintMotd no
Banner none
# Every session goes through enter.py, subsystems too (sftp, of which there is none).
ForceCommand exec {command}
{set_env}

# A head that has vanished is noticed after 12 s; by OpenSSH 9.2, which asks every other time, after 24.
ClientAliveInterval 3
ClientAliveCountMax 3
LoginGraceTime 10
# A job starts its sessions all at once; the default drops connections from the tenth on. With more
# unauthenticated connections than a job has, only some new ones are dropped, so a retry succeeds.
MaxStartups 200:30:600
MaxSessions 64
{newer}
UseDNS no
Compression no
PidFile none
# Lower levels do not tell of refusals; see is_routine.
LogLevel INFO
"""


def session_environ(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return this node's variables for sessions: those of our own process without the job's key.

    Secrets stay: a process that mpirun starts must see the same variables as one that the container starts,
    and the file belongs to the same user. HOME stays, because containers set it to the place of caches and
    tokens. Variables that describe the user, a terminal or a shell do not stay: these are for sshd to set.

    Args:
        environ: Our environment.
        extra: Further variables; they win.
    """
    describes_a_login = {"USER", "LOGNAME", "MAIL", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}
    ours = {
        name: value
        for name, value in environ.items()
        if name not in describes_a_login and not name.startswith("SSH_")
    }
    return {name: value for name, value in (ours | dict(extra)).items() if name != KEY_VARIABLE}


def encode_environ(variables: Mapping[str, str]) -> bytes:
    """Return variables in the format of /proc/PID/environ, which can hold every value."""
    return "".join(f"{name}={value}\0" for name, value in variables.items()).encode(
        "utf-8", "surrogateescape"
    )


def render_config(
    folder: str,
    account: Account,
    address: str,
    port: int,
    public: tuple[str, str],
    variables: Mapping[str, str],
) -> str:
    """Return the text of sshd_config; ``public`` are the client's and the host's public keys."""
    client, host = (ALGORITHMS[key.split()[0]] for key in public)
    words = own_program(os.path.abspath(enter.__file__), f"{folder}/environment")
    return _CONFIG.format(
        address=f"[{address}]:{port}" if ":" in address else address,
        port=port,
        folder_host_key=quote_path(f"{folder}/host_key"),
        folder_authorized_keys=quote_path(f"{folder}/authorized_keys"),
        user=account.name,
        root_login="prohibit-password" if account.uid == 0 else "no",
        client_algorithms=client,
        host_algorithms=host,
        command=shlex.join(words),
        set_env=_set_env(variables),
        newer="\n".join(NEWER),
    )


def _set_env(variables: Mapping[str, str]) -> str:
    """Return the SetEnv line for what runs before the environment is complete: a shell and Python.

    Debian's bash reads ~/.bashrc if sshd has started it, unless it runs in another shell (SHLVL). The output
    of that file would precede the output of our sessions. Some Pythons need a library path to start.
    """
    pairs = ["SHLVL=1"]
    path = variables.get("LD_LIBRARY_PATH", "")
    if path and path.isprintable() and {'"', "'", "\\"}.isdisjoint(path):
        pairs.append(f'"LD_LIBRARY_PATH={path}"')
    return f"SetEnv {' '.join(pairs)}"
