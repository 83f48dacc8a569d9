"""A job that hangs: asks all ranks for stacks and flight recorders, and names the one the others wait for.

Every node asks its own processes, in a hang and before they are stopped. Node 0 joins the answers of all
nodes and passes the conclusion on, so that the report and the record are the same on all nodes. Nothing here
delays the end of a job by more than `launcher.hang.limits.BEFORE_STOP_S`.
"""
