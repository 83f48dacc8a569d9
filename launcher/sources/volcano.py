"""A pod of a Volcano job, also in Huawei's ModelArts: one launcher per pod.

Every pod sees the hosts of every task of its job, ``VC_<TASK>_HOSTS``, and its index *within its task*: pod
0 of the master and pod 0 of the workers have the same index. Only the pod's name contains the task's name.
With the pytorch plugin RANK and WORLD_SIZE count pods; in older plugins WORLD_SIZE counts the pods of all
tasks.

Source: volcano-sh/volcano pkg/controllers/job/plugins/{svc,env,distributed-framework/pytorch,mpi}; Huawei
Cloud "Preset environment variables of a training container".
"""

from __future__ import annotations

from launcher.core.model import Fact, Scope, Trust
from launcher.sources import MARKERS
from launcher.sources.reader import Reader, short
from launcher.sources.signs import FLAGS, is_above
from launcher.sources.torch_env import LOCAL_RANK, MASTER_ADDR, RANK, VOLCANO, WORLD_SIZE, counts_nodes

PREFIX, HOSTS, COUNT = "VC_", "_HOSTS", "_NUM"
*INDICES, NODE_COUNT, _ = MARKERS["volcano"]
RANKED = ("master", "worker")
"""The tasks of the pytorch plugin, in rank order."""
WATCHING = "tensorboard"
ROLE = "MA_TASK_NAME"  # worker, learner; ps with TensorFlow
GPUS = "MA_NUM_GPUS"
MPI_HOST = "MPI_HOST"  # mpi plugin, set in the master pod only: the workers

Tasks = dict[str, tuple[str, ...]]


def read(reader: Reader) -> None:
    """Claim the pods that have ranks, and which of them this one is."""
    tasks = _read_tasks(reader)
    named = [*reader.matching(PREFIX, COUNT), NODE_COUNT]
    above = [name for name in named if is_above(reader, name, 1)]
    above += [name for name in INDICES if is_above(reader, name, 0)]
    above += named[:1] if len(tasks.keys() - {WATCHING}) > 1 else []
    reader.several += map(reader.origin, above)
    reader.confirm(INDICES[1], reader.integer(INDICES[0]), INDICES[0])
    reader.claim_int(Fact.PROCESSES_PER_NODE, GPUS, trust=Trust.DERIVED)
    if reader.has(MPI_HOST):
        reader.sign(MPI_HOST, "mpirun starts what runs on the workers: mpirun ... launcher run -- COMMAND")
    elif counts_nodes(reader) == VOLCANO and not (_are_listed(tasks) and not reader.has(RANK)):
        _read_plugin(reader, tasks)
    elif reader.is_started() or reader.has("TF_CONFIG", "AZUREML_CR_DISTRIBUTED_CONFIG"):
        return  # they say more than the tasks do
    elif not reader.has(LOCAL_RANK) or reader.text(WORLD_SIZE) == "1":  # which is an image's default
        _read_names(reader, tasks)
    elif len(tasks) == 1 or (_are_listed(tasks) and len(tasks) == len(RANKED)):
        # another starter numbers this very process, on this node
        _claim_name(reader, _list_hosts(tasks, tuple(tasks)))


def _read_tasks(reader: Reader) -> Tasks:
    """Return the hosts of each task by its name; empty if only its number of pods or its master is known."""
    listed = {_task(name, HOSTS): reader.hosts(name) for name in reader.matching(PREFIX, HOSTS)}
    counted = [_task(name, COUNT) for name in reader.matching(PREFIX, COUNT) if reader.integer(name) != 0]
    master, own = short(reader.text(MASTER_ADDR) or ""), reader.own_name()
    known = map(short, _list_hosts(listed, tuple(listed)))
    if own != master and _is_of_another_task(own, master) and master not in known:
        counted.append(master.rsplit("-", 2)[1])  # a pod of this job, so its task exists
    return listed | {task: () for task in counted if task not in listed}


