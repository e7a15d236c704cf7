"""Names of options: one that is not known is an error that says which was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


FSSPECS_OWN = frozenset({"listings_expiry_time", "max_paths", "use_listings_cache"})
"""What every file system of fsspec may be given; its directory cache takes it."""


def check_names(given: Iterable[str], known: Iterable[str], whose: str, else_where: str = "") -> None:
    """Raises TypeError where a name that was given is not known, as a call of Python's does.

    `whose`: whose options they are. `else_where`: what to do with an option of somebody else's.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            closest = difflib.get_close_matches(name, known, 1)
            meant = f"; did you mean `{closest[0]}`?" if closest else ";"
            there_are = f"{whose} has no option `{name}`{meant} There are: {', '.join(known)}"
            raise TypeError(there_are + (f". {else_where}" if else_where else ""))
