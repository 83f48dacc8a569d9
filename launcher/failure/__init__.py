"""Why a process ended, what failed first, and how that is told."""
