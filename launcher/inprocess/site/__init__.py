"""Folder that the launcher puts in front of PYTHONPATH of the processes that it starts."""
