"""torchrun's agent as the engine: for jobs whose size or ranks are found at the start, and for its restarts.

Each worker starts as ``launcher run -- COMMAND`` (see `launcher.cli.worker`), so that it also gets NODE_RANK,
MPI's public names with true values, and the launcher's other variables. That costs each worker 18 ms, once;
its import of torch costs 1,600.

Source: torch/distributed/run.py and elastic/rendezvous/ of torch 2.13. Flags are spelled with underscores,
which every version since 1.9 accepts.
"""

from __future__ import annotations

import os

from launcher.core.blocks import PACKAGE
from launcher.core.environ import C10D, bracket, is_loopback
from launcher.core.model import NodeCommand, Policy, Setting
from launcher.frameworks import starters, torch
from launcher.frameworks.torch import UNBUFFERED
from launcher.identity.rendezvous import choose_backend
from launcher.machine.network import address_towards
from launcher.machine.pythons import own_program, own_python
from launcher.options.flags import PASSED_TO_TORCHRUN, PASSED_TO_WORKERS
from launcher.options.given import PET_PREFIX
from launcher.options.reading import VARIABLES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.frameworks.case import Case
    from launcher.options.reading import Options

MODULE = "torch.distributed.run"
WORKER = os.path.join(PACKAGE, "cli", "worker.py")
AGENT = os.path.join(PACKAGE, "servers", "torchrun_agent.py")
SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Known since torch 2.12. Older versions ignore the variable, but would not start with the flag."""
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""With this variable workers connect to a store of rank 0's own, new in each round.

In the agent's store they look for each other under their restart count. This count differs between a node
that failed and a node that learned of the failure: with torch 2.13 no job of several nodes survives its first
restart.
"""


def plan_agent(job: Case, python: str) -> NodeCommand:
    """Return the agent of this node.

    Args:
        job: The job.
        python: The Python that has torch; empty for our own.
    """
    argv, environ, topology = job.argv, job.environ, job.topology
    name = starts_inside(job.options)
    settings = plan_settings(job)
    if job.allocation.ranks_at_start:
        settings.append(Setting(OWN_STORE, "1", "for restarts on several nodes", Policy.IF_UNSET))
    if UNBUFFERED not in environ:
        settings.append(Setting(UNBUFFERED, "1", "torchrun runs Python with -u"))
    if name and topology.node_rank is not None:
        settings.append(Setting("NODE_RANK", str(topology.node_rank), "torchrun sets none"))
    # A script inside the agent uses the agent's sys.path, which has the working directory only with -m
    agent = ("-m", MODULE) if name == "run_path" else (AGENT,)
    given = plan_flags(job).items()
    flags = [f"--{word}" if word == "virtual_local_rank" else f"--{word}={text}" for word, text in given]
    if name == "run_path":
        worker = ["--run_path", *map(_escape_all_but_macro, argv[1:])]
    else:
        worker = ["--no_python", *(map(_escape_all_but_macro, argv) if name else _plan_worker(job))]
    line = (python or own_python(environ), *agent, *flags, *worker) if argv else ()
    # They become flags, and must not reach the workers, too
    pets = (name for name in environ if name.startswith(PET_PREFIX) and name in VARIABLES)
    unset = {*starters.plan_agent_unset(environ, torch=True, rewritten=not name), *pets}
    return NodeCommand("torchrun", line, tuple(settings), tuple(sorted(unset)))


def starts_inside(options: Options) -> str:
    """Return the flag (``dest``) that makes torchrun run the command itself; empty if we start workers.

    With ``--run-path`` the worker is torchrun's own process, and nothing is started. With
    ``--virtual-local-rank`` LOCAL_RANK is 0 in all workers, so our workers could not be told apart.
    """
    return next((dest for dest in ("run_path", "virtual_local_rank") if options.switch(dest)), "")


def _plan_worker(job: Case) -> list[str]:
    """Return the command line of a worker in our own Python, which certainly has this package."""
    flags = ["run", *job.options.spell(PASSED_TO_WORKERS)]
    if not job.environ.get("OMP_NUM_THREADS"):
        flags.insert(0, "--own-threads")
    if job.binding.mode != "none":
        flags.append(f"--bind={job.binding.mode}")
    return [_escape(word) for word in own_program(WORKER, *flags, "--", *job.argv)]


