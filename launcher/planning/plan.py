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
from launcher.core.model import Fact, Mode, NodeCommand, Place, Plan, Setting
from launcher.core.mpi import STARTED_BY_MPI
from launcher.core.supervision import Proof
from launcher.frameworks import table, torch
from launcher.frameworks.script import find_missing
from launcher.planning.notes import note_idle, note_job, warn_job
from launcher.planning.parts import Parts, plan_parts
from launcher.planning.settings import CONSUMED, plan_companions, plan_one, plan_settings, plan_unset
from launcher.planning.shape import PlanShape, decide_shape
from launcher.planning.supervision import note_traces, plan_route, plan_supervision
from launcher.sources.launched import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.frameworks.case import Case
    from launcher.identity.ledger import Ledger
    from launcher.machine.host import Host
    from launcher.options.reading import Options
    from launcher.sources import Gathered

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
        role, role_origin = _find_role(shape)
        origins = {**name_origins(shape, met), "role": role_origin}
        return assemble(
            shape.ledger, shape.gathered, plan_parts(replace(shape.case, role=role, origins=origins))
        )
    except LauncherError as error:
        in_rank = environ.get(MARKER) and options.get("source") is None
        if in_rank and {problem.code for problem in error.problems} <= _OF_RANK:
            where, rank = error.problems[0].where, environ.get("RANK", "?")
            raise make_error("job-in-rank", where=where, rank=rank) from None
        raise


def assemble(ledger: Ledger, gathered: Gathered, parts: Parts) -> Plan:
    """Assemble the plan from its parts, and from the evidence for them.

    Raises:
        LauncherError: A request of the user cannot be met.
    """
    case, agent, request = parts.case, parts.agent, parts.case.request
    environ, topology = case.environ, case.topology
    # The places whose processes are known before the start
    shown = () if case.is_wrapped or case.allocation.ranks_at_start else topology.places
    proof = None  # that of rank 0's NCCL, if rank 0 is ours
    if parts.wiring.node and agent is None and any(place.rank == 0 for place in shown):
        proof = parts.wiring.node.proof
    fleet = agent.fleet if agent is not None else None
    writers = len(fleet.hosts) * fleet.per_node if fleet else len(topology.places)  # whose output we relay
    unbuffered = torch.plan_unbuffered(writers + len(parts.beside.companions), environ)
    settings = (*plan_settings(case), *unbuffered, *parts.wiring.settings)
    stays = _stays(parts, shown, proof)
    missing = "" if case.host.is_recorded() or case.is_wrapped else find_missing(request.argv)
    preload = None
    unused: tuple[str, ...] = ()
    if case.options.get("preload"):
        from launcher.planning.preload import plan_preload

        preload, why = plan_preload(case, agent, stays=stays)
        unused = (f"preload skipped: {why}; ranks start normally",) if why else ()
    warned = (*warn_job(parts), *unused)
    watch = plan_supervision(parts, proof, stays=stays)
    idle = note_idle(parts, stays=stays)
    # About flags that do nothing or not all: a note on a typed one begins with it
    typed = tuple(note for note in (*request.notes, *case.binding.notes, *idle) if note[:1] == "-")
    notes = _gather_notes(ledger, parts, missing, (*warned, *idle), stays=stays)
    # An mpirun may have bound us to one core, as if we were a rank: our processes may leave it
    cpus, bound = case.machine.cpu_count, case.machine.bound_cpu_count
    is_bound = cpus is not None and bound is not None and bound < cpus
    return Plan(
        allocation=case.allocation,
        topology=topology,
        machine=case.machine,
        mode=Mode.SUPERVISE if stays else Mode.EXEC,
        engine=parts.choice.engine,
        agent=agent and _finish_agent(agent, case),
        processes=tuple(plan_one(case, parts.argv, place, settings) for place in shown),
        settings=settings if shown else (),
        unset=plan_unset(case),
        widen_cpus=case.forks and is_bound and any(name in case.environ for name in STARTED_BY_MPI),
        bind=case.binding.mode,
        supervision=watch if preload is None else replace(watch, preload=preload),
        network=parts.wiring.node.network if parts.wiring.node else None,
        peers=parts.peers,
        findings=tuple(ledger.findings[fact] for fact in Fact if fact in ledger.findings),
        notes=notes,
        missing=missing,
        warnings=(*warned, *typed) if not environ.get(MARKER) else (),
        reads=gathered.reads,
        companions=plan_companions(
            parts.beside.companions, unbuffered, plan_route(case.options, None), environ
        ),
        ports=parts.beside.ports,
        meeting=parts.beside.meeting,
    )


