"""Measures the bandwidth between the processes of a job: ``python -m launcher.bandwidth``.

The launcher starts it like any other program. Only the module `job` imports torch; the launcher itself never
does.
"""
