"""ssh for a command that calls ssh by itself: to the nodes of this job, and to no other key or port.

Runs as ``python -I -S reach.py FILE WORDS``, standard library only; WORDS are ssh's, as pdsh and DeepSpeed
write them. What is for this very node is run here: no sshd serves on node 0. FILE says how:
``{"ssh": [...], "own": [HOST, ...], "shell": PATH, "mark": [NAME, VALUE]}``.
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
"""ssh's, see ssh(1); 1 and 2 were its protocols, and pdsh still says 2."""


def plan(words: Sequence[str], told: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what to run for these words.

    Args:
        words: What ssh was called with.
        told: What the file says.
    """
    ssh = tuple(told["ssh"])
    try:
        found, rest = getopt.getopt(list(words), FLAGS)
    except getopt.GetoptError:  # ssh itself says what is wrong with them
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
