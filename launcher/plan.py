"""The whole program in one chain: environment -> evidence -> allocation -> topology -> plan.

Only `read_machine` and the sources' few questions to `Host` touch this node; from `decide` on
everything is a pure function over frozen values.
"""

from __future__ import annotations

from launcher.allocation import decide
from launcher.engines.agents import (
    Request,
    count_processes,
    plan_engine,
    read_request,
    refuse_framework,
    refuse_idle,
    refuse_per_process,
    refuse_roles,
)
from launcher.engines.choice import MPIRUN
from launcher.engines.process import plan_argv
from launcher.environ import MPI_STARTERS, shorten
from launcher.errors import EnvironmentUntrusted, Problem
from launcher.flags import PROCESS_LIMIT
from launcher.frameworks import horovod, jax, python, table, torch
from launcher.frameworks.case import Case
from launcher.frameworks.horovod import GLOO, MPI, Meeting, find_meeting
from launcher.frameworks.script import name_framework, read_script
from launcher.frozen import frozen
from launcher.host import Host
from launcher.ledger import Ledger
from launcher.machine import read_machine
from launcher.model import (
    Agent,
    Allocation,
    Binding,
    Fact,
    Machine,
    Mode,
    Plan,
    Policy,
    Scope,
    Setting,
    Topology,
)
from launcher.notes import note_job
from launcher.options import Options
from launcher.settings import CONSUMED, PER_PROCESS, plan_companions, plan_one, plan_settings, plan_unset
from launcher.sources import Gathered, gather
from launcher.sources.launched import MARKER
from launcher.supervision import plan_supervision
from launcher.topology import plan_topology

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.fabrics.node import NodePlan

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@frozen
class Shape:
    """The job's shape, as it was decided: what the rest of the chain starts from.

    Attributes:
        request: What is to be run; its options are those of the flags and of the job's own framework.
        gathered: What the sources know.
        machine: What this node has.
        ledger: Each fact with its provenance.
        allocation: What the platform gave us.
        topology: The shape.
        meeting: How the processes meet by Horovod, if they do.
    """

    request: Request
    gathered: Gathered
    machine: Machine
    ledger: Ledger
    allocation: Allocation
    topology: Topology
    meeting: Meeting


def plan_job(
    environ: Mapping[str, str],
    host: Host,
    options: Options,
    command: Sequence[str],
    *,
    met: tuple[str, ...] = (),
) -> Plan:
    """Plan everything that will happen on this node.

    Args:
        environ: The environment the launcher was started with.
        host: The machine, or a recorded one.
        options: What the user asked for.
        command: The command line to run in each process.
        met: The addresses of all nodes, where a first plan has had them meet.

    Raises:
        LauncherError: What is wrong, by name, all at once.
    """
    shape = decide_shape(environ, host, options, command, met)
    request, allocation, topology, machine = shape.request, shape.allocation, shape.topology, shape.machine
    options, forks = request.options, allocation.scope is Scope.NODE
    binding = Binding()
    if request.own is None:
        binding = bind_processes(host, environ, options, allocation, topology, machine)
    choice, agent = plan_engine(request, allocation, topology, machine, environ, host, binding)
    roles = table.name_roles(options)
    if agent is not None and roles is not None:
        raise refuse_roles(choice.engine, roles)
    if agent is not None:
        refuse_framework(choice.engine, options)
    origins = {**name_origins(shape.ledger, forks), **table.name_origins(options)}
    if met:
        origins["hosts"] = "addresses as the nodes have told them"
    role, origins["role"] = _find_role(options, shape.gathered, environ)
    shown = topology.places if request.own is None and not allocation.ranks_at_start else ()
    fabric, fabric_notes, node = plan_network(host, environ, options, allocation, topology, machine)
    interface = find_interface(fabric, environ)
    facts = (allocation, topology, machine, origins, forks, interface, shape.meeting)
    case = Case(request.argv, options, environ, *facts)
    argv, beside = request.argv, []
    if agent is None:
        argv, beside = table.plan_argv(case), table.plan_companions(case)
    elif (agent.fleet is None or request.tunes) and not request.starts_job:
        agent = Agent(**{**vars(agent), "settings": (*agent.settings, *fabric)})
    unbuffered = python.plan_unbuffered(_count_writers(topology, agent) + len(beside), environ)
    settings = (*plan_settings(case, role, binding), *unbuffered, *fabric)
    is_first = agent is None and any(place.rank == 0 for place in shown)
    proof = node.proof if node and is_first else None
    parent = (forks and (agent is None or agent.stays)) or bool(beside and shown)
    stays = parent or options.switch("init", host.is_init())
    notes = (
        *(*shape.ledger.notes, *fabric_notes, *request.notes, *binding.notes, *shape.meeting.notes),
        *note_job(case, request, choice, agent, shape.ledger, host),
    )
    return Plan(
        allocation=allocation,
        topology=topology,
        machine=machine,
        mode=Mode.SUPERVISE if stays or proof else Mode.EXEC,
        engine=choice.engine,
        agent=agent and _with_unset(agent, environ),
        processes=tuple(plan_one(case, argv, place, binding, settings) for place in shown),
        settings=settings if shown else (),
        unset=plan_unset(topology, environ, forks),
        widen_cpus=forks and _is_bound(machine) and any(name in environ for name in MPI_STARTERS),
        bind=binding.mode,
        supervision=plan_supervision(
            options, topology, of_agent=agent is not None, companion_count=len(beside), proof=proof
        ),
        network=node.network if node else None,
        findings=tuple(shape.ledger.findings[fact] for fact in Fact if fact in shape.ledger.findings),
        notes=tuple(dict.fromkeys(notes)),
        reads=shape.gathered.reads,
        companions=plan_companions(beside, unbuffered, options, environ),
        ports=table.plan_ports(case) if agent is None else (),
        meeting=table.plan_meeting(case) if agent is None else None,
    )


