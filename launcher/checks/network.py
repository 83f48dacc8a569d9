"""Checks that the user's network variables fit this node: NCCL, gloo and TensorPipe report little about them.

Source: see `launcher.fabrics.variables`.
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import PROBLEM, WARNING, Finding, ok
from launcher.core.environ import NETWORK_NAMES
from launcher.fabrics.facts import read_variables
from launcher.fabrics.variables import find_faults


def look(case: CheckedNode) -> list[Finding]:
    """Compare each variable, and what NCCL's files set, with the interfaces and devices."""
    facts = read_variables(case.host, case.environ, case.ports)
    names = [name for name in NETWORK_NAMES if facts.told(name)]
    found = [
        Finding(
            "network",
            WARNING if fault.is_partial else PROBLEM,
            f"{fault.name}={fault.value!r}",
            "what this node has",
            fault.what,
            fault.fix,
        )
        for fault in find_faults(facts, spans_nodes=case.spans_nodes)
    ]
    return found or ([ok("network", ", ".join(names), "this node has what they name")] if names else [])
