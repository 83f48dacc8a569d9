"""The whole program in one chain: environment -> evidence -> allocation -> topology -> plan.

Planning reads this node only through `Host`, except for the file of the command, which
`launcher.command.line` and `launcher.frameworks.script` read. All other steps are pure functions over
frozen values.
"""

from __future__ import annotations

import os

from launcher.core.environ import leave_out_services, shorten
from launcher.core.errors import LauncherError, make_error
from launcher.core.frozen import replace
from launcher.core.model import (
    Fact,
    Mode,
    NodeCommand,
    Place,
    Plan,
    Scope,
    Setting,
)
from launcher.core.mpi import STARTED_BY_MPI
from launcher.core.supervision import Proof, Supervision
from launcher.frameworks import table, torch
from launcher.frameworks.script import find_missing
from launcher.planning.notes import note_idle, note_job, warn_job
from launcher.planning.parts import Parts, plan_parts
from launcher.planning.settings import CONSUMED, plan_companions, plan_one, plan_settings, plan_unset
from launcher.planning.shape import PlanShape, decide_shape
from launcher.planning.supervision import (
    find_blindness,
    note_traces,
    plan_route,
    plan_supervision,
)
from launcher.sources.launched import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.frameworks.case import Case
    from launcher.machine.host import Host
    from launcher.options.reading import Options

_OF_RANK = {"contradiction", "launcher-per-process"}
"""Codes of problems that flags of another job have inside of a rank."""


def plan_job(
    environ: Mapping[str, str],
    host: Host,
    options: Options,
    command: Sequence[str],
    *,
    met: tuple[str, ...] = (),
    seats: Mapping[int, int] | None = None,
) -> Plan:
    """Plan everything that will happen on this node.

    Args:
        environ: The environment the launcher was started with.
        host: The machine, or a recorded one.
        options: The user's options.
        command: The command line to run in each process.
        met: The addresses of all nodes if the nodes have exchanged them for a first plan.
        seats: The ranks of spare nodes that have taken the place of a lost one, by the node's index.

    Raises:
        LauncherError: The job cannot be planned; carries all problems found together.
    """
    environ = leave_out_services(environ)
    try:
        shape = decide_shape(environ, host, options, command, met, seats or {})
        role, role_origin = _find_role(shape, environ)
        origins = {**name_origins(shape, met), "role": role_origin}
        return assemble(shape, plan_parts(shape, environ, host, origins), host, role)
    except LauncherError as error:
        if (
            environ.get(MARKER)
            and options.get("source") is None
            and {p.code for p in error.problems} <= _OF_RANK
        ):
            where, rank = error.problems[0].where, environ.get("RANK", "?")
            raise make_error("job-in-rank", where=where, rank=rank) from None
        raise


def assemble(shape: PlanShape, parts: Parts, host: Host, role: str) -> Plan:
    """Assemble the plan from a job's shape and parts; ``role``: of its processes.

    Raises:
        LauncherError: A request of the user cannot be met.
    """
    case, agent = parts.case, parts.agent
    options, environ, topology = case.options, case.environ, case.topology
    shown = _list_shown(shape)
    proof = None  # that of rank 0's NCCL, if rank 0 is ours
    if parts.wiring.node and agent is None and any(place.rank == 0 for place in shown):
        proof = parts.wiring.node.proof
    fleet = agent.fleet if agent is not None else None
    writers = len(fleet.hosts) * fleet.per_node if fleet else len(topology.places)  # whose output we relay
    unbuffered = torch.plan_unbuffered(writers + len(parts.beside.companions), environ)
    settings = (*plan_settings(case, role, parts.binding), *unbuffered, *parts.wiring.settings)
    stays = _stays(parts, shown, host, proof)
    missing = "" if host.is_recorded() or shape.request.own is not None else find_missing(shape.request.argv)
    preload = None
    unused: tuple[str, ...] = ()
    if case.options.get("preload"):
        from launcher.planning.preload import plan_preload

        preload, why = plan_preload(case, agent, host, stays=stays)
        unused = (f"preload skipped: {why}; ranks start normally",) if why else ()
    warned = (*warn_job(case, agent, parts.wiring.notes, host), *unused)
    watch = plan_supervision(parts, host, proof, stays=stays)
    meeting = parts.beside.meeting
    if meeting is not None and parts.peers is not None:
        meeting = replace(meeting, at_start=True)
    unseen = _find_unseen(parts, watch)
    has_channel, meets = parts.peers is not None, meeting is not None
    idle = note_idle(case, agent, stays=stays, has_channel=has_channel, meets=meets, unseen=unseen)
    # Of the notes about flags that do nothing or not all, those that begin with a typed flag
    warnings = (
        *warned,
        *(note for note in (*shape.request.notes, *parts.binding.notes, *idle) if note[:1] == "-"),
    )
    notes = _gather_notes(shape, parts, host, missing, (*warned, *idle), stays=stays)
    # An mpirun may have bound us to one core, as if we were a rank: our processes may leave it
    cpus, bound = case.machine.cpu_count, case.machine.bound_cpu_count
    is_bound = cpus is not None and bound is not None and bound < cpus
    return Plan(
        allocation=case.allocation,
        topology=topology,
        machine=case.machine,
        mode=Mode.SUPERVISE if stays else Mode.EXEC,
        engine=parts.choice.engine,
        agent=agent and _finish_agent(agent, environ, case),
        processes=tuple(plan_one(case, parts.argv, place, parts.binding, settings) for place in shown),
        settings=settings if shown else (),
        unset=plan_unset(topology, environ, case.forks),
        widen_cpus=case.forks and is_bound and any(name in case.environ for name in STARTED_BY_MPI),
        bind=parts.binding.mode,
        supervision=watch if preload is None else replace(watch, preload=preload),
        network=parts.wiring.node.network if parts.wiring.node else None,
        peers=parts.peers,
        findings=tuple(shape.ledger.findings[fact] for fact in Fact if fact in shape.ledger.findings),
        notes=notes,
        missing=missing,
        warnings=warnings if not environ.get(MARKER) else (),
        reads=shape.gathered.reads,
        companions=plan_companions(parts.beside.companions, unbuffered, plan_route(options, None), environ),
        ports=parts.beside.ports,
        meeting=meeting,
    )


