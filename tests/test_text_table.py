from __future__ import annotations

from rewa.text_table import aligned


def test_columns_are_as_wide_as_their_widest_cell():
    text = aligned([("name", "count", "why"), ("a", "1,000", ""), ("longer", "2", "so")], "<><", rule=True)
    assert text.splitlines() == ["name    count  why", "------  -----  ---", "a       1,000", "longer      2  so"]
