"""The words of messages: names that do not exist and the nearest that do, and what others say as plain text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

__all__ = ["close", "nearest", "nearest_setting", "plain"]

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


def close(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.4) -> list[str]:
    """The names that are most like another, whatever their case, the most alike first.

    Args:
        name: The name.
        known: The names there are.
        count: Most to return.
        cutoff: How alike they must be, between 0 and 1.

    Example:
        >>> close("k", ["K", "M"]), close("head", ["head.weight", "head.bias", "K"], count=2)
        (['K'], ['head.bias', 'head.weight'])
    """
    lowered = {one.lower(): one for one in known}
    return [lowered[one] for one in difflib.get_close_matches(name.lower(), lowered, count, cutoff)]


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
    known = list(known)
    hint = "".join(f"; did you mean {one!r}?" for one in close(name, known))
    return f"there is no {what} {name!r}{hint} ({', '.join(known)})"


def nearest_setting(key: str, known: Iterable[str]) -> str | None:
    """The setting that a key was meant to be, if it is none but nearly.

    Args:
        key: The key as it was written.
        known: The settings there are.

    Example:
        >>> nearest_setting("k", ["K", "M"]), nearest_setting("K", ["K", "M"]), nearest_setting("lr_scale", ["lr"])
        ('K', None, None)
    """
    known = list(known)
    return None if key in known else next(iter(close(key, known, cutoff=0.85)), None)
