"""The agent of a node: starts a group of processes, watches them, stops them, and says how they ended."""
