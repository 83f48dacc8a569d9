"""Starts distributed training right, whatever platform started the container.

In a script::

    import launcher

    topology = launcher.setup()
"""

from launcher.core.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cli.api import setup as setup

__all__ = ["__version__", "setup"]


def __getattr__(name: str) -> object:
    """Load the API on first use: the command line needs only the version from here."""
    if name == "setup":
        from launcher.cli.api import setup

        return setup
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
