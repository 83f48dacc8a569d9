"""Jobs that mpirun starts: the head that runs mpirun, the serving nodes, the wrapper of each rank.

::

    head     launcher run: runs mpirun for each attempt (start, head). The nodes and the ranks' reports become
             events of `launcher.job.controller` (lead, nodes, reports, counting, events), which starts and
             stops attempts (ending); the verdict on them: judge
    serve    the launcher of another node, until the head reports how the job ended (serve)
    local    the ranks of a node, in the launcher of the head and of each serving node (local, folder,
             daemons, leftovers)
    rank     parent of one process, reports to the launcher of its node (rank, channel); mpirun starts and
             ends only a process that waits for it (placeholder)
    tuner    DeepSpeed's autotuner in place of mpirun (tuner)

The nodes join the head over `launcher.remote`, and mpirun starts its daemons through it.

`messages` has the messages between head, nodes and ranks.
"""
