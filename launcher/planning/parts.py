"""Parts of a plan: from a shape to the engine, agent, companions, binding and network of this node.

Each part is loaded only if the job needs it.
"""

from __future__ import annotations

from launcher.core.environ import NETWORK_NAMES
from launcher.core.errors import make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import NODE, RANK, Binding, NodeCommand, Peers, Policy, Setting
from launcher.core.supervision import Preemption
from launcher.engines.choice import Choice, plan_engine, refuse_framework
from launcher.frameworks import horovod, table
from launcher.frameworks.case import Beside, Case
from launcher.frameworks.horovod import GLOO
from launcher.identity.rendezvous import plan_control_ports
from launcher.inprocess.marker import TOKEN
from launcher.sources.launched import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.fabrics import Fabric
    from launcher.options.reading import Options

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
KINDS_OF_MACHINE = ("AZ_BATCH_NODE_IS_DEDICATED", "AZUREML_CR_COMPUTE_CONTEXT")
"""Variables that may mark a preemptible machine; `launcher.machine.azure` is loaded only with one."""
LOST_AFTER_S = 10.0


@frozen
class Wiring:
    """The network between this node and the others, with its settings.

    Attributes:
        settings: Variables for the libraries of each process, or of an agent's processes.
        notes: Notes about the network.
        node: The planned network; None if it was not examined.
    """

    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    node: Fabric | None = None


@frozen
class Parts:
    """The parts of a plan for this node, chosen one by one for a shape.

    Attributes:
        case: The job, as frameworks see it.
        choice: The engine, and why.
        agent: The command that starts the processes, None if the launcher does.
        argv: The command line of each process.
        beside: What their framework needs on this node beside the ranks.
        wiring: The network between this node and the others.
        peers: Control channel between the launchers of all nodes; None without one.
        preemption: The service that reports preemption of this machine; None for none.
    """

    case: Case
    choice: Choice
    agent: NodeCommand | None
    argv: tuple[str, ...]
    beside: Beside
    wiring: Wiring
    peers: Peers | None
    preemption: Preemption | None


def plan_parts(case: Case) -> Parts:
    """Choose the parts of the plan for this node.

    Raises:
        LauncherError: A part does not fit this job, or is missing on this machine.
    """
    request = case.request
    binding = bind_processes(case) if request.own is None else Binding()
    wiring = plan_network(case)
    case = replace(case, binding=binding, interface=find_interface(wiring.settings, case.environ))
    choice, agent = plan_engine(case)
    if agent is not None:
        case = replace(case, agent=agent.engine)
        refuse_framework(choice.engine, case.options, is_command=request.own is not None)
    argv = horovod.plan_argv(case) if agent is None else request.argv
    beside = table.plan_beside(case) if agent is None else Beside()
    if agent is not None and request.own is not None and not request.starts_job:
        agent = replace(agent, settings=(*agent.settings, *table.plan_wrapped(case)))
    if agent is not None and (agent.fleet is None or request.tunes) and not request.starts_job:
        agent = replace(agent, settings=(*agent.settings, *wiring.settings))
    peers = None if request.starts_job or beside.bears_losses else plan_channel(case, agent)
    if peers is not None and beside.meeting is not None:
        beside = replace(beside, meeting=replace(beside.meeting, at_start=True))
    preemption = plan_preempted(case.options, case.environ, agent, case.forks)
    return Parts(case, choice, agent, argv, beside, wiring, peers, preemption)


def bind_processes(case: Case) -> Binding:
    """Return the CPUs of the processes of this node.

    By default each of several processes that we start is bound to the CPUs near its GPU. A process that
    another program started, or that is alone on its node, is bound only if the user requests it. If nothing
    is to be bound, nothing is read or loaded.
    """
    by_default = "numa" if case.forks and case.each > 1 and case.machine.gpu_count else "none"
    mode = case.options.text("bind", by_default)
    if mode == "none":
        return Binding()
    from launcher.machine.numa import read_layout
    from launcher.planning.binding import plan_binding, plan_request

    request = plan_request(mode, case)
    has_uuids = not all(name.isdecimal() for name in request.gpus)
    return plan_binding(request, read_layout(case.host, name_gpus=has_uuids))


