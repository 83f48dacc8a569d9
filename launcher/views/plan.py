"""A plan for people (text, by rich) and for tools (JSON, documented in docs/plan-json.md).

Nothing leaves here raw: secrets are taken out, and control characters are shown as escapes.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping, Sequence

from launcher import __version__
from launcher.engines.forward import list_withheld
from launcher.engines.mpirun import FOLDER, JOB, MPIRUN
from launcher.flags import PREFIX
from launcher.machine.cpus import render_cpu_list
from launcher.model import Agent, Companion, Finding, Fleet, Mode, Network, Plan, Policy, Process, Setting
from launcher.redact import printable, redact, redact_argv
from launcher.run.signals import name_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.table import Table

VERSION = 1


def describe(plan: Plan, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the plan as a JSON object; ``environ`` is what the processes would inherit."""
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
        "settings": [_setting(setting, environ) for setting in plan.settings],
        "unset": list(plan.unset),
        "widen_cpus": plan.widen_cpus,
        "bind": plan.bind,
        "grace_s": plan.supervision.grace_s,
        "supervision": _supervision(plan) if plan.mode is Mode.SUPERVISE else None,
        "meeting": None if plan.meeting is None else dict(vars(plan.meeting)),
        "ports": [{"port": port, "name": name} for port, name in plan.ports],
        "companions": [_companion(companion, environ) for companion in plan.companions],
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


def _agent(agent: Agent, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "argv": redact_argv(agent.argv),
        "settings": [_setting(setting, environ) for setting in agent.settings],
        "unset": list(agent.unset),
        "files": {word: redact(text) for word, text in agent.files},
        "fleet": None if agent.fleet is None else _fleet(agent.fleet),
    }


def _fleet(fleet: Fleet) -> dict[str, object]:
    """Return how the nodes are reached; of a key only that there is one."""
    return {
        "hosts": list(fleet.hosts),
        "per_node": fleet.per_node,
        "address": fleet.address,
        "ssh_port": fleet.ssh_port,
        "has_key": fleet.has_key,
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
        "on_stall": watch.on_stall,
        "restarts": watch.restarts,
        "failure_file": None if watch.failure_file is None else redact(watch.failure_file),
        "verify_fabric": watch.proof is not None,
    }


def _fact(finding: Finding) -> dict[str, object]:
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


def _setting(setting: Setting, environ: Mapping[str, str]) -> dict[str, object]:
    """Return a setting; ``inherited``: the other value that was there, ``kept``: it stays."""
    inherited = environ.get(setting.name) or None
    result: dict[str, object] = {
        "name": setting.name,
        "value": redact(setting.value),
        "origin": redact(setting.origin),
    }
    if inherited is not None and inherited != setting.value:
        result["inherited"] = redact(inherited)
        result["kept"] = setting.policy is Policy.IF_UNSET
    return result


def _process(process: Process, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "rank": process.rank,
        "local_rank": process.local_rank,
        "argv": redact_argv(process.argv),
        "cpus": None if process.cpus is None else render_cpu_list(process.cpus),
        "settings": [_setting(setting, environ) for setting in process.settings],
    }


def _companion(companion: Companion, environ: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": companion.name,
        "argv": redact_argv(companion.argv),
        "finishes": companion.finishes,
        "settings": [_setting(setting, environ) for setting in companion.settings],
        "unset": list(companion.unset),
        "route": {"to_file": companion.route.to_file, "to_console": companion.route.to_console},
    }


