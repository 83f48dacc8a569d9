"""A task of Slurm's srun.

Only a step has tasks, but the batch script sees SLURM_PROCID=0 and SLURM_NTASKS=N too. Under mpirun,
SLURM_PROCID is that of mpirun's daemon: every rank of a node sees 0, and remote nodes see a world size of 1.

Source: srun(1) "OUTPUT ENVIRONMENT VARIABLES"; captured with 22.05.8.
"""

from __future__ import annotations

from launcher.core.environ import each_once
from launcher.core.model import Fact, Trust
from launcher.core.mpi import FLUX, HYDRA, OPEN_MPI, STARTED_BY_MPI
from launcher.machine.own_names import is_called
from launcher.sources import MARKERS
from launcher.sources.nodelist import parse_nodelist, parse_tasks_per_node
from launcher.sources.reader import Reader, short
from launcher.sources.signs import FIXES

_, STEP_ID, PROCID, NTASKS, NODEID, NODE_COUNT, JOB_NODE_COUNT, *MORE = MARKERS["slurm"]
*LISTS, STEP_NODE_COUNT, STEP_TASKS, OLD_NTASKS, LOCALID, TASK_IDS, ASKED_TASKS, TASKS_PER_NODE = MORE
JOB_NODELIST, _, STEP_NODELIST = LISTS
OF_STEP = (STEP_NODELIST, STEP_NODE_COUNT, STEP_TASKS, TASKS_PER_NODE)
TASK_OF_FLUX = FLUX.rank[0]  # Flux runs inside a step, and its tasks see its broker's SLURM_*
HET_SIZE = "SLURM_HET_SIZE"
NODE_COUNTS = (STEP_NODE_COUNT, NODE_COUNT)
ASKED_PER_NODE = "SLURM_NTASKS_PER_NODE"
NODE_NAME, DISTRIBUTION = "SLURMD_NODENAME", "SLURM_DISTRIBUTION"
OTHER_RANKS = (*OPEN_MPI.rank, *HYDRA.rank)
OF_OTHERS = (*((name, 1) for name in (*NODE_COUNTS, STEP_TASKS)), (PROCID, 0), (NODEID, 0), (LOCALID, 0))
"""Numbers above these belong to other nodes or tasks, even in a batch script on one node."""
TASK_COUNTS = ((NTASKS, 1), (OLD_NTASKS, 1))
"""The same, but in a batch script on one node they are what the user requested."""
# The batch step, the extern step and the interactive step of salloc run shells, not tasks.
FIRST_SPECIAL_STEP = 0xFFFFFFF0


def read(reader: Reader) -> None:
    """Claim a task's own numbers; under mpirun only a master; in a batch script nothing, or its nodes."""
    if reader.has(*STARTED_BY_MPI, TASK_OF_FLUX):
        _read_under_mpirun(reader)
        return
    is_het = (reader.integer(HET_SIZE) or 1) > 1
    step = reader.integer(STEP_ID, 0, 1 << 32)
    if step is None or step >= FIRST_SPECIAL_STEP:
        if is_het:
            reader.sign(HET_SIZE, FIXES["het-group"])
        else:
            _read_batch_script(reader)
        return
    rank, tasks, _, _, node = reader.claim_process((PROCID, NTASKS, LOCALID, "", NODEID))
    if not is_het:  # in a step over several components it counts those of one
        reader.confirm(OLD_NTASKS, tasks, NTASKS)
    if rank is None and tasks is None:
        reader.sign(STEP_ID, f"pass {PROCID}, {NTASKS} and the other SLURM_* too")
    counts = (reader.claim_int(Fact.NODE_COUNT, name) for name in NODE_COUNTS)
    nodes = next((count for count in counts if count is not None), None)
    sizes = reader.parsed(TASKS_PER_NODE, parse_tasks_per_node) or ()
    if sizes and tasks is not None and sum(sizes) != tasks:
        reader.malformed(TASKS_PER_NODE, f"{tasks} tasks in all ({reader.origin(NTASKS)})")
    elif node is not None and node < len(sizes):
        reader.claim(Fact.LOCAL_SIZE, sizes[node], TASKS_PER_NODE)
    if sum(sizes) > len(sizes) and tasks is None:
        reader.claim(Fact.WORLD_SIZE, sum(sizes), TASKS_PER_NODE)
    if is_het:
        _read_het_hosts(reader, node, nodes)
    else:
        _read_step_hosts(reader, STEP_NODELIST if reader.has(STEP_NODELIST) else JOB_NODELIST)
    reader.claim_int(Fact.PROCESSES_PER_NODE, "SLURM_GPUS_ON_NODE", 1, Trust.DERIVED)


