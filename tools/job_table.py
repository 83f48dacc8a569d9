"""The table of a job's life: what each event does in each phase, from the rules of the controller."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getdoc

from launcher.job.controller import RULES
from launcher.job.state import Phase

HEAD = ("event", "phase", "what happens")


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each event and what it does; phases in which it does the same share one."""
    for event, rules in RULES.items():
        phases: dict[object, list[str]] = {}
        for phase, rule in rules.items():
            phases.setdefault(rule, []).append(phase.value)
        name = f"`{event.__name__}`"
        for rule, names in phases.items():
            where = "any" if len(names) == len(list(Phase)) else ", ".join(names)
            yield name, where, " ".join((getdoc(rule) or "").split())
            name = ""
        if not phases:
            yield name, "any", "Only time has passed: decide what is due."
