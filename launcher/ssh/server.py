"""An sshd of one job: its key, its user, its address, and commands only.

It runs in the foreground as a child of whoever starts the line that `write_server` returns. As root it needs
what its package has made (a user, a folder); unprivileged it serves the one user whose it is.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping

from launcher.errors import NotReady, Problem
from launcher.frozen import frozen
from launcher.redact import printable, redact
from launcher.ssh import enter
from launcher.ssh.files import quote_path, write_private
from launcher.ssh.keys import ALGORITHMS, Keys, public_key

FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Where sshd is when PATH, as that of many users, lacks it."""
KEY_VARIABLE = "LAUNCHER_SSH_KEY"
NO_SHELLS = ("nologin", "false")
LOCKED = "!"
"""What the password of an account begins with that sshd on Linux lets nobody into, whatever the key."""
CAPABILITIES = {"SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18}
"""What sshd needs of root; linux/capability.h numbers them."""
TRIAL_TIMEOUT_S = 20.0

_ROUTINE = (
    *("Server listening on ", "Accepted publickey for ", "Received disconnect from "),
    *("Disconnected from ", "Received signal ", "Connection closed by "),
    *("Exiting on signal ", "ssh_packet_send_debug: "),
)
_NEWER = ("PerSourcePenalties no", "UnusedConnectionTimeout 60")
"""Of OpenSSH 9.8, which else makes an address wait that failed before, as a head does that comes early; and
of 9.2. An sshd that does not know one of them is not told."""
_CONFIG = """\
# The sshd of one job, written by the launcher. Who may come in: one user, one key, from anywhere that
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
# it, /tmp and /dev/shm, because everybody may write there.
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
LoginGraceTime 30
# A job starts its sessions all at once; the default drops connections from the tenth on.
MaxStartups 200
MaxSessions 64
{newer}
UseDNS no
Compression no
PidFile none
# Lower levels do not tell who was refused; see is_routine.
LogLevel INFO
"""


@frozen
class Account:
    """Who we are, as sshd will look at it.

    Attributes:
        uid: Our effective user id.
        name: Our name; None where no passwd entry has it.
        shell: The shell in that entry, which runs every command.
        shell_runs: Whether that shell exists and is one.
        locked: Whether the password is marked as locked.
        capabilities: The effective ones, one bit each.
    """

    uid: int
    name: str | None
    shell: str
    shell_runs: bool
    locked: bool
    capabilities: int


def find_sshd(environ: Mapping[str, str]) -> str:
    """Return the absolute path of sshd, which refuses to be started by another.

    Raises:
        NotReady: There is none on PATH, in /usr/sbin and in /usr/local/sbin.
    """
    folders = [*environ.get("PATH", os.defpath).split(os.pathsep), *FOLDERS]
    path = shutil.which("sshd", path=os.pathsep.join(folders))
    if path is None:
        what = f"sshd: no such program on PATH and in {', '.join(FOLDERS)}"
        fix = "apt-get install openssh-server, or dnf install openssh-server, in the image"
        raise NotReady(Problem("sshd-missing", what, "this node", fix))
    return os.path.abspath(path)


def write_server(
    folder: str,
    keys: Keys,
    address: str,
    port: int,
    environ: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Write all that an sshd of this job needs, and return its command line.

    Args:
        folder: An existing folder of mode 0700, absolute; it must live as long as sshd.
        keys: The job's.
        address: The only address to listen on.
        port: The port.
        environ: What sessions are to see, and where sshd is looked for: see `session_environ`.
        extra: Further variables for sessions; they win.

    Returns:
        ``(sshd, "-D", "-e", "-f", CONFIG)``: in the foreground, its words on standard error.

    Raises:
        NotReady: sshd is missing, or would not serve this user here; the folder cannot be written.
        UsageError: A key that cannot serve.
    """
    sshd = find_sshd(environ)
    account = read_account()
    problems = find_problems(account)
    if problems or account.name is None:
        raise NotReady(*problems)
    variables = session_environ(environ, extra or {})
    client = public_key(keys.client, environ)
    write_private(f"{folder}/host_key", keys.host)
    write_private(f"{folder}/authorized_keys", f"restrict {client}\n")
    write_private(f"{folder}/environment", encode_environ(variables))
    config = render_config(
        folder, account, address, port, (client, public_key(keys.host, environ)), variables
    )
    argv = (sshd, "-D", "-e", "-f", f"{folder}/sshd_config")
    _write_accepted(argv, config)
    return argv


def session_environ(environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of this node for sessions: those of our own process, less the job's key.

    Secrets stay in: a process that mpirun starts must see what one that the container starts sees, and
    the file is the same user's. HOME stays too, because containers set it to where caches and tokens are.
    Who we are, and what describes one terminal or one shell, is sshd's to say.
    """
    describes_a_login = {"USER", "LOGNAME", "MAIL", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}
    ours = {
        name: value
        for name, value in environ.items()
        if name not in describes_a_login and not name.startswith("SSH_")
    }
    return {name: value for name, value in (ours | dict(extra)).items() if name != KEY_VARIABLE}


def encode_environ(variables: Mapping[str, str]) -> bytes:
    """Return variables as /proc/PID/environ has them, which holds every value."""
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
    """Return sshd_config; ``public`` are the client's and the host's public keys."""
    client, host = (ALGORITHMS[key.split()[0]] for key in public)
    words = (sys.executable, "-I", "-S", os.path.abspath(enter.__file__), f"{folder}/environment")
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
        newer="\n".join(_NEWER),
    )


def _set_env(variables: Mapping[str, str]) -> str:
    """Return the one SetEnv line, for what runs before the environment is there: a shell, and Python.

    Debian's bash reads ~/.bashrc where sshd has started it, unless a shell runs outside of it, and what
    that file says would stand in front of what our sessions say. Some Pythons need a library path to start.
    """
    pairs = ["SHLVL=1"]
    path = variables.get("LD_LIBRARY_PATH", "")
    if path and path.isprintable() and {'"', "'", "\\"}.isdisjoint(path):
        pairs.append(f'"LD_LIBRARY_PATH={path}"')
    return f"SetEnv {' '.join(pairs)}"


def read_account() -> Account:
    """Return who we are; never raises."""
    uid = os.geteuid()
    capabilities = 0
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file]
        capabilities = int(next(words[1] for words in lines if words[:1] == ["CapEff:"]), 16)
        entry = pwd.getpwuid(uid)
    except (KeyError, OSError, StopIteration):
        return Account(uid, None, "", False, False, capabilities)
    shell = entry.pw_shell or "/bin/sh"
    runs = os.access(shell, os.X_OK) and os.path.basename(shell) not in NO_SHELLS
    locked = _read_password(entry).startswith(LOCKED)
    return Account(uid, entry.pw_name, shell, runs, locked, capabilities)


