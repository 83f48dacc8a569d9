"""Checks shell scripts that start processes themselves against the numbers of nodes and processes of the job.

A shell script that runs more than one program runs as it is, and a ``torchrun`` in it gets no flags about the
job: each would be a job of its own, and all would succeed. We refuse only what the text alone makes certain:
a line that always runs, and does not mention other nodes. A line whose numbers come from variables is the
user's responsibility.

Sources: torch/distributed/run.py (2.13), ``--nnodes`` and PET_*; deepspeed/launcher/runner.py (0.19),
DLTS_HOSTFILE; accelerate/commands/config/config_args.py (1.15).
"""

from __future__ import annotations

import os
import shlex

from launcher.command.launchers import Command, find_launcher
from launcher.command.shell import list_calls, read_shell
from launcher.core.errors import EnvironmentUntrusted, Problem, UsageError
from launcher.core.frozen import frozen
from launcher.engines.choice import PROCESS
from launcher.engines.counts import ALONE
from launcher.engines.wrapped import COUNTS, KINDS, once_per_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.command.shell_lines import Line
    from launcher.frameworks.case import Case

JUDGED = ("torchrun", "accelerate", "deepspeed")
"""Launchers that start one node by default."""
TOLD = ("node_rank", "machine_rank", "config_file", "hostfile", "H", "deepspeed_hostfile", "no_ssh")
"""Their flags that show that the line is meant for several nodes."""
ONE_NODE = ("1", "1:1")
FOR_ONE = "for 1 node"
SCRIPTS = (".py", ".py}")
"""Endings of a word with variables that is a script: ``$DIR/train.py``, ``${1:-train.py}``."""
ABOUT_NODES = ("nnodes", "num_nodes", "num_machines", "rdzv_endpoint", "master_addr", "main_process_ip")
"""Flags whose values fit a job of one node only: the number of nodes, and the rendezvous."""
PET_NODES, PET = "PET_NNODES", "PET_"
DEEPSPEED_HOSTS = "/job/hostfile"
ACCELERATE_FILES = ("default_config.yaml", "default_config.yml", "default_config.json")
NUMBERS = (
    "--nnodes $GROUP_WORLD_SIZE --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT"
)
"""Flags that torchrun needs in a file that the launcher starts once per node."""
SHOWN = 120
"""Maximum length of a command line in a fix."""


@frozen
class Call:
    """A line of a shell script that calls a launcher."""

    line: Line
    command: Command

    @property
    def name(self) -> str:
        """The launcher's name."""
        return self.command.launcher.name


def check_shell(case: Case) -> tuple[str, ...]:
    """Return a note if a shell script may start a node's processes, and is itself started for each of them.

    Raises:
        UsageError: Several launchers would certainly start the processes of this node, or of all nodes.
        EnvironmentUntrusted: Each node would certainly be a job of its own.
    """
    each, nodes = case.topology.local_size or 1, _count_nodes(case)
    if case.is_wrapped or (each < 2 and nodes < 2):
        return ()
    read = read_shell(case.argv)
    found = [(line, find_launcher(line.words)) for line in list_calls(read)]
    calls = [Call(line, command) for line, command in found if command is not None]
    whole = next((call.name for call in calls if _is_whole(call)), "")
    if whole and nodes > 1 and not case.allocation.ranks_at_start:
        raise UsageError(once_per_node(f"{read.path} calls {whole}, which", whole, nodes))
    lone = [(call, how) for call in calls if (how := _say_lone(call, case, read.text))]
    if lone and case.options.text("engine") != PROCESS:
        call, how = lone[0]
        raise _refuse_each(read.path, call, case) if each > 1 else _refuse_nodes(read.path, call, how, case)
    if not calls or each < 2:
        return ()
    return (
        f"{read.path} calls {calls[0].name}, which starts the processes of a node, and is itself started "
        f"{each} times here: give the launcher what it starts (launcher run -- python train.py), or have it "
        "started once per node",
    )


