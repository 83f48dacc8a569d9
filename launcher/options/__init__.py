"""What the user asks for: flags, their variables, and the words of a command line."""
