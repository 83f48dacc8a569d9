"""Code that runs inside the training processes, in any Python and environment.

`arm` is called by `launcher.setup`, and by `launcher.hook.enter.enter`, which is called by the line that
``launcher hook install`` adds to a site-packages directory. If no launcher has set the variables, `arm` costs
the import of two small modules.

This package runs on Python 3.8 and newer and imports nothing of the launcher but itself and
`core/files`, before the hook hides the launcher again. `arm` never raises, because it runs inside another
program.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STACKS_FILE = "LAUNCHER_STACKS_FILE"
"""Variable with the path of the file for the stacks of a process and its children."""
STACKS_NAME = "stacks.txt"
"""Name of that file, in a directory of its own for each process."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Variable with the path of the file for the exception that ends a process (torch's error-file protocol)."""


OTHERS = ("SUDO_UID", "PKEXEC_UID")
"""Variables in which sudo and pkexec name the user who started them."""
DOAS = "DOAS_USER"
"""The same of doas, by name."""


def has_other_rights(environ: "Mapping[str, str]") -> bool:
    """Whether this process has rights that the user who set its environment does not have.

    This is so for ``sudo -E`` and set-user-ID programs: a variable with a file name would make us read or
    write the file with rights that the user lacks. It is not so if root started sudo (``sudo -E -u user``).
    """
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        return True
    if environ.get(DOAS, "") not in ("", "root"):
        from pwd import getpwnam

        try:
            is_other = getpwnam(environ[DOAS]).pw_uid != os.getuid()
        except (KeyError, ValueError):
            is_other = True
        if is_other:
            return True
    return any(environ.get(name, "") not in ("", "0", str(os.getuid())) for name in OTHERS)


def arm(*, errors: bool = True) -> None:
    """Prepare this process for stack dumps, and for a failure report of the exception that ends it.

    Does nothing if no launcher has set the variables, if the process has rights that the user who may have
    set them lacks, and if it has been called before.

    Args:
        errors: Whether to write an exception to the error file; False for a tool that is not part of the job.
    """
    stacks_path = os.environ.get(STACKS_FILE)
    error_path = os.environ.get(ERROR_FILE) if errors else None
    if (stacks_path or error_path) and not has_other_rights(os.environ):
        try:
            from launcher.inprocess.process import arm_process

            arm_process(stacks_path, error_path)
        except Exception:  # noqa: S110 - not even a broken installation may end the job
            pass
