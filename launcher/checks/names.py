"""Checks that the names of this node and of the master resolve to their addresses.

gloo resolves the node's own name. If that fails, gloo listens on the loopback address, where other nodes
cannot reach it. If the master's name resolves differently on each node, the job has several masters.

Source: PyTorch torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice: hostname, else the
loopback; GLOO_SOCKET_IFNAME goes first).
"""

from __future__ import annotations

from launcher.checks.case import KUBERNETES, CheckedNode
from launcher.checks.finding import Finding, Findings, fail, ok, warn
from launcher.core.environ import is_loopback
from launcher.planning.parts import GLOO_INTERFACE


def look(case: CheckedNode) -> Findings:
    """Resolve both names, within some seconds."""
    own = case.host.hostname()
    asked = {own, case.master_addr} - {""}
    answers = case.host.look_up(tuple(asked))
    ours = case.host.own_addresses()
    yield _judge_own(case, own, answers.get(own), ours)
    if case.master_addr and case.spans_nodes:
        yield _judge_master(case, answers.get(case.master_addr), ours)


def _judge_own(case: CheckedNode, name: str, found: frozenset[str] | None, ours: frozenset[str]) -> Finding:
    what = f"hostname {name!r}"
    usable = sorted(address for address in found or () if address in ours and not is_loopback(address))
    if usable:
        return ok(what, ", ".join(usable))
    told = "no answer" if found is None else ", ".join(sorted(found)) or "nothing: the name is not known"
    if not case.spans_nodes:
        return ok(what, f"{told} (fine for one node)")
    if case.gloo_interface:
        return ok(what, f"{told}, and gloo uses {GLOO_INTERFACE}={case.gloo_interface}")
    by_variable = f"set {GLOO_INTERFACE}=eth0 (or the interface that leads to the others)"
    fix = f"{by_variable}, or add {name} with its address to /etc/hosts"
    if case.runtime == KUBERNETES:
        fix += ", or use hostNetwork with a DNS policy that knows it"
    report = warn if case.environ.get(GLOO_INTERFACE) else fail
    return report(what, "an address that other nodes reach it by", told, fix)


def _judge_master(case: CheckedNode, found: frozenset[str] | None, ours: frozenset[str]) -> Finding:
    what, expected = f"the master, {case.master_addr!r}", "an address of node 0"
    fix = "set MASTER_ADDR (or --master-addr) to the address of node 0"
    if case.runtime == KUBERNETES:
        fix += ", or add a headless Service for the name"
    if not found:
        told = "nothing: the name is not known" if found is not None else "no answer in time"
        return fail(what, expected, told, fix)
    shown = ", ".join(sorted(found))
    is_here = any(address in ours or is_loopback(address) for address in found)
    if is_here and not case.is_master and case.node_rank:
        told = f"{shown}, which is this node, and this is node {case.node_rank}"
        return fail(what, expected, told, fix)
    if case.is_master and not is_here:
        told = f"{shown}, which is not this node, and rank 0 is here"
        return warn(what, "an address of this node, or one that leads here", told, fix)
    if case.is_master and all(map(is_loopback, found)):
        return warn(what, "the same address on all nodes", f"{shown}, here", fix)
    return ok(what, shown)
