"""Renders the findings of checks, as lines for people and as JSON for tools. Problems come last."""

from __future__ import annotations

from launcher.checks import Result
from launcher.checks.case import CheckedNode
from launcher.checks.finding import LEVELS, OK, PROBLEM, WARNING, Finding, render_count
from launcher.core.errors import TEXT_MAX
from launcher.core.redact import quote, shorten
from launcher.core.version import __version__

VERSION = 1
COLOURS = {OK: "\033[32m", WARNING: "\033[33m", PROBLEM: "\033[1;31m"}
RESET = "\033[0m"


def render_text(result: Result, case: CheckedNode, *, colours: bool = False) -> str:
    """Return one line per finding, the number of findings of each level, and the checks without a finding."""
    width = max((len(finding.check) for finding in result.findings), default=0)
    lines = []
    for finding in result.findings:
        level = finding.level.ljust(max(map(len, LEVELS)))
        level = f"{COLOURS[finding.level]}{level}{RESET}" if colours else level
        lines.append(f"{level}  {finding.check.ljust(width)}  {render_finding(finding)}")
    counts = (
        render_count(result.count(PROBLEM), "problem"),
        render_count(result.count(WARNING), "warning"),
        f"{result.count(OK)} ok",
    )
    lines.append(_clean(f"{case.host.hostname()} ({case.runtime}): {', '.join(counts)}"))
    if result.silent:
        lines.append(f"skipped: {', '.join(result.silent)}")
    return "\n".join(lines) + "\n"


def render_finding(finding: Finding) -> str:
    """Return a finding as one line, safe for a terminal."""
    if finding.level == OK:
        return _clean(f"{finding.what}: {finding.found}")
    expected = f"{finding.what}: expected {finding.expected}, found {finding.found}"
    return _clean(f"{expected}; fix: {finding.fix}")


def render_json(result: Result, case: CheckedNode) -> str:
    """Return the whole result as a JSON document (docs/checks.md)."""
    import json  # here, because launcher run --check prints only lines

    document = {
        "version": VERSION,
        "launcher": __version__,
        "hostname": case.host.hostname(),
        "runtime": case.runtime,
        "verdict": result.verdict,
        "problems": result.count(PROBLEM),
        "warnings": result.count(WARNING),
        "findings": [
            {name: shorten(text, TEXT_MAX) for name, text in vars(finding).items()}
            for finding in result.findings
        ],
        "silent": list(result.silent),
    }
    return json.dumps(document, indent=1) + "\n"


def _clean(text: str) -> str:
    return quote(" ".join(text.split()), TEXT_MAX)
