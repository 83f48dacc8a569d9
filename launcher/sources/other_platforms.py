"""Platforms that have no source yet: not understood, but never taken for a single machine.

Source: each platform's documentation of its variables; see docs/extending.md for adding a source.
"""

from __future__ import annotations

from launcher.environ import Malformed, Reader, parse_int

COUNTS = (
    "PALS_SIZE",
    "JSM_NAMESPACE_SIZE",
    "LSB_DJOB_NUMPROC",
    "MV2_COMM_WORLD_SIZE",
    "DLTS_NUM_WORKER",
    "VC_WORKER_NUM",
    "JAX_NUM_PROCESSES",
    "GROUP_WORLD_SIZE",
)
FIX = "pass --nnodes N --node-rank R --master-addr HOST (no source reads this platform's variables)"


def read(reader: Reader) -> None:
    """A sign of several nodes or processes for each count above one."""
    for name in COUNTS:
        try:
            several = parse_int(reader.text(name) or "1") > 1
        except Malformed:
            several = True
        if several:
            reader.sign(name, FIX)
