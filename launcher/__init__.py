"""Starts distributed training correctly on any platform.

In a script::

    import cluster_launcher as launcher

    topology = launcher.setup()

``import launcher`` is the same where the project has no ``launcher`` of its own.

A process that already has its variables calls ``launcher.arm()`` instead: the launcher can then request its
stacks and read the exception that ends it. ``launcher.plan()`` returns what ``launcher run`` would do.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.cli.api import plan as plan
    from launcher.cli.api import setup as setup
    from launcher.core.version import __version__ as __version__
    from launcher.inprocess import arm as arm

__all__ = ["__version__", "arm", "plan", "setup"]


def __getattr__(name: str) -> object:
    """Load an attribute on first use: the hook runs inside other programs and needs none."""
    if name == "__version__":
        from launcher.core.version import __version__

        return __version__
    if name in ("plan", "setup"):
        from launcher.cli import api

        return getattr(api, name)
    if name == "arm":
        from launcher.inprocess import arm

        return arm
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
