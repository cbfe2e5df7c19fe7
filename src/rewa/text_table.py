"""Tables in plain text: cells under each other."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["aligned"]


def aligned(rows: Sequence[Sequence[str]], sides: str, *, rule: bool = False) -> str:
    """The rows as lines in which each column is as wide as its widest cell.

    Args:
        rows: The cells, the heads of the columns first.
        sides: For each column ``"<"`` or ``">"``: on which side its cells begin or end.
        rule: Draw a line under the heads.

    Example:
        >>> print(aligned([("name", "size"), ("weight", "1,024"), ("bias", "2")], "<>"))
        name     size
        weight  1,024
        bias        2
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]
    if rule:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
