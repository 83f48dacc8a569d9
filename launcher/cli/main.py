"""The command line: one function per command.

Only the parser of the requested command is built, and each command imports its own modules:
``launcher run`` must start in milliseconds.
"""

from __future__ import annotations

from launcher.cli import run as running
from launcher.core.errors import make_error
from launcher.options.quick import ABOUT_RUN
from launcher.options.reading import read_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DESCRIPTION = {
    "run": ABOUT_RUN,
    "env": "print the variables of one process",
    "plan": "print what a job would do, and where each value comes from; start nothing",
    "check": "check this machine for what makes jobs fail, hang or run slowly, and print the fixes",
    "topology": "show GPUs, network ports and NUMA nodes, their distances, and what each rank gets",
    "status": "show the nodes and ranks of a running job",
    "stacks": "show the Python stack of every rank of a running job",
    "exec": "run a program on nodes of a running job",
    "debug": "attach pdb to one rank of a running job",
    "snapshot": "write what the launcher reads on this node to one JSON file, without secrets",
    "serve": "accept the processes that the job's head starts on this node (--engine mpirun)",
    "bandwidth": "measure the bandwidth between processes and compare it with the hardware",
    "tf-server": "run TensorFlow's standard server for one task until the job ends",
    "requeue": "requeue this Slurm job, without the bad nodes in its log",
    "hook": "install or remove the hook that makes plain python and torchrun work in a job",
    "rehearse": "run COMMAND on simulated nodes of this machine, as a platform starts it",
}
DISABLE = "LAUNCHER_DISABLE"
HOOKED = "LAUNCHER_HOOKED"
"""Set if the environment hook acted in a parent: its variables do not come from the platform."""


def dispatch(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Find the command and run it; return the exit status."""
    name = argv[0] if argv else ""
    if environ.get(DISABLE) and name == "run":
        from launcher.cli.disabled import leave_alone

        leave_alone(argv[1:], environ)
    if environ.get(HOOKED):
        from launcher.guest.marker import leave_out

        environ = leave_out(environ)
    if name in COMMANDS:
        return COMMANDS[name](argv[1:], environ)
    if name in ("help", "-h", "--help", "--help-all"):
        from launcher.cli.help import show_help

        words = argv if name == "--help-all" else argv[1:]
        return show_help(words, DESCRIPTION, lambda line: dispatch(line, environ))
    if name == "--version":
        from launcher.cli.stdout import write
        from launcher.cli.version import describe_version

        write(f"{describe_version()}\n")
        return 0
    if not name:
        import sys

        from launcher.cli.help import render_overview

        sys.stderr.write(render_overview(DESCRIPTION))  # an image that does nothing has not succeeded
        raise make_error("no-command-name", known=", ".join(COMMANDS))
    from launcher.options.unknown import mend_command

    fix = mend_command(name, tuple(COMMANDS))
    raise make_error("unknown-command", name=name, known=", ".join(COMMANDS), fix=fix)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher run``: exec the command, or start one process per GPU and wait."""
    return running.run(argv, environ, COMMANDS)


def env(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher env``: the variables of one process, for people, shells and tools."""
    from launcher.cli import show as showing

    return showing.env(argv, environ, DESCRIPTION["env"])


def plan(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher plan``: every fact that the launcher knows, and what it would do."""
    from launcher.cli import show as showing

    return showing.plan(argv, environ, DESCRIPTION["plan"])


def snapshot(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher snapshot``: one file that replays this node anywhere."""
    from launcher.cli import show as showing

    return showing.snapshot(argv, environ, DESCRIPTION["snapshot"])


def topology(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher topology``: the parts of this node, and which processes of the plan get them."""
    from launcher.cli import show as showing

    return showing.topology(argv, environ, DESCRIPTION["topology"])


def check(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher check``: finds problems of this machine before a job does."""
    from launcher.cli import check as command
    from launcher.cli.stdout import write

    status, text = command.check(argv, environ, DESCRIPTION["check"])
    write(text)
    return status


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher serve``: ``launcher run --engine mpirun`` on every node but the first."""
    from launcher.machine.host import Host
    from launcher.mpi.start import SERVE_FLAGS, serve_here
    from launcher.options.parser import add_flags, make_parser

    parser = make_parser("serve", "[options]", DESCRIPTION["serve"])
    add_flags(parser, SERVE_FLAGS)
    words = parser.parse_args(argv)
    return serve_here(read_options({**vars(words), "engine": "mpirun"}, environ, Host(), ()), environ)


def bandwidth(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher bandwidth``: ``launcher run -- python -m launcher.bandwidth``, with our Python."""
    from launcher.bandwidth import program
    from launcher.bandwidth.__main__ import parse_options
    from launcher.machine.pythons import own_python

    parse_options(argv)  # report an error once, and not in every process
    # As a file: the Python that has torch need not have this package.
    return run(("--", own_python(environ), program.__file__, *argv), environ)


def tf_server(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher tf-server``: TensorFlow's standard server, until its job is over."""
    from launcher.servers import tf_server as server

    return server.main(argv)


def hook(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher hook``: install, remove or locate the environment hook."""
    from launcher.cli.stdout import write
    from launcher.hook import command

    return command.hook(argv, environ, DESCRIPTION["hook"], write)


def status(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher status``: the state of a running job."""
    from launcher.cli import status as command
    from launcher.cli.stdout import write

    return command.status(argv, environ, DESCRIPTION["status"], write)


def stacks(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher stacks``: the stacks of a running job's ranks."""
    from launcher.cli import status as command
    from launcher.cli.stdout import write

    return command.stacks(argv, environ, DESCRIPTION["stacks"], write)


def exec_(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher exec``: a program on nodes of a running job."""
    from launcher.cli import status as command
    from launcher.cli.stdout import write

    return command.run_program(argv, environ, DESCRIPTION["exec"], write)


def debug(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher debug``: pdb in one rank of a running job."""
    from launcher.cli import status as command
    from launcher.cli.stdout import write

    return command.debug(argv, environ, DESCRIPTION["debug"], write)


def requeue(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher requeue``: another run of this Slurm job."""
    from launcher.cli import requeue as command

    return command.requeue(argv, environ, DESCRIPTION["requeue"])


def rehearse(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """``launcher rehearse``: a job of simulated nodes."""
    from launcher.rehearse import command

    return command.rehearse(argv, environ, DESCRIPTION["rehearse"])


COMMANDS: dict[str, Callable[[Sequence[str], Mapping[str, str]], int]] = {
    "run": run,
    "env": env,
    "plan": plan,
    "check": check,
    "topology": topology,
    "status": status,
    "stacks": stacks,
    "exec": exec_,
    "debug": debug,
    "snapshot": snapshot,
    "serve": serve,
    "bandwidth": bandwidth,
    "tf-server": tf_server,
    "requeue": requeue,
    "hook": hook,
    "rehearse": rehearse,
}