def _stays(parts: Parts, shown: Sequence[Place], proof: Proof | None) -> bool:
    """Whether the launcher stays: as a parent, as init, or to watch for preemption or NCCL's network."""
    parent = parts.case.forks or parts.case.stays or bool(parts.beside.companions and shown)
    watches = parts.preemption is not None or proof is not None
    is_init = os.getpid() == 1 and not parts.case.host.is_recorded()  # process 1 of a container
    return parent or watches or parts.case.options.switch("init", is_init)


def _gather_notes(
    ledger: Ledger, parts: Parts, missing: str, more: Sequence[str], *, stays: bool
) -> tuple[str, ...]:
    """Return the notes, deduplicated, in decision order."""
    case = parts.case
    spare, node = case.allocation.spare, case.allocation.node_rank
    waits = f"node {spare} is a spare node: it waits, and takes the rank of a lost node"
    notes = (
        *([] if spare is None else [f"{waits}; this is the plan for node {node}"]),
        *(*ledger.notes, *parts.wiring.notes, *case.request.notes, *case.binding.notes),
        *([f"{missing}: no such script here"] if missing else []),
        *more,
        *note_job(parts, ledger),
        *(note_traces(case) if stays else ()),
    )
    return tuple(dict.fromkeys(notes))


def _finish_agent(agent: NodeCommand, case: Case) -> NodeCommand:
    """Return the agent without our own variables in its environment, but with the user's single node.

    A launcher in its workers sees the platform's nodes, too.
    """
    ours = (name for name in (*CONSUMED, MARKER) if name in case.environ)
    given = case.options.get("nnodes") or case.options.get("standalone")
    one = [Setting("LAUNCHER_NNODES", "1", given.origin)] if given and case.topology.node_count == 1 else []
    return replace(agent, unset=tuple(sorted({*agent.unset, *ours})), settings=(*agent.settings, *one))


def _find_role(shape: PlanShape) -> tuple[str, str]:
    """Return the name of the role and its origin; a torchrun worker has a role already."""
    options = shape.case.options
    role, inherited = options.get("role"), shape.case.environ.get("ROLE_NAME")
    if role is None and inherited and any(item.seals for item in shape.gathered.evidence):
        return inherited, f"ROLE_NAME={shorten(inherited)!r}"
    return options.text("role", torch.DEFAULT_ROLE), role.origin if role else "default"


def name_origins(shape: PlanShape, met: Sequence[str] = ()) -> dict[str, str]:
    """Return the origin of each fact, by its name.

    Args:
        shape: The shape of the job.
        met: The addresses of all nodes, if the nodes have exchanged them.
    """
    case, ledger, found = shape.case, shape.ledger, shape.ledger.findings
    origins = {fact.value: ledger.origin(fact) for fact in found}
    if case.forks and Fact.NODE_COUNT in found and Fact.NODE_RANK in found:
        each = found[Fact.PROCESSES_PER_NODE].claim
        nodes, node = found[Fact.NODE_COUNT].claim, found[Fact.NODE_RANK].claim
        per_node = f"{each.value} per node ({each.origin})"
        origins["local_size"] = per_node
        number: object = nodes.value
        origin = nodes.origin
        if case.allocation.index is not None:  # some of them are spare
            number, spares = case.allocation.node_count, case.options.origins("spares")[0]
            origin += "" if spares in origin else f" {spares}"
        counted = "1 node" if number == 1 else f"{number} nodes"
        origins["world_size"] = f"{counted} ({origin}) x {per_node}"
        origins["rank"] = f"node {node.value} ({node.origin}) x {per_node} + local rank"
        origins["local_rank"] = "counted on this node"
    told = {"hosts": "addresses exchanged by the nodes"} if met else {}
    return {**origins, **table.name_origins(case.options), **told}
