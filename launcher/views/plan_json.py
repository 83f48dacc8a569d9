"""Renders a plan as JSON (docs/plan-json.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.core.model import (
    Claim,
    Companion,
    Decided,
    Mode,
    NodeCommand,
    Plan,
    PlannedProcess,
    Policy,
    Setting,
)
from launcher.core.ranks import render_cpu_list
from launcher.core.redact import redact, redact_argv, redact_variable
from launcher.core.supervision import LogStyle, Network, Restarts
from launcher.core.version import __version__

VERSION = 1
TOPOLOGY = ("world_size", "node_count", "node_rank", "local_size", "master_addr", "master_port")
MACHINE = ("gpu_count", "cpu_count", "bound_cpu_count")
FLEET = ("hosts", "per_node", "address", "ports", "timeout_s", "forward", "restored")
PEERS = ("ports", "has_token", "timeout_s", "lost_after_s", "keep_going")
SPARES = ("spare_count", "index")
ROUTE = ("to_file", "to_console")


def describe(plan: Plan, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the plan as a JSON object; ``environ`` is the environment that the processes would inherit."""
    peers = plan.peers
    return {
        "version": VERSION,
        "launcher": __version__,
        "source": plan.allocation.source,
        "scope": plan.allocation.scope.value,
        "mode": plan.mode.value,
        "engine": plan.engine,
        "agent": None if plan.agent is None else _agent(plan.agent, environ),
        "topology": _pick(plan.topology, TOPOLOGY),
        "machine": _pick(plan.machine, MACHINE),
        "fabric": None if plan.network is None else _network(plan.network),
        "facts": {finding.claim.fact.value: _fact(finding) for finding in plan.findings},
        "settings": [describe_setting(setting, environ) for setting in plan.settings],
        "unset": list(plan.unset),
        "widen_cpus": plan.widen_cpus,
        "bind": plan.bind,
        "grace_s": plan.supervision.grace_s,
        "supervision": _supervision(plan) if plan.mode is Mode.SUPERVISE else None,
        "meeting": None if plan.meeting is None else dict(vars(plan.meeting)),
        "ports": [{"port": port, "name": name} for port, name in plan.ports],
        "companions": [_companion(companion, environ) for companion in plan.companions],
        "peers": None
        if peers is None
        else _pick(peers, PEERS if not peers.spare_count else (*PEERS, *SPARES)),
        "processes": [_process(process, environ) for process in plan.processes],
        "notes": [redact(note) for note in plan.notes],
        "reads": list(plan.reads),
    }


def _pick(value: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return attributes of a value by their names."""
    found = {name: getattr(value, name) for name in names}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in found.items()}


def _network(network: Network) -> dict[str, object]:
    return {
        "name": network.fabric,
        "why": redact(network.why),
        **_pick(network, ("port_count", "ports")),
        "files": {word: redact(text) for word, text in network.files},
    }


def _agent(agent: NodeCommand, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "argv": redact_argv(agent.argv),
        "settings": [describe_setting(setting, environ) for setting in agent.settings],
        "unset": list(agent.unset),
        "files": {word: redact(text) for word, text in agent.files},
        "fleet": None if agent.fleet is None else _pick(agent.fleet, FLEET),
    }


def _supervision(plan: Plan) -> dict[str, object]:
    watch = plan.supervision
    return {
        "signal_to": watch.signal_to,
        "signal_map": [list(pair) for pair in watch.signal_map],
        "prefix": watch.prefix,
        "log_dir": None if watch.log_dir is None else redact(watch.log_dir),
        "routes": [_pick(route, ROUTE) for route in watch.routes],
        "progress": watch.progress,
        "stall_timeout_s": watch.stall_timeout_s,
        **({"stall_limits": dict(watch.stall_limits)} if watch.stall_limits else {}),
        "on_stall": watch.on_stall,
        "idle_timeout_s": watch.idle_timeout_s,
        "meeting_timeout_s": None if watch.contact is None else watch.contact.timeout_s,
        "require_meeting": watch.contact is not None and watch.contact.required,
        "restarts": watch.restarts.most,
        **({"restart_rules": _restart_rules(watch.restarts)} if watch.restarts.most else {}),
        "stopped_status": watch.stopped_status,
        "fatal_status": watch.fatal_status,
        "failure_file": None if watch.failure_file is None else redact(watch.failure_file),
        **({} if watch.evidence_dir is None else {"evidence_dir": redact(watch.evidence_dir)}),
        **({} if watch.events is None else {"events": redact(watch.events)}),
        **({"traces": True} if watch.traces else {}),
        **({"timings": True} if watch.timings else {}),
        **({} if watch.stragglers else {"stragglers": False}),
        **({} if watch.slow_below is None else {"slow_below": watch.slow_below}),
        **({"log": vars(watch.log)} if watch.log != LogStyle() else {}),
        **({"stdin": watch.stdin} if watch.stdin else {}),
        **({} if watch.preload is None else {"preload": list(watch.preload.modules)}),
        "verify_fabric": watch.proof is not None,
        "preemption": None if watch.preemption is None else watch.preemption.service,
        "metrics_port": watch.metrics_port or None,
    }


def _restart_rules(rule: Restarts) -> dict[str, object]:
    """Return when the processes start again, without secrets of paths and commands."""
    return {
        "per_cause": rule.per_cause,
        "on": "any" if rule.on_any else "retryable",
        **_pick(rule, ("never_status", "delay_s", "delay_max_s", "reset_after_s")),
        "progress_file": redact(rule.progress_file) or None,
        "progress_pattern": redact(rule.progress_pattern) or None,
        "attempts_file": redact(rule.attempts_file) or None,
        "rejoin_timeout_s": rule.rejoin_timeout_s,
        "health_command": redact_argv(rule.health_argv) or None,
    }


def _fact(finding: Decided) -> dict[str, object]:
    return {
        **_claim(finding.claim),
        "trust": finding.claim.trust.name.lower(),
        "lost": [{**_claim(lost.claim), "why": redact(lost.why)} for lost in finding.lost],
    }


def _claim(claim: Claim) -> dict[str, object]:
    return {"value": _value(claim.value), "origin": redact(claim.origin), "source": claim.source}


def _value(value: object) -> object:
    if isinstance(value, tuple):
        return [redact(str(item)) for item in value]
    return redact(value) if isinstance(value, str) else value


def describe_setting(setting: Setting, environ: Mapping[str, str]) -> dict[str, object]:
    """Return a setting; ``inherited`` is a different value in ``environ``, ``kept`` whether it stays."""
    inherited = environ.get(setting.name) or None
    result: dict[str, object] = {
        "name": setting.name,
        "value": redact_variable(setting.name, setting.value),
        "origin": redact(setting.origin),
    }
    if inherited is not None and inherited != setting.value:
        result["inherited"] = redact_variable(setting.name, inherited)
        result["kept"] = setting.policy is Policy.IF_UNSET
    return result


def _process(process: PlannedProcess, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "argv": redact_argv(process.argv),
        "cpus": None if process.cpus is None else render_cpu_list(process.cpus),
        "settings": [describe_setting(setting, environ) for setting in process.settings],
    }


def _companion(companion: Companion, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": companion.name,
        "argv": redact_argv(companion.argv),
        "finishes": companion.finishes,
        "settings": [describe_setting(setting, environ) for setting in companion.settings],
        "unset": list(companion.unset),
        "route": _pick(companion.route, ROUTE),
    }


def render_json(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the plan as JSON text, with keys in a fixed order."""
    return json.dumps(describe(plan, environ), indent=1) + "\n"
