"""OpenSSH for jobs of several nodes: the keys, a server of one job, and a client that trusts only it.

Folders, files, command lines and words; what starts the processes is elsewhere.
"""
