"""Planning: pure functions from an environment and a machine to a plan."""
