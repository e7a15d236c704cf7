"""Check of option names. The error for an unknown name suggests the closest one."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any


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


def check_client(client: Any, scheme: str, own_schemes: Iterable[str]) -> None:
    """Raises ValueError for a client that does not exist, or that does not open names of this scheme.

    `scheme`: empty for a local path. `own_schemes`: the ones of objects that the client `readpath` opens.
    """
    if client not in (None, "fsspec", "readpath"):
        raise ValueError(f"client={client!r}: the client of a URL is readpath or fsspec")
    known = sorted({*own_schemes, "nfs"})
    if client == "readpath" and scheme not in known:
        raise ValueError(f"client='readpath' opens URLs with {', '.join(known)}; leave client out")
    if client == "fsspec" and scheme in ("", "nfs"):
        raise ValueError("client='fsspec' opens URLs other than nfs://…, and no local files; leave client out")


OF_OBJECTS = ("request", "retries", "storage_options", "disk", "disk_size")
"""Options of `ReadPath` for the URLs of objects alone."""

OF_DEVICES = ("backend", "kernel_cache")
"""Options of `ReadPath` for local files and devices alone."""


def check_effects(options: Mapping[str, Any], scheme: str, is_object: bool) -> None:
    """Raises ValueError for options of `readpath.open` without effect at a file that fsspec does not open.

    `scheme`: of the file's URL, empty for a local path. `is_object`: the URL is the one of an object.
    """
    if not is_object and (unused := [name for name in OF_OBJECTS if options.get(name) is not None]):
        raise ValueError(f"{', '.join(unused)}: only objects by URL (https, s3, …) have this option; leave it out")
    if scheme and (unused := [name for name in OF_DEVICES if options.get(name) is not None]):
        raise ValueError(f"{', '.join(unused)}: only local files have this option; leave it out")
    if options.get("keep_files"):
        remedy = "give client='fsspec' too" if is_object else "open the files by one `ReadPath(keep_files=…)`"
        raise ValueError(f"keep_files: the read path of this file ends when it is closed; {remedy}")


OLD_NAMES = {"reclaim": "eviction"}
"""Old names of options, accepted for one release, and the present ones."""


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warns of an old name. The default `stacklevel` warns the caller of the function that calls this one."""
    message = f"{old} is now {new}; the old name ends with the next release"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def present_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with their present names; warns of old ones.

    Raises TypeError for an option that is given by both names.
    """
    present = dict(options)
    for old, new in OLD_NAMES.items():
        if old in present:
            warn_renamed(f"option {old}", new, 4)
            if present.get(new) is not None:
                raise TypeError(f"options {old} and {new}: they are one; give {new} alone")
            present[new] = present.pop(old)
    return present
