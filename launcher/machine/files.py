"""Files of a machine: those below a directory, those of a recording, and a note of those that were read.

A recording maps absolute paths to the text of a file, to ``{"link": target}``, or to None for a name of which
only the existence is known. It may contain anything: a value of another type counts as unknown.
"""

from __future__ import annotations

import os
import stat
from errno import EINVAL, ELOOP, ENOENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, TypeAlias

    Tree: TypeAlias = "dict[str, Tree]"

READ_LIMIT_BYTES = 1 << 20
_READ_STEP_BYTES = 1 << 14
LINKS_MAX = 40
"""Links in one path; the kernel's limit, see path_resolution(7)."""


class Folder:
    """The files below a directory, and no others: a whole machine's for ``/``."""

    def __init__(self, root: str) -> None:
        self.root = root

    def path(self, path: str, *, follows: bool = True) -> str:
        """Return where an absolute path of the machine is; links lead to places below ``root`` (chroot(2)).

        Raises:
            OSError: Links lead in a circle.
        """
        if self.root == "/":
            return f"/{path.lstrip('/')}"
        found: list[str] = []
        left, links = path.split("/")[::-1], 0
        while left:
            part = left.pop()
            if part == "..":
                del found[-1:]
            elif part not in ("", "."):
                found.append(part)
                here = os.path.join(self.root, *found)
                if (left or follows) and os.path.islink(here):
                    links += 1
                    if links > LINKS_MAX:
                        raise OSError(ELOOP, os.strerror(ELOOP))
                    target = os.readlink(here)
                    found = [] if target.startswith("/") else found[:-1]
                    left += target.split("/")[::-1]
        return os.path.join(self.root, *found)

    def read_text(self, path: str) -> str | None:
        """Return a file's text (at most 1 MiB, undecodable bytes escaped), None if unreadable.

        Reads regular files only: what we read from a pipe or a terminal would be lost to its real reader.
        """
        try:
            return _read(self.path(path)).decode("utf-8", "surrogateescape")
        except (OSError, ValueError):
            return None

    def read_link(self, path: str) -> str | None:
        """Return the target of a symbolic link, None if it is not a link."""
        try:
            return os.readlink(self.path(path, follows=False))
        except (OSError, ValueError):
            return None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; empty if it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(self.path(path))))
        except (OSError, ValueError):
            return ()

    def has_file(self, path: str) -> bool:
        """Whether a path exists, as a file of any kind or as a link."""
        try:
            return os.path.lexists(self.path(path, follows=False))
        except OSError:
            return False

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return the content of a file that the user names: see `launcher.machine.whole.read_whole`."""
        from launcher.machine.whole import read_whole

        return read_whole(self.path(path), limit_bytes, pipe_s)

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return the content of a file that configures us: see `launcher.machine.whole.read_guarded`."""
        from launcher.machine.whole import read_guarded

        return read_guarded(self.path(os.path.abspath(path)), limit_bytes, of_system=of_system)


class Recording:
    """The files of a recording, which are never looked for on this machine."""

    def __init__(self, texts: Mapping[str, object]) -> None:
        self._texts = texts
        self._tree: Tree = {}

    def path(self, path: str) -> str:
        """Return a path that does not exist."""
        return f"/nonexistent{path}"

    def read_text(self, path: str) -> str | None:
        """Return a recorded text."""
        text = self._texts.get(path)
        return text if isinstance(text, str) else None

    def read_link(self, path: str) -> str | None:
        """Return a recorded link's target."""
        link = self._texts.get(path)
        target = link.get("link") if isinstance(link, dict) else None
        return target if isinstance(target, str) else None

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory that occur in recorded paths."""
        if not self._tree:  # a search for each directory would take hours for thousands
            for name in self._texts:
                folder = self._tree
                for part in name.split("/"):
                    folder = folder.setdefault(part, {})
        folder = self._tree
        for part in path.rstrip("/").split("/"):
            folder = folder.get(part, {})
        return tuple(sorted(folder))

    def has_file(self, path: str) -> bool:
        """Whether a file was recorded."""
        return self.read_text(path) is not None

    def read_whole(self, path: str, limit_bytes: int, pipe_s: float = 0.0) -> bytes:
        """Return a recorded file's content.

        Raises:
            FileNotFoundError: It was not recorded.
        """
        text = self.read_text(path)
        if text is None:
            raise FileNotFoundError(ENOENT, "the snapshot does not have it")
        return text.encode("utf-8", "surrogateescape")[: limit_bytes + 1]

    def read_guarded(self, path: str, limit_bytes: int, *, of_system: bool) -> bytes:
        """Return a recorded file's content, as `read_whole`: its owner is not recorded."""
        return self.read_whole(path, limit_bytes)


class Noted:
    """Files that note what is read from them, as a recording: ``texts``."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.texts: dict[str, object] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read_text(self, path: str) -> str | None:
        """Return a file's text, and note it."""
        text = self._files.read_text(path)
        if text is not None:
            self.texts[path] = text
        return text

    def read_link(self, path: str) -> str | None:
        """Return a link's target, and note it."""
        target = self._files.read_link(path)
        if target is not None:
            self.texts[path] = {"link": target}
        return target

    def list_folder(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, and note them."""
        names = self._files.list_folder(path)
        for name in names:
            self.texts.setdefault(f"{path.rstrip('/')}/{name}", None)
        return names


if TYPE_CHECKING:
    Files = Folder | Recording | Noted


def _read(path: str) -> bytes:
    """Return a file's bytes; takes a third of the time of `open`, which matters for 100 small files."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(EINVAL, "not a regular file")
        data = part = os.read(fd, _READ_STEP_BYTES)
        while part and len(data) < READ_LIMIT_BYTES:
            part = os.read(fd, _READ_STEP_BYTES)
            data += part
        return data
    finally:
        os.close(fd)
