"""``launcher hook``: installs a line into a Python or a shell, and answers the processes that run the line.

The line runs `enter`, which calls `answer` in the same Python, or `child` in the launcher's own Python.
"""
