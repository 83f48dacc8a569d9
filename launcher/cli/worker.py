"""First program of a torchrun worker: runs ``launcher run``, which execs the command.

It runs as a file, isolated from the user's environment (``python -I -S worker.py run -- COMMAND``), so that
neither PYTHONPATH nor a ``launcher.py`` in the working directory shadows this package.
``--own-threads``: the launcher has set OMP_NUM_THREADS to keep torchrun from setting 1. The worker unsets
it, and the plan of this process sets the right value. The launcher that stays as torchrun's parent counts the
starts of workers: see `launcher.output.folder`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if sys.argv[1:2] == ["--own-threads"]:
        del sys.argv[1]
        os.environ.pop("OMP_NUM_THREADS", None)
    from launcher.cli.entry import main
    from launcher.output.folder import note_start

    note_start(os.environ)

    sys.exit(main())
