"""mpirun as the engine for all nodes: its command line for node 0, which the others serve.

The command line is in the dialect of the MPI on PATH (`launcher.engines.dialects`). `launcher.mpi` runs it,
and explains why so little is left to mpirun itself.
"""

from __future__ import annotations

import itertools
import os
import sys

from launcher.core.blocks import PACKAGE
from launcher.core.errors import make_error
from launcher.core.frozen import replace
from launcher.core.model import MPIRUN, Fleet, NodeCommand, Setting
from launcher.engines import dialects
from launcher.engines.forward import choose_forwarded, plan_starter_environ
from launcher.identity.rendezvous import plan_control_ports
from launcher.inprocess.marker import TOKEN
from launcher.machine.infiniband import is_usable, read_ports
from launcher.machine.network import find_interface, network_of, read_interfaces
from launcher.machine.own_names import address_of
from launcher.machine.pythons import own_program
from launcher.options.flags import PASSED_TO_RANKS, PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case
    from launcher.machine.mpi import Mpi

SERVE = "serve"
WRAPPER, RSH = os.path.join(PACKAGE, "mpi", "rank.py"), os.path.join(PACKAGE, "remote", "rsh.py")
FOLDER, JOB, HOSTFILE = "{folder}", "{job}", "{folder}/hostfile"
"""Placeholders on the command line for values that are known when the job starts."""
FOLDER_OPTIONS = frozenset(("-wdir", "--wdir", "-wd", "--wd"))


def plan_agent(job: Case) -> NodeCommand:
    """Return mpirun's command line for node 0, or the server for another node.

    Raises:
        UsageError: The hosts are unknown, or a job of several nodes has no token.
        Unavailable: There is no mpirun on PATH.
    """
    fleet = plan_fleet(job, MPIRUN)
    if job.allocation.node_rank != 0:
        return plan_server(fleet)
    mpi = job.host.find_mpi(job.environ)
    if mpi is None:
        raise make_error("no-mpirun", asked=job.options.origins("engine")[0])
    inherited = {name: value for name, value in job.environ.items() if not name.startswith(PREFIX)}
    chosen = choose_forwarded(inherited, job.options.words("forward"))
    forward = tuple(name for name in chosen if dialects.carries(mpi, name))
    fleet = replace(fleet, forward=forward, restored=dialects.changed(mpi))
    line = make_line(mpi, fleet, job)
    variables = dialects.plan_variables(line)
    wrapper = (sys.executable, "-I", WRAPPER, JOB, *plan_rank_options(job), "--", *job.argv)
    dropped = job.environ.keys() - plan_starter_environ(inherited, fleet.forward, variables).keys()
    return NodeCommand(
        engine=MPIRUN,
        argv=(*dialects.plan_line(line), *(wrapper if job.argv else ())),
        settings=tuple(Setting(name, value, f"for {mpi.family} {mpi.version}") for name, value in variables),
        unset=tuple(sorted(dropped)),
        files=((HOSTFILE, dialects.render_hostfile(mpi, fleet.hosts, fleet.per_node)),),
        fleet=fleet,
    )


def make_line(mpi: Mpi, fleet: Fleet, job: Case) -> dialects.MpirunJob:
    """Return the job for an mpirun of any dialect."""
    several = len(fleet.hosts) > 1
    interface = find_interface(read_interfaces(job.host), fleet.address) if several else None
    return dialects.MpirunJob(
        mpi=mpi,
        hosts=fleet.hosts,
        per_node=fleet.per_node,
        hostfile=HOSTFILE,
        rsh=plan_rsh(),
        as_root=job.host.is_root(),
        forward=fleet.forward,
        network=network_of(interface, fleet.address) if interface else None,
        interface=interface.name if interface else None,
        ports=tuple(f"{port.device}:{port.number}" for port in read_ports(job.host) if is_usable(port)),
        extra=job.options.words("mpi_args"),
        user=tuple(job.environ),
    )


def plan_fleet(job: Case, who: str) -> Fleet:
    """Return the nodes, and where they join the head; ``who`` is the program that starts processes there.

    Raises:
        UsageError: Their names are unknown, or there is no token: a node that joins may run programs.
    """
    allocation, options = job.allocation, job.options
    count = allocation.node_count or 1
    hosts = allocation.hosts if len(allocation.hosts) == count else ()
    if not hosts and count > 1:
        raise make_error("no-hosts", count=count, program=who)
    token_file = options.text("token_file")
    if count > 1 and not token_file and not job.environ.get(TOKEN):
        raise make_error("no-token", program=who)
    hosts = hosts or (job.host.hostname(),)
    own = hosts[allocation.node_rank or 0]
    return Fleet(
        hosts=hosts,
        per_node=job.each,
        address=address_of(job.host, own) if count > 1 else "",
        ports=plan_control_ports(options, frozenset((allocation.master_port,))),
        token_file=token_file,
        index=allocation.node_rank,
        timeout_s=options.roll_call_s,
    )


def plan_server(fleet: Fleet) -> NodeCommand:
    """Return the agent of a node other than the head, through which mpirun starts processes."""
    return NodeCommand(engine=SERVE, argv=(SERVE,), fleet=fleet)


def plan_rsh() -> tuple[str, ...]:
    """Return the words that run a command on a node of this job, in place of ssh."""
    return own_program(RSH, f"{FOLDER}/rsh")


def plan_rank_options(job: Case) -> tuple[str, ...]:
    """Return the options of ``launcher run`` for each rank.

    A process that another program started is bound only on request. So we pass the binding that we would
    choose for processes of our own.
    """
    has_prefix = job.options.switch("prefix", (job.topology.world_size or 1) > 1)
    words = ("--scope=process", "--engine=process", "--init", "--no-progress")
    bind = job.binding.mode
    bound = (f"--bind={bind}",) if bind != "none" and not job.options.given_text("bind") else ()
    prefix = "--prefix" if has_prefix else "--no-prefix"
    framework = (f"--framework={job.options.framework}",) if job.options.framework else ()
    return (*words, prefix, *framework, *job.options.spell(PASSED_TO_RANKS), *bound)


def fill_line(argv: tuple[str, ...], folder: str, job: str) -> tuple[str, ...]:
    """Return a planned command line with its placeholders filled; the user's command stays unchanged."""
    ours = argv.index("--", argv.index(JOB)) if JOB in argv else len(argv)
    filled = (word.replace(FOLDER, folder).replace(JOB, job) for word in argv[:ours])
    return (*filled, *argv[ours:])


def names_folder(argv: tuple[str, ...]) -> bool:
    """Return whether the user's words on a planned command line set the working directory of ranks."""
    words = argv[: argv.index(JOB)] if JOB in argv else argv
    pairs = {*itertools.pairwise(words)} - {dialects.EVERYWHERE}
    return any(option in FOLDER_OPTIONS for option, _ in pairs)
