"""The launcher's own Python, asked by a hook in another one: ``python -I -S child.py COMMAND LINE``.

Works from the environment that it inherits, as its caller has it, and writes the answer to standard
output, by `marshal` in the form that all Pythons read. ``--sh`` is a shell that asks.
"""

from __future__ import annotations

import os
import signal
import sys

TIMEOUT_S = 20
"""Then this process is ended, and the caller goes on without an answer."""
MARSHAL_VERSION = 2


def main(words: list[str]) -> None:
    """Answer, or end by SIGALRM."""
    signal.alarm(TIMEOUT_S)
    from launcher.guest import has_other_rights
    from launcher.hook.answer import answer_for_parent

    if has_other_rights(os.environ):  # a shell that asks; a Python has looked before
        return

    if words == ["--sh"]:
        from launcher.hook.shell import render_answer

        text, said = render_answer(answer_for_parent(()), os.environ)
        sys.stderr.write(said)
        os.write(1, os.fsencode(text))
        return
    import marshal

    os.write(1, marshal.dumps(answer_for_parent(words), MARSHAL_VERSION))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(sys.argv[1:])
