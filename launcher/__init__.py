"""Starts distributed training right, whatever platform started the container.

In a script::

    import launcher

    topology = launcher.setup()
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.api import setup as setup

__all__ = ["__version__", "setup"]


def __getattr__(name: str) -> object:
    """Load the API on first use: the command line needs only the version from here."""
    if name == "setup":
        from launcher.api import setup

        return setup
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
