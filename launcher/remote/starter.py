"""Node 0's launcher notifies its parent, ``--ssh``, that the job has started on all nodes."""

from __future__ import annotations

import os

from launcher.core.environ import OWN_JOB_ID
from launcher.core.signal import signal
from launcher.process.signal_file import send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STARTED = signal.SIGURG
"""Ignored by default: it does nothing to another parent."""


def tell_starter(environ: Mapping[str, str]) -> None:
    """Tell our parent that all nodes are here, if it is ``--ssh``; another one may be another user's."""
    if environ.get(OWN_JOB_ID) and os.getppid():
        send(os.getppid(), STARTED)
