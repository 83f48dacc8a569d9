"""The line that a Python runs when it starts. Without a job it only looks at the environment.

A ``.pth`` file in a directory that `site` reads contains the line. In a directory that only PYTHONPATH names
(``pip install --target``) the file is a ``sitecustomize.py``, which `site` imports. The look at the
environment loads no module: `os` has loaded `posix`, and `posix.environ` is a plain dictionary and so faster
than `os.environ`. One string holds all names, because that compiles faster. A broken or deleted launcher
causes no error in another program.

Source: docs.python.org, "site - Site-specific configuration hook".
"""

from __future__ import annotations

import os
import sys

from launcher.core.version import __version__
from launcher.inprocess import ERROR_FILE, STACKS_FILE
from launcher.sources import TABLE, rows, signs

PTH = "launcher_hook.pth"
CUSTOMIZE = "sitecustomize.py"
HEAD = "# The environment hook of launcher"
"""First words of each of our files; a file that begins otherwise is not ours."""
COUNTS = frozenset(row.count for row in rows.NODES if not row.processes)
"""Variables of platforms that describe a node completely; they are only signs if half of that is missing."""
WEAK = (
    "LAUNCHER_LAUNCHED",  # the process has all variables already
    "TORCHELASTIC_RUN_ID",  # the same, from torchrun
    "KUBERNETES_SERVICE_HOST",  # every pod
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES"),  # batch scripts too:
    *("SLURM_JOB_NUM_NODES", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_LOCALID"),
    *("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_GTIDS"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),  # a task has SLURM_STEP_ID
    "OMPI_MCA_orte_default_hostfile",  # the pod that runs mpirun
    *(
        "JOB_COMPLETION_INDEX",
        "NPROC_PER_NODE",
        "GPU_NUM_PER_NODE",
        "RUNAI_NUM_OF_GPUS",
    ),  # useless without others
    "VC_*",  # a pattern, which the line cannot look up; VC_TASK_INDEX matches it
    *(name for name in (*signs.MARKERS, *rows.NODE_MARKERS) if name not in COUNTS),  # hints only
)
"""Variables that select a source but do not start the hook: alone they do not show a process to configure."""
OWN = ("LAUNCHER_NNODES", "LAUNCHER_HOSTS", "LAUNCHER_HOSTFILE")
"""Variables of flags that make a job without a platform."""
MARKERS = tuple(
    dict.fromkeys(
        (
            *(name for row in TABLE for name in row.markers if name not in WEAK),
            *OWN,
            *(STACKS_FILE, ERROR_FILE),
        )
    )
)
_ENTER = """\
try:
 import _frozen_importlib_external as e
 g = {{"__name__": "launcher.hook.enter", "__file__": {file!r}}}
 exec(e.SourceFileLoader(g["__name__"], g["__file__"]).get_code(g["__name__"]), g)
 g["enter"]({python!r}, {tag!r})
except (Exception, SystemExit): pass
"""
_NEXT = """
def _run_the_next():
    # The sitecustomize that this one stands in front of
    import os, sys
    from _frozen_importlib_external import PathFinder
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        exec(spec.loader.get_code("sitecustomize"), {"__name__": "sitecustomize", "__file__": spec.origin})


_run_the_next()
"""


def enter_file() -> str:
    """Return the path of the file that the line runs."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "enter.py")


def render_line() -> str:
    """Return the line, for this launcher and the Python that runs it."""
    code = _ENTER.format(file=enter_file(), python=sys.executable, tag=sys.implementation.cache_tag)
    names = " ".join(MARKERS).encode()
    return f"import posix; any(map(posix.environ.get, {names!r}.split())) and exec({code!r}, {{}})"


def render_head() -> str:
    """Return the first lines of our file: its purpose and its launcher."""
    return f"{HEAD} {__version__}: docs/hook.md; launcher hook remove takes it away.\n# {enter_file()}\n"


def render_pth() -> str:
    """Return the whole ``.pth`` file."""
    return f"{render_head()}{render_line()}\n"


def render_customize() -> str:
    """Return the whole ``sitecustomize.py``: the line, and code that runs the next ``sitecustomize``."""
    return f"{render_head()}{render_line()}\n{_NEXT}"
