"""The agent of a node: starts a group of processes, watches and stops them, and reports how they ended."""
