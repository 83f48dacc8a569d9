"""The record of a failure: a verdict as JSON, for platforms and programs. docs/failures.md has its keys."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

from launcher import __version__
from launcher.run.signals import name_signal
from launcher.run.verdict import End, Verdict

SCHEMA = 1


def render_json(verdict: Verdict) -> str:
    """Return the record of the failure, see docs/failures.md, with a newline at the end."""
    first = verdict.first
    record = {
        "schema": SCHEMA,
        "launcher": __version__,
        "verdict": verdict.summary,
        "retryable": verdict.retryable,
        "causes": [
            {
                "code": cause.code,
                "what": cause.what,
                "fix": cause.fix,
                "retryable": cause.retryable,
                "consequence": cause.consequence,
            }
            for cause in verdict.causes
        ],
        **_describe(first),
        "host": verdict.host_name,
        "node_rank": verdict.node_rank,
        "world_size": verdict.world_size,
        "attempt": verdict.attempt,
        "started": _iso(verdict.started_ns),
        "ended": _iso(verdict.ended_ns),
        "ended_ns": verdict.ended_ns,
        "seconds": _rounded(verdict.ended_ns - verdict.started_ns),
        "told": verdict.told,
        "exception": verdict.exception or None,
        "traceback": "\n".join(verdict.traceback) or None,
        "traceback_from": verdict.traceback_from,
        "stderr": "\n".join(verdict.stderr) or None,
        "note": verdict.note or None,
        "others": [{**_describe(end), "seconds_after": _rounded(end.after_ns)} for end in verdict.others],
        "leftovers": list(verdict.leftovers),
        "shortened": False,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def _describe(end: End) -> dict[str, object]:
    return {
        "called": end.called or None,
        "rank": None if end.called else end.rank,
        "local_rank": None if end.called else end.local_rank,
        "pid": end.pid,
        "exit_status": end.code if end.code >= 0 else 128 - end.code,
        "signal": name_signal(-end.code) if end.code < 0 else None,
        "status": end.status,
    }


def _iso(nanoseconds: int) -> str | None:
    """Return a moment as RFC 3339 in UTC, to the microsecond."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _rounded(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 6)
