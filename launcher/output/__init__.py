"""What processes write: to a terminal or a log, with whose line it is, and to files."""
