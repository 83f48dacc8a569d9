"""The control channel between the launchers of a job of several nodes: see docs/peers.md.

A roll call before the start, heartbeats while the job runs, one verdict after it. It carries facts, a start
signal, heartbeats and verdicts; never code, commands or files.
"""
