"""Files that a plan holds as text, in memory: nothing is left behind, and no folder has to be writable."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.core.model import Plan


def write_file(text: str, *, inherited: bool) -> int:
    """Return a descriptor of a file in memory, ``inherited`` if it is to stay open after exec.

    Raises:
        OSError: The kernel refuses.
    """
    fd = os.memfd_create("launcher", 0 if inherited else os.MFD_CLOEXEC)
    os.write(fd, text.encode())
    return fd


def name_files(
    plan: Plan, environments: Sequence[Mapping[str, str]], *, becomes: bool
) -> list[Mapping[str, str]]:
    """Return environments with the paths of files where the plan has words for them.

    A path leads to a descriptor of this process, which lives as long as the job: also for what the processes
    start, as long as they see the same /proc. Without such a file its variable is better not there.

    Args:
        plan: Which may hold files; a user's own variable has taken the place of its word.
        environments: Of its processes, or of its agent.
        becomes: Whether this process will be the command.
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
    except OSError:
        return ""
