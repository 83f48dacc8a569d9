"""``python -m cluster_launcher``: the launcher, also in a folder that has a ``launcher`` of its own."""

from cluster_launcher import load

if __name__ == "__main__":
    load()
    from launcher.__main__ import leave_folder

    leave_folder()
    from launcher.cli.entry import run_and_exit

    run_and_exit()
