"""Entry point: ``launcher run -- python -m launcher.bandwidth``, once per process of the job."""

from __future__ import annotations

import os
import sys

from launcher.bandwidth.expect import is_telling, judge, plan_expectation
from launcher.bandwidth.job import START, BandwidthJob, load_torch, read_identity
from launcher.bandwidth.measure import measure_pairs, sweep
from launcher.bandwidth.members import choose_backend, describe_process, list_units, read_members
from launcher.bandwidth.options import SLOW_BELOW, TIMEOUT_S, parse_options
from launcher.bandwidth.pairs import find_slow
from launcher.bandwidth.views import Setup, pairs_json, render_pairs, render_sweep, sweep_json
from launcher.core.errors import BROKEN_PIPE, LauncherError, NotReady, Problem, UsageError, print_problems
from launcher.core.files import replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.bandwidth.options import Options

WRONG_SUMS = 1
INTERRUPTED = 130  # 128 + SIGINT
HOW = "pairs without a common node at the same time, slow ones again alone"


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Measure together with the other processes; rank 0 reports. Return the exit status."""
    try:
        return run(parse_options(argv), environ)
    except LauncherError as error:
        print_problems(error)
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def run(options: Options, environ: Mapping[str, str]) -> int:
    """Find the other processes, measure, and leave them. Return the exit status."""
    identity = read_identity(environ)
    job = BandwidthJob(load_torch(), identity, TIMEOUT_S)
    facts = job.gather("facts", describe_process(job.torch, identity.local_rank, environ))
    members = read_members(facts)
    try:
        backend = choose_backend(members)
        job.use(backend)
        setup = Setup(backend, job.describe_library(backend), members)
        measure = _measure_pairs if options.pairs else _measure_all
        return measure(job, setup, options)
    finally:
        job.leave()


def _measure_all(job: BandwidthJob, setup: Setup, options: Options) -> int:
    with job.group("all", setup.backend, range(setup.process_count)) as group:
        samples, ended = sweep(group, options)
    ways = [member.ways for member in setup.members]
    fewest = min(len(member.ranks) for member in setup.members)
    expectation = plan_expectation(ways, setup.backend, fewest)
    best = max(samples, key=lambda sample: sample.bus_gbps)
    is_enough = is_telling(samples[-1].size_bytes, samples[-1].time_s)
    hints = [f"{way.name}: {hint}" for way in ways for hint in way.hints]
    verdict = judge(best.bus_gbps, is_enough, expectation, hints)
    if job.identity.rank == 0:
        render = sweep_json if options.format == "json" else render_sweep
        _write(render(setup, samples, ended, expectation, verdict), options.output)
    return 0 if all(sample.is_right for sample in samples) else WRONG_SUMS


def _measure_pairs(job: BandwidthJob, setup: Setup, options: Options) -> int:
    units = list_units(setup.members)
    if len(units) < 2:
        problem = Problem("usage", "--pairs: expected two processes or more, found one", "this job", START)
        raise UsageError(problem)
    pairs = measure_pairs(job, setup.backend, tuple(units.values()), options)
    slow = find_slow(pairs, SLOW_BELOW)
    if job.identity.rank == 0:
        render = pairs_json if options.format == "json" else render_pairs
        _write(render(setup, tuple(units), pairs, slow, HOW), options.output)
    return 0


def _write(text: str, path: str) -> None:
    """Write a report to a file, or to standard output for ``-``.

    Raises:
        NotReady: The report cannot be written.
    """
    try:
        if path == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            replace_file(text, path)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{path!r}: {error.strerror}"
        raise NotReady(Problem("cannot-write", what, "command line", "name another file")) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
