"""Jobs of the platforms' model whose environments are not as the platform made them, at random.

Each perturbation takes the starts of one job and gives those that the launcher sees. What no launcher
could notice in the environment of one start is excluded, start by start, as narrowly as it can be said:

- *Nothing is left*: what is left of a start after some of it was taken away is, to the letter, what a
  job of one process on one node shows there. A machine that is alone looks like that.
- *Nothing contradicts it*: a number was changed, and whatever holds between the numbers of every start
  of this platform (they are equal, or one is below the other) still holds. The relations are not written
  down: they are what held in hundreds of jobs of the model, so that a new platform brings its own. Numbers
  that are no rank, index or count of this very job (`OTHER_NUMBERS`) have no part in them.
- *A lone run inside*: a whole contract of torchrun looks like a torchrun that each process has started for
  itself (a search, of which each task is a job). So does this launcher's own under a platform that starts
  nothing but one command per node; there LAUNCHER_* are also its user's word, which beats the platform's.

Starters stand inside of each other in one order only (`LEVELS`): torchrun in mpirun in srun in a cloud's
node. An mpirun's rank that calls srun, whose tasks then see the mpirun's variables, looks from inside like
an mpirun that srun has started.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tests.unit.platforms_model import Job, Node, Platform, Start
from tests.unit.starters_model import EVERY, ONE_EACH

OTHER_NUMBERS = (
    *("PORT", "_FD", "JOB_ID", "STEP_ID", "UNIVERSE", "LAUNCHED", "NUM_PS", "GPU", "NPROC_PER_NODE"),
    *("ROLE_", "OMPI_COMM_WORLD_NODE_RANK", "ess_base_vpid", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("LAUNCHER_NNODES", "PMIX_RANK", "LSB_DJOB_NUMPROC"),
)
"""Parts of names of numbers that are no rank, index or count of the processes or nodes of this job.

A role's, those of all jobs on a node, Open MPI's private ones, those of the allocation around a step, the
user's word, and LSF's slots.
"""
WORKERS_ALONE = {"VC_WORKER_HOSTS", "VC_WORKER_NUM", "VC_TASK_INDEX"}
"""All that a whole job of Volcano shows that has no other task than the workers."""
LOOKS_ALONE = (
    {"SLURM_NODEID", "SLURM_TASKS_PER_NODE", "SLURM_JOB_ID"},  # a batch script on one node, for several tasks
    {"MASTER_ADDR"},  # an image's default
    {"AZ_BATCHAI_MPI_MASTER_NODE", "AZ_BATCHAI_TASK_INDEX", "AZUREML_RUN_ID", "MASTER_ADDR"},  # Azure ML's
)
"""Names that, alone or with a port, are all that a whole job of one node shows, if their values are its.

A port alone is in many images and shells: it says nothing about nodes.
"""
OF_A_NODE = ("AZ_BATCHAI_TASK_INDEX",)
"""Under mpirun, which may pass on that of its own node."""
AGENTS = {
    "torchrun": ("SLURM_", "NODE_RANK"),
    "pals": ("PBS_",),
    "azureml-mpi": OF_A_NODE,
    "azureml-mpi-per-node": OF_A_NODE,
}
"""Beginnings of names that a platform of the model passes through from outside of it."""
LEVELS = {
    "torchrun": 0,
    "tf-config": 1,
    "jax-job": 1,
    "open-mpi-4": 2,
    "open-mpi-5": 2,
    "open-mpi-4-idle-head": 2,
    "open-mpi-5-idle-head": 2,
    "azureml-mpi": 2,
    "mpich": 3,
    "intel-mpi": 3,
    "pals": 3,
    "jsrun": 3,
    "horovodrun": 3,
    "flux": 4,
    "slurm": 5,
    "blaunch": 5,
    "azureml-pytorch": 6,
    "flags": 7,
}
"""How far out a platform is; one that is not named here is as MPICH is, or a cloud's (once per node)."""
CLOUD = 6
HEADS = ("10.255.0.1", "head-pod")
"""Address and name of an idle head in the model."""
MALFORMED = (
    " ",
    "x",
    "-1",
    "+1",
    "1.0",
    "0x1",
    "1_0",
    "1 2",
    "\uff11",
    "99999999999999999999",
    "16777216",
    "None",
)
ONE_RUN = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_RANK": "0",
    "ROLE_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
