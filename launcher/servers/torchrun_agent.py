"""Becomes torchrun's agent: ``python -m torch.distributed.run`` without the working directory on its path.

It runs as a file in the Python that has torch (``python torchrun_agent.py --nnodes=2 ...``). With ``-m``
Python searches the working directory first, and the agent would import a user's file called json.py. Workers
are separate processes: their import path does not change.

It needs Python 3.8 or newer, and imports nothing of the launcher.
"""

import os
import sys

if __name__ == "__main__":
    del sys.path[0]  # this directory: there is no torch in it
    # Python's own modules before those of PYTHONPATH
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))
    import runpy

    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
