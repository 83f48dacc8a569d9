"""A simulator of jobs: controllers and nodes under a virtual clock, with faults drawn from a seed."""
