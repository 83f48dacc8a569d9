"""Every test in this folder is held to leave no process behind."""

from tests.leftovers import no_process_is_left

__all__ = ["no_process_is_left"]
