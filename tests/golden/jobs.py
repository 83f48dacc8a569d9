"""A case is a whole job: what each launcher in it sees. Here it is read, and planned.

``cases/<name>.json``::

    {"notes": ["recorded or from documentation: what, version, date", "what was added, and why"],
     "recording": "captured_openmpi-5.0.11_2x2/processes",
     "nodes": {"nodeA": {"addresses": {"eth0": ["10.77.0.4"]}, "gpus": 4}},
     "environ": {"NAME": "set in every process"},
     "without": ["OMPI_*"],
     "replace": {"<placeholder>": "what it stands for in this case"},
     "options": {"master_addr": "10.77.0.4"},
     "command": ["train.py"],
     "processes": [{"node": "nodeA", "recording": "captured_openmpi-5.0.11_2x2/processes/0",
                    "environ": {}, "options": {}}]}

``recording`` is a file in ``recordings/`` and the way to an environment inside of it; at the top of
a case it names a list of them, one process each. Fields of a node are those of a snapshot
(`launcher.planning.snapshot`), and so is everything in a process but ``node`` and ``recording``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import launcher
from launcher import __version__
from launcher.core.errors import LauncherError
from launcher.core.model import Plan
from launcher.engines.torchrun import AGENT, WORKER
from launcher.sources.launched import MARKER
from launcher.views.plan_json import describe

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
CASES = HERE / "cases"
EXPECTED = HERE / "expected"
COMMAND = ["train.py", "--epochs", "3"]
PYTHON = "python"
VERSION = "<version>"
OWN_PYTHON = "<the launcher's Python>"
WIDTH = 116

Json = dict[str, Any]


def case_names() -> list[str]:
    """Return the names of all cases, sorted."""
    return sorted(path.stem for path in CASES.glob("*.json"))


def recording_names() -> list[str]:
    """Return the names of all recordings, sorted."""
    return sorted(path.stem for path in RECORDINGS.glob("*.json"))


def read_case(name: str) -> Json:
    """Return one case as written."""
    case: Json = json.loads((CASES / f"{name}.json").read_text())
    return case


def references(case: Json) -> Iterator[str]:
    """Yield which recorded environment each process of a case comes from, "" for none."""
    path = case.get("recording")
    if path is not None:
        for place in range(len(_look_up(path))):
            yield f"{path}/{place}"
        return
    for process in case["processes"]:
        yield process.get("recording", "")


def snapshots(case: Json) -> list[Json]:
    """Return what each process of a job sees, in the form of a snapshot file."""
    additions = case.get("processes") or [{} for _ in references(case)]
    pairs = zip(references(case), additions, strict=True)
    return [_snapshot(case, path, process) for path, process in pairs]


def _snapshot(case: Json, path: str, process: Json) -> Json:
    recorded = _look_up(path) if path else {}
    names = [source[key] for source in (process, recorded) for key in ("node", "pod") if key in source]
    node = str(names[0]) if names else "node"
    # Machine-dependent parts end here: the name of the Python that runs scripts is always the same.
    environ = {"PYTHON_EXEC": PYTHON, **_recorded_environ(recorded)}
    without = [*case.get("without", ()), *process.get("without", ())]
    environ = {n: v for n, v in environ.items() if not any(fnmatchcase(n, pattern) for pattern in without)}
    for old, new in case.get("replace", {}).items():
        environ = {name: value.replace(old, new) for name, value in environ.items()}
    environ |= {**case.get("environ", {}), **process.get("environ", {})}
    blanks = [f"{name}={value}" for name, value in environ.items() if "<" in value]
    assert not blanks, f"placeholders of the documentation are left: {blanks}"
    fields = {key: value for key, value in process.items() if key not in ("recording", "without", "options")}
    ancestors = [recorded["parent_cmdline"]] if "parent_cmdline" in recorded else []
    known = case.get("nodes", {}).get(node, {})
    return {"hostname": node, "ancestors": ancestors, **known, **fields, "environ": environ}


def read_recorded(path: str) -> dict[str, str]:
    """Return one recorded environment, as `recorded_environments` names it."""
    return _recorded_environ(_look_up(path))


def _recorded_environ(recorded: Json) -> dict[str, str]:
    if "env" in recorded:
        return dict(recorded["env"])
    # Some documentation recordings hold variables and remarks side by side; remarks are lower-case
    return {name: value for name, value in recorded.items() if name[:1].isupper()}


def _look_up(path: str) -> Any:
    file, *steps = path.split("/")
    found = _read_recording(file)
    for step in steps:
        found = found[int(step)] if isinstance(found, list) else found[step]
    return found


@cache
def _read_recording(file: str) -> Any:
    return json.loads((RECORDINGS / f"{file}.json").read_text())


def recorded_environments(name: str) -> list[str]:
    """Return the paths of all environments in a recording."""
    return list(_walk(name, _look_up(name)))


def _walk(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _walk(f"{path}/{place}", item)
    elif isinstance(value, dict):
        if "env" in value or any(name.isupper() or name.startswith("OMPI_") for name in value):
            yield path
            return
        for key, item in value.items():
            yield from _walk(f"{path}/{key}", item)


def plan_snapshot(case: Json, place: int, snapshot: Json) -> tuple[Plan, Mapping[str, str]]:
    """Plan one process of a job, as ``launcher plan --replay`` does; return its environment too.

    Raises:
        LauncherError: The launcher refuses.
    """
    own = case["processes"][place].get("options", {}) if "processes" in case else {}
    argv = [*words({**case.get("options", {}), **own}), "--", *case.get("command", COMMAND)]
    return launcher.plan(argv, snapshot["environ"], snapshot.get("files", {}), snapshot), snapshot["environ"]


def words(options: Mapping[str, str | bool]) -> list[str]:
    """Return options as a user types them."""
    typed = [(name.replace("_", "-"), value) for name, value in options.items()]
    switches = [f"--{'' if value else 'no-'}{name}" for name, value in typed if isinstance(value, bool)]
    return [*switches, *(f"--{name}={value}" for name, value in typed if isinstance(value, str))]


@cache
def plan_case(name: str) -> tuple[Plan | LauncherError, ...]:
    """Return what the launcher plans, or why it refuses, for every process of a job."""
    case = read_case(name)
    outcomes: list[Plan | LauncherError] = []
    for place, snapshot in enumerate(snapshots(case)):
        try:
            outcomes.append(plan_snapshot(case, place, snapshot)[0])
        except LauncherError as error:
            outcomes.append(error)
    return tuple(outcomes)


def describe_case(name: str) -> Json:
    """Return the golden document of a case: its first process, and how the others differ.

    A plan is that of ``launcher plan --format json``; of its processes, too, the others are what differs.
    """
    case = read_case(name)
    first, *others = [_describe(case, place, snapshot) for place, snapshot in enumerate(snapshots(case))]
    return {"processes": [first, *(compare(first, other) for other in others)]}


def compare(first: Json, other: Json) -> Json:
    """Return what differs in another plan, by its path; settings are found by their names.

    Any two plans that differ have other documents: what is absent and another order of settings show too.
    """
    old, new = dict(_flatten(first)), dict(_flatten(other))
    found = {path: value for path, value in new.items() if path not in old or old[path] != value}
    if absent := [path for path in old if path not in new]:
        found["without"] = absent
    if [path for path in old if path in new] != [path for path in new if path in old]:
        found["order"] = list(new)
    return found


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a plan with their paths: all but objects, and lists of objects with a name each."""
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value):
        items = ((item["name"], {key: item[key] for key in item if key != "name"}) for item in value)
    items = [(f"{path}.{key}" if path else key, item) for key, item in items]
    if len({key for key, _ in items}) < max(1, len(items)):  # a leaf, an empty one, or a name twice
        yield path, value
        return
    for key, item in items:
        yield from _flatten(item, key)


