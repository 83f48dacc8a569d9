"""Measures how fast the processes of a job talk to each other: ``python -m launcher.bandwidth``.

It is a program like any other, which the launcher starts and which imports torch; the launcher itself never
does. The modules definitions, options, expect, pairs, plot and views need no torch. The modules job, measure
and members use it.
"""
