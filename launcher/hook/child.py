"""Answers the hook of another Python in the launcher's own: ``python -I -S child.py COMMAND LINE``.

It inherits the environment of its caller and writes the answer to standard output, by `marshal` in a version
that all Pythons read. With ``--sh`` the caller is a shell, and the answer is shell text.
"""

from __future__ import annotations

import os
import signal
import sys

TIMEOUT_S = 20
"""Seconds after which this process is killed and the caller continues without an answer."""
MARSHAL_VERSION = 2


def main(words: list[str]) -> None:
    """Write the answer; SIGALRM kills the process if that takes too long."""
    signal.alarm(TIMEOUT_S)
    from launcher.hook.answer import answer
    from launcher.inprocess import has_other_rights

    if has_other_rights(os.environ):  # for a shell; a Python has checked this before
        return

    if words == ["--sh"]:
        from launcher.hook.shell import render_answer

        text, said = render_answer(answer((), 1), os.environ)
        sys.stderr.write(said)
        os.write(1, os.fsencode(text))
        return
    import marshal

    os.write(1, marshal.dumps(answer(words, 1), MARSHAL_VERSION))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1:])
