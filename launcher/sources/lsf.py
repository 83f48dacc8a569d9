"""A process that IBM Spectrum LSF starts on its hosts: a process of jsrun, or a task of blaunch.

LSF_PM_TASKID counts from 1. blaunch starts a task per host or per slot, and no variable says which; with one
slot on each host both are the same. Under mpirun, LSF_PM_TASKID is that of mpirun's daemon. With jsrun the
first host of LSF's lists is the launch node.

Source: IBM Spectrum LSF "Environment variables set for job execution"; Lightning lsf.py; openpmix/prrte
ess/lsf; NERSC export_DDP_vars_summit.sh.
"""

from __future__ import annotations

from launcher.core.environ import Malformed, is_host, parse_host
from launcher.core.model import Fact, Scope, Trust
from launcher.core.mpi import JSRUN
from launcher.machine.own_names import is_called
from launcher.sources import MARKERS
from launcher.sources.reader import Reader, short
from launcher.sources.signs import FIXES, LSF_HOSTS

RANK, TASK = MARKERS["lsf"]
(SLOTTED, _), (LISTED, _) = LSF_HOSTS


def read(reader: Reader) -> None:
    """Claim a process of jsrun by its ranks and sizes, or a task of blaunch as a node."""
    name, slots, is_one_each = _read_slots(reader)
    number = None if reader.is_started() else reader.integer(TASK, 1)
    hosts = tuple(dict.fromkeys(slots))
    here = [index + 1 for index, host in enumerate(hosts) if short(host) == reader.own_name()]
    is_meant = here == [number] or (is_one_each and not here)
    if reader.has(RANK):
        _read_process(reader)
    elif number is not None and not hosts:
        reader.sign(TASK, f"pass {LISTED} too, which LSF gives to every task; or {FIXES['blaunch']}")
    elif number is not None and (number > len(hosts) or name != LISTED or not is_meant):
        reader.sign(TASK, FIXES["blaunch"])
    elif number is not None:
        reader.starts = Scope.NODE
        reader.claim_hosts(hosts, name, master=Trust.DERIVED)
        reader.claim(Fact.NODE_RANK, number - 1, f"{reader.origin(TASK)}, counted from 1")


def _read_slots(reader: Reader) -> tuple[str, list[str], bool]:
    """Return a list's variable, the host of each slot or entry, and whether each host has one slot.

    LSB_HOSTS comes first, because it has the order of the tasks.
    """
    for name, step in reversed(LSF_HOSTS):
        words = (reader.text(name) or "").split()
        try:
            slots = [parse_host(word) for word in words[::step]]
        except Malformed as error:
            reader.malformed(name, str(error))
            return "", [], False
        if slots:
            counts = set(words[1::step] if step > 1 else ())
            return name, slots, len(set(slots)) == len(slots) and counts <= {"1"}
    return "", [], False


def _read_process(reader: Reader) -> None:
    rank, size, local_rank, local_size = reader.claim_process(JSRUN.numbers())
    words = (reader.text(SLOTTED) or "").split()
    hosts, slots = words[::2], words[1::2]
    # The launch node, which has no ranks, comes first and alone has a single slot
    is_whole = len(slots) == len(hosts) > 1 and is_host(hosts[1])
    first = hosts[1] if is_whole and slots[0] == "1" and "1" not in slots[1:] else ""
    if is_called(reader.host, *hosts):
        reader.most_nodes = len(set(hosts)) - bool(first) or None
    full = (local_size or 0) * len(hosts[1:])
    if first and rank is not None and local_size and size == full:  # then all of its hosts are used
        # In blocks or dealt in turn: each rank shows whether the list has jsrun's order
        places = [divmod(rank, local_size), divmod(rank, len(hosts[1:]))[::-1]]
        own = [node for node, host in enumerate(hosts[1:]) if short(host) == reader.own_name()]
        for node in [node for node in own if (node, local_rank) in places]:
            reader.claim(Fact.NODE_RANK, node, f"{SLOTTED}, behind the launch node")
    if size != local_size and first and (rank != 0 or short(first) == reader.own_name()):
        reader.claim(Fact.MASTER_ADDR, first, f"{SLOTTED}, behind the launch node", Trust.INDIRECT)
    elif size != local_size:
        why = f"and {SLOTTED} does not show that it is the second"
        reader.note(f"jsrun does not name the host of rank 0, {why}")
