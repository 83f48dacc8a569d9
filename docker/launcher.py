# What /usr/local/bin/launcher runs: the package in lib/ beside it, and Python's own library. Nothing else.
import sys

sys.path.insert(0, "@DIR@/lib")

from launcher.cli.entry import run_and_exit

run_and_exit()
