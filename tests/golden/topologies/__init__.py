"""Machines as snapshots, and what ``launcher topology`` shows of each.

``<name>.snapshot.json`` is a snapshot (`launcher.planning.snapshot`) with notes on where it comes from;
beside it stand ``<name>.txt`` and ``<name>.json``, which a person has read. They are written by ``python -m
tests.golden.rewrite`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher import __version__
from launcher.options.reading import read_options
from launcher.planning.recorded import RecordedHost
from launcher.views.survey import render, take_view
from launcher.views.topology import View

HERE = Path(__file__).parent
FORMS = {"txt": "text", "json": "json"}
SUFFIX = ".snapshot.json"

Json = dict[str, Any]


def topology_names() -> list[str]:
    """Return the names of all machines, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in HERE.glob(f"*{SUFFIX}"))


def read_topology(name: str) -> Json:
    """Return the snapshot of one machine."""
    snapshot: Json = json.loads((HERE / f"{name}{SUFFIX}").read_text())
    return snapshot


def view_snapshot(snapshot: Mapping[str, object], **typed: str) -> View:
    """Return what ``launcher topology --replay`` looks at."""
    host = RecordedHost(snapshot)
    return take_view(host, host.environ, read_options(typed, host.environ))


def shown(name: str) -> dict[Path, str]:
    """Return the text of each file that belongs to a machine, as the program writes it now."""
    view = view_snapshot(read_topology(name))
    texts = {HERE / f"{name}.{suffix}": render(view, form) for suffix, form in FORMS.items()}
    version = f'"launcher": "{__version__}"'
    return {path: text.replace(version, '"launcher": "<version>"') for path, text in texts.items()}
