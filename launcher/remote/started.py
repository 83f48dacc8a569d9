"""Runs on a node that ``launcher run --ssh`` reaches: becomes its launcher, as standard input describes it.

Runs as ``python -I -S started.py``. The first line of standard input is JSON: the command line, the working
directory, and the variables of the job. The rest is nothing: the processes read an empty input.
"""

from __future__ import annotations

import json
import os
import sys

NOT_READY = 75
NO_EXEC = 126
"""As a shell has it: the launcher cannot run here, and node 0 must not wait for it."""


def main() -> int:
    """Become the launcher; return a status only if that fails."""
    line = sys.stdin.buffer.readline()
    if not line:
        return NOT_READY  # ssh has lost node 0
    told = json.loads(line)
    try:
        os.chdir(told["cwd"])
    except OSError as error:
        print(f"launcher: {os.uname().nodename}: {told['cwd']}: {error.strerror}", file=sys.stderr)
        return NO_EXEC
    else:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execve(told["argv"][0], told["argv"], {**os.environ, **told["environ"]})


if __name__ == "__main__":
    sys.exit(main())
