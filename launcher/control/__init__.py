"""What a running job does, for whoever asks: a socket of the launcher, the answers, and three who ask.

Nothing but `launcher.control.server` is loaded before the first question.
"""

NAME = "status"
"""Of the socket, in the folder of a run."""
