"""Jobs that mpirun starts: the head that runs it, the nodes that serve, the shim around each rank.

::

    head     launcher run: waits for the nodes, runs mpirun, gives the verdict (head, ending, counting, judge)
             its nodes, and what they say (sessions, node, events, refusals)
    session  one program per node, started by the head through ssh (session, shim, session_folder)
    rank     parent of one process, reports through the session (rank, channel); what mpirun starts and may
             end is a process that waits for it (placeholder)
    serve    a node's sshd for this job, until the head says how it ended (serve)
"""
