"""A machine that its cloud takes back: noticed, told to all nodes, and time for a checkpoint.

See docs/running.md. Loaded only where it is asked for, or where the platform says that the machine can
be taken back. Nothing is sent otherwise.
"""
