"""Jobs that mpirun starts: the head that runs it, the nodes that serve, the shim around each rank.

::

    head     launcher run: waits for the nodes, runs mpirun, gives the verdict     (head, crew)
    session  one program per node, started by the head through ssh                 (session)
    rank     what mpirun starts: parent of one process, reports through the session (rank)
    serve    a node's sshd for this job, until the head says how it ended           (serve)
"""
