"""Output of the processes: prefixes their lines, and writes them to a terminal, a log and files."""
