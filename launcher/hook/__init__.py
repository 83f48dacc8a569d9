"""What runs inside of the training processes, whatever Python and environment those have.

A ``.pth`` line, a ``sitecustomize`` or `launcher.setup` calls `arm`. Where no launcher has set the
variables that costs the import of two small modules; a line that looks at the variable first
(docs/stalls.md) costs nothing.
Everything in this package runs on Python 3.8 and newer, imports nothing of the launcher outside of
it, never raises and never prints: it is a guest in somebody else's program.
"""

import os

STACKS_VARIABLE = "LAUNCHER_STACKS_FILE"
"""Names the file for the stacks of a process and of those that it starts."""
STACKS_NAME = "stacks.txt"
"""How the launcher calls that file, in a folder that is the process's own."""
ERROR_VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Names the file for an exception that ends the process (torch's error-file protocol)."""
STACK_SIGNAL = 61
"""The signal that asks a process for its stacks: ``SIGRTMAX-3``.

A real-time signal, because the others are taken: SIGUSR1 and SIGUSR2 tell scripts to checkpoint
(Slurm's ``--signal``, submitit, Lightning), and SIGUSR2 is torch's, Kineto's and the JVM's own. Counted from
the end, because the beginning differs between C libraries (34 in glibc, 35 in musl) and is what
tools choose that take "the first ones" (profilers, .NET; systemd's 13 to 29 from there are meant
for process 1 alone). Not the last one, which is Valgrind's. As a number, because ``import signal``
is what a process that is not armed should not pay for.
"""


def arm() -> None:
    """Let the launcher ask this process where it is, and hear of the exception that ends it.

    Does nothing where no launcher has set the variables for it, and nothing when called again.
    """
    stacks_path, error_path = os.environ.get(STACKS_VARIABLE), os.environ.get(ERROR_VARIABLE)
    if stacks_path or error_path:
        try:
            from launcher.hook.process import arm_process

            arm_process(stacks_path, error_path)
        except Exception:  # noqa: S110 - a guest: not even a broken installation is worth the job
            pass
