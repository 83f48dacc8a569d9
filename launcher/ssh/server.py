"""The sshd of one job: it accepts one key, serves one user at one address, and runs commands only.

It runs in the foreground as a child of the process that starts the command line from `write_server`. As root
it needs what its package creates (a user and a folder). Otherwise it can only serve the user that runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from launcher.core.errors import NotReady, Problem
from launcher.core.files import make_folder
from launcher.core.redact import printable, redact
from launcher.ssh.account import cannot_serve, read_served
from launcher.ssh.config import NEWER, encode_environ, render_config, session_environ
from launcher.ssh.files import write_private
from launcher.ssh.keys import Keys, public_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDERS = ("/usr/sbin", "/usr/local/sbin")
"""Folders of sshd that the PATH of many users lacks."""
TRIAL_TIMEOUT_S = 20.0
_ROUTINE = (
    *("Server listening on ", "Accepted publickey for ", "Received disconnect from "),
    *("Disconnected from ", "Received signal ", "Connection closed by "),
    *("Exiting on signal ", "ssh_packet_send_debug: "),
)


def find_sshd(environ: Mapping[str, str]) -> str:
    """Return the absolute path of sshd, which refuses to start by a relative one.

    Raises:
        NotReady: sshd is neither on PATH nor in `FOLDERS`.
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
    """Write all files that an sshd of this job needs, and return its command line.

    Args:
        folder: Absolute path of an existing folder of mode 0700, which must exist as long as sshd runs.
        keys: The job's keys.
        address: The only address to listen on.
        port: The port.
        environ: The environment for sessions, see `session_environ`, whose PATH may have sshd.
        extra: Further variables for sessions; they win.

    Returns:
        ``(sshd, "-D", "-e", "-f", CONFIG)``: in the foreground, with its log on standard error.

    Raises:
        NotReady: sshd is missing or would not serve this user here, or the folder cannot be written.
        UsageError: A key cannot be used.
    """
    sshd = find_sshd(environ)
    account = read_served()
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


def is_routine(line: str) -> bool:
    """Whether a line of sshd's log reports normal operation; the others mostly report refusals."""
    closed = line.startswith("Connection closed by ")
    by_a_user = line.startswith("Connection closed by authenticating user ")
    return line.startswith(_ROUTINE) and not (closed and by_a_user)


def _write_accepted(argv: tuple[str, ...], config: str) -> None:
    """Write the configuration in a form that this sshd accepts: ``sshd -t`` tells what it needs.

    Options that it does not know are left out, and a missing folder is created.

    Raises:
        NotReady: sshd needs something that we cannot provide.
    """
    path = argv[-1]
    write_private(path, config)
    made = ""
    while (words := _try(argv)) is not None:
        unknown = next((line for line in NEWER if f"option: {line.split()[0]}" in words), "")
        missing = _after(words, "Missing privilege separation directory: ")
        if unknown and unknown in config:
            config = config.replace(unknown, "")
            write_private(path, config)
        elif missing is not None and missing != made:  # once; another sshd may have made it meanwhile
            _make_folder(missing)
            made = missing
        else:
            raise NotReady(_explain(argv[0], words))


def _try(argv: tuple[str, ...]) -> str | None:
    """Return sshd's message if it cannot start with this configuration; None if it can."""
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
        os.close(make_folder(path, 0o755))
    except OSError as error:
        what = f"sshd needs the empty folder {path}, which cannot be made: {error.strerror}"
        raise NotReady(cannot_serve(what, f"mkdir -p -m 755 {path}, in the image")) from error


def _explain(sshd: str, words: str) -> Problem:
    user = _after(words, "Privilege separation user ")
    if user is not None:
        name = user.split()[0]
        home = "--home-dir /run/sshd --no-create-home --shell /usr/sbin/nologin"
        what = f"sshd needs the user {name}, which installing its package makes"
        return cannot_serve(what, f"useradd --system {home} {name}, in the image; or run as another user")
    said = "; ".join(printable(line.strip()) for line in redact(words).splitlines() if line.strip())
    what = f"{sshd}: {said or 'it exited without a message'}"
    return cannot_serve(what, "correct what sshd complains about")
