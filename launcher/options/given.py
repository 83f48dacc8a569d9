"""The values that a user gave, each with its origin, and the locations of default files."""

from __future__ import annotations

from launcher.core.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PET_PREFIX = "PET_"
ETC, CONFIG, NEAR = "/etc/launcher.conf", "LAUNCHER_CONFIG", "launcher.toml"
"""The file of the machine, the variable that names another one, and the name of one near the script."""


@frozen
class Given:
    """A value from the user, its origin (``--nnodes 2`` or ``LAUNCHER_NNODES='2'``) and its text."""

    value: object
    origin: str
    text: str = ""

    @property
    def is_typed(self) -> bool:
        """Whether it was typed on the command line."""
        return self.origin.startswith("-")

    @property
    def is_platforms(self) -> bool:
        """Whether a platform set it for torchrun (PET_*), and not a user for us."""
        return self.origin.startswith(PET_PREFIX)


@frozen
class Files:
    """The content of files of defaults.

    Attributes:
        given: Values by flag; if two files set a flag, the value of the file with priority.
        notes: Lines that are not used, and why.
        warnings: Files that are not used, and why.
    """

    given: Mapping[str, Given] = {}
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
