"""Public libraries as oracles: each reads our environments with its own code, and says who it is.

`environments` has what every process of every recorded job gets from the launcher; `libraries` who is
asked; `questions/` how, one file per library, run by `ask` in a process of its own; `table` compares
the answers with the plans, and is docs/frameworks.md.
"""
