"""Starts distributed training right, whatever platform started the container.

In a script::

    import launcher

    topology = launcher.setup()
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cli.api import setup as setup
    from launcher.core.version import __version__ as __version__

__all__ = ["__version__", "setup"]


def __getattr__(name: str) -> object:
    """Load what is asked for: the hook, inside of other programs, needs nothing from here."""
    if name == "__version__":
        from launcher.core.version import __version__

        return __version__
    if name == "setup":
        from launcher.cli.api import setup

        return setup
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
