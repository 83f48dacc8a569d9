"""In-memory files for texts in a plan: they leave nothing behind and need no writable directory."""

from __future__ import annotations

import os

from launcher.core.errors import LauncherError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Plan


def create_file(name: str, flags: int) -> int:
    """Return a descriptor of a new in-memory file.

    Raises:
        Unavailable: The kernel refuses the call.
        OSError: A limit is reached.
    """
    try:
        return os.memfd_create(name, flags)
    except OSError as error:
        from launcher.process.kernel import FULL
        from launcher.process.refused import refuse

        if error.errno is None or error.errno in FULL:
            raise
        raise refuse({"memfd_create": error.errno}) from error


def write_file(text: str, *, inherited: bool) -> int:
    """Return a descriptor of an in-memory file with this text.

    Args:
        text: The whole text.
        inherited: Whether it stays open after exec.

    Raises:
        Unavailable: The kernel refuses the call.
        OSError: A limit is reached.
    """
    fd = create_file("launcher", 0 if inherited else os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    return fd


def name_files(
    plan: Plan, environments: Sequence[Mapping[str, str]], *, becomes: bool
) -> list[Mapping[str, str]]:
    """Return environments with the paths of in-memory files in place of the plan's words for them.

    A path leads to a descriptor of this process, which lives as long as the job. Processes that the job's
    processes start can read it too, if they see the same /proc. If a file cannot be created, its variable is
    removed.

    Args:
        plan: The plan, which may have files. A word does not occur if the user set its variable.
        environments: The environments of the plan's processes, or of its agent.
        becomes: Whether this process will exec the command.
    """
    files = () if plan.network is None else plan.network.files
    words = {word: text for word, text in files if any(word in environ.values() for environ in environments)}
    if not words:
        return list(environments)
    paths = {word: _name(text, becomes) for word, text in words.items()}
    return [
        {name: paths.get(value, value) for name, value in environ.items() if paths.get(value) != ""}
        for environ in environments
    ]


def _name(text: str, becomes: bool) -> str:
    try:
        return f"/proc/{os.getpid()}/fd/{write_file(text, inherited=becomes)}"
    except (LauncherError, OSError):
        return ""
