"""Events of a launcher: its own lines and the milestones of its job, for a file and for OpenTelemetry.

docs/events.md documents them.
"""
