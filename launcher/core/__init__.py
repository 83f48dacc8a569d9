"""Base of all other packages: the vocabulary, errors, frozen values, messages.

Half of it is what must not fail anywhere: redaction, which follows a value to its end through quotes, lists
and blocks in linear time; files, which are the only place that writes; messages, which check what they get.
"""

import time

LOADED_S = time.monotonic()
"""When the launcher began, monotonic seconds. Its process may be older: a shell that became it."""
