"""How each library is asked: ``answer()`` calls the library's own code, and returns what that took.

An answer has what the library knows of: rank, world_size, local_rank, local_size, node_rank, node_count,
master_addr, master_port; and asks_mpi or starts_processes, where it would do that. Libraries are
imported by name, so that nobody has to check their types.
"""
