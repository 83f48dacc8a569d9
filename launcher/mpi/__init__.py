"""Jobs that mpirun starts: the head that runs mpirun, the serving nodes, the wrapper of each rank.

::

    head     launcher run: waits for the nodes, runs mpirun, gives the verdict (start, lead, head, ending,
             counting, judge), and starts mpirun again (regroup); its nodes and
             their messages (sessions, node, events, refusals)
    session  one program per node, started by the head (session, session_folder, daemons,
             leftovers)
    rank     parent of one process, reports through the session (rank, channel); mpirun starts and ends only
             a process that waits for it (placeholder)
    serve    a node that runs what the head asks for, until it reports how the job ended (serve)
    tuner    DeepSpeed's autotuner in place of mpirun (tuner)

The nodes join the head over `launcher.remote`, and mpirun starts its daemons through it.

`messages` has the messages between head, sessions and ranks.
"""
