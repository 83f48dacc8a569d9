"""A row is a value: a change gives another row, whatever the length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.job.row import BLOCK, FrozenRow


@given(st.integers(1, 3 * BLOCK), st.data())
def test_a_row_with_another_value_is_the_list_with_that_value(length: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, length - 1))
    before = FrozenRow(range(length))
    after = before.put(place, -1)
    expected = [*range(place), -1, *range(place + 1, length)]
    assert (list(before), list(after)) == (list(range(length)), expected)
    assert len(after) == length and after[place] == -1 and after == FrozenRow(expected) and after != before
