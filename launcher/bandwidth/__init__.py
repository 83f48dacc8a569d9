"""Measures how fast the processes of a job talk to each other: ``python -m launcher.bandwidth``.

It is a program like any other, which the launcher starts and which imports torch; the launcher itself never
does. Only the module job uses torch.
"""
