"""Checks this node, before the job starts, for anything that would make it fail, hang or run slowly.

Each check is a function ``check_NAME(case)`` that yields findings: none if there is nothing to check, or if
the answer is unknown. A check reads the node only through `launcher.machine.host.Host`, and does not raise,
whatever the files contain.

To add a check, add its function to the module of its subject, one row to ``checks.txt``, its tests, and one
row to docs/checks.md.
"""

from __future__ import annotations

from importlib import import_module

from launcher.checks.finding import LEVELS, OK, WARNING, Finding
from launcher.core.blocks import read_rows
from launcher.core.frozen import frozen, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.checks.case import CheckedNode


@frozen
class Row:
    """A check.

    Attributes:
        name: Name of the check.
        module: Name of its module in this package.
        about: Its subject, for people.
        is_quick: Whether ``launcher run`` makes it: a quick check only reads, and asks no service.
        is_live: Whether it needs the node itself, because a snapshot lacks the facts.
        is_before: Whether it is meaningful only before the processes of the job have started.
    """

    name: str
    module: str
    about: str
    is_quick: bool
    is_live: bool
    is_before: bool


TABLE = tuple(
    Row(name, module, about, "slow" not in marks, "live" in marks, "before" in marks)
    for name, module, marks, about in read_rows("checks/checks.txt")
)


@frozen
class Result:
    """The findings of all checks, problems last; ``silent`` names the checks without a finding."""

    findings: tuple[Finding, ...]
    silent: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The level of the worst finding; ``"ok"`` if there is none."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default=OK)

    def count(self, level: str) -> int:
        """Return the number of findings of a level."""
        return sum(finding.level == level for finding in self.findings)


def run_checks(
    case: CheckedNode, *, quick: bool = False, started: bool = False, more: Sequence[Finding] = ()
) -> Result:
    """Make all checks, or all quick ones, that this node or snapshot can answer.

    Args:
        case: The node and the job.
        quick: Whether to make only the quick checks, which cost next to nothing.
        started: Whether the processes of the job have already started.
        more: Findings from elsewhere to include in the result.
    """
    found, silent = list(more), []
    for row in TABLE:
        if (quick and not row.is_quick) or (started and row.is_before):
            continue
        findings = [] if row.is_live and case.host.is_recorded() else look(row, case)
        found += findings
        silent += [] if findings else [row.name]
    return Result(tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level))), tuple(silent))


def look(row: Row, case: CheckedNode) -> list[Finding]:
    """Make one check. A bug in it must not end a job, nor hide the other findings."""
    try:
        check = getattr(import_module(f"launcher.checks.{row.module}"), f"check_{row.name}")
        return [replace(finding, check=row.name) for finding in check(case)]
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        fix = "report it, with the output of: launcher snapshot"
        return [Finding(row.name, WARNING, "the check itself", "an answer", found, fix)]
