"""What runs inside of the training processes, whatever Python and environment those have.

The line that ``launcher hook install`` puts into a site-packages calls `launcher.hook.enter.enter`, which
calls `arm`; so does `launcher.setup`. Where no launcher has set the variables, `arm` costs the import of
two small modules.
What is here runs on Python 3.8 and newer, imports nothing of the launcher outside of this package, and never
raises: it is a guest in another program.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STACKS_VARIABLE = "LAUNCHER_STACKS_FILE"
"""Names the file for the stacks of a process and of those that it starts."""
STACKS_NAME = "stacks.txt"
"""How the launcher calls that file, in a folder that is the process's own."""
ERROR_VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Names the file for an exception that ends the process (torch's error-file protocol)."""
WRITER = "launcher"
"""Under ``extraInfo.writer`` in our error files; torch's own have no such key."""
STACK_SIGNAL = 61
"""The signal that asks a process for its stacks: ``SIGRTMAX-3``.

A real-time signal, because the others are taken: SIGUSR1 and SIGUSR2 tell scripts to checkpoint
(Slurm's ``--signal``, submitit, Lightning), and SIGUSR2 is torch's, Kineto's and the JVM's own. Counted from
the end, because the beginning differs between C libraries (34 in glibc, 35 in musl) and is what
tools choose that take "the first ones" (profilers, .NET; systemd's 13 to 29 from there are meant
for process 1 alone). Not the last one, which is Valgrind's. As a number, because ``import signal``
is what a process that is not armed should not pay for.
"""


OTHERS = ("SUDO_UID", "PKEXEC_UID")
"""Where sudo and pkexec say for which user they run a program."""


def has_other_rights(environ: "Mapping[str, str]") -> bool:
    """Whether this process may do what the user behind its environment could not.

    ``sudo -E`` and set-user-ID programs: a variable that names a file would have it read or made with rights
    that are not that user's. What root has given away (``sudo -E -u user``) is no such case.
    """
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        return True
    return any(environ.get(name, "") not in ("", "0", str(os.getuid())) for name in OTHERS)


def arm(*, errors: bool = True) -> None:
    """Let the launcher ask this process where it is, and hear of the exception that ends it.

    Does nothing where no launcher has set the variables for it, in a process with other rights than those of
    the user who may have set them, and when called again.

    Args:
        errors: Whether an exception is to be written down; not that of a tool beside the job.
    """
    stacks_path = os.environ.get(STACKS_VARIABLE)
    error_path = os.environ.get(ERROR_VARIABLE) if errors else None
    if (stacks_path or error_path) and not has_other_rights(os.environ):
        try:
            from launcher.guest.process import arm_process

            arm_process(stacks_path, error_path)
        except Exception:  # noqa: S110 - a guest: not even a broken installation is worth the job
            pass
