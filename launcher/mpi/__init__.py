"""Jobs that mpirun starts: the head that runs mpirun, the serving nodes, the wrapper of each rank.

::

    head     launcher run: runs mpirun for each attempt (start, head). It is node 0 of the channel (lead);
             the ranks' reports become events of `launcher.job.controller` (reports); it stops the ranks of
             all nodes (ranks)
    serve    the launcher of another node, until the head reports how the job ended (serve)
    local    the ranks of a node, in the launcher of the head and of each serving node (local, directory,
             leftovers)
    rank     parent of one process, reports to the launcher of its node (rank); mpirun starts and ends only a
             process that waits for it (placeholder)
    tuner    DeepSpeed's autotuner in place of mpirun (tuner)

The nodes join the head as in any job (`launcher.cluster`). mpirun starts its daemons by programs that run on
them (`launcher.remote`). `protocol` has the messages about ranks.
"""
