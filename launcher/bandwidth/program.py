"""Entry point ``python program.py``, for a Python that cannot import this package by its name."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from launcher.bandwidth.__main__ import main

    sys.exit(main(sys.argv[1:], os.environ))
