"""The last word of a job that has failed: gathered here, loaded only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.host import Host
from launcher.model import Supervision
from launcher.run.causes import find_causes
from launcher.run.counters import Counters, read_counters
from launcher.run.failure_file import default_failure_file, write_verdict
from launcher.run.family import describe
from launcher.run.output import Output
from launcher.run.verdict import Death, Verdict, make_verdict, render_json, render_text


def judge(
    first: Death,
    others: Sequence[Death],
    *,
    before: Counters | None,
    after: Counters | None,
    survivors: Sequence[int],
    node_rank: int | None,
    world_size: int | None,
    attempt: int,
    started_ns: int,
    told: str | None,
    reason: str | None = None,
    mismatch: tuple[str, str] | None = None,
) -> Verdict:
    """Return the verdict on the processes of this node, see `make_verdict`."""
    host = Host()
    before = before or read_counters(host)
    return make_verdict(
        first,
        others,
        host_name=host.hostname(),
        node_rank=node_rank,
        world_size=world_size,
        attempt=attempt,
        started_ns=started_ns,
        told=told,
        causes=find_causes(first, before, host, after or read_counters(host, before)),
        reason=reason,
        mismatch=mismatch,
        leftovers=[describe(pid) for pid in survivors],
    )


def publish(
    verdict: Verdict,
    output: Output,
    watch: Supervision,
    environ: Mapping[str, str],
    *,
    shown: bool = True,
) -> None:
    """Write the verdict as the last screen of the log, and as JSON where somebody looks for it."""
    if shown:
        output.write(render_text(verdict, output.has_colour))
    path = watch.failure_file or default_failure_file(environ, Host(), verdict.node_rank)
    if path is not None:
        complaint = write_verdict(render_json(verdict), path)
        output.say(f"the failure record: {path}" if complaint is None else f"no failure record: {complaint}")
