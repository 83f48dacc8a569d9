"""Stack dumps of a job's processes: collects them and reports where each rank waits.

Loaded only for a stall or for a user's question, never before.
"""
