"""The command line: one function per command, named in ``commands.txt``.

Only the parser of the requested command is built, and each command imports its own modules:
``launcher run`` must start in milliseconds.
"""

from __future__ import annotations

from launcher.cli.run import run
from launcher.core.errors import make_error
from launcher.inprocess.marker import DISABLE, HOOKED, leave_out
from launcher.options.reading import read_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def dispatch(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Find the command and run it; return the exit status."""
    name = argv[0] if argv else ""
    if environ.get(DISABLE) and name == "run":
        from launcher.cli.disabled import leave_alone

        leave_alone(argv[1:], environ)
    if environ.get(HOOKED):  # by the environment hook in a parent, not by the platform
        environ = leave_out(environ)
    if name == "run":
        return run(argv[1:], environ)
    from launcher.cli.help import COMMANDS

    if name in COMMANDS:
        from importlib import import_module

        module, _, function = COMMANDS[name].function.rpartition(".")
        act = getattr(import_module(f"launcher.{module}"), function)
        status: int = act(argv[1:], environ, COMMANDS[name].about)
        return status
    if name in ("help", "-h", "--help", "--help-all"):
        from launcher.cli.help import show_help

        words = argv if name == "--help-all" else argv[1:]
        return show_help(words, lambda line: dispatch(line, environ))
    if name == "--version":
        from launcher.core.stdout import write
        from launcher.core.version import describe_version

        write(f"{describe_version()}\n")
        return 0
    if not name:
        import sys

        from launcher.cli.help import render_overview

        sys.stderr.write(render_overview())  # an image that does nothing has not succeeded
        raise make_error("no-command-name", known=", ".join(COMMANDS))
    from launcher.options.unknown import mend_command

    fix = mend_command(name, tuple(COMMANDS))
    raise make_error("unknown-command", name=name, known=", ".join(COMMANDS), fix=fix)


def serve(argv: Sequence[str], environ: Mapping[str, str], description: str) -> int:
    """``launcher serve``: ``launcher run --engine mpirun`` on every node but the first."""
    from launcher.machine.host import Host
    from launcher.mpi.start import SERVE_FLAGS, serve_here
    from launcher.options.parser import add_flags, make_parser

    parser = make_parser("serve", "[options]", description)
    add_flags(parser, SERVE_FLAGS)
    words = parser.parse_args(argv)
    return serve_here(read_options({**vars(words), "engine": "mpirun"}, environ, Host(), ()), environ)


def bandwidth(argv: Sequence[str], environ: Mapping[str, str], _: str) -> int:
    """``launcher bandwidth``: ``launcher run -- python -m launcher.bandwidth``, with our Python."""
    from launcher.bandwidth import program
    from launcher.bandwidth.__main__ import parse_options
    from launcher.machine.pythons import own_python

    parse_options(argv)  # report an error once, and not in every process
    # As a file: the Python that has torch need not have this package.
    return run(("--", own_python(environ), program.__file__, *argv), environ)


def tf_server(argv: Sequence[str], *_: object) -> int:
    """``launcher tf-server``: TensorFlow's standard server, until its job is over."""
    from launcher.servers import tf_server as server

    return server.main(argv)
