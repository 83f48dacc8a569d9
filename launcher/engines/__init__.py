"""Engines: the ways to start processes, one file each."""
