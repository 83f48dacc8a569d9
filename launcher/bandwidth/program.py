"""Entry point ``python program.py``, for a Python that cannot import this package by its name."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __import__("launcher")
    del sys.path[0]
    # Python's own modules before those of PYTHONPATH
    home = os.path.dirname(os.__file__)
    sys.path.sort(key=lambda folder: folder != home and not folder.endswith("/lib-dynload"))
    from launcher.bandwidth.__main__ import main

    sys.exit(main(sys.argv[1:], os.environ))
