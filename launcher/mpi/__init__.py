"""Jobs that mpirun starts: the head that runs mpirun, the serving nodes, the wrapper of each rank.

::

    head     launcher run: waits for the nodes, runs mpirun, gives the verdict (start, head, nodes, ending,
             counting, events, judge), and starts mpirun again (regroup)
    serve    the launcher of another node, until the head reports how the job ended (serve)
    local    the ranks of a node, in the launcher of the head and of each serving node (local, folder,
             daemons, leftovers)
    rank     parent of one process, reports to the launcher of its node (rank, channel); mpirun starts and
             ends only a process that waits for it (placeholder)
    tuner    DeepSpeed's autotuner in place of mpirun (tuner)

The nodes join the head over `launcher.remote`, and mpirun starts its daemons through it.

`messages` has the messages between head, nodes and ranks.
"""
