"""Renders a plan as text for people; `launcher.views.plan_json` renders it for tools.

The output is always cleaned: secrets are redacted, and control characters are shown as escapes.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from launcher.checks.finding import render_count
from launcher.core.errors import say_size
from launcher.core.frozen import replace
from launcher.core.model import MPIRUN, Claim, Fact, Fleet, Mode, Plan, Setting
from launcher.core.ranks import name_ranks, render_cpu_list
from launcher.core.redact import printable, redact, redact_argv
from launcher.core.supervision import Restarts
from launcher.engines.forward import list_withheld
from launcher.engines.mpirun import FOLDER, JOB
from launcher.options.flags import PREFIX
from launcher.output.tables import Paper, find_paper, lay_out
from launcher.planning.preload import describe
from launcher.process.signal_file import name_signal
from launcher.views.plan_json import describe_setting

Row = tuple[str, str, str]

LOG_WIDTH = 160
"""A log has no width; wrapped at 80 columns the origins would be hard to read."""
NUMBERS_SHOWN = 8
_NUMBER = re.compile(r"(\d+)")


SHOWN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG",
         "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")  # fmt: skip
SHOWN_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "FI_")
"""Variables that the short plan shows; the others follow from them."""


def render_text(plan: Plan, environ: Mapping[str, str], fd: int = 1, *, whole: bool = False) -> str:
    """Return the plan as text: the facts and their sources, the variables, the commands.

    Args:
        plan: The plan.
        environ: The environment that it starts from.
        fd: Where the text goes: if that is a terminal, the tables have its width.
        whole: Whether to show every variable and every source that agrees, which do not fit on a screen.
    """
    paper = find_paper(os.environ, fd)
    if not paper.width:
        paper = replace(paper, width=LOG_WIDTH)
    lines = [
        *(_headline(plan), "", *_facts_table(plan, paper, whole=whole), ""),
        *(*_settings_table(plan, environ, paper, whole=whole), ""),
    ]
    if plan.unset:
        lines.append(f"not inherited: {', '.join(printable(name) for name in plan.unset)}")
    lines += [*_commands(plan), *_ports(plan), *_nodes(plan, environ), *_fabric(plan), *_channel(plan)]
    of_fabric = "" if plan.network is None else f"fabric {plan.network.fabric}: {plan.network.why}"
    notes = [f"note: {printable(redact(note))}" for note in plan.notes if note != of_fabric]
    lines += [*_watch(plan), *notes]
    return "".join(f"{line}\n" for line in lines)


def _headline(plan: Plan) -> str:
    shape = plan.topology
    nodes = f"{shape.node_count} nodes" if shape.node_count != 1 else "1 node"
    if shape.node_count is None:
        nodes = "an unknown number of nodes"
    where = "?" if shape.node_rank is None else str(shape.node_rank)
    started = f"started once per {plan.allocation.scope.value} by {plan.allocation.source}"
    if plan.allocation.node_range is not None:
        nodes = "{} to {} nodes".format(*plan.allocation.node_range)
    if plan.peers is not None and plan.peers.spare_count:
        nodes += f" and {render_count(plan.peers.spare_count, 'spare node')}"
    world = shape.world_size
    processes = "a number of processes" if world is None else f"{world} process{'es' if world > 1 else ''}"
    spare = plan.allocation.spare
    place = f"node {where}" if spare is None else f"spare node {spare} (planned as node {where})"
    return f"{processes} on {nodes}; this is {place}; {started}"


def _facts_table(plan: Plan, paper: Paper, *, whole: bool) -> list[str]:
    rows = []
    for finding in plan.findings:
        claim = finding.claim
        value = _show_fact(claim)
        if claim.fact is Fact.NODE_COUNT and plan.peers is not None and plan.peers.spare_count:
            value += f" ({plan.peers.spare_count} spare)"
        rows.append((claim.fact.value, value, f"{claim.origin}  ({claim.source})"))
        for lost in (one for one in finding.lost if whole or one.why != "agrees"):
            rows.append(("", f"not {_show_fact(lost.claim)}" if lost.why != "agrees" else "",
                         f"{lost.claim.origin}  ({lost.claim.source}): {lost.why}"))  # fmt: skip
    return _table(paper, ("fact", "value", "from"), rows)


def _settings_table(plan: Plan, environ: Mapping[str, str], paper: Paper, *, whole: bool) -> list[str]:
    common = [_setting_row(setting, environ) for setting in plan.settings]
    own = _fold_rows([(p.rank, [_setting_row(item, environ) for item in p.settings]) for p in plan.processes])
    rows = [*common, *own]
    left = [] if whole else [name for name, _, origin in rows if not _is_shown(name, origin)]
    rows = [row for row in rows if whole or _is_shown(row[0], row[2])]
    if plan.agent is not None and plan.agent.settings:
        of_agent = [_setting_row(setting, environ) for setting in plan.agent.settings]
        rows = [(f"-- {plan.engine} itself --", "", ""), *of_agent, ("-- its processes --", "", ""), *rows]
    for companion in plan.companions:
        rows.append((f"-- {companion.name} --", "", ""))
        rows += [_setting_row(setting, environ) for setting in companion.settings]
    lines = _table(paper, ("variable", "value", "from"), rows)
    if left:
        lines.append(f" and {len(left)} more that follow from these, such as {left[0]}: launcher plan --all")
    return lines


def _is_shown(name: str, origin: str) -> bool:
    """Whether the short plan shows a variable: what the user has set, what decides, and the fabric."""
    of_some = origin.partition(": ")[2] if origin.startswith(("rank ", "ranks ")) else origin
    is_users = of_some.startswith(("yours; ", "--", PREFIX, "/"))
    return name in SHOWN or name.startswith(SHOWN_PREFIXES) or is_users


def _fold_rows(of_ranks: Sequence[tuple[int, list[Row]]]) -> list[Row]:
    """Return one row for each variable of the ranks; several where the values do not fold into one."""
    names = list(dict.fromkeys(name for _, rows in of_ranks for name, _, _ in rows))
    found: list[Row] = []
    for wanted in names:
        having = [
            (rank, value, origin) for rank, rows in of_ranks for name, value, origin in rows if name == wanted
        ]
        ranks, values, origins = zip(*having, strict=True)
        value = fold(values) if len(set(origins)) == 1 else None
        whose = "" if len(ranks) == len(of_ranks) else f"{name_ranks(ranks)}: "
        if value is not None:
            found.append((wanted, value, whose + origins[0]))
        else:
            found += [(wanted, text, f"rank {rank}: {origin}") for rank, text, origin in having]
    return found


def fold(texts: Sequence[str]) -> str | None:
    """Return one text for the texts of several ranks; None if they differ in more than numbers.

    ``["3", "4", "5", "6"]`` is ``"3 ... 6"``, ``["cpu:0", "cpu:2"]`` is ``"cpu:0, 2"``.
    """
    parts = [_NUMBER.split(text) for text in texts]  # numbers have odd indices
    if len({len(each) for each in parts}) > 1:
        return None
    folded = []
    for place, column in enumerate(zip(*parts, strict=True)):
        if len(set(column)) == 1:
            folded.append(column[0])
        elif place % 2:
            folded.append(fold_numbers([int(number) for number in column]))
        else:
            return None
    return "".join(folded)


def fold_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as text, e.g. ``0, 1``, ``0 ... 7``, ``0, 2, 4`` or ``0, 2, 4 ... 30``."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{first} ... {last}"
    if len(numbers) > NUMBERS_SHOWN:
        return f"{', '.join(map(str, numbers[:3]))} ... {last}"
    return ", ".join(map(str, numbers))


def _setting_row(setting: Setting, environ: Mapping[str, str]) -> tuple[str, str, str]:
    described = describe_setting(setting, environ)
    value = str(described["value"])
    if described.get("kept"):
        return setting.name, str(described["inherited"]), f"yours; else {value}: {setting.origin}"
    replaced = f"; replaces {described['inherited']!r}" if "inherited" in described else ""
    return setting.name, value, setting.origin + replaced


def _table(paper: Paper, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[printable(redact(cell)) for cell in row] for row in rows]
    return lay_out(paper, head, cells, folds=head)


def _show_fact(claim: Claim) -> str:
    """Return a claim's value as text; port 0 means any free port."""
    return "free" if claim.fact is Fact.MASTER_PORT and claim.value == 0 else _show(claim.value)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        rest = f" and {len(value) - 8} more" if len(value) > 8 else ""
        return ", ".join(str(item) for item in value[:8]) + rest
    return str(value)


