"""The version of this package, so that other modules need not import `launcher` itself."""

__version__ = "0.3.0"
