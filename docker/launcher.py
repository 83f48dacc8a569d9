# What /usr/local/bin/launcher runs: the package beside this file, and the Python's own library. Nothing else.
import sys

sys.path.insert(0, "/opt/launcher/lib")

from launcher.cli.entry import run_and_exit

run_and_exit()
