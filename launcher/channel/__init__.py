"""How launchers talk: frames that are sealed with the job's key, lines on a local socket, connections."""
