"""Preemption: the cloud takes this machine back. Notifies all nodes, and leaves time for a checkpoint.

See docs/running.md. The metadata service is asked only if the user requests it, or if the platform marks
the machine as preemptible. Nothing is sent otherwise.
"""
