"""Flight recorder of PyTorch: which rank did not join which collective.

PyTorch keeps the last collectives of each process in a ring buffer. `variables` switches it on, `request` has
each rank write its buffer to a file, `reader` reads the files in a process of its own, `facts` are what is
kept of them, and `conclude` says from the facts of all ranks which rank the others wait for.
"""
