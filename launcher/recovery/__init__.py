"""Recovery: what happens after an attempt of the job has failed."""
