"""ssh for a command that calls ssh itself: uses the job's configuration, with its key and port.

Runs as ``python -I -S reach.py FILE WORDS``, with the standard library only. WORDS are arguments of ssh, as
pdsh and DeepSpeed write them. A command for this node is run here without ssh: no sshd serves on node 0. FILE
has the configuration: ``{"ssh": [...], "own": [HOST, ...], "shell": PATH, "mark": [NAME, VALUE]}``.
"""

from __future__ import annotations

import getopt
import json
import os
import shlex
import sys
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLAGS = "46AaCfGgKkMNnqsTtVvXxYy12B:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
"""Options of ssh, see ssh(1). 1 and 2 once chose the protocol; pdsh still passes -2."""


def plan(words: Sequence[str], told: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command line to run for these words.

    Args:
        words: The arguments of ssh.
        told: The contents of FILE.
    """
    ssh = tuple(told["ssh"])
    try:
        found, rest = getopt.getopt(list(words), FLAGS)
    except getopt.GetoptError:  # ssh itself reports what is wrong
        return (*ssh, *words)
    if len(rest) < 2:
        return (*ssh, *words)
    host, *command = rest
    if host.rpartition("@")[2] in told["own"]:
        return (told["shell"], "-c", " ".join(command))
    name, value = told["mark"]
    flags = (word for flag, text in found for word in (flag, text) if word)
    return (*ssh, *flags, host, f"export {name}={shlex.quote(value)}; {' '.join(command)}")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        line = plan(sys.argv[2:], json.load(file))
    os.execvp(line[0], line)
