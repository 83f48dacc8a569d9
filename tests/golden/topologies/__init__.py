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

from launcher.options.reading import read_options
from launcher.planning.recorded import replay
from launcher.views.topology import TopologyView, render, take_view
from tests.golden.jobs import VERSION
from tests.golden.jobs import render as lay_out

HERE = Path(__file__).parent
SUFFIX = ".snapshot.json"

Json = dict[str, Any]


def topology_names() -> list[str]:
    """Return the names of all machines, sorted."""
    return sorted(path.name.removesuffix(SUFFIX) for path in HERE.glob(f"*{SUFFIX}"))


def read_topology(name: str) -> Json:
    """Return the snapshot of one machine."""
    snapshot: Json = json.loads((HERE / f"{name}{SUFFIX}").read_text())
    return snapshot


def view_snapshot(snapshot: Mapping[str, object], **typed: str) -> TopologyView:
    """Return what ``launcher topology --replay`` looks at."""
    host = replay(snapshot)
    return take_view(host, host.environ, read_options(typed, host.environ))


def shown(name: str) -> dict[Path, str]:
    """Return the text of each file of a machine: what the program prints now, JSON in our layout."""
    view = view_snapshot(read_topology(name))
    document = {**json.loads(render(view, "json")), "launcher": VERSION}
    return {HERE / f"{name}.txt": render(view, "text"), HERE / f"{name}.json": lay_out(document) + "\n"}
