"""``python -m launcher``."""

from launcher.cli.entry import run_and_exit

if __name__ == "__main__":
    run_and_exit()
