"""Check of option names. The error for an unknown name suggests the closest one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


FSSPECS_OWN = frozenset({"listings_expiry_time", "max_paths", "use_listings_cache"})
"""Options of fsspec's directory cache, accepted by every file system of fsspec."""


def check_names(given: Iterable[str], known: Iterable[str], whose: str, else_where: str = "") -> None:
    """Raises TypeError for an unknown name, as a Python call does.

    `whose`: owner of the options, for the message. `else_where`: advice for another owner's options.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            closest = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean `{closest[0]}`?" if closest else ";"
            there_are = f"{whose} has no option `{name}`{meant} There are: {', '.join(known)}"
            raise TypeError(there_are + (f". {else_where}" if else_where else ""))
