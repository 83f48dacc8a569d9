"""tools/mutate.py changes what it says, and restores it."""

from __future__ import annotations

import sys
from pathlib import Path

from tools import mutate

SOURCE = """
LIMIT_S = 2.5
TYPE_CHECKING = False

def wait(count: int = 1) -> bool:
    assert count > 3
    if count == 7 and LIMIT_S:
        raise ValueError(f"not {1 + 1}")
    return True
"""


def changes(tmp_path: Path) -> tuple[Path, list[mutate.Change]]:
    """Return a package of one module, and its changes."""
    path = tmp_path / "launcher" / "room" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return path, [*mutate.find_changes(path)]


def test_each_kind_of_change_is_found_and_none_in_messages(tmp_path: Path) -> None:
    path, found = changes(tmp_path)
    lines = SOURCE.splitlines()
    changed = set()
    for change in found:
        text = change.apply(path.read_bytes()).decode()
        compile(text, "changed", "exec")
        changed |= {new.strip() for old, new in zip(lines, text.splitlines(), strict=True) if old != new}
    assert changed == {
        *("LIMIT_S = 5.0", "def wait(count: int = 0) -> bool:", "if (count) != (7) and LIMIT_S:"),
        *("if count == 14 and LIMIT_S:", "if ((count == 7) or (LIMIT_S)):"),
        *("if (not (count == 7 and LIMIT_S)):", "return False"),
    }


def test_a_seed_gives_the_same_changes(tmp_path: Path) -> None:
    changes(tmp_path)
    one, again, other = (mutate.choose(["room"], seed, 4, tmp_path) for seed in (1, 1, 2))
    assert one == again != other and len(set(one)) == 4


def test_a_change_is_noticed_or_survives_and_is_undone(tmp_path: Path) -> None:
    path, found = changes(tmp_path)
    line = [sys.executable, "-c", f"import sys; sys.exit(open({str(path)!r}).read() != {SOURCE!r})"]
    assert mutate.try_change(found[0], path, [line]) == "status 1"
    assert mutate.try_change(found[0], path, [[sys.executable, "-c", ""]]) == ""
    assert path.read_text() == SOURCE
