"""How often is the first failure that a launcher names the right one? ``python -m benchmarks.truth --help``.

Real jobs on simulated nodes, in each of which one thing goes wrong that is known (``faults.txt``). The same
jobs with the same victims run under each launcher. `judge` says what of its verdict is right.
"""