def render_json(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the plan as JSON text, keys in a fixed order."""
    return json.dumps(describe(plan, environ), indent=1) + "\n"


def render_text(plan: Plan, environ: Mapping[str, str]) -> str:
    """Return the plan for people: the facts and who said so, the variables, the commands."""
    from rich.console import Console  # 50 ms that JSON has no use for

    terminal = Console()
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal.is_terminal,
        # a log has no width; wrapped at 80 the origins would be unreadable
        width=terminal.width if terminal.is_terminal else 160,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(_headline(plan))
    console.print(_facts_table(plan))
    console.print(_settings_table(plan, environ))
    if plan.unset:
        console.print(f"not inherited: {', '.join(printable(name) for name in plan.unset)}")
    for line in [
        *(*_commands(plan), *_ports(plan), *_nodes(plan, environ), *_fabric(plan)),
        *(*_watch(plan), *_notes(plan)),
    ]:
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)  # noqa: S101 - ours, above
    return console.file.getvalue()


def _headline(plan: Plan) -> str:
    shape = plan.topology
    nodes = f"{shape.node_count} nodes" if shape.node_count != 1 else "1 node"
    if shape.node_count is None:
        nodes = "an unknown number of nodes"
    where = "?" if shape.node_rank is None else str(shape.node_rank)
    started = f"started once per {plan.allocation.scope.value} by {plan.allocation.source}"
    if plan.allocation.node_range is not None:
        nodes = "{} to {} nodes".format(*plan.allocation.node_range)
    world = shape.world_size
    processes = "a number of processes" if world is None else f"{world} process{'es' if world > 1 else ''}"
    return f"{processes} on {nodes}; this is node {where}; {started}"


def _facts_table(plan: Plan) -> Table:
    rows = []
    for finding in plan.findings:
        claim = finding.claim
        rows.append((claim.fact.value, _show(claim.value), f"{claim.origin}  ({claim.source})"))
        for lost in finding.lost:
            rows.append(("", f"not {_show(lost.claim.value)}" if lost.why != "agrees" else "",
                         f"{lost.claim.origin}  ({lost.claim.source}): {lost.why}"))  # fmt: skip
    return _table(("fact", "value", "from"), rows)


def _settings_table(plan: Plan, environ: Mapping[str, str]) -> Table:
    rows = [_setting_row(setting, environ) for setting in plan.settings]
    if plan.agent is not None and plan.agent.settings:
        own = [_setting_row(setting, environ) for setting in plan.agent.settings]
        rows = [(f"-- {plan.engine} itself --", "", ""), *own, ("-- its processes --", "", ""), *rows]
    for companion in plan.companions:
        rows.append((f"-- {companion.name} --", "", ""))
        rows += [_setting_row(setting, environ) for setting in companion.settings]
    for process in plan.processes:
        if len(plan.processes) + len(plan.companions) > 1:
            rows.append((f"-- rank {process.rank} --", "", ""))
        rows += [_setting_row(setting, environ) for setting in process.settings]
    return _table(("variable", "value", "from"), rows)


def _setting_row(setting: Setting, environ: Mapping[str, str]) -> tuple[str, str, str]:
    described = _setting(setting, environ)
    if described.get("kept"):
        return (
            setting.name,
            str(described["inherited"]),
            f"yours; else {setting.value}: {setting.origin}",
        )
    replaced = f"; replaces {described['inherited']!r}" if "inherited" in described else ""
    return setting.name, setting.value, setting.origin + replaced


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in head:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(redact(cell))) for cell in row))
    return table


def _show(value: object) -> str:
    if isinstance(value, tuple):
        rest = f" and {len(value) - 8} more" if len(value) > 8 else ""
        return ", ".join(str(item) for item in value[:8]) + rest
    return str(value)


def _commands(plan: Plan) -> list[str]:
    verb = "become" if plan.mode is Mode.EXEC else "start"
    fleet = None if plan.agent is None else plan.agent.fleet
    if fleet is not None and plan.topology.node_rank:
        where = f"{printable(fleet.address)}, port {fleet.ssh_port}"
        return [f"serve: sshd at {where}, with the keys of the job, until node 0 says how it ended"]
    lines = [(one.name, one.argv) for one in plan.companions if one.argv]
    lines += [(f"rank {p.rank}{_where(p)}", p.argv) for p in plan.processes if p.argv]
    if plan.agent is not None and plan.agent.argv:
        lines = [(plan.engine, plan.agent.argv)]  # what its processes are stands at the end of its line
    return [f"{verb} {who}: {printable(shlex.join(redact_argv(argv)))}" for who, argv in lines]


def _ports(plan: Plan) -> list[str]:
    listed = ", ".join(f"{port} ({name})" for port, name in plan.ports)
    lines = [f"ports that must be free here: {listed}"] if listed else []
    if plan.meeting is not None:
        where = f"{printable(plan.meeting.address)}, port {plan.meeting.port}"
        lines.append(f"before the start the nodes tell each other their addresses, at {where}")
    return lines


def _nodes(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Return how the nodes are reached from the one that starts all ranks, and what these get."""
    agent = plan.agent
    if agent is None or agent.fleet is None or plan.topology.node_rank:
        return []
    fleet, count = agent.fleet, len(agent.fleet.hosts)
    nodes = f"nodes: {_show(fleet.hosts)}; {fleet.per_node} rank{'s' if fleet.per_node > 1 else ''} on each"
    if count > 1:
        port = f"port {fleet.ssh_port}" if fleet.ssh_port else "the port that ssh takes"
        keys = "the keys of the job" if fleet.has_key else "your own keys"
        nodes += f"; by ssh at {port} with {keys}, all within {fleet.timeout_s:g} s"
    lines = [nodes, *(_forwarded(fleet, environ) if agent.engine == MPIRUN else [])]
    lines += [f"{word} is a file: {'; '.join(text.splitlines())}" for word, text in agent.files]
    lines.append(f"{FOLDER} is a private folder, {JOB} the name of the job: made when it starts")
    return [printable(redact(line)) for line in lines]


def _forwarded(fleet: Fleet, environ: Mapping[str, str]) -> list[str]:
    """Return which variables of this node mpirun's ranks get, and which they do not."""
    lines = [f"their ranks get from here: {', '.join(fleet.forward) or 'no variable'}"]
    withheld = list_withheld(
        {name: text for name, text in environ.items() if not name.startswith(PREFIX)}, fleet.forward
    )
    if withheld:
        lines.append(f"secrets stay here, unless named by --forward: {', '.join(withheld)}")
    return lines


def _fabric(plan: Plan) -> list[str]:
    """Return how the nodes talk; a note says the same to tools."""
    network = plan.network
    if network is None:
        return []
    proof = plan.supervision.proof
    checked = "" if proof is None else "; to be verified by what NCCL says on rank 0"
    ends = f", or the job ends ({proof.required})" if proof is not None and proof.required else ""
    return [f"fabric: {printable(redact(f'{network.fabric} ({network.why}){checked}{ends}'))}"]


def _watch(plan: Plan) -> list[str]:
    """Return how they are watched and stopped, where the launcher stays."""
    if plan.mode is not Mode.SUPERVISE:
        return []
    watch = plan.supervision
    parts = [f"to end them: SIGTERM to each {watch.signal_to}, SIGKILL after {watch.grace_s:g} s"]
    parts += [f"{name_signal(sent)} where {name_signal(number)} arrives" for number, sent in watch.signal_map]
    parts += ["lines begin with their rank"] if watch.prefix else []
    if any(route.to_file for route in watch.routes):
        parts.append(f"output in files below {watch.log_dir or 'a temporary folder'}")
    parts += [f"{watch.restarts} restarts"] if watch.restarts else []
    parts += (
        [f"{watch.on_stall} after {watch.stall_timeout_s:g} s of silence"] if watch.stall_timeout_s else []
    )
    parts += [f"failure record in {watch.failure_file}"] if watch.failure_file else []
    return [f"watch: {printable(redact('; '.join(parts)))}"]


def _where(process: Process) -> str:
    return "" if process.cpus is None else f" on CPUs {render_cpu_list(process.cpus)}"


def _notes(plan: Plan) -> list[str]:
    said = "" if plan.network is None else f"fabric {plan.network.fabric}: {plan.network.why}"
    return [f"note: {printable(redact(note))}" for note in plan.notes if note != said]
