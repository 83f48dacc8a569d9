"""What a running job does, on request: a socket of the launcher, the answers, and three programs that ask.

Nothing but `launcher.control.server` is loaded before the first question.
"""

NAME = "status"
"""Of the socket, in the folder of a run."""
