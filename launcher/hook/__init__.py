"""``launcher hook``: the line that it puts into a Python or a shell, and what a process is told that asks.

The line runs `enter`, which asks `answer` in the same Python, or `child` in the launcher's own.
"""
