"""Failure analysis: why a process ended, which one failed first, and the report and record about it."""