def _read_under_mpirun(reader: Reader) -> None:
    if reader.has(PROCID):
        whose = "Flux's broker" if reader.has(TASK_OF_FLUX) else "mpirun's daemon"
        reader.note(f"{reader.origin(PROCID)} belongs to {whose} on this node, not to this process")
    if not reader.has(*OTHER_RANKS, TASK_OF_FLUX):
        # Only some of mpirun's variables: if they are this process's, Slurm's rank is not
        half = ", ".join(name for name in STARTED_BY_MPI if reader.has(name))
        fix = f"pass mpirun's other variables too; for a task of srun: unset {half}"
        _sign_remains(reader, (*OF_OTHERS, *TASK_COUNTS), fix)
    counts = (*NODE_COUNTS, JOB_NODE_COUNT)
    reader.several += [reader.origin(name) for name in counts if (reader.integer(name, 1) or 1) > 1]
    hosts = _read_hosts(reader, JOB_NODELIST)
    # Hydra passes on SLURMD_NODENAME of its own node
    own = [host for host in hosts if host == reader.text(NODE_NAME) or is_called(reader.host, host)]
    if not own:
        return  # another job's list, from the shell in which mpirun was typed
    reader.most_nodes = len(hosts)
    if own[0] != hosts[0] and any(reader.text(name) == "0" for name in OTHER_RANKS):
        # mpirun may use only some nodes (--host). The other ranks cannot see that, but it ends them
        reader.note(f"rank 0 is here, and not on the first node of {reader.origin(JOB_NODELIST)}")
        return
    reader.claim(Fact.MASTER_ADDR, hosts[0], JOB_NODELIST, Trust.INDIRECT)  # mpirun knows where it runs


def _read_batch_script(reader: Reader) -> None:
    count = reader.integer(JOB_NODE_COUNT, 1)
    if count is not None and count > 1:
        fix = "a batch script or a shell of salloc runs once: srun launcher run -- COMMAND"
        reader.sign(JOB_NODE_COUNT, fix)
        if reader.starts_job:  # an mpirun that we start from here uses the nodes, whatever runs on them
            reader.claim_hosts(_read_hosts(reader, JOB_NODELIST), JOB_NODELIST, master=Trust.DERIVED)
            # Every script that starts launchers has --ntasks-per-node=1: it says nothing about ranks
            if (reader.integer(ASKED_PER_NODE) or 1) > 1:
                reader.claim_int(Fact.PROCESSES_PER_NODE, ASKED_PER_NODE)
        return
    # docker run -e SLURM_PROCID -e SLURM_NTASKS: a task's variables without those of the step
    numbers = OF_OTHERS if count == 1 and not _is_task(reader) else (*OF_OTHERS, *TASK_COUNTS)
    fix = f"pass {STEP_ID} and the other SLURM_* into the container too"
    fix += "; in a shell of a job: srun launcher run ..."
    if not _sign_remains(reader, numbers, fix) and count == 1:
        reader.claim(Fact.NODE_COUNT, 1, JOB_NODE_COUNT)
        reader.claim(Fact.NODE_RANK, 0, JOB_NODE_COUNT)


def _sign_remains(reader: Reader, numbers: tuple[tuple[str, int], ...], fix: str) -> bool:
    """Report variables that belong to other nodes or tasks; return whether there are any."""
    is_task, asked = _is_task(reader), reader.parsed(ASKED_TASKS, parse_tasks_per_node) or ()
    found = [name for name, alone in numbers if (reader.integer(name) or alone) > alone]
    found += [TASK_IDS] * (reader.text(TASK_IDS) not in (None, "0"))
    found += [TASKS_PER_NODE] * (sum(reader.parsed(TASKS_PER_NODE, parse_tasks_per_node) or ()) > 1)
    found += [ASKED_TASKS] * ((sum(asked) if is_task else len(asked)) > 1)
    if not found:
        found = [name for name in LISTS if len(_read_hosts(reader, name)) > 1][:1]
    for name in found:
        own = "--nnodes 1 if each task is a separate job" if is_task else f"unset {name}"
        reader.sign(name, f"{fix}, or {own}")
    return bool(found)


def _is_task(reader: Reader) -> bool:
    """Whether variables of a step without its id show a task: then the number of tasks is no mere request."""
    return not reader.has(STEP_ID) and reader.has(*OF_STEP)


def _read_step_hosts(reader: Reader, name: str) -> None:
    """Claim the step's own nodes, and the first one as master."""
    hosts = _read_hosts(reader, name)
    is_sorted = len(hosts) > 1 and (reader.text(DISTRIBUTION) or "").startswith("arbitrary")
    reader.claim_hosts(hosts, name, master=None if is_sorted else Trust.DERIVED)
    if is_sorted:  # SLURM_HOSTFILE is not: rank 0 is on the first node of SLURM_HOSTFILE
        reader.in_order = False
        reader.note(f"{reader.origin(DISTRIBUTION)}: the first node of {name} may not be the node of rank 0")


def _read_het_hosts(reader: Reader, node: int | None, nodes: int | None) -> None:
    """Claim the nodes of a step over components from a list of all of them, with this one in its place.

    The list of a component, or of the job, may be shorter, longer or in another order than the step's nodes.
    """
    own = short(reader.text(NODE_NAME) or reader.host.hostname())
    for name in (STEP_NODELIST, JOB_NODELIST):
        hosts = _read_hosts(reader, name)
        if node is not None and len(hosts) == nodes and hosts[node : node + 1] == (own,):
            reader.claim_hosts(hosts, name, master=Trust.DERIVED)
            return
    if nodes != 1:
        reader.note(f"{reader.origin(HET_SIZE)}: no list shows the first node of this step")


def _read_hosts(reader: Reader, name: str) -> tuple[str, ...]:
    return reader.parsed(name, lambda text: each_once(parse_nodelist(text))) or ()
