"""What stands in deploy/: each manifest is read by its real consumer, or held against its published schema.

For each of them a table of wrong fields shows that the reader would refuse it. deploy/README.md says which
reader each manifest has, and in which version.
"""