def _commands(plan: Plan) -> list[str]:
    verb = "become" if plan.mode is Mode.EXEC else "start"
    fleet = None if plan.agent is None else plan.agent.fleet
    if fleet is not None and plan.topology.node_rank:
        head, ports = printable(fleet.hosts[0]), _name_ports(fleet.ports)
        return [f"serve: join node 0 at {head}, {ports}, until it reports how the job ended"]
    lines = [(one.name, one.argv) for one in plan.companions if one.argv]
    started = [p for p in plan.processes if p.argv]
    if len({p.argv for p in started}) == 1 and not any(p.cpus for p in started):
        lines.append((name_ranks([p.rank for p in started]), started[0].argv))
    else:
        at = {p: "" if p.cpus is None else f" on CPUs {render_cpu_list(p.cpus)}" for p in started}
        lines += [(f"rank {p.rank}{at[p]}", p.argv) for p in started]
    if plan.agent is not None and plan.agent.argv:
        lines = [(plan.engine, plan.agent.argv)]  # ends with the command of its processes
    return [f"{verb} {who}: {printable(shlex.join(redact_argv(argv)))}" for who, argv in lines]


def _ports(plan: Plan) -> list[str]:
    listed = ", ".join(f"{port} ({name})" for port, name in plan.ports)
    lines = [f"ports that must be free here: {listed}"] if listed else []
    if plan.meeting is not None:
        where = f"{printable(plan.meeting.address)}, port {plan.meeting.port}"
        way = f"before the start the nodes exchange their addresses at {where}"
        lines.append("node 0 sends all addresses at each start" if plan.meeting.at_start else way)
    return lines


