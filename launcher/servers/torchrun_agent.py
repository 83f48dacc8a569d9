"""Become torchrun's agent: ``python -m torch.distributed.run``, but for modules of the working directory.

Run as a file by the Python that has torch (``python torchrun_agent.py --nnodes=2 ...``). With ``-m`` Python
looks in the working directory first, where a file of the user's called json.py would be the agent's. Workers
are processes of their own, which find what they would find in any case.

Python 3.8 and newer; nothing of the launcher is imported.
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder: there is no torch in it
    import runpy

    runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)
