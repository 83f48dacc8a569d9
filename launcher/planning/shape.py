"""Shape of a job: derives from the evidence the number of processes, ours among them, and the rendezvous."""

from __future__ import annotations

from launcher.command.line import plan_argv
from launcher.command.request import Request, read_request
from launcher.core.errors import make_error
from launcher.core.frozen import frozen, replace
from launcher.core.model import MPIRUN, Allocation, Fact, Scope
from launcher.engines.choice import refuse_per_process
from launcher.frameworks import jax, table
from launcher.frameworks.case import Case
from launcher.frameworks.horovod import GLOO, MPI, find_meeting
from launcher.frameworks.horovod import NAME as HOROVOD
from launcher.frameworks.script import STRATEGY, TENSORFLOW, Script, names_workers, read_script
from launcher.identity.allocation import decide
from launcher.identity.contradictions import check_master, seal_lone_world
from launcher.identity.ledger import open_ledger
from launcher.identity.topology import plan_topology, take_seat
from launcher.machine import read_machine
from launcher.machine.own_names import is_called
from launcher.options.flag_values import PROCESS_LIMIT
from launcher.options.given import Given
from launcher.options.reading import Options
from launcher.planning.settings import PER_PROCESS
from launcher.sources import Gathered, gather

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.identity.ledger import Ledger
    from launcher.machine.host import Host


NAMED_NODES = ("standalone", "nnodes", "node_rank")
"""Flags that set the node count and this node's rank."""


@frozen
class PlanShape:
    """The decided shape of the job, on which the rest of the plan is based.

    Attributes:
        case: The job; its options include those of the detected framework.
        gathered: Evidence of all sources.
        ledger: Each fact with its provenance.
    """

    case: Case
    gathered: Gathered
    ledger: Ledger


def decide_shape(
    environ: Mapping[str, str],
    host: Host,
    options: Options,
    command: Sequence[str],
    met: tuple[str, ...],
    seats: Mapping[int, int],
) -> PlanShape:
    """Decide the number of processes, which of them are ours, and their rendezvous.

    The arguments are those of `launcher.planning.plan.plan_job`.

    Raises:
        LauncherError: The shape cannot be decided; carries all problems found together.
    """
    request = read_request(plan_argv(command, options, environ) if command else (), options, environ)
    outer, options = options, request.options
    _refuse_arguments(options, request)
    script = read_script(request.script_argv(environ), environ, host)
    unnamed, request = request, _name_tensorflow(request, script, environ)
    gathered = _gather(environ, host, options, leads=request.leads)
    evidence = gathered.evidence

    def is_own(*names: str) -> bool:
        return is_called(host, *names)

    ledger = open_ledger(evidence, request.options, is_own)
    counts = any(isinstance(claim.value, str) for claim in ledger.about(Fact.PROCESSES_PER_NODE))
    machine = read_machine(host, environ, counts=counts)
    starter = request.starter or table.name_roles(options) or None
    if not request.leads:
        evidence = seal_lone_world(ledger, evidence, gathered.around)
        ledger = ledger if evidence is gathered.evidence else open_ledger(evidence, request.options, is_own)
    if not request.leads and any(options.get(dest) for dest in NAMED_NODES):
        from launcher.engines.counts import check_counts

        check_counts(request, outer, evidence, machine, starter, is_own)
    allocation, ledger = decide(
        ledger, machine, starts_processes=starter is not None, starts_job=request.starts_job
    )
    if options.number("spares", 0):
        allocation = take_seat(allocation, options, seats)
    if met:
        allocation = replace(allocation, hosts=met)
    forks = allocation.scope is Scope.NODE
    if starter is not None and not forks:
        raise refuse_per_process(starter, allocation.local_size)
    if allocation.master_port == 0:
        allocation = replace(allocation, master_port=host.free_port())
    each = _count_processes(ledger, request, allocation) if forks else 1
    by_role = table.plan_topology(options, allocation, environ)  # nodes with only servers have no ranks
    topology = by_role or plan_topology(allocation, each)
    if by_role is None:
        ledger.fold(lambda it: check_master(it, topology, host)).check()
    if topology.world_size == 1:
        request = unnamed  # a single worker has no peers and needs no port
    case = Case(request, environ, allocation, topology, machine, host, script)
    return PlanShape(_find_framework(case), gathered, ledger)


