"""Runs torch's own analyser of flight recorders on the collected dumps, after all ranks have ended.

It is part of torch since 2.10 (``torchfrtrace``). By itself it loads pickles without any restriction, and
another user may have put one into the folder: so it gets a `pickle.load` that refuses what runs code, and
what another user owns. Copies of dumps that `launcher.recorder.dump` has refused have a name that it does not
look for.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess

from launcher.core.files import open_own, remove_file, replace_file
from launcher.machine.pythons import isolate
from launcher.recorder.reader import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MODULE = "torch.distributed.flight_recorder.fr_trace"
PROGRAM = f"""
import os, pickle, runpy, site, sys
# Behind all others: folders of the user, one of which may be the only one that has torch
sys.path += filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(":"))
if sys.prefix == sys.base_prefix:
    sys.path.append(site.getusersitepackages())
class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError("a dump names " + module + "." + name)
def load(file):
    if os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
        raise pickle.UnpicklingError("a dump of another user")
    return Plain(file).load()
pickle.load = load
runpy.run_module("{MODULE}", run_name="__main__", alter_sys=True)
"""
LIMIT_S = 20.0
"""Seconds that it may take: importing torch takes some of them."""
OUTPUT_BYTES = 1 << 20
NAME = "torchfrtrace.txt"


def analyse(python: str, environ: Mapping[str, str], folder: str, limit_s: float = LIMIT_S) -> str:
    """Write the analyser's text beside the dumps; return the path, empty if it cannot run.

    This blocks, for at most ``limit_s``.

    Args:
        python: The Python that has torch.
        environ: The environment of the ranks.
        folder: The folder with the dumps of all nodes that are there, at any depth.
        limit_s: Seconds that it may take.
    """
    path = os.path.join(folder, NAME)
    words = (os.path.abspath(folder), "-p", PREFIX, "--allow-incomplete-ranks")
    argv = isolate(shutil.which(python, path=environ.get("PATH")) or python, PROGRAM, *words)
    try:
        replace_file("", path, 0o600)
        fd = open_own(path, os.O_RDWR)
        try:
            ended = subprocess.run(
                argv,
                preexec_fn=_limit_output,
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                env=dict(environ),
                cwd="/",
                timeout=limit_s,
                check=False,
            )
            text = os.pread(fd, 4096, 0)
        finally:
            os.close(fd)
    except (OSError, subprocess.TimeoutExpired):
        return _remove(path)
    is_absent = ended.returncode and (b"No module named" in text or b"ModuleNotFoundError" in text)
    return _remove(path) if is_absent or not text.strip() else path


def _limit_output() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))


def _remove(path: str) -> str:
    with contextlib.suppress(OSError):
        remove_file(path)
    return ""
