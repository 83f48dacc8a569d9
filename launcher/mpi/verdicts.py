"""A verdict on its way from the node of a rank to the head: as a JSON object, and back.

What arrives came from the network: every text is made safe once more, every number is a number.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.redact import printable, redact
from launcher.run.causes import Cause
from launcher.run.verdict import End, Verdict

LISTS = ("traceback", "stderr", "leftovers")


def render_record(verdict: Verdict) -> dict[str, object]:
    """Return a verdict as what JSON can hold."""
    record = dict(vars(verdict))
    record["first"] = dict(vars(verdict.first))
    record["causes"] = [dict(vars(cause)) for cause in verdict.causes]
    record["others"] = []
    return record


def parse_record(record: Mapping[str, object]) -> Verdict:
    """Return the verdict that `render_record` has rendered.

    Raises:
        KeyError: Something is missing.
        TypeError: Something is of another kind.
        ValueError: Likewise.
    """
    values = {key: _safe(value) for key, value in record.items()}
    first, causes = values["first"], values["causes"]
    if not isinstance(first, dict) or not isinstance(causes, list):
        raise TypeError("no verdict")
    values["first"] = End(**first)
    values["causes"] = tuple(Cause(**cause) for cause in causes)
    values["others"] = ()
    for key in LISTS:
        found = values[key]
        values[key] = tuple(str(item) for item in found) if isinstance(found, list) else ()
    for key in ("ended_ns", "started_ns", "attempt"):
        if not isinstance(values[key], int):
            raise TypeError(f"{key} is no number")
    return Verdict(**values)  # type: ignore[arg-type]


def _safe(value: object) -> object:
    if isinstance(value, str):
        return printable(redact(value))
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _safe(item) for key, item in value.items()}
    return value if isinstance(value, (int, float, bool)) or value is None else str(value)