def _name_ports(ports: tuple[int, ...]) -> str:
    """Return ``port 6106``, or ``ports 6106 to 6113``: node 0 takes the first free one."""
    return f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"


def _nodes(plan: Plan, environ: Mapping[str, str]) -> list[str]:
    """Return lines on how the node that starts all ranks reaches the others, and on what the ranks get."""
    agent = plan.agent
    if agent is None or agent.fleet is None or plan.topology.node_rank:
        return []
    fleet, count = agent.fleet, len(agent.fleet.hosts)
    nodes = f"nodes: {_show(fleet.hosts)}; {fleet.per_node} rank{'s' if fleet.per_node > 1 else ''} on each"
    if count > 1:
        where = f"{printable(fleet.address)}, {_name_ports(fleet.ports)}"
        nodes += f"; they join at {where}, all within {fleet.timeout_s:g} s"
    lines = [nodes, *(_forwarded(fleet, environ) if agent.engine == MPIRUN else [])]
    lines += [f"{word} is a file: {'; '.join(text.splitlines())}" for word, text in agent.files]
    lines.append(f"{FOLDER} is a private directory, {JOB} the job's name; both are made when the job starts")
    return [printable(redact(line)) for line in lines]


def _forwarded(fleet: Fleet, environ: Mapping[str, str]) -> list[str]:
    """Return lines on which of this node's variables mpirun's ranks get, and which secrets they don't."""
    lines = [f"variables forwarded to their ranks: {', '.join(fleet.forward) or 'no variable'}"]
    withheld = list_withheld(
        {name: text for name, text in environ.items() if not name.startswith(PREFIX)}, fleet.forward
    )
    if withheld:
        lines.append(f"secrets that are not forwarded (--forward NAME forwards one): {', '.join(withheld)}")
    return lines


def _fabric(plan: Plan) -> list[str]:
    """Return the line on the fabric between the nodes; a plan note has the same for tools."""
    network = plan.network
    if network is None:
        return []
    proof = plan.supervision.proof
    checked = "" if proof is None else "; to be verified by rank 0's NCCL log"
    ends = f", or the job ends ({proof.required})" if proof is not None and proof.required else ""
    return [f"fabric: {printable(redact(f'{network.fabric} ({network.why}){checked}{ends}'))}"]