def _escape(word: str) -> str:
    """Return a word escaped for torchrun, which replaces ``${local_rank}``, and ``$$`` by ``$``."""
    return word.replace("$", "$$")


def _escape_all_but_macro(word: str) -> str:
    """Return a word escaped, unless it contains torchrun's macro, which torchrun then replaces."""
    if "local_rank" in word:
        from launcher.command.arguments import names_local_rank

        if names_local_rank(word):
            return word
    return _escape(word)


def plan_settings(job: Case) -> list[Setting]:
    """Return the variables for the agent: its workers' threads, and its shutdown timeout."""
    settings = torch.plan_threads(job.topology, job.machine, True, job.environ)
    given = job.options.get("grace") or job.options.get("shutdown_timeout")
    if given is not None:
        seconds = str(-int(-float(str(given.value)) // 1))
        settings.append(Setting(SHUTDOWN_TIMEOUT, seconds, given.origin, Policy.ALWAYS))
    return settings


def plan_flags(job: Case) -> dict[str, str]:
    """Return the flags for torchrun that describe the job, by their names with underscores."""
    allocation, options = job.allocation, job.options
    nodes = ":".join(map(str, allocation.node_range or [allocation.node_count]))
    flags = {"nnodes": nodes, "nproc_per_node": str(job.topology.local_size)}
    if allocation.ranks_at_start:
        flags |= _plan_rendezvous(job)
    else:
        flags["node_rank"] = str(allocation.node_rank)
        flags["master_addr"] = bracket(allocation.master_addr)
        flags["master_port"] = str(allocation.master_port)
        if options.get("rdzv_conf"):
            flags["rdzv_conf"] = options.given_text("rdzv_conf")
    restarts = max(options.number("max_restarts", 0), options.number("restarts", 0))
    if restarts:
        flags["max_restarts"] = str(int(restarts))
    for dest in PASSED_TO_TORCHRUN:
        given = options.get(dest)
        if given is not None and given.value and dest not in flags:
            flags[dest] = "1" if given.value is True else given.text
    if "monitor_interval" in flags:  # torchrun knows no units
        flags["monitor_interval"] = f"{options.number('monitor_interval', 0):g}"
    return flags


def _plan_rendezvous(job: Case) -> dict[str, str]:
    allocation, options = job.allocation, job.options
    backend = choose_backend(options, None if allocation.node_range else allocation.node_count)
    conf = options.given_text("rdzv_conf")
    if backend != C10D:
        endpoint = options.given_text("rdzv_endpoint")
    else:
        endpoint = f"{bracket(allocation.master_addr)}:{allocation.master_port}"
        keeps = keeps_store(job)
        if keeps is not None and "is_host" not in conf:
            conf = ",".join(filter(None, (conf, f"is_host={str(keeps).lower()}")))
    flags = {"rdzv_backend": backend, "rdzv_endpoint": endpoint, "rdzv_conf": conf}
    if not options.get("local_addr"):
        flags["local_addr"] = find_own_address(job) or ""
    return {name: text for name, text in flags.items() if text}


def keeps_store(job: Case) -> bool | None:
    """Return whether the store of a c10d rendezvous is on this node; None to let torchrun find out.

    torchrun compares names and addresses, too, but fails on a node whose own name does not resolve. If
    several agents are on this node, torchrun lets the first one keep the store.
    """
    master, host, options = job.allocation.master_addr, job.host, job.options
    if is_loopback(master):
        return None  # several agents may be on this node, and the first of them keeps it
    if master in host.own_addresses():
        return True
    told = options.get("rdzv_endpoint") or options.get("master_addr")
    if not told and job.allocation.node_rank is not None:
        return job.allocation.node_rank == 0
    is_address = ":" in master or master.replace(".", "").isdecimal()
    return False if is_address and not master.startswith("127.") and host.addresses() else None


def find_own_address(job: Case) -> str | None:
    """Return this node's address in the job, or else our address towards the master.

    Without it torchrun uses the node's full name, which other nodes may not be able to resolve.
    """
    allocation, host = job.allocation, job.host
    hosts, rank = allocation.hosts, allocation.node_rank
    if rank is not None and rank < len(hosts) == (allocation.node_count or len(hosts)):
        return hosts[rank]
    if not allocation.master_addr:
        return None
    if allocation.master_addr in host.own_addresses():
        return allocation.master_addr
    return address_towards(host, allocation.master_addr)
