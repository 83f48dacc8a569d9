"""From an environment and a machine to a plan: pure."""
