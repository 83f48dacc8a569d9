"""Flight recorder of PyTorch: which rank did not join which collective.

PyTorch keeps the last collectives of each process in a ring buffer. `variables` switches it on, `request` has
each rank write its buffer to a file, `reader` reads the files in a separate process, `facts` is the extracted
data, and `conclude` finds the rank that the others wait for.
"""