def _gather(environ: Mapping[str, str], host: Host, options: Options, *, leads: bool) -> Gathered:
    nodes = options.get("nnodes")
    found = gather(
        environ,
        host,
        options.text("source") or None,
        starts_job=leads,
        node_count=nodes.value if nodes and isinstance(nodes.value, int) else None,
    )
    if options.get("hosts") or options.get("hostfile") or leads:
        from launcher.identity.hosts import read_listed, require_hosts

        listed = read_listed(options, host, found.evidence, leads=leads)
        if listed is not None:
            return replace(found, evidence=(listed, *found.evidence))
        if leads:
            who = MPIRUN if options.text("engine") == MPIRUN else "deepspeed's autotuner"
            require_hosts(options, found.evidence, who)
    return found


def _name_framework(options: Options, name: str, why: str) -> Options:
    """Return the options with a framework that the job shows, as if the user had named it."""
    return options.with_inner(Options({"framework": Given(name, why, name)}))


def _name_tensorflow(request: Request, script: Script, environ: Mapping[str, str]) -> Request:
    """Return the request with TensorFlow as its framework if the script uses several workers.

    This comes before processes are counted: a TensorFlow process uses all GPUs of its node.
    """
    known = request.options.framework or environ.get("TF_CONFIG") or request.own is not None
    if known or not names_workers(script):
        return request
    options = _name_framework(request.options, TENSORFLOW, f"{script.path} uses {STRATEGY}")
    return replace(request, options=options)


def _find_framework(case: Case) -> Case:
    """Return the job with the framework that its script shows, and how Horovod connects its processes."""
    options, script = case.options, case.script
    if case.is_wrapped or case.allocation.ranks_at_start:
        return case
    meeting = find_meeting(case)
    if meeting.kind in (MPI, GLOO):
        options = _name_framework(options, HOROVOD, meeting.why)
    elif options.framework == "" and jax.is_distributed(script):
        options = _name_framework(options, jax.NAME, f"{script.path} uses jax.distributed")
    return replace(case, request=replace(case.request, options=options), horovod=meeting)


def _refuse_arguments(options: Options, request: Request) -> None:
    """Refuse flags for per-process arguments if another program starts the processes.

    Raises:
        UsageError: There are such flags, and another launcher or torchrun runs the script itself.
    """
    inside = options.origins("run_path", "virtual_local_rank")
    if options.origins(*PER_PROCESS) and (request.own or inside):
        from launcher.command.arguments import refuse_words

        raise refuse_words(options, request.own.name if request.own else f"{inside[0]}: torchrun")


def _count_processes(ledger: Ledger, request: Request, allocation: Allocation) -> int:
    """Return the number of processes of a node; refuse a number that would exhaust its memory.

    If the command is a launcher that knows nodes that we do not, its number is that of the whole job.

    Raises:
        EnvironmentUntrusted: The number is larger than PROCESS_LIMIT.
    """
    own = None
    if request.own is not None:
        from launcher.engines.wrapped import count_own

        own = count_own(request.own, allocation.node_count)
    if own is not None and (own <= PROCESS_LIMIT or allocation.ranks_at_start):
        return own
    claim = ledger.findings[Fact.PROCESSES_PER_NODE].claim
    count, origin = (claim.value, claim.origin) if own is None else (own, str(request.starter))
    if not isinstance(count, int) or count > PROCESS_LIMIT:
        raise make_error(
            "too-many-processes" if own is None else "too-many-typed",
            origin=origin, count=count, limit=PROCESS_LIMIT,
        )  # fmt: skip
    return count