OF_ONE_RUN = [name for name in ONE_RUN if not name.startswith("MASTER_")]
LEFT_OVER: dict[str, Mapping[str, str]] = {
    "an image's defaults": {"RANK": "0", "WORLD_SIZE": "1"},
    "a notebook's": {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"},
    "a person's": {"NODE_RANK": "0", "MASTER_PORT": "12355"},
    "torchrun's id": {"TORCHELASTIC_RUN_ID": "none"},
    "torchrun's names": {"TORCHELASTIC_RUN_ID": "none", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    "a run of one": {**ONE_RUN, "TORCHELASTIC_RUN_ID": "none"},
    "a launcher's mark": {"LAUNCHER_LAUNCHED": "1.0"},
    "a launcher's run of one": {**ONE_RUN, "NODE_RANK": "0", "LAUNCHER_LAUNCHED": "1.0"},
    "a launcher's number": {"LAUNCHER_NNODES": "1"},
    "a launcher's node": {"LAUNCHER_NNODES": "1", "LAUNCHER_NODE_RANK": "0"},
}


@dataclass(frozen=True)
class Case:
    """A job, and what the launcher sees of it.

    Attributes:
        name: Of its platform.
        job: The truth.
        starts: With the environments as they were made worse.
        done: What was done to them, for messages.
        blind: Ranks of the starts in which no launcher could notice it.
        ports: Whether all processes can still know one port.
        aliases: What a platform around calls the node of rank 0.
        outside: What each process sees without the world that runs inside of it; empty without one.
        heads: What an idle head is called: a process that is not rank 0 can take it for rank 0's node.
        ends: Whether the job ends if rank 0 does not start: the others wait for a master in vain.
    """

    name: str
    job: Job
    starts: tuple[Start, ...]
    done: str = "nothing"
    blind: frozenset[int] = frozenset()
    ports: bool = True
    aliases: frozenset[str] = frozenset()
    outside: tuple[Start, ...] = ()
    heads: frozenset[str] = frozenset()
    ends: bool = False

    @property
    def platform(self) -> Platform:
        """What starts the job."""
        return EVERY[self.name]


def draw_job(rng: random.Random, platform: Platform) -> Job:
    """Return a job that the platform can start: small ones, of which every process can be looked at."""
    count = min(rng.choice((1, 2, 2, 2, 3, 3, 4, 5)), platform.most)
    stem, domain = rng.choice(("node", "gpu-", "x0")), rng.choice(("", "", ".cluster.local"))
    numbers = rng.sample(range(40), count)
    if platform.per_node:
        sizes, gpus = [1] * count, rng.choice((0, 1, 2, 4))
    elif platform.even or rng.random() < 0.5:
        sizes = [rng.choice((1, 2, 2, 3, 4))] * count
        gpus = rng.choice((0, sizes[0]))
    else:
        sizes, gpus = [rng.choice((1, 1, 2, 3, 4)) for _ in range(count)], 0
    cyclic = not platform.blocks and rng.random() < 0.4
    nodes = [Node(i, f"{stem}{n}{domain}", f"10.0.0.{n + 4}", sizes[i]) for i, n in enumerate(numbers)]
    return Job(tuple(nodes), cyclic, gpus, rng.randrange(6))


def make(rng: random.Random, name: str) -> Case:
    """Return a job as its platform starts it."""
    job = draw_job(rng, EVERY[name])
    if name in ONE_EACH:
        job = replace(job, nodes=tuple(replace(node, size=1) for node in job.nodes))
    return Case(name, job, tuple(EVERY[name].start(job)))


def level(name: str) -> int:
    """Return how far out a platform is."""
    inner = name.removesuffix("-per-node")
    return LEVELS.get(inner, CLOUD if is_cloud(name) else LEVELS["mpich"])


def is_cloud(name: str) -> bool:
    """Whether a platform starts nothing but one command per node, of which a person wrote the environment."""
    return EVERY[name].per_node and LEVELS.get(name.removesuffix("-per-node"), CLOUD) >= CLOUD


def _changed(
    case: Case,
    change: Callable[[Start], Mapping[str, str]],
    done: str,
    is_blind: Callable[[Start], bool] = lambda start: False,
    *,
    ports: bool = True,
) -> Case:
    starts = tuple(replace(start, environ=change(start)) for start in case.starts)
    blind = frozenset(start.rank for start in starts if is_blind(start))
    return replace(case, starts=starts, done=done, blind=blind, ports=ports)


def _names(starts: Sequence[Start]) -> list[str]:
    return sorted({name for start in starts for name in start.environ})


def _draw_where(rng: random.Random, case: Case) -> tuple[str, Callable[[Start], bool]]:
    """Return all nodes, one node or one process, in words and as a question."""
    one = rng.choice(case.starts)
    choices: list[tuple[str, Callable[[Start], bool]]] = [
        ("everywhere", lambda start: True),
        (f"on node {one.node.index}", lambda start: start.node.index == one.node.index),
        (f"in rank {one.rank}", lambda start: start.rank == one.rank),
    ]
    return rng.choice(choices)


def hide(rng: random.Random, name: str) -> Case:
    """One to three variables are missing or empty, everywhere, on one node or in one process."""
    case = make(rng, name)
    names = _names(case.starts)
    gone = rng.sample(names, min(len(names), rng.choice((1, 1, 2, 3))))
    empty = rng.random() < 0.3
    words, here = _draw_where(rng, case)

    def change(start: Start) -> dict[str, str]:
        if not here(start):
            return dict(start.environ)
        left = {name: value for name, value in start.environ.items() if name not in gone}
        return left | ({name: "" for name in gone if name in start.environ} if empty else {})

    done = f"{', '.join(gone)} {'empty' if empty else 'hidden'} {words}"
    ports = words == "everywhere" or not any("PORT" in name for name in gone)
    beside_idle = "idle-head" in name and "MASTER_ADDR" in gone
    found = _changed(case, change, done, lambda start: here(start) and is_silent(case, start), ports=ports)
    return replace(found, heads=frozenset(HEADS if beside_idle else ()))


def pass_in(rng: random.Random, name: str) -> Case:
    """A container gets a few of the variables: ``docker run -e NAME``."""
    case = make(rng, name)
    names = _names(case.starts)
    kept = frozenset(rng.sample(names, rng.randint(1, max(1, len(names) - 1))))

    def change(start: Start) -> dict[str, str]:
        return {name: value for name, value in start.environ.items() if name in kept}

    def is_blind(start: Start) -> bool:
        if name == "vertex-ai" and "CLUSTER_SPEC" not in kept:
            return True  # WORLD_SIZE counts replicas without a rank, too, and only CLUSTER_SPEC says so
        if "idle-head" in name and not any("daemon_uri" in one or "SERVER_URI" in one for one in kept):
            # Nothing says whose daemon started this process, and mpirun's own node usually has ranks. Its
            # name need not be a container's: rank 0 cannot refuse another one's
            return True
        left = replace(start, environ=change(start))
        return _looks_alone(case, left) or _looks_per_node(case, left)

    found = _changed(case, change, f"{', '.join(sorted(kept))} passed in", is_blind)
    is_idle = "idle-head" in name  # where the master's name is not among them
    return replace(found, ends=is_idle, heads=frozenset(HEADS if is_idle else ()))


def is_silent(case: Case, start: Start, hidden: Sequence[str] = ()) -> bool:
    """Whether what is left of a start is what a job of one process on one node shows.

    ``hidden``: names that a world inside of it has set anew.
    """
    is_empty = not any(start.environ.values())  # as every command in a plain shell
    return is_empty or (len(case.job.nodes) > 1 and _looks_alone(case, start, hidden))


def _looks_alone(case: Case, start: Start, hidden: Sequence[str] = ()) -> bool:
    left = {name: value for name, value in start.environ.items() if value and name not in hidden}
    named = left.keys() - {"MASTER_PORT"}
    if left and (named <= WORKERS_ALONE or any(named <= names for names in LOOKS_ALONE)):
        return named <= WORKERS_ALONE or all(_is_of_one_node(start, name, left[name]) for name in named)
    alone = replace(case.job, nodes=(replace(start.node, index=0, size=1),))
    (only,) = case.platform.start(alone)
    return all(only.environ.get(name) == value for name, value in left.items())


def _is_of_one_node(start: Start, name: str, value: str) -> bool:
    """Whether a job of this node alone can show such a value: a master here, index 0, tasks of one node."""
    if "MASTER" in name:
        own = (start.node.hostname.partition(".")[0], start.node.address, "localhost")
        return value.partition(".")[0] in own or value in own
    return value == "0" if name.endswith(("INDEX", "NODEID")) else value.isdecimal() or "RUN" in name


def _looks_per_node(case: Case, start: Start) -> bool:
    """Whether what is left of a start is what its platform shows where it starts one command per node."""
    if f"{case.name}-per-node" not in EVERY or all(node.size == 1 for node in case.job.nodes):
        return False
    job = replace(case.job, nodes=tuple(replace(node, size=1) for node in case.job.nodes))
    (own,) = (one for one in case.platform.start(job) if one.node.index == start.node.index)
    return all(own.environ.get(name) == value for name, value in start.environ.items())


def empty(rng: random.Random, name: str) -> Case:
    """Up to five names of other platforms are there, empty, as images and templates have them."""
    case = make(rng, name)
    foreign = [name for name in known_names() if not any(name in start.environ for start in case.starts)]
    names = rng.sample(foreign, rng.randint(1, 5))
    return _changed(
        case, lambda start: {**start.environ, **dict.fromkeys(names, "")}, f"{', '.join(names)} empty"
    )


@cache
def known_names() -> tuple[str, ...]:
    """Return all names that the platforms of the model set."""
    found: set[str] = set()
    for name, platform in EVERY.items():
        for seed in range(8):
            found |= set(_names(platform.start(draw_job(random.Random(f"{name} {seed}"), platform))))
    return tuple(sorted(found))


def forward(rng: random.Random, name: str) -> Case:
    """Some or all variables that another platform gave to one of the nodes are handed to every process."""
    case = make(rng, name)
    outer = rng.choice(_list_outer(name))
    around = _around(rng, case, outer)
    source = rng.choice(around)
    own = {name for start in case.starts for name in start.environ}
    names = [name for name in source.environ if name not in own]
    if rng.random() < 0.7:
        names = sorted(rng.sample(names, rng.randint(1, len(names)))) if names else []
    handed = {name: source.environ[name] for name in names}
    done = f"node {source.node.index}'s {', '.join(f'{n}={v}' for n, v in handed.items())} of {outer} in all"
    ranks = [int(handed[name]) for name in ("RANK", "NODE_RANK", "PET_NODE_RANK") if name in handed]

    def is_later(start: Start) -> bool:
        # A pod of a later Job of a JobSet has a higher rank than its index, and its name may hide it
        return any(rank > int(start.environ.get("JOB_COMPLETION_INDEX", rank)) for rank in ranks)

    found = _changed(case, lambda start: {**handed, **start.environ}, done, is_later)
    return replace(found, aliases=_name_first(case, around))


def _name_first(case: Case, around: Sequence[Start]) -> frozenset[str]:
    (index,) = {start.node.index for start in case.starts if start.rank == 0}
    return frozenset(n for s in around if s.node.index == index for n in (s.node.hostname, s.node.address))


def _list_outer(name: str) -> list[str]:
    """Return the platforms that can be around one; LAUNCHER_* in a cloud's node are its user's word."""
    own = level(name)
    found = [o for o in EVERY if o != name and (level(o) > own or level(o) == own == CLOUD)]
    if name == "jax-job":
        found = [other for other in found if not other.startswith("kubeflow")]  # one operator makes a pod
    return [other for other in found if not (other == "flags" and is_cloud(name))] or ["flags"]


def _around(rng: random.Random, case: Case, outer: str) -> list[Start]:
    """Return what another platform gives to the same nodes: one start each, or the same processes."""
    platform = EVERY[outer]
    alike = not platform.per_node and (case.job.even or not platform.even) and rng.random() < 0.3
    alike = alike and outer not in ONE_EACH
    if alike and not case.platform.per_node and not (platform.blocks and case.job.cyclic):
        return platform.start(case.job)
    nodes = tuple(replace(start.node, size=1) for start in firsts(case.starts))
    return platform.start(replace(case.job, nodes=nodes, cyclic=False))


def firsts(starts: Sequence[Start]) -> list[Start]:
    """Return the first start of each node, in the order of the nodes."""
    found = {start.node.index: start for start in reversed(starts)}
    return [found[index] for index in sorted(found)]


def leave(rng: random.Random, name: str) -> Case:
    """Variables of another run stand in the image, or in the shell that the job was submitted from."""
    case = make(rng, name)
    label = rng.choice(list(LEFT_OVER))
    left = LEFT_OVER[label]

    whole = left.keys() >= ONE_RUN.keys() and all(
        start.environ.get(name, left[name]) == left[name] for start in case.starts for name in OF_ONE_RUN
    )

    def is_lone(start: Start) -> bool:
        asked = is_cloud(name) and "LAUNCHER_NNODES" in left
        return asked or (whole and ("TORCHELASTIC_RUN_ID" in left or is_cloud(name)))

    found = _changed(case, lambda start: {**left, **start.environ}, f"{label} left over", is_lone)
    return replace(found, outside=case.starts)


def mix(rng: random.Random, name: str) -> Case:
    """A second platform is around: each process sees what that one gave to its own node."""
    case = make(rng, name)
    outer = rng.choice(_list_outer(name))
    starts = firsts(_around(rng, case, outer))
    around = {start.node.index: start.environ for start in starts}
    found = _changed(case, lambda start: {**around[start.node.index], **start.environ}, f"inside {outer}")
    return replace(found, aliases=_name_first(case, starts))


def mix_in(rng: random.Random, name: str) -> Case:
    """A second platform is around, and a container gets a few of its variables.

    Azure Batch is left out: its list gives the same nodes another order, which is right as well.
    """
    case = make(rng, name)
    outer = rng.choice([other for other in _list_outer(name) if other != "azure-batch"] or ["flags"])
    starts = firsts(_around(rng, case, outer))
    names = _names(starts)
    kept = frozenset(rng.sample(names, rng.randint(1, len(names))))
    around = {s.node.index: {n: v for n, v in s.environ.items() if n in kept} for s in starts}
    done = f"inside {outer}, of which {', '.join(sorted(kept))} passed in"
    found = _changed(case, lambda start: {**around[start.node.index], **start.environ}, done)
    return replace(found, aliases=_name_first(case, starts))


SERVICES = (
    *("master", "launcher", "worker", "rank", "local", "node", "num-nodes", "job-num-nodes", "coordinator"),
    *("launcher-master", "launcher-control", "launcher-metrics", "pet-master", "pet-nnodes", "vc-worker"),
    *("mlp-worker-0", "lws-leader", "jax-coordinator", "horovod-gloo-rendezvous", "slurm-step"),
)


def serve(rng: random.Random, name: str) -> Case:
    """Kubernetes sets seven variables for each Service of the namespace, in every pod."""
    case = make(rng, name)
    chosen = rng.sample(SERVICES, rng.randint(1, 5))
    more = {n: v for service in chosen for n, v in _of_service(service, rng.choice((80, 6105))).items()}
    return _changed(case, lambda start: {**more, **start.environ}, f"beside the Services {', '.join(chosen)}")


def _of_service(name: str, port: int) -> dict[str, str]:
    start, host = name.upper().replace("-", "_"), "10.96.0.9"
    url = f"tcp://{host}:{port}"
    of_port = {"": url, "_PROTO": "tcp", "_PORT": str(port), "_ADDR": host}
    return {
        f"{start}_SERVICE_HOST": host,
        f"{start}_SERVICE_PORT": str(port),
        f"{start}_PORT": url,
        **{f"{start}_PORT_{port}_TCP{end}": value for end, value in of_port.items()},
    }


def malform(rng: random.Random, name: str) -> Case:
    """A number is no number: blank, negative, huge, of other digits."""
    case = make(rng, name)
    text = rng.choice(MALFORMED)
    return _renumber(rng, case, lambda value: text)


def change(rng: random.Random, name: str) -> Case:
    """A number is one more or one less, or zero."""
    case = make(rng, name)
    by = rng.choice((-1, 1))
    return _renumber(rng, case, lambda value: str(max(0, int(value) + by)), coherent_is_blind=True)


def swap(rng: random.Random, name: str) -> Case:
    """Two numbers stand in each other's place."""
    case = make(rng, name)
    names = [n for n in _names(case.starts) if all(is_counted(case.name, n, s.environ) for s in case.starts)]
    if len(names) < 2:
        return case
    one, other = rng.sample(names, 2)
    words, here = _draw_where(rng, case)

    def change(start: Start) -> dict[str, str]:
        swapped = {one: start.environ[other], other: start.environ[one]} if here(start) else {}
        return {**start.environ, **swapped}

    return _changed(
        case,
        change,
        f"{one} and {other} swapped {words}",
        lambda start: here(start) and is_coherent(name, start.environ),
    )


def _renumber(
    rng: random.Random, case: Case, new: Callable[[str], str], *, coherent_is_blind: bool = False
) -> Case:
    names = [
        name for name in _names(case.starts) if any(_is_number(s.environ.get(name, "")) for s in case.starts)
    ]
    if not names:
        return case
    name = rng.choice(names)
    words, here = _draw_where(rng, case)

    def change(start: Start) -> dict[str, str]:
        value = start.environ.get(name, "")
        return (
            {**start.environ, name: new(value)} if here(start) and _is_number(value) else dict(start.environ)
        )

    def is_blind(start: Start) -> bool:
        return coherent_is_blind and here(start) and is_coherent(case.name, start.environ)

    done = f"{name} changed {words}"
    return _changed(case, change, done, is_blind, ports="PORT" not in name)


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 8


@cache
def _is_own(platform: str, name: str) -> bool:
    """Whether a variable of a platform describes this very job, not another one or the machine."""
    return not name.startswith(AGENTS.get(platform, ())) and not any(part in name for part in OTHER_NUMBERS)


def is_counted(platform: str, name: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable holds a rank, an index or a count of this very job."""
    return _is_own(platform, name) and _is_number(environ.get(name, ""))


def is_coherent(platform: str, environ: Mapping[str, str]) -> bool:
    """Whether all relations between the numbers of a platform's starts hold in one of them."""
    numbers = _numbers(platform, environ)
    return all(
        numbers[one] <= numbers[other] - by
        for (one, other), by in relations(platform).items()
        if one in numbers and other in numbers
    )


def _numbers(platform: str, environ: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers of a start, the lengths of its lists of hosts among them."""
    found = {name: int(environ[name]) for name in environ if is_counted(platform, name, environ)}
    for name, value in environ.items():
        if name.endswith(("HOST_LIST", "NODE_LIST", "NODE_IPS", "_HOSTS")):
            items = value.replace(";", ",").replace("\n", ",").split(",")
            found[f"hosts of {name}"] = len(items)
    return found


@cache
def relations(platform: str) -> dict[tuple[str, str], int]:
    """Return pairs of numbers and by how much the first is always below the second: 0 or 1.

    A launcher does not know whether a starter was told to start one per node: of a platform that does both,
    it is what holds in jobs of either kind.
    """
    alike = [name for name, other in EVERY.items() if other.start is EVERY[platform].start]
    least: dict[tuple[str, str], int] = {}
    for name in alike:
        for seed in range(150):
            for start in make(random.Random(f"{name} {seed}"), name).starts:
                numbers = _numbers(platform, start.environ)
                for one, low in numbers.items():
                    for other, high in numbers.items():
                        if one != other:
                            least[one, other] = min(least.get((one, other), 1), high - low)
    return {pair: by for pair, by in least.items() if by >= 0}


def nest(rng: random.Random, name: str) -> Case:
    """In each start of a job runs a starter of its own, whose world is of this node alone."""
    case = make(rng, name)
    inner = rng.choice([other for other in INSIDE if level(other) < level(name)] or ["torchrun"])
    size = rng.choice((1, 1, 2, 4))
    if len(case.job.nodes) == 1:
        case = replace(case, starts=case.starts[:1])
    worlds = [_start_inside(inner, start, size, case.job.seed) for start in case.starts]
    done = f"{inner} of {size} inside"
    if len(case.job.nodes) == 1:
        (world,) = worlds
        job = Job((replace(case.starts[0].node, index=0, size=size),), seed=case.job.seed)
        around = dict(case.starts[0].environ)
        for asked in ("LAUNCHER_NPROC_PER_NODE", "PET_NPROC_PER_NODE"):
            around.pop(asked, None)  # else the user has it start so many in the one process
        starts = tuple(replace(start, environ={**around, **start.environ}) for start in world)
        return Case(inner, job, starts, f"{done} {name}")
    chosen = [rng.choice(world) for world in worlds]
    starts = tuple(
        replace(start, environ={**start.environ, **one.environ}, ancestors=one.ancestors)
        for start, one in zip(case.starts, chosen, strict=True)
    )
    blind = {
        start.rank
        for start, one in zip(case.starts, chosen, strict=True)
        if is_silent(case, start, tuple(one.environ))
    }
    return replace(case, starts=starts, done=done, blind=frozenset(blind), outside=case.starts)


INSIDE = ("torchrun", "mpich", "intel-mpi", "open-mpi-4", "open-mpi-5")
"""Starters that run inside of others."""


def _start_inside(inner: str, start: Start, size: int, seed: int) -> list[Start]:
    job = Job((replace(start.node, index=0, size=size),), seed=seed)
    passed = (
        ("SLURM_", "NODE_RANK", "LAUNCHER_", "MASTER_") if inner != "torchrun" else ("SLURM_", "NODE_RANK")
    )
    return [
        replace(one, environ={n: v for n, v in one.environ.items() if not n.startswith(passed)})
        for one in EVERY[inner].start(job)
    ]


def stale(rng: random.Random, name: str) -> Case:
    """Lists of another job's hosts are in the shell from which this one was submitted."""
    case = make(rng, name)
    outers = [outer for outer in LISTING if level(outer) > level(name)]
    if not outers:
        return case
    outer = rng.choice(outers)
    nodes = tuple(
        Node(i, f"old{i}", f"10.9.0.{i + 4}", 1) for i in range(rng.choice((1, 2, len(case.job.nodes))))
    )
    given = EVERY[outer].start(Job(nodes, seed=case.job.seed))[0].environ
    handed = {n: v for n, v in given.items() if n.endswith(LIST_ENDS)}
    return _changed(case, lambda start: {**handed, **start.environ}, f"another job's lists of {outer}")


LISTING = ("slurm", "slurm-per-node", "blaunch", "jsrun")
LIST_ENDS = ("NODELIST", "_HOSTS", "JOB_ID", "JOB_NUM_NODES", "SLURM_NNODES")


def source(rng: random.Random, name: str) -> Case:
    """Variables of node 0 are on all nodes: written to a file there, and read everywhere."""
    case = make(rng, name)
    if not is_cloud(name):
        return case
    (first,) = {start.node.address for start in case.starts if start.rank == 0}
    (given,) = (start.environ for start in case.starts if start.rank == 0)
    shows = any(first in value for value in given.values())
    return _changed(
        case, lambda start: given, "node 0's variables in all", lambda start: start.rank > 0 and not shows
    )


def name_login(rng: random.Random, name: str) -> Case:
    """MASTER_ADDR is the node on which the job was submitted, by name or by address."""
    case = make(rng, name)
    by_name = name.startswith("slurm") and rng.random() < 0.5
    if any("MASTER" in n for n in _names(case.starts)) or is_cloud(name):
        return case
    master = {"MASTER_ADDR": rng.choice(("login1", "login1.cluster.local")) if by_name else "10.0.0.250"}
    found = _changed(case, lambda start: {**start.environ, **master}, f"{master} in all")
    return replace(found, ends=True)


def leave_head_unnamed(rng: random.Random, name: str) -> Case:
    """mpirun's node has no ranks, and nobody names the master."""
    idle = rng.choice(("open-mpi-4-idle-head", "open-mpi-5-idle-head"))
    case = make(rng, idle if name not in ("open-mpi-4-idle-head", "open-mpi-5-idle-head") else name)
    found = _changed(
        case, lambda start: {n: v for n, v in start.environ.items() if n != "MASTER_ADDR"}, "no master named"
    )
    return replace(found, ends=True)


def unbalance(rng: random.Random, name: str) -> Case:
    """One node has one process, the others have four."""
    case = make(rng, name)
    if case.platform.even or case.platform.per_node or name in ONE_EACH or len(case.job.nodes) < 2:
        return case
    one = rng.randrange(len(case.job.nodes))
    nodes = tuple(replace(node, size=1 if node.index == one else 4) for node in case.job.nodes)
    job = replace(case.job, nodes=nodes, gpus=0)
    return Case(name, job, tuple(case.platform.start(job)), f"one process on node {one}")


def idle_gpus(rng: random.Random, name: str) -> Case:
    """One node has one process, the others have one for each of their four GPUs; all nodes have four."""
    case = unbalance(rng, name)
    return replace(case, job=replace(case.job, gpus=4)) if "one process" in case.done else case


def keep_ports(rng: random.Random, name: str) -> Case:
    """mpirun's shell has exported a port, with -x or without: then the processes beside it alone have it."""
    case = make(rng, name)
    if not any("OMPI_COMM_WORLD_RANK" in start.environ for start in case.starts):
        return case
    variable = rng.choice(("MASTER_PORT", "LAUNCHER_MASTER_PORT"))
    is_named, is_idle, is_seen = rng.random() < 0.5, "idle-head" in name, rng.random() < 0.7
    typed = ("mpirun", "-np", str(case.job.world), *(("-x", variable) if is_named else ()), "launcher", "run")

    def start(one: Start) -> Start:
        is_beside = one.node.index == 0 and not is_idle
        port = {variable: "29500"} if is_named or is_beside else {}
        above = (typed if is_beside else ("orted", "--hnp-uri", "1.0"),) if is_seen else ()
        return replace(one, environ={**one.environ, **port}, ancestors=above)

    done = f"{variable} with{'' if is_named else 'out'} -x"
    return replace(case, starts=tuple(map(start, case.starts)), done=done)


def throw_together(rng: random.Random) -> Start:
    """Return a start that no platform makes: variables of one to four of them, some numbers drawn anew."""
    nodes = draw_job(rng, EVERY["open-mpi-4"]).nodes
    here = rng.randrange(len(nodes))
    environ: dict[str, str] = {}
    for name in rng.sample(list(EVERY), rng.randint(1, 4)):
        platform = EVERY[name]
        alike = platform.per_node or platform.even or name in ONE_EACH
        sizes = [1 if alike else node.size for node in nodes]
        job = Job(
            tuple(replace(n, size=size) for n, size in zip(nodes, sizes, strict=True)), seed=rng.randrange(6)
        )
        starts = platform.start(job)
        own = [start for start in starts if start.node.index == here]
        given = rng.choice(own if rng.random() < 0.7 else starts).environ
        share = rng.choice((0.3, 0.6, 1.0))
        environ |= {n: _redraw(rng, value) for n, value in given.items() if rng.random() < share}
    order = rng.sample(sorted(environ), len(environ))
    return Start(nodes[here], 0, 0, {name: environ[name] for name in order})


def _redraw(rng: random.Random, value: str) -> str:
    return str(rng.randrange(5)) if _is_number(value) and len(value) < 3 and rng.random() < 0.4 else value


PERTURBATIONS: dict[str, Callable[[random.Random, str], Case]] = {
    "as it is": make,
    "hidden": hide,
    "passed into a container": pass_in,
    "empty": empty,
    "forwarded": forward,
    "left over": leave,
    "inside another": mix,
    "inside a part of another": mix_in,
    "beside Services": serve,
    "malformed": malform,
    "changed": change,
    "swapped": swap,
    "a world inside": nest,
    "stale lists": stale,
    "node 0's in all": source,
    "login node": name_login,
    "idle head": leave_head_unnamed,
    "uneven": unbalance,
    "uneven with idle GPUs": idle_gpus,
    "ports not forwarded": keep_ports,
}
