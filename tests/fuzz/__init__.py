"""Fuzzers: one module for each subject, an engine for all, and what they have found in ``corpus/SUBJECT/``.

A subject has ``seeds()``, the cases to begin with; ``mutate(case, other, dice)``, a new case from two known
ones; and ``try_one(case)``, which returns in a few words what came of one and raises if a promise is broken.

    make fuzz                                       all subjects, ten minutes each
    python -m tests.fuzz hostfiles --seconds 60     one of them
"""