def decide_shape(
    environ: Mapping[str, str], host: Host, options: Options, command: Sequence[str], met: tuple[str, ...]
) -> Shape:
    """Decide how many processes there are, which of them are ours, and where they meet; see `plan_job`.

    Raises:
        LauncherError: What is wrong, by name, all at once.
    """
    request = read_request(plan_argv(command, options, environ) if command else (), options)
    options = request.options
    refuse_idle(request)
    _refuse_arguments(options, request)
    gathered = _gather(environ, host, options, leads=request.leads)
    machine = read_machine(host, environ)
    starter = request.starter or table.name_roles(options)
    allocation, ledger = decide(
        gathered.evidence,
        options,
        machine,
        starts_processes=starter is not None,
        starts_job=request.starts_job,
    )
    if met:
        allocation = Allocation(**{**vars(allocation), "hosts": met})
    forks = allocation.scope is Scope.NODE
    if starter is not None and not forks:
        raise refuse_per_process(starter, allocation.local_size)
    if allocation.master_port == 0:
        allocation = Allocation(**{**vars(allocation), "master_port": host.free_port()})
    each = _count_processes(ledger, request, allocation) if forks else 1
    topology = table.plan_topology(options, allocation, environ) or plan_topology(allocation, each)
    request, meeting = _find_framework(request, environ, allocation, topology, host)
    return Shape(request, gathered, machine, ledger, allocation, topology, meeting)


def _find_framework(
    request: Request,
    environ: Mapping[str, str],
    allocation: Allocation,
    topology: Topology,
    host: Host,
) -> tuple[Request, Meeting]:
    """Return the request of a job whose script shows its framework as if the user had named it."""
    if request.own is not None or allocation.ranks_at_start:
        return request, Meeting()
    options = request.options
    script = read_script(request.argv, host)
    meeting = find_meeting(request.argv, script, options, environ, allocation.scope, topology, host)
    if meeting.kind in (MPI, GLOO):
        options = name_framework(options, horovod.NAME, meeting.why)
    elif options.framework == "" and jax.is_distributed(script):
        options = name_framework(options, jax.NAME, f"{script.path} uses jax.distributed")
    return Request(**{**vars(request), "options": options}), meeting


def _refuse_arguments(options: Options, request: Request) -> None:
    """Refuse arguments of each process where the processes are not started through us.

    Raises:
        UsageError: There are such flags, and another launcher, or torchrun, runs the script itself.
    """
    inside = options.switch("run_path")
    if options.origins(*PER_PROCESS) and (request.own or inside):
        from launcher.engines.words import refuse_words

        raise refuse_words(options, request.own.launcher.name if request.own else "--run-path: torchrun")


def _gather(environ: Mapping[str, str], host: Host, options: Options, *, leads: bool) -> Gathered:
    source = options.get("source")
    typed = source is not None and source.origin.startswith("--")
    found = gather(environ, host, options.text("source") or None, typed=typed, starts_job=leads)
    if options.get("hosts") or options.get("hostfile") or leads:
        from launcher.hosts import read_listed, require_hosts

        listed = read_listed(options, host, found.evidence, leads=leads)
        if listed is not None:
            return Gathered((listed, *found.evidence), found.reads)
        if leads:
            who = MPIRUN if options.text("engine") == MPIRUN else "deepspeed's autotuner"
            require_hosts(options, found.evidence, who)
    return found


def _count_writers(topology: Topology, agent: Agent | None) -> int:
    """Return how many processes write through us: those of all nodes, where mpirun starts them."""
    fleet = agent and agent.fleet
    return len(fleet.hosts) * fleet.per_node if fleet else len(topology.places)


