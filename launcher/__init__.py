"""Starts distributed training right, whatever platform started the container."""

__version__ = "0.1.0"
