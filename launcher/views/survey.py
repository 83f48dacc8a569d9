"""``launcher topology``: reads a node's parts, plans a job on it, and renders both."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.core.errors import LauncherError, UsageError
from launcher.core.redact import redact
from launcher.machine.hardware import read_hardware
from launcher.machine.host import Host
from launcher.options.reading import Options
from launcher.planning.assignment import assign, find_visible
from launcher.planning.plan import plan_job
from launcher.views.topology import TopologyView, render_text
from launcher.views.topology_json import render_json


def take_view(host: Host, environ: Mapping[str, str], options: Options) -> TopologyView:
    """Return the parts of a node, and which of them each process of its plan has.

    If no job can be planned, the view has the parts alone and a note with the reason.

    Raises:
        UsageError: A flag or its variable is malformed.
    """
    hardware = read_hardware(host)
    visible = find_visible(environ, hardware)
    try:
        plan = plan_job(environ, host, options, ())
    except UsageError:
        raise
    except LauncherError as error:
        problems = [f"no ranks are shown: {redact(problem.what)}" for problem in error.problems]
        return TopologyView(hardware, visible, notes=tuple(problems))
    if not plan.processes:
        note = "no ranks are shown: ranks are assigned when the processes start"
        return TopologyView(hardware, visible, notes=(note,))
    each = int(options.number("gpus_per_process", 1))
    return TopologyView(hardware, visible, assign(plan, environ, hardware, each))


def render(view: TopologyView, form: str) -> str:
    """Return a view as ``text`` or ``json``."""
    return {"text": render_text, "json": render_json}[form](view)
