"""Horovod: uses MPI if an mpirun started the processes; otherwise gloo, with a rendezvous server of ours.

Without mpirun, ``hvd.init()`` of a Horovod with MPI makes every process a world of its own, and N copies of a
training run end with success. So a Horovod job gets gloo's variables, and Horovod's own rendezvous server
beside rank 0. A job that only might use Horovod gets variables with which ``hvd.init()`` fails. We set
``HOROVOD_RANK`` only together with the server, because scripts and Lightning 1 take it for "horovodrun has
started me".

Source: horovod/common/gloo/gloo_context.cc and http_store.cc (which variables are read, and what is
tried how often), utils/env_parser.cc (controllers), runner/gloo_run.py (what horovodrun sets); 0.28.1.
"""

from __future__ import annotations

import os

from launcher.command.line import is_python
from launcher.core.environ import PORT_LIMIT, parse_int
from launcher.core.model import Companion, Place, Policy, Setting, Topology
from launcher.frameworks.horovod_meeting import ADDRESS, CONTROLLER, GLOO, OPERATIONS, PORT, TRAP
from launcher.machine.pythons import own_program, own_python

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case

INTERFACE = "HOROVOD_GLOO_IFACE"
TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
TIMEOUT_S = 600
"""Seconds that ranks wait for each other.

Horovod's default of 30 s suits processes that one command has started. In a job of several nodes they start
when their node is ready.
"""
LOOPBACK = "127.0.0.1"
NOWHERE = (LOOPBACK, "1")
"""An address without a listener: if there is no server, the connection must be refused at once."""
_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "servers")
WAITER = os.path.join(_PROGRAMS, "horovod_wait.py")
SERVER = os.path.join(_PROGRAMS, "horovod_server.py")
SERVE = os.path.join(_PROGRAMS, "horovod_serve.py")
HOSTS_NAMED = 4
"""Number of nodes that are named to find the address through which the others are reached."""


def plan_common(case: Case) -> list[Setting]:
    """Return the rendezvous address, the size of the job and of this node, and the rank of this node."""
    meeting, job = case.horovod, case.topology
    if meeting.kind == TRAP:
        return [
            *_choose_gloo(meeting.why),
            Setting(ADDRESS, NOWHERE[0], meeting.why, Policy.IF_UNSET),
            Setting(PORT, NOWHERE[1], meeting.why, Policy.IF_UNSET),
        ]
    if meeting.kind != GLOO:
        return []
    settings = [
        Setting("HOROVOD_SIZE", str(job.world_size), case.origin("world_size")),
        Setting("HOROVOD_LOCAL_SIZE", str(job.local_size), case.origin("local_size")),
        Setting("HOROVOD_CROSS_RANK", str(job.node_rank), case.origin("node_rank")),
        Setting("HOROVOD_CROSS_SIZE", str(job.node_count), case.origin("node_count")),
        # Ranks of one node find each other by this name: without it all nodes are "localhost"
        Setting("HOROVOD_HOSTNAME", f"node{job.node_rank}", case.origin("node_rank")),
        *_choose_gloo(meeting.why),
        Setting(ADDRESS, *_find_address(case), Policy.IF_UNSET),
        Setting(PORT, str(find_port(case)), "next to MASTER_PORT", Policy.IF_UNSET),
        Setting(TIMEOUT, str(TIMEOUT_S), "nodes start at their own time", Policy.IF_UNSET),
    ]
    name, why = (case.interface, "as gloo's") if job.spans_nodes else ("lo", "one node")
    return settings + ([Setting(INTERFACE, name, why, Policy.IF_UNSET)] if name else [])


def _choose_gloo(why: str) -> list[Setting]:
    """Return the settings that make gloo do everything: with only one of them Horovod would ask MPI."""
    return [
        Setting(CONTROLLER, GLOO, why, Policy.IF_UNSET),
        Setting(OPERATIONS, GLOO, why, Policy.IF_UNSET),
    ]


def plan_process(case: Case, place: Place) -> list[Setting]:
    """Return the rank and local rank of one process."""
    if case.horovod.kind != GLOO:
        return []
    return [
        Setting("HOROVOD_RANK", str(place.rank), case.origin("rank")),
        Setting("HOROVOD_LOCAL_RANK", str(place.local_rank), case.origin("local_rank")),
    ]


def plan_argv(case: Case) -> tuple[str, ...]:
    """Return the command line of a process, which first waits for the rendezvous server if it is ours.

    Horovod tries to reach it for 1.5 seconds, then aborts; node 0 may start minutes later than the others.
    """
    if not _is_served(case) or not case.argv:
        return case.argv
    where = f"{_find_address(case)[0]}:{find_port(case)}"
    return own_program(WAITER, where, name_slots(case.topology), *case.argv)


def plan_companions(case: Case) -> list[Companion]:
    """Return Horovod's rendezvous server, beside rank 0, run by the Python that has Horovod."""
    if not _is_served(case) or all(place.rank for place in case.topology.places):
        return []
    python = case.command[0] if case.argv and is_python(case.command[0]) else own_python(case.environ)
    argv = (python, SERVER, str(find_port(case)), name_slots(case.topology))
    if not case.topology.spans_nodes:
        return [Companion("horovod server", (*argv, LOOPBACK), serves=True)]
    hosts = ",".join(case.allocation.hosts[:HOSTS_NAMED])
    finder = own_program(SERVE, case.topology.master_addr, hosts)
    return [Companion("horovod server", (*finder, *argv), serves=True)]


def _find_address(case: Case) -> tuple[str, str]:
    """Return the rendezvous address for ranks, and why; on one node nothing outside must reach it."""
    if not case.topology.spans_nodes:
        return LOOPBACK, "one node"
    return case.topology.master_addr, case.origin("master_addr")


def _is_served(case: Case) -> bool:
    return case.horovod.kind == GLOO and not case.environ.get(ADDRESS)


def find_port(case: Case) -> int:
    """Return the port of the rendezvous: the user's, or else the one above MASTER_PORT."""
    if case.environ.get(PORT):
        return parse_int(case.environ[PORT], 1, PORT_LIMIT)
    return case.next_port


def name_slots(topology: Topology) -> str:
    """Return the nodes of a job in Horovod's notation, ``"node0:2,node1:2"``."""
    return ",".join(f"node{index}:{topology.local_size}" for index in range(topology.node_count or 0))
