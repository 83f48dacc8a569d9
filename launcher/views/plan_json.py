"""Renders a plan as JSON (docs/plan-json.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.core.model import (
    Companion,
    Decided,
    Fleet,
    Mode,
    NodeCommand,
    Peers,
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


def describe(plan: Plan, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the plan as a JSON object; ``environ`` is the environment that the processes would inherit."""
    topology = plan.topology
    return {
        "version": VERSION,
        "launcher": __version__,
        "source": plan.allocation.source,
        "scope": plan.allocation.scope.value,
        "mode": plan.mode.value,
        "engine": plan.engine,
        "agent": None if plan.agent is None else _agent(plan.agent, environ),
        "topology": {
            "world_size": topology.world_size,
            "node_count": topology.node_count,
            "node_rank": topology.node_rank,
            "local_size": topology.local_size,
            "master_addr": topology.master_addr,
            "master_port": topology.master_port,
        },
        "machine": {
            "gpu_count": plan.machine.gpu_count,
            "cpu_count": plan.machine.cpu_count,
            "bound_cpu_count": plan.machine.bound_cpu_count,
        },
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
        "peers": None if plan.peers is None else _peers(plan.peers),
        "processes": [_process(process, environ) for process in plan.processes],
        "notes": [redact(note) for note in plan.notes],
        "reads": list(plan.reads),
    }


def _network(network: Network) -> dict[str, object]:
    return {
        "name": network.fabric,
        "why": redact(network.why),
        "port_count": network.port_count,
        "ports": list(network.ports),
        "files": {word: redact(text) for word, text in network.files},
    }


def _agent(agent: NodeCommand, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "argv": redact_argv(agent.argv),
        "settings": [describe_setting(setting, environ) for setting in agent.settings],
        "unset": list(agent.unset),
        "files": {word: redact(text) for word, text in agent.files},
        "fleet": None if agent.fleet is None else _fleet(agent.fleet),
    }


def _fleet(fleet: Fleet) -> dict[str, object]:
    """Return where the other nodes join the head."""
    return {
        "hosts": list(fleet.hosts),
        "per_node": fleet.per_node,
        "address": fleet.address,
        "ports": list(fleet.ports),
        "timeout_s": fleet.timeout_s,
        "forward": list(fleet.forward),
        "restored": list(fleet.restored),
    }


def _supervision(plan: Plan) -> dict[str, object]:
    watch = plan.supervision
    return {
        "signal_to": watch.signal_to,
        "signal_map": [list(pair) for pair in watch.signal_map],
        "prefix": watch.prefix,
        "log_dir": None if watch.log_dir is None else redact(watch.log_dir),
        "routes": [{"to_file": route.to_file, "to_console": route.to_console} for route in watch.routes],
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
        "never_status": list(rule.never_status),
        "delay_s": rule.delay_s,
        "delay_max_s": rule.delay_max_s,
        "reset_after_s": rule.reset_after_s,
        "progress_file": redact(rule.progress_file) or None,
        "progress_pattern": rule.progress_pattern or None,
        "attempts_file": redact(rule.attempts_file) or None,
        "rejoin_timeout_s": rule.rejoin_timeout_s,
        "health_command": redact_argv(rule.health_argv) or None,
    }


def _peers(peers: Peers) -> dict[str, object]:
    """Return how the launchers find each other; of a token only whether there is one."""
    return {
        "ports": list(peers.ports),
        "has_token": peers.has_token,
        "timeout_s": peers.timeout_s,
        "lost_after_s": peers.lost_after_s,
        "keep_going": peers.keep_going,
        **({"spare_count": peers.spare_count, "index": peers.index} if peers.spare_count else {}),
    }


def _fact(finding: Decided) -> dict[str, object]:
    claim = finding.claim
    return {
        "value": _value(claim.value),
        "origin": redact(claim.origin),
        "source": claim.source,
        "trust": claim.trust.name.lower(),
        "lost": [
            {
                "value": _value(lost.claim.value),
                "origin": redact(lost.claim.origin),
                "source": lost.claim.source,
                "why": redact(lost.why),
            }
            for lost in finding.lost
        ],
    }


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
        "route": {"to_file": companion.route.to_file, "to_console": companion.route.to_console},
    }


def render_json(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the plan as JSON text, with keys in a fixed order."""
    return json.dumps(describe(plan, environ), indent=1) + "\n"
