"""Failure record: a verdict as JSON, for platforms and programs. docs/failures.md documents its keys."""

from __future__ import annotations

import json
import os
from errno import EACCES, EBUSY, EPERM, EROFS, EXDEV

from launcher.core.files import remove_file, replace_file, write_in_place
from launcher.core.log import CLOCK
from launcher.core.shorten import shorten_json
from launcher.core.version import __version__
from launcher.core.wire import render
from launcher.process.signal_file import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.failure.model import End, Verdict
    from launcher.machine.host import Host

SCHEMA = 1


def render_json(
    verdict: Verdict, timings: Mapping[str, object] | None = None, platform_attempt: int | None = None
) -> str:
    """Return the failure record, see docs/failures.md, with a newline at the end.

    Args:
        verdict: How the attempt ended.
        timings: Where the time has gone on the node that writes it.
        platform_attempt: How often the platform has started the job again; None if it does not say.
    """
    first = verdict.first
    record = {
        "schema": SCHEMA,
        "launcher": __version__,
        "verdict": verdict.summary,
        "retryable": verdict.retryable,
        "causes": [render(cause) for cause in verdict.causes],
        **_describe(first),
        "host": verdict.host_name,
        "node_rank": verdict.node_rank,
        "world_size": verdict.world_size,
        "attempt": verdict.attempt,
        "platform_attempt": platform_attempt,
        "started": CLOCK.render(verdict.started_ns),
        "ended": CLOCK.render(verdict.ended_ns),
        "ended_ns": verdict.ended_ns,
        "seconds": _rounded(verdict.lasted_ns),
        "told": verdict.told,
        "exception": verdict.exception or None,
        "traceback": "\n".join(verdict.traceback) or None,
        "traceback_from": verdict.traceback_from,
        "stderr": "\n".join(verdict.stderr) or None,
        "note": verdict.note or None,
        "others": [{**_describe(end), "seconds_after": _rounded(end.after_ns)} for end in verdict.others],
        "leftovers": list(verdict.leftovers),
        "also": list(verdict.also),
        "evidence": [render(group) for group in verdict.evidence],
        "timings": timings,
        "shortened": False,
    }
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def summarize(verdict: Verdict) -> dict[str, object]:
    """Return the fields of the event of a failure, see docs/events.md: those of the record that are short."""
    end, codes = _describe(verdict.first), [cause.code for cause in verdict.causes]
    facts = {
        "summary": verdict.summary,
        "cause": codes[0] if codes else None,
        "causes": codes,
        "retryable": verdict.retryable,
        "failed_rank": end["rank"],
        "failed_node": verdict.node_rank,
        "failed_host": verdict.host_name,
        "status": end["exit_status"],
        "signal": end["signal"],
        "exception": verdict.exception or None,
        "ended": CLOCK.render(verdict.ended_ns),
    }
    return {name: value for name, value in facts.items() if value is not None}


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


def _rounded(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 6)


TERMINATION_LOG = "/dev/termination-log"
IN_PLACE_BYTES = 4096
"""Kubernetes reads this much of a termination message, and a pipe takes it at once (PIPE_BUF)."""
AZURE_ML_RUN = "AZUREML_RUN_ID"
AZURE_ML_FOLDER = "AZUREML_CR_EXECUTION_WORKING_DIR_PATH"
IRREPLACEABLE = (EBUSY, EACCES, EPERM, EROFS, EXDEV)
"""Errors for a file that is mounted, or in another user's directory: writable perhaps, not replaceable."""


def default_failure_file(environ: Mapping[str, str], host: Host, node_rank: int | None = None) -> str | None:
    """Return the path at which the platform looks for the reason of a failure; None if there is none.

    Kubernetes reads /dev/termination-log. Azure ML uploads ./outputs at the end of a job; all nodes share
    that directory, so the file name contains the node.
    """
    log = host.path(TERMINATION_LOG)
    if os.path.isfile(log) and os.access(log, os.W_OK):
        return log
    if not environ.get(AZURE_ML_RUN):
        return None
    folder = os.path.join(_azure_ml_folder(environ, host), "outputs")
    place = folder if os.path.isdir(folder) else os.path.dirname(folder)
    if not os.access(place, os.W_OK | os.X_OK):
        return None
    name = f"node{node_rank}" if node_rank is not None else host.hostname()
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in name)[:64]
    return os.path.join(folder, f"launcher-failure-{plain}.json")


def _azure_ml_folder(environ: Mapping[str, str], host: Host) -> str:
    """Return the job's working directory, even if the command has changed its own."""
    stated = environ.get(AZURE_ML_FOLDER, "")
    if os.path.isabs(stated) and os.path.isdir(host.path(stated)):
        return host.path(stated)
    return os.path.abspath(os.curdir) if os.path.isdir(os.curdir) else "/nonexistent"


def write_verdict(text: str, path: str) -> str | None:
    """Write the record; return why it could not be written, None on success.

    It replaces an existing file in one step. A file that cannot be replaced (a mounted file such as
    Kubernetes' termination log, a pipe, a device) is written in place, with at most `IN_PLACE_BYTES`, to
    which `shorten_json` cuts it. A file that another user can have put there is not written to. Never raises,
    never waits.
    """
    try:
        _write(text, path)
    except (OSError, ValueError, RecursionError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return None


def remove_verdict(path: str) -> str | None:
    """Remove a record that no longer tells how the job ended; return why that failed, None on success.

    One that cannot be removed (a mounted file) is emptied. A pipe or a device stays as it is.
    """
    try:
        if not os.path.isfile(path):
            return None
        if not _is_mounted(path):
            try:
                remove_file(path)
                return None
            except OSError as error:
                if error.errno not in IRREPLACEABLE:
                    raise
        write_in_place("", path)
    except (OSError, ValueError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return None


def _is_mounted(path: str) -> bool:
    return os.path.basename(os.path.realpath(path)) == os.path.basename(TERMINATION_LOG)


def _write(text: str, path: str) -> None:
    is_file = os.path.isfile(path)
    if not (is_file and _is_mounted(path)) and (is_file or not os.path.exists(path)):
        try:
            replace_file(text, path, makes_folders=True)
            return
        except OSError as error:
            if error.errno not in IRREPLACEABLE or not is_file:
                raise
    write_in_place(shorten_json(text, IN_PLACE_BYTES), path)
