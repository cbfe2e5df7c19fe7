"""The words of messages: names that do not exist and the nearest that do, and what others say as plain text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["nearest", "nearest_setting", "plain"]

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # by which a terminal is told colours and moves


def plain(text: str) -> str:
    r"""A message of another library in one line and without colours, which some write whatever they write to.

    Args:
        text: The message.

    Example:
        >>> plain("\x1b[31mtwo\x1b[0m\n  lines")
        'two lines'
    """
    return " ".join(ESCAPE.sub("", text).split())


def nearest(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist.

    Args:
        what: What it should have named.
        name: The name.
        known: The names there are.

    Example:
        >>> nearest("recipe", "digit", ["digits", "cifar10-cpu"])
        "there is no recipe 'digit'; did you mean 'digits'? (digits, cifar10-cpu)"
    """
    lowered = {one.lower(): one for one in known}
    close = [lowered[one] for one in difflib.get_close_matches(name.lower(), lowered, 1, 0.4)]
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"there is no {what} {name!r}{hint} ({', '.join(lowered.values())})"


def nearest_setting(key: str, known: Iterable[str]) -> str | None:
    """The setting that a key was meant to be, if it is none but nearly.

    Args:
        key: The key as it was written.
        known: The settings there are.

    Example:
        >>> nearest_setting("k", ["K", "M"]), nearest_setting("K", ["K", "M"]), nearest_setting("lr_scale", ["lr"])
        ('K', None, None)
    """
    lowered = {one.lower(): one for one in known}
    close = [] if key in lowered.values() else difflib.get_close_matches(key.lower(), lowered, 1, 0.85)
    return lowered[close[0]] if close else None
