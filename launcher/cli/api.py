"""The Python API: does for a running interpreter what ``launcher run`` does before exec."""

from __future__ import annotations

import os
import sys

from launcher.command.words import is_python
from launcher.core.model import DEFAULT_PORT
from launcher.machine.host import Host
from launcher.options.reading import read_options, read_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Companion, Plan, PlannedProcess, Topology

_topology: Topology | None = None


def setup() -> Topology:
    """Set the variables of a process of the job in this interpreter; return the topology.

    Call it before anything reads RANK or MASTER_ADDR, e.g. at the top of a training script. A second
    call changes nothing and returns the same topology. Flags come from LAUNCHER_* variables.
    Where TF_CONFIG needs the addresses of all nodes and no platform lists them, the call waits until
    the nodes have exchanged them.

    Raises:
        EnvironmentUntrusted: The environment is contradictory or incomplete; the message says what
            to correct (exit status 78).
        UsageError: A LAUNCHER_* variable is wrong, or this node should run several processes and this
            interpreter can be only one of them: start the script with ``launcher run`` instead (exit
            status 64).
        HardwareMissing: Hardware that the job asks for is not here (exit status 69).
        Unavailable: A program or package that the job needs is not here, e.g. prometheus-client for
            LAUNCHER_METRICS_PORT (exit status 69).
        NotReady: A retry can help: the other nodes did not answer in time, the resolver did not answer,
            or a stale lock blocks DeepSpeed's build (exit status 75).

    No variable is changed when it raises. The statuses are the ``exit_status`` of each exception.
    """
    global _topology
    if _topology is None:
        from launcher.inprocess import arm
        from launcher.planning.plan import plan_job
        from launcher.planning.settings import choose_one

        arm()
        host, words = Host(), tuple(sys.orig_argv)
        if not (words and is_python(words[0])):
            words = ()  # another program embeds Python: no script shows the framework
        options = read_options({}, os.environ, host, words)
        plan = plan_job(os.environ, host, options, words)
        if plan.meeting is not None:
            from launcher.cluster.address_exchange import meet

            plan = plan_job(os.environ, host, options, words, met=meet(plan.meeting, os.environ))
        _apply(plan, choose_one(plan, "launcher.setup()", met=True))
        _topology = plan.topology
    return _topology


def plan(
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    root: str | Mapping[str, object] = "/",
    answers: Mapping[str, object] | None = None,
) -> Plan:
    """Return what ``launcher run`` would do on a machine; start nothing and change nothing.

    Args:
        argv: The words after ``launcher run``, e.g. ``["--nnodes", "2", "--", "python", "train.py"]``.
        environ: The environment of the launcher.
        root: A directory with the machine's files, or the ``files`` of a snapshot. Nothing else is read.
        answers: A snapshot's answers that are no files, such as ``hostname`` and ``addresses``; other fields
            are ignored, so a whole snapshot will do. Without them this machine is asked if ``root`` is
            ``/``, and no answer is known if it is not.

    Raises:
        LauncherError: The job cannot be planned, for one of the reasons that `setup` lists.
    """
    from launcher.planning.plan import plan_job

    typed, command, _ = read_words(argv, environ)
    if answers is None and root != "/":
        answers = {}
    host = Host(root, port=DEFAULT_PORT, answers=answers)
    return plan_job(environ, host, read_options(typed, environ, host, command), command)


def _apply(plan: Plan, one: PlannedProcess | Companion) -> None:
    from launcher.planning.settings import render_environ
    from launcher.process.memory_files import name_files

    (result,) = name_files(plan, [render_environ(plan, one, os.environ)], becomes=True)
    for name in os.environ.keys() - result.keys():
        os.environ.pop(name, None)
    for name, value in result.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    cpus = plan.processes[0].cpus if plan.processes else None
    if cpus:
        from launcher.process.execute import keep_to

        keep_to(cpus)
