"""Rehearsals: jobs of several simulated nodes on one machine, started as a platform would start them."""
