"""The stacks of processes that have come to a stand: asking for them, and saying where each rank waits.

Loaded when there is a stall, never before.
"""