def _list_hosts(tasks: Tasks, ranked: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(host for task in ranked for host in tasks[task])


def _are_listed(tasks: Tasks) -> bool:
    return all(tasks.get(task) for task in RANKED)


def _task(name: str, end: str) -> str:
    return name[len(PREFIX) : -len(end)].lower()


def _name(task: str, end: str) -> str:
    return f"{PREFIX}{task.upper()}{end}"


def _read_plugin(reader: Reader, tasks: Tasks) -> None:
    """Claim the pytorch plugin's RANK, and its WORLD_SIZE or the lists of the tasks with the usual names."""
    if not reader.has(RANK):
        reader.sign(WORLD_SIZE, f"a pod of another task than master and worker has no rank; {FLAGS}")
        return
    reader.starts = Scope.NODE
    node, name = reader.claim_int(Fact.NODE_RANK, RANK), reader.first(*INDICES) or ""
    index, ahead = reader.integer(name), len(tasks.get(RANKED[0], ())) or 1
    # The workers' ranks follow the masters'
    if None not in (index, node) and node not in (index, (index or 0) + ahead * (len(tasks) != 1)):
        reader.contradict(RANK, name, f"{reader.origin(name)}: no pod of this job has both")
    most = sum(map(len, tasks.values())) + (RANKED[0] not in tasks)
    if tasks and all(tasks.values()) and is_above(reader, WORLD_SIZE, most):
        name = _name(next(iter(tasks)), HOSTS)
        reader.contradict(WORLD_SIZE, name, f"{reader.origin(name)}: expected {most} pods at most")
    if _are_listed(tasks):
        hosts = _claim_hosts(reader, tasks, RANKED)
        if reader.integer(WORLD_SIZE, 1) not in (None, len(hosts)):
            reader.note(f"{reader.origin(WORLD_SIZE)} counts pods without a rank, too: not used")
    elif len(tasks) <= len(RANKED) and WATCHING not in tasks:
        reader.claim_int(Fact.NODE_COUNT, WORLD_SIZE)
    else:
        reader.sign(WORLD_SIZE, f"unknown which tasks it counts: {FLAGS}")


def _read_names(reader: Reader, tasks: Tasks) -> None:
    """Claim this pod by its index if one task has all pods, else by its name in the lists of hosts."""
    ranked = RANKED if tasks.keys() >= set(RANKED) else tuple(tasks)
    hosts = _list_hosts(tasks, ranked)
    if len(ranked) > 1 and not (ranked == RANKED and _are_listed(tasks)):
        _sign(reader, "unknown which tasks have ranks")
        return
    counted = [_name(task, COUNT) for task in ranked] or [NODE_COUNT]
    count = reader.claim_int(Fact.NODE_COUNT, counted[0]) if len(counted) == 1 else None
    if count := count or len(hosts):
        reader.starts = Scope.NODE
        if _claim_node(reader, tasks, hosts, count):
            _claim_hosts(reader, tasks, ranked)
    elif reader.has(*INDICES):
        _sign(reader, "an index without the number of pods")


def _claim_node(reader: Reader, tasks: Tasks, hosts: tuple[str, ...], count: int) -> bool:
    """Claim the place of this pod among those with ranks, or report a sign; return whether it has a place."""
    own, others = reader.own_name(), [short(host) for task in tasks.values() for host in task]
    places = [*map(short, hosts)].count(own)
    if (not places and any(_is_of_another_task(own, other) for other in others)) or reader.text(ROLE) == "ps":
        _sign(reader, "this pod is of a task without ranks")
        return False
    if len(tasks) <= 1 and count == 1 and (hosts or not any(is_above(reader, name, 0) for name in INDICES)):
        reader.claim(Fact.NODE_RANK, 0, "the only pod")
    elif len(tasks) <= 1 and (index := reader.first(*INDICES)):
        return reader.claim_int(Fact.NODE_RANK, index) is not None
    elif places != 1:
        _sign(reader, "the index counts within a task, and this pod's place in the job is unknown")
        return False
    else:
        _claim_name(reader, hosts)
    return True


def _claim_name(reader: Reader, hosts: tuple[str, ...]) -> None:
    own = reader.own_name()
    for place in [place for place, host in enumerate(hosts) if short(host) == own][:1]:
        reader.claim(Fact.NODE_RANK, place, f"name of this pod, {own}, in the lists of hosts", Trust.DERIVED)


def _is_of_another_task(own: str, other: str) -> bool:
    """Whether a pod, named ``<job>-<task>-<index>``, is in the other pod's job, but not in its task."""
    if own == other:
        return True  # it is in the list of a task without ranks
    mine, its = own.rsplit("-", 2), other.rsplit("-", 2)
    return len(mine) == len(its) == 3 and mine[0] == its[0] and mine[1] != its[1] and mine[2].isdecimal()


def _claim_hosts(reader: Reader, tasks: Tasks, ranked: tuple[str, ...]) -> tuple[str, ...]:
    """Claim the lists, and the first host as master; return the hosts."""
    hosts, names = _list_hosts(tasks, ranked), [_name(task, HOSTS) for task in ranked]
    reader.claim_hosts(hosts, " + ".join(names))
    if hosts:
        reader.claim(Fact.MASTER_ADDR, hosts[0], names[0], Trust.DERIVED)
    return hosts


def _sign(reader: Reader, why: str) -> None:
    names = [*reader.matching(PREFIX, HOSTS), *reader.matching(PREFIX, COUNT), *INDICES, NODE_COUNT]
    reader.sign(reader.first(*names) or "", f"{why}: {FLAGS}")
