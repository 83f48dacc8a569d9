"""Preemption of a machine by its cloud: notices it, tells all nodes, and leaves time for a checkpoint.

See docs/running.md. The metadata service is asked only if the user requests it, or if the platform says that
the machine is preemptible. Nothing is sent otherwise.
"""
