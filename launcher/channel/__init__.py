"""Communication between launchers: sealed frames with the job's key, lines on local sockets, connections."""
