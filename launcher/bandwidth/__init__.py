"""How fast the processes of a job can talk to each other: ``python -m launcher.bandwidth``.

A program like any other, which the launcher starts and which imports torch; the launcher itself never
does. What can be known without torch is in modules of its own: definitions, options, expect, pairs, views,
plot. What needs it is in job and measure.
"""
