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
from launcher.core.supervision import Network, Restarts, Supervision
from launcher.core.version import __version__

VERSION = 1
TOPOLOGY = ("world_size", "node_count", "node_rank", "local_size", "master_addr", "master_port")
MACHINE = ("gpu_count", "cpu_count", "bound_cpu_count")
FLEET = ("hosts", "per_node", "address", "ports", "timeout_s", "forward", "restored")
PEERS = ("ports", "has_token", "timeout_s", "lost_after_s", "keep_going")
SPARES = ("spare_count", "index")
ROUTE = ("to_file", "to_console")
CHANGED = ("evidence_dir", "events", "traces", "timings", "stragglers", "slow_below")
"""Fields of the supervision that are shown only if they differ from their default."""


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
        "peers": None if peers is None else _pick(peers, (*PEERS, *(SPARES if peers.spare_count else ()))),
        "processes": [_process(process, environ) for process in plan.processes],
        "notes": [redact(note) for note in plan.notes],
        "reads": list(plan.reads),
    }


def _plain(value: object) -> object:
    """Return a value as JSON has it, with secrets in texts redacted."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def _pick(value: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return attributes of a value by their names."""
    return {name: _plain(getattr(value, name)) for name in names}


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
    watch, usual = plan.supervision, Supervision()
    changed = tuple(name for name in CHANGED if getattr(watch, name) != getattr(usual, name))
    return {
        **_pick(watch, ("signal_to", "signal_map", "prefix", "log_dir")),
        "routes": [_pick(route, ROUTE) for route in watch.routes],
        **_pick(watch, ("progress", "stall_timeout_s")),
        **({"stall_limits": dict(watch.stall_limits)} if watch.stall_limits else {}),
        **_pick(watch, ("on_stall", "idle_timeout_s")),
        "meeting_timeout_s": None if watch.contact is None else watch.contact.timeout_s,
        "require_meeting": watch.contact is not None and watch.contact.required,
        "restarts": watch.restarts.most,
        **({"restart_rules": _restart_rules(watch.restarts)} if watch.restarts.most else {}),
        **_pick(watch, ("stopped_status", "fatal_status", "failure_file", *changed)),
        **({"log": vars(watch.log)} if watch.log != usual.log else {}),
        **({"stdin": watch.stdin} if watch.stdin else {}),
        **({} if watch.preload is None else {"preload": list(watch.preload.modules)}),
        "verify_fabric": watch.proof is not None,
        "preemption": None if watch.preemption is None else watch.preemption.service,
        "metrics_port": watch.metrics_port or None,
    }


def _restart_rules(rule: Restarts) -> dict[str, object]:
    """Return when the processes start again, without secrets of paths and commands."""
    progress = _pick(rule, ("progress_file", "progress_pattern", "attempts_file"))
    return {
        "per_cause": rule.per_cause,
        "on": "any" if rule.on_any else "retryable",
        **_pick(rule, ("never_status", "delay_s", "delay_max_s", "reset_after_s")),
        **{name: text or None for name, text in progress.items()},
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
    return _pick(claim, ("value", "origin", "source"))


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
