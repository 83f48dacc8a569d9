"""Inputs made at random: each module has `run(seconds, seed)`, for tests, CI and longer runs by hand."""