def plan_network(case: Case) -> Wiring:
    """Return the network between this node and the others, and the settings of its libraries.

    A job on one node does not need them, and a process of another launcher has them already. Then nothing is
    read or loaded, unless the user gave a flag about the fabric.

    Raises:
        HardwareMissing: The requested fabric is missing.
    """
    options, environ, settings = case.options, case.environ, []
    if (case.machine.gpu_count or 0) > 1:
        order = "GPU numbers as nvidia-smi has them"
        settings = [Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID", order, Policy.IF_UNSET)]
    asked = options.origins("fabric", "require_fabric", "verify_fabric")
    if not asked and (environ.get(MARKER) or not case.topology.spans_nodes):
        if environ.get(MARKER) or not any(map(environ.get, NETWORK_NAMES)):
            return Wiring(tuple(settings))
        from launcher.fabrics import judge_variables

        return Wiring(tuple(settings), judge_variables(case.host, environ))
    from launcher.fabrics import plan_node

    node = plan_node(case.host, environ, options, case.allocation)
    return Wiring((*settings, *node.settings), node.notes, node)


def find_interface(fabric: Sequence[Setting], environ: Mapping[str, str]) -> str:
    """Return gloo's interface, from the user or else from our settings; empty if none."""
    planned = next((item.value for item in fabric if item.name == GLOO_INTERFACE), "")
    return (environ.get(GLOO_INTERFACE) or planned).partition(",")[0]


def plan_channel(case: Case, agent: NodeCommand | None) -> Peers | None:
    """Return the control channel between the launchers of the job; None if it has or needs none."""
    allocation, options = case.allocation, case.options
    member, own, count = NODE, allocation.node_rank, allocation.node_count
    if not case.forks:
        member, own, count = RANK, allocation.rank, case.topology.world_size
    meet = (case.forks or case.joins_launchers) and (count or 1) > 1 and options.switch("peers", True)
    by_mpirun = agent is not None and agent.fleet is not None
    if not meet or by_mpirun or own is None or allocation.node_range is not None:
        return None
    used = {allocation.master_port, case.free_port[0]}
    if case.horovod.kind == GLOO:
        used.add(horovod.find_port(case))
    token_file = options.text("token_file")
    return Peers(
        ports=plan_control_ports(options, frozenset(used)),
        token_file=token_file,
        has_token=bool(token_file or case.environ.get(TOKEN)),
        timeout_s=options.roll_call_s,
        lost_after_s=options.number("lost_after", LOST_AFTER_S),
        # torchrun assigns ranks at the start and again after a failure, so it decides about failures.
        keep_going=options.switch("keep_going") or allocation.ranks_at_start,
        member=member,
        spare_count=int(options.number("spares", 0)) if case.forks else 0,
        index=allocation.index if case.forks and allocation.index is not None else own,
    )


def plan_preempted(
    options: Options, environ: Mapping[str, str], agent: NodeCommand | None, forks: bool
) -> Preemption | None:
    """Return the service that reports preemption of this machine; loaded only if there may be one.

    By default it is asked once per node: not by a launcher inside a process of this launcher, and not by each
    process that another program started.

    Raises:
        UsageError: The flag was typed for a job that mpirun starts, whose nodes cannot be told.
    """
    asked, service, found = options.get("preemption"), options.text("preemption", "auto"), None
    if asked is not None and service not in ("auto", "off"):
        found = Preemption(service, asked.origin, is_asked=True)
    elif service == "auto" and forks and MARKER not in environ and any(map(environ.get, KINDS_OF_MACHINE)):
        from launcher.machine.azure import find_preemptible

        why = find_preemptible(environ)
        found = Preemption("azure", why) if why else None
    if found is None or agent is None or agent.fleet is None:
        return found
    if asked is not None and asked.is_typed:
        raise make_error("preemption-and-mpirun", asked=asked.origin)
    return None
