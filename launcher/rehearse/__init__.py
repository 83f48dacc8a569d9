"""Rehearsals: a job of several nodes on one machine, started as a platform would start it."""
