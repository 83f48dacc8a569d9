"""Status of a running job, on request: the launcher's status server, its answers, and three clients.

Before the first question only `launcher.control.server` is loaded, and `launcher.control.metrics` if the
node serves metrics.
"""

NAME = "status"
"""Name of the socket in the directory of a run."""
QUESTION_LIMIT_BYTES = 1 << 15
"""Limit of a question, most of which may be the command line of a program."""
