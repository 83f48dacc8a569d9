"""The proof on a GPU, ``tools/gpu.sh``, where there is none; and its parts that compare."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.machine.gpus import list_minors
from launcher.machine.host import Host
from tests.process.starting import ROOT, clean_environ
from tests.unit.recorded_dumps import make_dump, make_entry


@pytest.mark.skipif(bool(list_minors(Host())), reason="there is a GPU: it would run for minutes")
def test_without_a_gpu_parts_are_skipped_by_name(tmp_path: Path) -> None:
    """The machine is looked at all the same; the status is 0."""
    line = ("bash", "tools/gpu.sh", str(tmp_path), "--only", "facts", "machine", "failures.endless")
    environ = clean_environ(PYTHON=sys.executable)
    done = subprocess.run(
        line, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert {name: part["result"] for name, part in parts.items()} == {
        "machine.collect": "ok",
        "facts.compare": "skipped",
        "failures.endless": "skipped",
    }
    assert done.stdout.count("no NVIDIA GPU") == 2
    assert (tmp_path / "logs.tar.gz").stat().st_size > 1000


def test_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict, the lines of pytest, and a dump with a second rank that is made up."""
    monkeypatch.syspath_prepend(f"{ROOT}/tools/gpu")
    failures, suite, recorder = map(importlib.import_module, ("failures", "suite", "recorder"))
    first = {"code": "cuda-out-of-memory", "fix": "a smaller batch, ..."}
    record = {"causes": [first], "retryable": False, "rank": 0}
    assert all(right == seen for _, right, seen in failures.judge(record, failures.MEMORY))
    wrong = failures.judge({**record, "rank": 1, "retryable": None}, failures.FAULT)
    assert [seen for _, _, seen in wrong] == ["cuda-out-of-memory", None, first["fix"], 1]
    assert failures.judge({}, failures.FAULT)[1] == ("retry", False, "no record")
    lines = "[gw0] [ 5%] PASSED tests/a.py::test_x[y] \ntests/a.py::test_z SKIPPED (why) [ 9%]\nPASSED\n"
    assert suite.read_outcomes(lines) == {"tests/a.py::test_x[y]": "PASSED", "tests/a.py::test_z": "SKIPPED"}
    entries = [make_entry(number) for number in (1, 2, 3)] + [make_entry(4, state="scheduled")]
    dump = pickle.loads(pickle.dumps(make_dump(entries, {"0": ("default_pg", [0])})))
    (found, *_) = recorder.conclude_with_absent(dump)
    assert found.startswith("rank 1 never joined all_reduce number 4"), found
