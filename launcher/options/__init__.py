"""The user's options: flags, their variables, and the command line."""
