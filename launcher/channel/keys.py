"""The key that authenticates a job's launchers to each other: from a token or the job's name.

Source: RFC 2104 (HMAC); NIST SP 800-108 (keys derived from a key by a pseudorandom function).
"""

from __future__ import annotations

import hmac
import os

from launcher.core.environ import find_job_id
from launcher.core.errors import make_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_VARIABLE = "LAUNCHER_TOKEN"  # noqa: S105 - a name, not a secret
PURPOSE = b"launcher peers 2 "
"""Separates these keys from others that are made from the same token; 2 is the protocol version."""
TOKEN_LIMIT_BYTES = 4096
TOKEN_LEAST_BYTES = 16


def read_token(path: str, environ: Mapping[str, str]) -> bytes | None:
    """Return the job's token; None without one.

    Args:
        path: Path from ``--token-file``; empty for LAUNCHER_TOKEN, if set.
        environ: The environment of the launcher.

    Raises:
        UsageError: The file cannot be read or is too long, or the token is too short to be a secret.
    """
    if path:
        token, origin = _read(path), "--token-file"
    else:
        token, origin = os.fsencode(environ.get(TOKEN_VARIABLE, "")).strip(), TOKEN_VARIABLE
        if not token:
            return None
    if len(token) < TOKEN_LEAST_BYTES:
        raise make_error("short-token", origin=origin, length=len(token), least=TOKEN_LEAST_BYTES)
    return token


def _read(path: str) -> bytes:
    from launcher.machine.files import read_whole

    # A value that is no path may be the token itself
    shown = path if "/" in path else f"(a path; {TOKEN_VARIABLE} takes a token)"
    try:
        data = read_whole(path, TOKEN_LIMIT_BYTES)
    except OSError as error:
        raise make_error("unread-token", path=shown, reason=error.strerror) from error
    if len(data) > TOKEN_LIMIT_BYTES:
        raise make_error("long-token", path=shown, most=TOKEN_LIMIT_BYTES)
    return data.strip()


def name_job(environ: Mapping[str, str], port: int, rendezvous_id: str = "") -> str:
    """Return the job's name: the same on all of its nodes, different for another job.

    It contains nothing that nodes may disagree on by mistake (their number, the command). Such mistakes must
    be reported, but a node with another key cannot even connect.
    """
    return "/".join(filter(None, (rendezvous_id, find_job_id(environ), str(port))))


def make_key(token: bytes | None, job: str) -> bytes:
    """Return the key of a job, 32 bytes. Without a token it only keeps two jobs apart."""
    if token is not None:
        # Two jobs with the same token must not have the same key.
        return hmac.digest(token, PURPOSE + b"token " + os.fsencode(job), "sha256")
    return hmac.digest(b"", PURPOSE + b"job " + os.fsencode(job), "sha256")


def at_port(key: bytes, port: int) -> bytes:
    """Return the key for connections to one port of node 0.

    Another user of node 0's machine who has taken the first port, so that node 0 listens at the next one,
    could pass connections on to it: the nodes would not notice, and that user could read and end them.
    """
    return hmac.digest(key, b"port %d" % port, "sha256")
