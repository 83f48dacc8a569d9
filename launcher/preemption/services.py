"""The metadata services of three clouds: what is asked, and the meaning of the answers. A function for each.

Source: Azure, "Scheduled Events for Linux VMs" (version 2020-07-01) and "Azure Instance Metadata Service";
AWS, "Spot Instance interruption notices" and "Use the Instance Metadata Service" (version 2); Google
Cloud, "Create and use preemptible VMs" (detecting preemption from inside).
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from launcher.core.frozen import frozen
from launcher.core.redact import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Get = Callable[[str, str, Mapping[str, str]], tuple[int, bytes]]
    """Sends a request (verb, path, headers), and returns the status and the body, or raises `Unclear`."""
    Known = dict[str, str]

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
METADATA = {"Metadata": "true"}
TOKEN_PATH, TOKEN_LASTS = "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
ACTION_PATH = "/latest/meta-data/spot/instance-action"
PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
"""Without wait_for_change, because a connection that stays open for days may be dead."""
FLAVOR = {"Metadata-Flavor": "Google", "Host": "metadata.google.internal"}
WORDS_LENGTH, NAME_LENGTH, TOKEN_LENGTH = 200, 128, 1024
EVENTS_MAX = 1000
SCHEDULED = {
    "Preempt": "reclaims this spot machine",
    "Terminate": "deletes this machine",
    "Redeploy": "moves this machine to other hardware",
    "Reboot": "restarts this machine",
}
"""Azure's kinds of events that end the processes. Not Freeze, which is a pause of a few seconds."""
ACTIONS = ("hibernate", "stop", "terminate")
"""AWS's kinds of interruptions."""


class Unclear(Exception):
    """The service gave no usable answer; the message says why, and is safe to show."""


@frozen
class Notice:
    """A cloud's notice that it takes this machine back.

    Attributes:
        key: Distinguishes it from other notices for the same machine.
        what: Description of what will happen; safe to show.
        at: Time in seconds since 1970; None for any moment.
    """

    key: str
    what: str
    at: float | None


def ask_azure(get: Get, known: Known) -> list[Notice]:
    """Return Azure's scheduled events for this machine; others are of the same scale set."""
    if "name" not in known:
        why = "it does not give this machine's name"
        known["name"] = _ask_word(get, "GET", NAME_PATH, METADATA, NAME_LENGTH, why)
    status, body = get("GET", EVENTS_PATH, METADATA)
    _expect_ok(status)
    events = _parse_json(body).get("Events")
    if not isinstance(events, list):
        raise Unclear("an answer without Events")
    found = (_read_event(event, known["name"]) for event in events[:EVENTS_MAX] if isinstance(event, dict))
    return [notice for notice in found if notice is not None]


def _read_event(event: Mapping[str, object], name: str) -> Notice | None:
    kind, resources, why = event.get("EventType"), event.get("Resources"), event.get("Description")
    means = SCHEDULED.get(kind) if isinstance(kind, str) else None
    names = resources if isinstance(resources, list) else []
    if means is None or name.lower() not in [one.lower() for one in names if isinstance(one, str)]:
        return None
    words = quote(" ".join(why.split()), WORDS_LENGTH) if isinstance(why, str) else ""
    what = f"Azure {means} (scheduled event {kind}, {name}{f': {words}' if words else ''})"
    at = None if event.get("EventStatus") == "Started" else parse_time(event.get("NotBefore"))
    return Notice(str(event.get("EventId"))[:NAME_LENGTH], what, at)


def ask_aws(get: Get, known: Known) -> list[Notice]:
    """Return AWS's interruption notice of a spot instance. Reading it needs a token, which expires."""
    is_new = "token" not in known
    if is_new:
        why = "it returned no token"
        known["token"] = _ask_word(get, "PUT", TOKEN_PATH, TOKEN_LASTS, TOKEN_LENGTH, why)
    status, body = get("GET", ACTION_PATH, {"X-aws-ec2-metadata-token": known["token"]})
    if status == UNAUTHORIZED:
        del known["token"]
        if is_new:
            raise Unclear("it rejects its own token")
        return ask_aws(get, known)
    if status == NOT_FOUND:
        return []
    _expect_ok(status)
    document = _parse_json(body)
    action, time = document.get("action"), document.get("time")
    if action not in ACTIONS:
        raise Unclear("an answer without a known action")
    # Hibernation begins at once, whatever time the notice has
    at = None if action == "hibernate" else parse_time(time)
    what = f"AWS reclaims this spot instance (interruption notice: {action})"
    return [Notice(f"{action} {time}"[:NAME_LENGTH], what, at)]


def ask_gcp(get: Get, _known: Known) -> list[Notice]:
    """Return a notice if Google Cloud has preempted this machine, in the 30 seconds that it has left."""
    status, body = get("GET", PREEMPTED_PATH, FLAVOR)
    _expect_ok(status)
    word = body.strip().upper()
    if word not in (b"TRUE", b"FALSE"):
        raise Unclear("an answer that is neither TRUE nor FALSE")
    what = "Google Cloud reclaims this spot machine (instance/preempted is TRUE)"
    return [Notice("preempted", what, None)] if word == b"TRUE" else []


SERVICES: Mapping[str, tuple[str, float, Callable[[Get, Known], list[Notice]]]] = {
    "azure": ("Azure", 2.0, ask_azure),
    "aws": ("AWS", 5.0, ask_aws),
    "gcp": ("Google Cloud", 2.0, ask_gcp),
}
"""The services by their names in ``--preemption``: the cloud, seconds between questions, and what asks.

What asks raises `Unclear` without a usable answer. It keeps what it has to know first in the second argument.
"""


def parse_time(value: object) -> float | None:
    """Return a time of Azure (RFC 1123) or AWS (RFC 3339) in seconds since 1970; None if it is malformed."""
    from email.utils import parsedate_to_datetime

    if not isinstance(value, str) or len(value) > NAME_LENGTH:
        return None
    for parse in (parsedate_to_datetime, _parse_iso):
        try:
            moment = parse(value)
            aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
            return aware.timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _parse_iso(text: str) -> datetime:
    return datetime.fromisoformat(text.strip().replace("Z", "+00:00"))


def _expect_ok(status: int) -> None:
    if status != OK:
        raise Unclear(f"status {status}")


def _parse_json(body: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Unclear("not JSON") from None
    if not isinstance(document, dict):
        raise Unclear("not a JSON object")
    return document


def _ask_word(get: Get, verb: str, path: str, headers: Mapping[str, str], limit: int, why: str) -> str:
    """Return a name or a token, which may become a header of ours; ``why``: the complaint about any other."""
    status, body = get(verb, path, headers)
    _expect_ok(status)
    text = body.decode("latin-1").strip()
    if not text or len(text) > limit or not text.isascii() or not text.isprintable():
        raise Unclear(why)
    return text
