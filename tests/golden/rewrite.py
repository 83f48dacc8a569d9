"""Write the golden documents and the example of a plan anew: ``python -m tests.golden.rewrite [CASE ...]``.

The only thing that writes them; tests never do. Prints what changed, which is then to be read.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

from tests.golden.jobs import EXPECTED, case_names, describe_case, render
from tests.golden.topologies import shown, topology_names
from tests.process.starting import ROOT

BLOCK = re.compile(r"^```json\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def main(names: list[str]) -> int:
    """Rewrite some cases and machines or all, drop documents without a case, print the difference."""
    changed = 0
    for name in [name for name in names or case_names() if name in case_names()]:
        changed += rewrite(EXPECTED / f"{name}.json", render(describe_case(name)) + "\n")
    for name in [name for name in names or topology_names() if name in topology_names()]:
        changed += sum(rewrite(path, text) for path, text in shown(name).items())
    for path in sorted(EXPECTED.glob("*.json")):
        if path.stem not in case_names():
            changed += 1
            path.unlink()
            print(f"dropped {path.stem}: no such case")
    changed += rewrite_example(Path(ROOT) / "docs")
    print(f"{changed} documents changed: read them before you commit them")
    return 0


def rewrite(path: Path, new: str) -> bool:
    """Write one document if it has changed, print the difference, return whether it has."""
    old = path.read_text() if path.exists() else ""
    if new == old:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(new)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), f"old/{path.name}", f"new/{path.name}", lineterm="", n=2
    )
    print("\n".join(lines) if old else f"new/{path.name}: {len(new.splitlines())} lines")
    return True


def rewrite_example(docs: Path) -> bool:
    """Write the plan that docs/plan-json.md shows: that of the snapshot in docs/snapshot.md."""
    recorded = BLOCK.search((docs / "snapshot.md").read_text())
    page = docs / "plan-json.md"
    shown = BLOCK.search(page.read_text())
    assert recorded and shown, "each page has its example"
    line = [
        *(sys.executable, "-m", "launcher", "plan", "--format", "json", "--replay", "/dev/stdin", "--"),
        "./train",
    ]
    plan = subprocess.run(line, input=recorded[1], capture_output=True, text=True, check=True).stdout
    old = page.read_text()
    return rewrite(page, old[: shown.start(1)] + plan + old[shown.end(1) :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