def _count_nodes(case: Case) -> int:
    """Return the minimum number of nodes; if only processes are counted, derived from those of this node."""
    if case.allocation.node_range:
        return case.allocation.node_range[0]
    total, each = case.topology.world_size, case.topology.local_size
    return case.allocation.node_count or (-(-total // each) if total and each else 1)


def _is_whole(call: Call) -> bool:
    """Whether a line certainly starts the processes of a whole job, and more than one."""
    command = call.command
    starts = call.line.is_certain and command.launcher.whole_job and command.inner < len(call.line.words)
    return starts and next(filter(None, map(command.value, COUNTS)), "") != "1"


def _say_lone(call: Call, case: Case, text: str) -> str:
    """Return how a line starts a job of one node, if that is certain; otherwise empty."""
    command, words, machine = call.command, call.line.words, case.machine
    if not call.line.is_certain or call.name not in JUDGED or command.inner >= len(words):
        return ""
    name = next(theirs for theirs, ours in command.launcher.facts if ours == "nnodes")
    count = command.value(name)
    if command.has("standalone") or count in ONE_NODE:
        return FOR_ONE
    script = words[command.inner]
    if command.inner in call.line.replaced and script[:1] in ("$", "`") and not script.endswith(SCRIPTS):
        return ""  # its value may be flags
    on_cpus = machine.gpu_count == 0 and not machine.has_others
    if _has_file(call.name, case.environ):
        return ""
    if call.name == "accelerate" and on_cpus and not command.has(*KINDS):
        # accelerate sets ACCELERATE_USE_CPU=False for it
        return "without --multi_gpu, so that on CPUs its process joins no job"
    says_nodes = PET in text or (not case.forks and PET_NODES in case.environ)  # a fork has no PET_*
    is_told = count is not None or command.has(*TOLD) or (call.name == "torchrun" and says_nodes)
    return "" if is_told else FOR_ONE


def _has_file(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a launcher reads a file by default that may name other nodes."""
    if name == "deepspeed":
        return os.path.isfile(DEEPSPEED_HOSTS)
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache"), "huggingface"
    )
    folder = os.path.join(home, "accelerate")
    return name == "accelerate" and any(os.path.isfile(os.path.join(folder, one)) for one in ACCELERATE_FILES)


def _refuse_each(path: str, call: Call, case: Case) -> UsageError:
    """Return the error for a file that starts the processes of a node, and is started for each of them."""
    starter = "the launcher starts" if case.forks else "the platform has started"
    again = f"launcher run -- {_write(call)}"
    fix = f"give the launcher the line itself, which it runs once per node: {again}"
    if not case.forks:
        fix = (
            "leave it out: launcher run -- python train.py; or let the platform start one launcher per node: "
            f"{again}"
        )
    what = (
        f"{path} calls {call.name}, which starts the processes of a node, but {starter} {path} "
        f"{case.topology.local_size} times on this node: each would start them again"
    )
    return UsageError(Problem("launcher-per-process", what, "command line and environment", fix))


def _refuse_nodes(path: str, call: Call, how: str, case: Case) -> EnvironmentUntrusted:
    """Return the error for a file that starts the processes of one node, and is started on several nodes."""
    is_counted, one = case.allocation.node_count is not None, "each node would be a job of its own"
    origin = case.origin("node_count" if is_counted else "world_size")
    known = f"the job has {_count_nodes(case)} ({origin})"
    what = f"{path} calls {call.name} {how}, but {known}: {one}"
    fix = f"give the launcher the line itself: launcher run -- {_write(call)}"
    if call.name == "torchrun" and is_counted:
        fix += f"; or in {path}, started once per node (--nproc-per-node 1): torchrun {NUMBERS} ..."
    fix += f"; for a job of its own on each node: {ALONE}"
    return EnvironmentUntrusted(Problem("contradiction", what, "command line and environment", fix))


def _write(call: Call) -> str:
    """Return a line to type, without its flags about nodes; shortened if it is long or has variables."""
    words, command = call.line.words, call.command
    called = words[: command.head]
    left, place = list(called), command.head
    while place < command.inner:
        flag, equals, _ = words[place].partition("=")
        name = flag.lstrip("-").replace("-", "_")
        if name == "standalone":
            place += 1
        elif name in ABOUT_NODES:
            place += 1 if equals else 2
        else:
            left.append(words[place])
            place += 1
    line = shlex.join((*left, *words[command.inner :]))
    return f"{shlex.join(called)} ..." if call.line.replaced or len(line) > SHOWN else line