def _channel(plan: Plan) -> list[str]:
    """Return the line on how the launchers of all nodes connect; none if they do not."""
    peers = plan.peers
    if peers is None:
        return []
    port = (
        f"port {peers.ports[0]}" if len(peers.ports) == 1 else f"port {peers.ports[0]} to {peers.ports[-1]}"
    )
    end = "each ends on its own" if peers.keep_going else f"end together, lost after {peers.lost_after_s:g} s"
    key = "a token" if peers.has_token else "no token"
    where = printable(plan.topology.master_addr)
    return [f"peers: all connect to {where} {port} within {peers.timeout_s:g} s, {key}; {end}"]


def _watch(plan: Plan) -> list[str]:
    """Return the line on how the processes are supervised and stopped; none without supervision."""
    if plan.mode is not Mode.SUPERVISE:
        return []
    watch = plan.supervision
    parts = [f"stops processes with SIGTERM to each {watch.signal_to}, and SIGKILL after {watch.grace_s:g} s"]
    parts += [f"{name_signal(sent)} where {name_signal(number)} arrives" for number, sent in watch.signal_map]
    parts += [f"exits with {watch.stopped_status} if a signal stops the job"] if watch.stopped_status else []
    parts += [f"exits with {watch.fatal_status} if no retry helps"] if watch.fatal_status else []
    parts += ["lines start with their rank"] if watch.prefix else []
    readers = {"all": "each rank gets a copy of standard input", "none": "no rank reads standard input"}
    reads = readers.get(str(watch.stdin), f"rank {watch.stdin} reads standard input")
    parts += [reads] if watch.stdin else []
    parts += ["the log is JSON"] if watch.log.as_json else []
    parts += ["lines start with the time"] if watch.log.timestamps and not watch.log.as_json else []
    parts += ["a line of several ranks is printed once"] if watch.log.dedupe else []
    once = watch.prefix and watch.log.dedupe is None and not watch.log.as_json
    parts += ["off a terminal, the same traceback of several ranks once"] if once else []
    if any(route.to_file for route in watch.routes):
        size = f", a new one at {say_size(watch.log.rotate_bytes)}" if watch.log.rotate_bytes else ""
        parts.append(f"output in files below {watch.log_dir or 'a temporary directory'}{size}")
    parts += _restarts(watch.restarts) if watch.restarts.most else []
    limits = "".join(f", {phase}: {limit_s:g} s" for phase, limit_s in watch.stall_limits)
    silence = f"{watch.on_stall} after {watch.stall_timeout_s:g} s of silence{limits}"
    parts += [silence] if watch.stall_timeout_s else []
    parts += [f"report after {watch.idle_timeout_s:g} s without activity"] if watch.idle_timeout_s else []
    parts += ["the processes must connect"] if watch.contact is not None and watch.contact.required else []
    parts += [describe(watch.preload)] if watch.preload is not None else []
    parts += [f"failure record in {watch.failure_file}"] if watch.failure_file else []
    parts += [f"evidence of a hang in {watch.evidence_dir}"] if watch.evidence_dir else []
    taken = watch.preemption
    parts += [] if taken is None else [f"{taken.service} is polled for preemption ({taken.why})"]
    parts += [f"metrics at port {watch.metrics_port}"] if watch.metrics_port else []
    parts += [f"events in {watch.events}"] if watch.events else []
    parts += ["traces by OpenTelemetry"] if watch.traces else []
    return [f"watch: {printable(redact('; '.join(parts)))}"]


def _restarts(rule: Restarts) -> list[str]:
    """Return how often, after what and how the processes start again."""
    more = [f"{rule.per_cause} for each cause"] if rule.per_cause is not None else []
    more += ["after any cause"] if rule.on_any else []
    more += [f"not after status {', '.join(map(str, rule.never_status))}"] if rule.never_status else []
    more += [f"given back after {rule.reset_after_s:g} s"] if rule.reset_after_s else []
    limits = f" ({', '.join(more)})" if more else ""
    parts = [f"{render_count(rule.most, 'restart')}{limits}"]
    shown = [rule.progress_file, f"the output {rule.progress_pattern!r}" if rule.progress_pattern else ""]
    watched = " or ".join(filter(None, shown))
    parts += [f"progress is seen in {watched}"] if watched else []
    parts += [f"record of attempts in {rule.attempts_file}"] if rule.attempts_file else []
    parts += (
        [f"each node is checked by {' '.join(redact_argv(rule.health_argv))}"] if rule.health_argv else []
    )
    return parts