def _find_unseen(parts: Parts, watch: Supervision) -> str:
    """Return why the launcher does not check whether the processes connect; empty if it does."""
    if watch.contact is not None:
        return ""
    if parts.case.topology.world_size == 1:
        return "the job has one process"
    given = parts.case.options.get("meeting")
    off = f"the check is off ({given.origin})" if given is not None and not given.value else ""
    return off or find_blindness(parts) or "the processes of this node are not known"


def _list_shown(shape: PlanShape) -> tuple[Place, ...]:
    """Return the places whose processes are known before the start; empty if a launcher starts them."""
    return () if shape.request.own is not None or shape.allocation.ranks_at_start else shape.topology.places


def _stays(parts: Parts, shown: Sequence[Place], host: Host, proof: Proof | None) -> bool:
    """Whether the launcher stays: as a parent, as init, or to watch for preemption or NCCL's network."""
    parent = parts.case.forks or parts.case.stays or bool(parts.beside.companions and shown)
    watches = parts.preemption is not None or proof is not None
    is_init = os.getpid() == 1 and not host.is_recorded()  # process 1 of a container
    return parent or watches or parts.case.options.switch("init", is_init)


def _gather_notes(
    shape: PlanShape, parts: Parts, host: Host, missing: str, more: Sequence[str], *, stays: bool
) -> tuple[str, ...]:
    """Return the notes, deduplicated, in decision order."""
    spare, node = shape.allocation.spare, shape.allocation.node_rank
    waits = f"node {spare} is a spare node: it waits, and takes the rank of a lost node"
    notes = (
        *([] if spare is None else [f"{waits}; this is the plan for node {node}"]),
        *(*shape.ledger.notes, *parts.wiring.notes, *shape.request.notes, *parts.binding.notes),
        *([f"{missing}: no such script here"] if missing else []),
        *more,
        *note_job(parts.case, shape.request, parts.choice, shape.ledger, host),
        *(note_traces(parts.case.environ, host) if stays else ()),
    )
    return tuple(dict.fromkeys(notes))


def _finish_agent(agent: NodeCommand, environ: Mapping[str, str], case: Case) -> NodeCommand:
    """Return the agent without our own variables in its environment, but with the user's single node.

    A launcher in its workers sees the platform's nodes, too.
    """
    ours = (name for name in (*CONSUMED, MARKER) if name in environ)
    given = case.options.get("nnodes") or case.options.get("standalone")
    one = [Setting("LAUNCHER_NNODES", "1", given.origin)] if given and case.topology.node_count == 1 else []
    return replace(agent, unset=tuple(sorted({*agent.unset, *ours})), settings=(*agent.settings, *one))


def _find_role(shape: PlanShape, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the role and its origin; a torchrun worker has a role already."""
    options = shape.request.options
    role, inherited = options.get("role"), environ.get("ROLE_NAME")
    if role is None and inherited and any(item.seals for item in shape.gathered.evidence):
        return inherited, f"ROLE_NAME={shorten(inherited)!r}"
    return options.text("role", torch.DEFAULT_ROLE), role.origin if role else "default"


def name_origins(shape: PlanShape, met: Sequence[str] = ()) -> dict[str, str]:
    """Return the origin of each fact, by its name.

    Args:
        shape: The shape of the job.
        met: The addresses of all nodes, if the nodes have exchanged them.
    """
    ledger, found = shape.ledger, shape.ledger.findings
    origins = {fact.value: ledger.origin(fact) for fact in found}
    if shape.allocation.scope is Scope.NODE and Fact.NODE_COUNT in found and Fact.NODE_RANK in found:
        each = found[Fact.PROCESSES_PER_NODE].claim
        nodes, node = found[Fact.NODE_COUNT].claim, found[Fact.NODE_RANK].claim
        per_node = f"{each.value} per node ({each.origin})"
        origins["local_size"] = per_node
        number: object = nodes.value
        origin = nodes.origin
        if shape.allocation.index is not None:  # some of them are spare
            number, spares = shape.allocation.node_count, shape.request.options.origins("spares")[0]
            origin += "" if spares in origin else f" {spares}"
        counted = "1 node" if number == 1 else f"{number} nodes"
        origins["world_size"] = f"{counted} ({origin}) x {per_node}"
        origins["rank"] = f"node {node.value} ({node.origin}) x {per_node} + local rank"
        origins["local_rank"] = "counted on this node"
    told = {"hosts": "addresses exchanged by the nodes"} if met else {}
    return {**origins, **table.name_origins(shape.request.options), **told}
