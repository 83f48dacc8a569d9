"""OpenSSH for jobs of several nodes: the keys, an sshd of one job, and a client that trusts only that.

It prepares folders, files, command lines and messages. ssh and sshd themselves are started elsewhere.
"""
