"""Checks that the user's network variables fit this node: NCCL, gloo and TensorPipe report little about them.

Source: see `launcher.fabrics.variables`.
"""

from __future__ import annotations

from launcher.checks.case import CheckedNode
from launcher.checks.finding import Findings, fail, ok, warn
from launcher.core.environ import NETWORK_NAMES
from launcher.fabrics.facts import read_variables
from launcher.fabrics.variables import find_faults


def look(case: CheckedNode) -> Findings:
    """Compare each variable, and what NCCL's files set, with the interfaces and devices."""
    facts = read_variables(case.host, case.environ, case.ports)
    names = [name for name in NETWORK_NAMES if facts.told(name)]
    faults = find_faults(facts, spans_nodes=case.spans_nodes)
    for fault in faults:
        report = warn if fault.is_partial else fail
        yield report(f"{fault.name}={fault.value!r}", "what this node has", fault.what, fault.fix)
    if names and not faults:
        yield ok(", ".join(names), "this node has what they name")
