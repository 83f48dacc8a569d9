"""The version of this package: all that another module may need of `launcher` itself."""

__version__ = "0.2.0"