def _read_password(entry: pwd.struct_passwd) -> str:
    """Return the password field that sshd will see: that of /etc/shadow, if it may be read."""
    try:
        with open("/etc/shadow", encoding="utf-8", errors="replace") as file:
            fields = (line.split(":") for line in file)
            return next((words[1] for words in fields if words[0] == entry.pw_name and words[1:]), "")
    except OSError:
        return entry.pw_passwd


def find_problems(account: Account) -> tuple[Problem, ...]:
    """Return why an sshd would refuse this user, in words that it would write where nobody looks."""
    if account.name is None:
        fix = (
            'echo "train:x:$(id -u):$(id -g)::/tmp:/bin/sh" >> /etc/passwd in the image, or use a user of it'
        )
        what = f"user id {account.uid} has no entry in /etc/passwd, and sshd serves only users that have one"
        return (_cannot_serve(what, fix),)
    found = []
    if not account.name.replace("-", "").replace(".", "").replace("_", "").isalnum():
        what = f"user {account.name!r}: sshd takes characters of this name for a pattern"
        found.append(_cannot_serve(what, "use a user whose name has letters, digits, dots, - and _"))
    if not account.shell_runs:
        what = f"user {account.name}: its shell {account.shell} runs no commands"
        found.append(_cannot_serve(what, f"usermod --shell /bin/sh {account.name}, in the image"))
    if account.locked:
        what = f"user {account.name} is locked in /etc/shadow, and sshd lets nobody in as such a user"
        found.append(_cannot_serve(what, f"usermod --password '*' {account.name}, in the image"))
    lacks = [name for name, bit in CAPABILITIES.items() if not account.capabilities >> bit & 1]
    if account.uid == 0 and lacks:
        what = f"root lacks the capabilities {', '.join(lacks)}, and its sshd would drop every connection"
        fix = f"--cap-add {','.join(lacks)} (securityContext.capabilities.add), or run as another user"
        found.append(_cannot_serve(what, fix))
    return tuple(found)


def is_routine(line: str) -> bool:
    """Whether a line of sshd's log tells only that all goes as it should; the others tell who was refused."""
    closed = line.startswith("Connection closed by ")
    by_a_user = line.startswith("Connection closed by authenticating user ")
    return line.startswith(_ROUTINE) and not (closed and by_a_user)


def _write_accepted(argv: tuple[str, ...], config: str) -> None:
    """Write the configuration as this sshd takes it: sshd itself says what it needs.

    Raises:
        NotReady: It needs what we cannot give.
    """
    path = argv[-1]
    write_private(path, config)
    made = ""
    while (words := _try(argv)) is not None:
        unknown = next((line for line in _NEWER if f"option: {line.split()[0]}" in words), "")
        missing = _after(words, "Missing privilege separation directory: ")
        if unknown and unknown in config:
            config = config.replace(unknown, "")
            write_private(path, config)
        elif missing is not None and missing != made:  # another sshd may have made it meanwhile
            _make_folder(missing)
            made = missing
        else:
            raise NotReady(_explain(argv[0], words))


def _try(argv: tuple[str, ...]) -> str | None:
    """Return what keeps sshd from starting, in its words; None if nothing does."""
    line = [argv[0], "-t", *argv[2:]]
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.decode(errors="replace") if done.returncode else None


def _after(text: str, mark: str) -> str | None:
    """Return the rest of the line after a mark; None if no line has it."""
    return next((line.partition(mark)[2].strip() for line in text.splitlines() if mark in line), None)


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except OSError as error:
        what = f"sshd needs the empty folder {path}, which cannot be made: {error.strerror}"
        raise NotReady(_cannot_serve(what, f"mkdir -p -m 755 {path}, in the image")) from error


def _explain(sshd: str, words: str) -> Problem:
    user = _after(words, "Privilege separation user ")
    if user is not None:
        name = user.split()[0]
        home = "--home-dir /run/sshd --no-create-home --shell /usr/sbin/nologin"
        what = f"sshd needs the user {name}, which installing its package makes"
        return _cannot_serve(what, f"useradd --system {home} {name}, in the image; or run as another user")
    said = "; ".join(printable(redact(line.strip())) for line in words.splitlines() if line.strip())
    return _cannot_serve(f"{sshd}: {said or 'it ends without a word'}", "correct what sshd complains about")


def _cannot_serve(what: str, fix: str) -> Problem:
    return Problem("sshd-refuses", what, "this node", fix)
