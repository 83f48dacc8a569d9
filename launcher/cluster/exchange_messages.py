"""What launchers say to each other when they exchange addresses: lines of JSON, proven with the token.

Where the job has a token both sides show that they know it: each sends what nobody could foresee, and gets it
back in a keyed digest of what is said. Without a token whoever can reach the port is believed.

Source: RFC 2104 (HMAC).
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from launcher.core.environ import Malformed, parse_hosts
from launcher.core.errors import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.core.model import Meeting


def render_line(value: object) -> bytes:
    """Return a value as one line of JSON."""
    return json.dumps(value).encode() + b"\n"


def prove(key: bytes, challenge: str, said: list[object]) -> str:
    """Return what shows that whoever says something knows the key, and says it to its challenger."""
    return hmac.digest(key, json.dumps([challenge, said]).encode(), "sha256").hex()


def is_proven(key: bytes, challenge: str, said: list[object], proof: object) -> bool:
    """Whether somebody has shown that he knows the key, and says this."""
    expected = prove(key, challenge, said)
    return hmac.compare_digest(expected.encode(), str(proof).encode("utf-8", "replace"))


def parse_word(text: bytes, meeting: Meeting) -> tuple[int, int] | None:
    """Return which launcher came, and its node; None for a stranger."""
    try:
        word = json.loads(text)
        job, member, node = word["job"], word["member"], word["node"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    known = job == [meeting.node_count, meeting.member_count]
    fits = type(member) is int and type(node) is int
    if known and fits and 0 < member < meeting.member_count and 0 <= node < meeting.node_count:
        return member, node
    return None


def render_answer(hosts: tuple[str, ...], key: bytes, challenge: str) -> bytes:
    """Return what a launcher is told: the hosts; where there is a key, with proof of who says so."""
    return render_line({"hosts": hosts, "proof": prove(key, challenge, [*hosts])} if key else hosts)


def parse_answer(told: Any, meeting: Meeting, key: bytes, challenge: str) -> tuple[str, ...]:
    """Return the hosts that we are told.

    Raises:
        Malformed, TypeError, KeyError: Somebody else has answered.
    """
    hosts = told
    if key:
        hosts = told["hosts"]
        if not is_proven(key, challenge, [*hosts], told["proof"]):
            raise Malformed
    found = parse_hosts(",".join(hosts))
    if len(found) != meeting.node_count:
        raise Malformed
    return found


def say_problem(meeting: Meeting, what: str) -> Problem:
    """Return why the nodes do not come together, as one of the launchers sees it."""
    return Problem(
        "peers-missing",
        f"the nodes tell each other their addresses at {meeting.address}, port {meeting.port}: {what}",
        f"launcher {meeting.member} of {meeting.member_count}, node {meeting.node}",
        "see whether all were started; a longer --roll-call-timeout; or --hosts HOST,... with all nodes",
    )