def _with_unset(agent: Agent, environ: Mapping[str, str]) -> Agent:
    """Return an agent that does not inherit what was for us either."""
    ours = (name for name in (*CONSUMED, MARKER) if name in environ)
    return Agent(**{**vars(agent), "unset": tuple(sorted({*agent.unset, *ours}))})


def bind_processes(
    host: Host,
    environ: Mapping[str, str],
    options: Options,
    allocation: Allocation,
    topology: Topology,
    machine: Machine,
) -> Binding:
    """Return which CPUs the processes of this node keep to.

    By default those near its GPU, for each of several processes that we start. A process that somebody
    else has started is bound only where the user says so, and one that is alone on its node has
    nobody to keep away from. Where nothing is to be bound, nothing is read, nor loaded.
    """
    forks = allocation.scope is Scope.NODE
    by_default = "numa" if forks and (topology.local_size or 1) > 1 and machine.gpu_count else "none"
    mode = options.text("bind", by_default)
    if mode == "none":
        return Binding()
    from launcher.binding import plan_binding, plan_request

    request = plan_request(mode, options, environ, topology, machine, forks)
    return plan_binding(request, host.layout(name_gpus=request.names_gpus))


def plan_network(
    host: Host,
    environ: Mapping[str, str],
    options: Options,
    allocation: Allocation,
    topology: Topology,
    machine: Machine,
) -> tuple[tuple[Setting, ...], tuple[str, ...], NodePlan | None]:
    """Return what the libraries of this node are told, what is worth a word, and how the node talks.

    A job on one node has no use for it, and a process of this launcher has it already: then nothing is
    read, nor loaded.

    Raises:
        HardwareMissing: The fabric that was asked for is not here.
    """
    order = "GPU numbers as nvidia-smi has them"
    settings = [Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", order, Policy.IF_UNSET)]
    if (machine.gpu_count or 0) < 2:
        settings = []
    asked = options.origins("fabric", "require_fabric", "verify_fabric")
    if not asked and (environ.get(MARKER) or not topology.spans_nodes):
        return tuple(settings), (), None
    from launcher.fabrics.node import plan_node

    node = plan_node(host, environ, options, allocation)
    return (*settings, *node.settings), node.notes, node


def find_interface(fabric: Sequence[Setting], environ: Mapping[str, str]) -> str:
    """Return the interface that gloo is told of, the user's or ours; empty if none."""
    planned = next((item.value for item in fabric if item.name == GLOO_INTERFACE), "")
    return (environ.get(GLOO_INTERFACE) or planned).partition(",")[0]


def _count_processes(ledger: Ledger, request: Request, allocation: Allocation) -> int:
    """Return how many processes to fork; refuse what is no plan but an attempt on the node's memory."""
    count = count_processes(request, allocation.node_count)
    if count is not None:
        return count
    claim = ledger.findings[Fact.PROCESSES_PER_NODE].claim
    if not isinstance(claim.value, int) or claim.value > PROCESS_LIMIT:
        fix = "correct it, or pass --nproc-per-node N"
        what = f"{claim.origin}: {claim.value} processes on one node, expected {PROCESS_LIMIT} at most"
        raise EnvironmentUntrusted(Problem("too-many-processes", what, "environment", fix))
    return claim.value


def _find_role(options: Options, gathered: Gathered, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the name of the role, and where it comes from: a worker of torchrun has one already."""
    role, inherited = options.get("role"), environ.get("ROLE_NAME")
    if role is None and inherited and any(item.seals for item in gathered.evidence):
        return inherited, f"ROLE_NAME={shorten(inherited)!r}"
    return options.text("role", torch.DEFAULT_ROLE), role.origin if role else "default"


def name_origins(ledger: Ledger, forks: bool) -> dict[str, str]:
    """Return where each fact came from, by its name."""
    origins = {fact.value: ledger.origin(fact) for fact in ledger.findings}
    if forks and Fact.NODE_COUNT in ledger.findings and Fact.NODE_RANK in ledger.findings:
        each = ledger.findings[Fact.PROCESSES_PER_NODE].claim
        nodes, node = ledger.findings[Fact.NODE_COUNT].claim, ledger.findings[Fact.NODE_RANK].claim
        per_node = f"{each.value} per node ({each.origin})"
        origins["local_size"] = per_node
        origins["world_size"] = f"{nodes.value} nodes ({nodes.origin}) x {per_node}"
        origins["rank"] = f"node {node.value} ({node.origin}) x {per_node} + local rank"
        origins["local_rank"] = "counted on this node"
    return origins


def _is_bound(machine: Machine) -> bool:
    cpus, bound = machine.cpu_count, machine.bound_cpu_count
    return cpus is not None and bound is not None and bound < cpus
