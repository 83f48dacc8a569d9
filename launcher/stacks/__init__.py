"""The stacks of processes that have come to a stand: asking for them, and saying who waits where.

Loaded when there is a stall, never before.
"""
