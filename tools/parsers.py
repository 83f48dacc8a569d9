"""Finds the argument parsers of all commands, for the pages, man page and completions made from them."""

from __future__ import annotations

import argparse
from unittest import mock

from launcher.cli.main import dispatch


class Built(Exception):
    """Carries a parser out of a command as soon as the parser is complete."""


def find_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser that a command builds, at the moment when it would use it."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Built(parser)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            dispatch([name, "--help"], {})  # what every command leaves to argparse
        except Built as built:
            parser: argparse.ArgumentParser = built.args[0]
            return parser
    raise ValueError(f"launcher {name} parses no arguments")
