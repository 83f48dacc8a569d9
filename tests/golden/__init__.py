"""Whole jobs, from what each process saw to what the launcher plans for it, compared as documents."""
