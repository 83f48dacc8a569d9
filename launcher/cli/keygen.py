"""The command line of ``launcher keygen``: writes the keys of a job as one file or as a folder."""

from __future__ import annotations

import os

from launcher.core.errors import NotReady, Problem
from launcher.core.files import PRIVATE_FOLDER, make_folder, make_private_folder, remove_tree
from launcher.options.parser import make_parser
from launcher.ssh.files import cannot_write, exists, name_user, write_private
from launcher.ssh.keys import CLIENT_FILES, HOST_FILES, NAMELESS, Keys, run_keygen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEMPORARY = "/tmp"  # noqa: S108 - the folder in it is made for our user alone
_ONE_FILE = """\
{path}: the client key and the host key of a job. This file opens the nodes of the job: keep it secret.
Give it to every node, as one of
  launcher run --ssh-key {path} ...     where the file is on every node
  LAUNCHER_SSH_KEY={path}               the same, as a variable
  LAUNCHER_SSH_KEY="$(cat {path})"      its text, from a secret store
"""
_FOLDER = """\
{path}: the client key ({client}) and the host key ({host}) of a job. The client key
opens the nodes of the job: keep it secret. Give them to every node, e.g.
  kubectl create secret generic launcher-ssh --from-file={path}     and mount it, mode 0400
  LAUNCHER_SSH_KEY=/where/it/is/mounted
"""


def keygen(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """Run ``launcher keygen ARGV``; return the exit status."""
    parser = make_parser("keygen", "[--folder] PATH", description)
    parser.add_argument("path", metavar="PATH", help="the file to write; it must not exist")
    parser.add_argument(
        "--folder", action="store_true", help="make PATH a folder with a file for each key, as a secret"
    )
    words = parser.parse_args(argv)
    path = os.path.abspath(words.path)
    keys = make_keys(environ)
    if words.folder:
        _make_folder(path)
        write_private(f"{path}/{CLIENT_FILES[0]}", keys.client, new=True)
        write_private(f"{path}/{HOST_FILES[0]}", keys.host, new=True)
    else:
        write_private(path, keys.client + keys.host, new=True)
    text = _FOLDER if words.folder else _ONE_FILE
    print(text.format(path=path, client=CLIENT_FILES[0], host=HOST_FILES[0]), end="")
    return 0


def make_keys(environ: Mapping[str, str]) -> Keys:
    """Return two new ed25519 keys.

    Raises:
        NotReady: ssh-keygen is missing or fails.
    """
    try:
        folder = make_private_folder((environ.get("TMPDIR") or TEMPORARY, TEMPORARY))
    except OSError as error:
        raise cannot_write(str(error.strerror)) from error
    try:
        names = [_make_key(f"{folder}/{name}", environ) for name in ("client", "host")]
        client, host = (_read(name) for name in names)
    finally:
        remove_tree(folder)
    return Keys(client, host)


def _make_folder(path: str) -> None:
    try:
        os.close(make_folder(path, PRIVATE_FOLDER, new=True))
    except FileExistsError as error:
        raise exists(path) from error
    except OSError as error:
        raise cannot_write(f"{path}: {error.strerror}") from error


def _make_key(path: str, environ: Mapping[str, str]) -> str:
    done = run_keygen(("-q", "-t", "ed25519", "-N", "", "-C", "launcher", "-f", path), environ)
    if done.returncode:
        what = f"ssh-keygen: {done.stderr.strip() or 'failed without a message'}"
        fix = name_user(os.getuid()) if NAMELESS in what else "see its message"
        raise NotReady(Problem("ssh-missing", what, "this node", fix))
    return path


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
