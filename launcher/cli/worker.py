"""A worker of torchrun, from its first instruction on: it becomes ``launcher run``, and that the command.

Run as a file, isolated from the user's environment (``python -I -S worker.py run -- COMMAND``), so that
neither PYTHONPATH nor a ``launcher.py`` in the working directory stands in for this package.
``--own-threads``: OMP_NUM_THREADS was set by the launcher, for torchrun not to set 1; what this process
should have is found anew.
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

    sys.exit(main())