def _describe(case: Json, place: int, snapshot: Json) -> Json:
    try:
        plan, environ = plan_snapshot(case, place, snapshot)
    except LauncherError as error:
        return {"status": error.exit_status, "problems": [dict(vars(p)) for p in error.problems]}
    document = json.loads(json.dumps(describe(plan, environ)))
    assert document["launcher"] == __version__
    document["launcher"] = VERSION
    if document["agent"]:
        document["agent"]["argv"] = [_anywhere(word) for word in document["agent"]["argv"]]
    for setting in document["settings"]:
        if setting["name"] == MARKER:
            setting["value"] = VERSION
    for key in ("processes", "companions"):
        if several := document.get(key):
            document[key] = [several[0], *(compare(several[0], other) for other in several[1:])]
    return {str(key): value for key, value in document.items()}


def _anywhere(word: str) -> str:
    """Return a word of a command line as it would be on every machine."""
    return {sys.executable: OWN_PYTHON, WORKER: "<worker.py>", AGENT: "<torchrun_agent.py>"}.get(word, word)


def read_expected(name: str) -> Json:
    """Return the golden document as it stands; a missing one is a failure, not an occasion."""
    expected: Json = json.loads((EXPECTED / f"{name}.json").read_text())
    return expected


def render(value: Any, indent: str = "", room: int = WIDTH) -> str:
    """Return JSON text with everything on one line that fits there: made to be read and compared."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + len(indent) <= room or not isinstance(value, (dict, list)) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, list):
        lines = [inner + render(item, inner, WIDTH - 1) for item in value]
    else:
        keys = [json.dumps(key) + ": " for key in value]
        lines = [
            inner + key + render(item, inner, WIDTH - 1 - len(key))
            for key, item in zip(keys, value.values(), strict=True)
        ]
    opening, closing = ("[", "]") if isinstance(value, list) else ("{", "}")
    return opening + "\n" + ",\n".join(lines) + "\n" + indent + closing
