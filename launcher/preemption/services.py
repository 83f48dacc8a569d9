"""Requests to the metadata services of three clouds, and the meaning of the answers.

Pure, except that each service remembers what it has learned.

Source: Azure, "Scheduled Events for Linux VMs" (version 2020-07-01) and "Azure Instance Metadata Service";
AWS, "Spot Instance interruption notices" and "Use the Instance Metadata Service" (version 2); Google
Cloud, "Create and use preemptible VMs" (detecting preemption from inside).
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from launcher.core.frozen import frozen
from launcher.core.redact import quote
from launcher.planning.preemption import AWS, AZURE, GCP
from launcher.preemption.answers import ServiceAnswer, Unclear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
WORDS_LENGTH = 200
NAME_LENGTH = 128
TOKEN_LENGTH = 1024
EVENTS_MAX = 1000
SCHEDULED = {
    "Preempt": "reclaims this spot machine",
    "Terminate": "deletes this machine",
    "Redeploy": "moves this machine to other hardware",
    "Reboot": "restarts this machine",
}
"""Azure's kinds of events that end the processes. Not Freeze, which is a pause of a few seconds."""


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


class Azure:
    """Azure's Scheduled Events; other machines' events in the scale set are ignored."""

    title = "Azure"
    every_s = 2.0
    NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"

    def __init__(self) -> None:
        self._name = ""

    def request(self) -> bytes:
        """Return the next request: for the name of this machine, then for the events."""
        return _get(self.EVENTS if self._name else self.NAME, "169.254.169.254", {"Metadata": "true"})

    def read(self, answer: ServiceAnswer) -> list[Notice] | None:
        """Return the events for this machine; None if there is more to ask.

        Raises:
            Unclear: The answer cannot be understood.
        """
        _expect_ok(answer)
        if not self._name:
            name = answer.body.decode("ascii", "replace").strip()
            if not name or len(name) > NAME_LENGTH or not name.isascii() or not name.isprintable():
                raise Unclear("it does not give this machine's name")
            self._name = name
            return None
        document = _parse_json(answer.body)
        events = document.get("Events")
        if not isinstance(events, list):
            raise Unclear("an answer without Events")
        found = (self._read_event(event) for event in events[:EVENTS_MAX] if isinstance(event, dict))
        return [notice for notice in found if notice is not None]

    def _read_event(self, event: Mapping[str, object]) -> Notice | None:
        kind, resources = event.get("EventType"), event.get("Resources")
        means = SCHEDULED.get(kind) if isinstance(kind, str) else None
        names = [name.lower() for name in _texts(resources)]
        if means is None or self._name.lower() not in names:
            return None
        why = _words(event.get("Description"))
        what = f"{self.title} {means} (scheduled event {kind}, {self._name}{f': {why}' if why else ''})"
        at = None if event.get("EventStatus") == "Started" else parse_time(event.get("NotBefore"))
        return Notice(str(event.get("EventId"))[:NAME_LENGTH], what, at)


class Aws:
    """AWS's interruption notice of a spot instance; reading it needs a token, which is requested first."""

    title = "AWS"
    every_s = 5.0
    TOKEN = "/latest/api/token"  # noqa: S105 - a path
    ACTION = "/latest/meta-data/spot/instance-action"
    LASTS_S = 21600
    ACTIONS = ("hibernate", "stop", "terminate")

    def __init__(self) -> None:
        self._token = ""
        self._was_taken = False

    def request(self) -> bytes:
        """Return the next request: for a token, then for the notice."""
        host = "169.254.169.254"
        if not self._token:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.LASTS_S), "Content-Length": "0"}
            return _get(self.TOKEN, host, wanted, "PUT")
        return _get(self.ACTION, host, {"X-aws-ec2-metadata-token": self._token})

    def read(self, answer: ServiceAnswer) -> list[Notice] | None:
        """Return the notice, if there is one; None if there is more to ask.

        Raises:
            Unclear: The answer cannot be understood.
        """
        if not self._token:
            _expect_ok(answer)
            token = answer.body.decode("latin-1").strip()
            if not token or len(token) > TOKEN_LENGTH or not token.isascii() or not token.isprintable():
                raise Unclear("it returned no token")  # the token becomes a header of ours
            self._token, self._was_taken = token, False
            return None
        if answer.status == UNAUTHORIZED:
            self._token = ""
            if self._was_taken:  # the token has expired, as each does after some hours
                return None
            raise Unclear("it rejects its own token")
        self._was_taken = True
        if answer.status == NOT_FOUND:
            return []
        _expect_ok(answer)
        document = _parse_json(answer.body)
        action = document.get("action")
        if action not in self.ACTIONS:
            raise Unclear("an answer without a known action")
        # Hibernation begins at once, whatever time the notice has
        at = None if action == "hibernate" else parse_time(document.get("time"))
        what = f"AWS reclaims this spot instance (interruption notice: {action})"
        return [Notice(f"{action} {document.get('time')}"[:NAME_LENGTH], what, at)]


class Gcp:
    """Google Cloud's flag for a preempted machine: true for the 30 seconds that it has left."""

    title = "Google Cloud"
    every_s = 2.0
    PREEMPTED = "/computeMetadata/v1/instance/preempted"
    """Without wait_for_change, because a connection that stays open for days may be dead."""

    def request(self) -> bytes:
        """Return the request."""
        return _get(self.PREEMPTED, "metadata.google.internal", {"Metadata-Flavor": "Google"})

    def read(self, answer: ServiceAnswer) -> list[Notice] | None:
        """Return the notice, if there is one.

        Raises:
            Unclear: The answer cannot be understood.
        """
        _expect_ok(answer)
        word = answer.body.strip().upper()
        if word not in (b"TRUE", b"FALSE"):
            raise Unclear("an answer that is neither TRUE nor FALSE")
        what = "Google Cloud reclaims this spot machine (instance/preempted is TRUE)"
        return [Notice("preempted", what, None)] if word == b"TRUE" else []


Service = Azure | Aws | Gcp


def make_service(name: str) -> Service:
    """Return the service with this name in ``--preemption``."""
    kinds: dict[str, type[Azure] | type[Aws] | type[Gcp]] = {AZURE: Azure, AWS: Aws, GCP: Gcp}
    return kinds[name]()


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


def _get(path: str, host: str, headers: Mapping[str, str], verb: str = "GET") -> bytes:
    lines = [f"{verb} {path} HTTP/1.1", f"Host: {host}", "Connection: close", "User-Agent: launcher"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _expect_ok(answer: ServiceAnswer) -> None:
    if answer.status != OK:
        raise Unclear(f"status {answer.status}")


def _parse_json(body: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Unclear("not JSON") from None
    if not isinstance(document, dict):
        raise Unclear("not a JSON object")
    return document


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _words(value: object) -> str:
    """Return a text of the service, safe to show on one line; empty for any other value."""
    return quote(" ".join(value.split()), WORDS_LENGTH) if isinstance(value, str) else ""
