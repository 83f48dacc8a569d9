"""Limits of asking ranks that hang: seconds, bytes and numbers, in one place.

A rank may have written anything, a node may answer anything, and what is asked may never answer.
"""

from __future__ import annotations

# --- seconds

BEFORE_STOP_S = 1.0
"""Maximum for which the end of processes waits for their answers."""
HANG_S = 2.5
"""Maximum for the answers of processes that hang; nothing waits for them."""
DUMP_HANG_S = 20.0
"""Maximum for the flight recorders of ranks that hang; gloo's needs 5 s and more on busy CPUs."""
LOOK_S = DUMP_HANG_S + 1.0
"""Time that all nodes have to answer node 0."""
REST_S = 3.0
"""Maximum for dumps of ranks that have ended."""
READ_SHARE_S = 0.3
"""Part of a limit that is for reading dumps, after the processes have written them."""
FRESH_S = 10.0
"""Age up to which answers are not asked for again."""
STEP_S = 0.005
"""Time between two steps of an `Inquiry`, and for which one step looks at processes."""
SIGNAL_S = 2.0
"""Time that a process has to write its stacks after the signal."""
YOUNG_S = 0.5
"""Age from which the child of a process that is asked is asked, too: a younger one may be about to become
another program, which the signal would end."""
PY_SPY_S = 10.0
"""Time that one run of py-spy has; after as many seconds no further run is started."""
DUMP_S = 3.0
"""Time in which a rank must have dumped: torch looks at its pipe once a second."""
SETTLE_S = 0.1
"""A dump that ends as one, and has not grown for so long, is complete."""
READER_S = 10.0
"""Time that the reader has for all dumps."""

# --- what is asked

RUNS_MAX = 4
"""Maximum number of py-spy runs at a time, and of readers of dumps."""
FAMILY_MAX = 256
"""Maximum number of processes per rank."""
DUMPS_MAX = 256
"""Maximum number of ranks of a node that are asked for dumps."""
DUMP_BYTES, COPIES_BYTES = 64 << 20, 256 << 20
"""Largest dump that is read, and largest sum of the copies of one node."""
READER_BYTES, READER_MEMORY_BYTES, READER_CPU_S = 8 << 20, 2 << 30, 20
"""Largest output of the reader, its memory and its CPU time."""

# --- what is read

FRAMES_MAX, THREADS_MAX = 100, 101
"""Limits for a stack and a process: faulthandler writes 100 of each, and a line if there are more threads."""
DUMPED_LINE_LENGTH = 12_000
"""Limit for a line of faulthandler: it writes at most 500 characters of a name, each as at most 10."""
C_NAME_LENGTH = 100
"""Limit for names of C functions: C++ templates have names of thousands of characters."""
WHY_LENGTH = 200
"""Limit for a reason from another program."""
ENTRIES_MAX, GROUPS_MAX, MEMBERS_MAX, DEPTH_MAX = 1 << 17, 64, 1 << 16, 8
"""Collectives and process groups of a dump, ranks of a group, and items of a list in an entry."""
ALL_MEMBERS_MAX = 1 << 17
"""Maximum number of members of all groups together: the ranks of a group come from a dump, as ``0-65535``."""
NUMBER_LIMIT = 1 << 62

# --- what is sent and shown

STACKS_BYTES = 1 << 19
"""Limit of packed stacks as JSON: half of a frame of the channel."""
TEXT_LENGTH = 400
"""Limit for a text of a stack or a dump, and for a line of a record."""
RANKS_MAX = 1024
"""Maximum number of ranks of a node whose stacks are sent if they are too long."""
LINES_MAX = 30
"""Maximum number of lines of a report; what is more is in the files with all stacks."""
