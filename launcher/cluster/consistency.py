"""Compares the nodes of a job: what they must have in common, and what they should. Pure.

The rules are the rows of ``consistency.txt``, documented in docs/peers.md. A problem stops the job before it
starts. A warning is printed with the same kind of table, and the job goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.core.blocks import read_blocks
from launcher.core.frozen import frozen, replace
from launcher.core.redact import printable, quote

PROBLEM, WARNING = "problem", "warning"
UNKNOWN = "unknown"
CLOCK_S = 2.0
"""Seconds by which wall clocks may differ; beyond, logs and certificates are wrong. We need no wall clock."""
VALUE_LENGTH = 120
GROUPS_SHOWN = 8
NODES_SHOWN = 12
SETTING, CLOCK = "setting ", "clock"


@frozen
class Rule:
    """One fact that is compared.

    Attributes:
        key: Name of the fact among a node's facts.
        title: Its name in messages.
        level: Level of a difference: `PROBLEM` or `WARNING`.
        why: Effect of a difference on the job.
        fix: What to do.
    """

    key: str
    title: str
    level: str
    why: str
    fix: str


COMMAND = "use the same command line and variables on all nodes"
TABLE = "cluster/consistency.txt"
SETTINGS_RULE = Rule(SETTING, SETTING, WARNING, "the launcher sets another value on some nodes", COMMAND)


@frozen
class Disagreement:
    """A fact that differs between nodes.

    Attributes:
        rule: The rule of the fact.
        groups: Each value with the nodes that have it, the most common first.
    """

    rule: Rule
    groups: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def is_problem(self) -> bool:
        """Whether the job must not start."""
        return self.rule.level == PROBLEM

    @property
    def fix(self) -> str:
        """What to do; of several numbers the least works on all nodes."""
        numbers = [int(value) for value, _ in self.groups if value.isdecimal()]
        return self.rule.fix.replace("{least}", str(min(numbers, default=1)))


def read_rules() -> list[Rule]:
    """Return the rows of the table."""
    names = ("title", "level", "why", "fix")
    return [Rule(row.name, *(row.fields[name] for name in names)) for row in read_blocks(TABLE)]


def compare(facts_by_node: Mapping[str, Mapping[str, object]]) -> list[Disagreement]:
    """Return what the nodes differ in, problems first; settings are compared only if there is no problem.

    Args:
        facts_by_node: Each node's facts, by the node's name. A fact that a node does not know (None, or
            missing) is not compared.
    """
    clocks = describe_clocks(facts_by_node)
    nodes = {name: {CLOCK: clocks.get(name), **facts} for name, facts in facts_by_node.items()}
    compared = [
        _compare(rule, {name: facts.get(rule.key) for name, facts in nodes.items()}) for rule in read_rules()
    ]
    found = [item for item in compared if item is not None]
    if any(item.is_problem for item in found):  # settings would hide it, and most of them follow from it
        return sorted(found, key=lambda item: not item.is_problem)
    settings = {name: _read_settings(facts) for name, facts in nodes.items()}
    for setting in sorted({one for values in settings.values() for one in values}):
        rule = replace(SETTINGS_RULE, key=SETTING + setting, title=setting)
        item = _compare(rule, {name: values.get(setting) for name, values in settings.items()})
        found += [] if item is None else [item]
    return found


def _compare(rule: Rule, values: Mapping[str, object]) -> Disagreement | None:
    by_value: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name, value in values.items():
        by_value.setdefault(str(value), []).append(name) if value not in (None, "") else unknown.append(name)
    if len(by_value) < 2:
        return None  # as nearly always, and then no value need be searched for secrets
    by_text: dict[str, list[str]] = {}
    for text, names in by_value.items():
        by_text.setdefault(quote(text, VALUE_LENGTH), []).extend(names)
    if len(by_text) < 2:
        return None  # they differ in what is not shown
    groups = sorted(by_text.items(), key=lambda group: -len(group[1]))
    rest = [(UNKNOWN, unknown)] if unknown else []
    return Disagreement(rule, tuple((text, tuple(names)) for text, names in (*groups, *rest)))


def _read_settings(facts: Mapping[str, object]) -> Mapping[str, object]:
    settings = facts.get("settings")
    return settings if isinstance(settings, Mapping) else {}


def describe_clocks(facts_by_node: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Return how far the clock of each node is ahead of most, if it was measured against node 0's."""
    ahead = {
        name: float(value)
        for name, facts in facts_by_node.items()
        if isinstance(value := facts.get("clock_ahead_s"), (int, float)) and not isinstance(value, bool)
    }
    middle = sorted(ahead.values())[len(ahead) // 2] if ahead else 0.0
    return {
        name: "as most" if abs(seconds - middle) <= CLOCK_S else f"{seconds - middle:+.1f} s"
        for name, seconds in ahead.items()
    }


def render_table(found: Sequence[Disagreement]) -> list[str]:
    """Return lines that show what differs and which nodes have which value; ``>`` marks the odd ones."""
    lines = []
    for item in found:
        rule = item.rule
        lines.append(f"{rule.level}: the nodes differ in {printable(rule.title)}: {rule.why}")
        width = max(len(value) for value, _ in item.groups[:GROUPS_SHOWN])
        for index, (value, names) in enumerate(item.groups[:GROUPS_SHOWN]):
            mark = ">" if index else " "
            lines.append(f"  {mark} {value:<{width}}  {name_nodes(names)}")
        if len(item.groups) > GROUPS_SHOWN:
            lines.append(f"  > and {len(item.groups) - GROUPS_SHOWN} more values")
        lines.append(f"    fix: {item.fix}")
    return lines


def name_nodes(names: Sequence[str]) -> str:
    """Return e.g. ``node 0 (a), node 1 (b) and 30 more``."""
    more = f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else ""
    return ", ".join(names[:NODES_SHOWN]) + more
