"""Write the golden documents anew: ``python -m tests.golden.rewrite [CASE ...]``.

The only thing that writes them; tests never do. Prints what changed, which is then to be read.
"""

from __future__ import annotations

import difflib
import sys

from tests.golden.jobs import EXPECTED, case_names, describe_case, render


def main(names: list[str]) -> int:
    """Rewrite some cases or all, drop documents without a case, print the difference."""
    changed = 0
    for name in names or case_names():
        path = EXPECTED / f"{name}.json"
        old = path.read_text() if path.exists() else ""
        new = render(describe_case(name)) + "\n"
        if new == old:
            continue
        changed += 1
        path.write_text(new)
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), f"old/{name}", f"new/{name}", lineterm="", n=2
        )
        print("\n".join(lines) if old else f"new/{name}: {len(new.splitlines())} lines")
    for path in sorted(EXPECTED.glob("*.json")):
        if path.stem not in case_names():
            changed += 1
            path.unlink()
            print(f"dropped {path.stem}: no such case")
    print(f"{changed} documents changed: read them before you commit them")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
