"""Start the launcher as a user does: a real process with a small, clean environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.leftovers import MARK

DEADLINE_S = 60.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def clean_environ(**variables: str) -> dict[str, str]:
    """Return PATH, HOME and the variables given: nothing that the test machine happens to set.

    Some images have the libraries of their GPU's driver in LD_LIBRARY_PATH only.
    """
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", MARK)
    base = {name: os.environ[name] for name in kept if name in os.environ}
    return {**base, "PYTHONPATH": ROOT, **variables}


def launch(
    *words: str,
    environ: Mapping[str, str] | None = None,
    interpreter: Sequence[str] = (sys.executable,),
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``launcher WORDS`` to its end."""
    return subprocess.run(
        [*interpreter, "-m", "launcher", *words],
        env=clean_environ(**(environ or {})),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        pass_fds=pass_fds,
        check=False,
    )


def open_launcher(
    *words: str, environ: Mapping[str, str] | None = None, folder: str | None = None
) -> subprocess.Popen[str]:
    """Start ``launcher WORDS`` with a pipe on its standard output, in a process group of its own.

    Args:
        words: Its arguments.
        environ: Variables beside those of `clean_environ`.
        folder: Working directory, which has the package to start if it has one of this name.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *words],
        env=clean_environ(**(environ or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=folder,
    )
