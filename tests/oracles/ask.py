"""Ask one library who it is, in many environments: ``python -m tests.oracles.ask QUESTION PACKAGE``.

Reads a JSON list of environments; writes the answers, and the version of the package if it is installed.
One process for all of them, because importing the library costs seconds and asking it costs nothing.
What the library prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Answer = dict[str, Any]


def main(question: str, package: str) -> None:
    """Answer in every environment, from the same start."""
    environs: list[dict[str, str]] = json.load(sys.stdin)
    answers_to = os.dup(1)
    os.dup2(2, 1)  # what is printed below Python's own files as well
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    module = import_module(f"tests.oracles.questions.{question}")
    answers = [answer_in(environ, module) for environ in environs]
    with open(answers_to, "w") as file:
        json.dump({"version": _version(package), "answers": answers}, file)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def answer_in(environ: dict[str, str], module: Any) -> Answer:
    """Return what the library says in one environment, or how it fails there."""
    os.environ.clear()
    os.environ.update(environ)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            answer: Answer = module.answer()
        except (Exception, SystemExit) as error:
            text = " ".join(str(error).split()) or repr(error)
            return {"error": f"{type(error).__name__}: {text}"[:200]}
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # libraries leave threads and exit handlers that have nothing to do here
