"""Base of all other packages: the vocabulary, errors, frozen values, messages."""

import time

LOADED_S = time.monotonic()
"""When the launcher began, monotonic seconds. Its process may be older: a shell that became it."""
