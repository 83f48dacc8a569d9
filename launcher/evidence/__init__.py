"""Evidence: the stacks and states of all ranks, collected in a hang and before the processes are stopped.

Every node asks its own processes. Node 0 joins the answers of all nodes into groups, and passes them on, so
that the report and the record are the same on all nodes. Nothing here delays the end of a job by more than
`launcher.agent.collector.LIMIT_S`.
"""
